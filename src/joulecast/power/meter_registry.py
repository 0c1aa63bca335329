"""The registry of meters: every kind, by the name that the configuration uses."""

from joulecast.power import estimated, nvml, rapl
from joulecast.power.meters import Opener

METERS: dict[str, Opener] = {
    "nvml": nvml.open_meters,
    "rapl": rapl.open_meters,
    "estimated": estimated.open_meters,
}
"""What opens the meters of a kind; raises :class:`~joulecast.power.meters.MeterUnavailable`."""
