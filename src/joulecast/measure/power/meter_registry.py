"""The registry of meters: every kind, by the name that the configuration uses, the best one first.

The order decides which of two meters counts that cover the same (:func:`joulecast.runs.metering.metered`):
a counter of the machine itself before a command, a maker's library before the kernel's sensors, what is
measured before what is estimated.
"""

from joulecast.measure.power import (
    estimated,
    hwmon,
    pm_counters,
    site_command,
    slurm_energy,
    zeus_devices,
)
from joulecast.measure.power.meters import Opener

METERS: dict[str, Opener] = {
    "pm_counters": pm_counters.open_meters,
    "command": site_command.open_meters,
    "gpu": zeus_devices.open_gpus,
    "cpu": zeus_devices.open_cpus,
    "soc": zeus_devices.open_soc,
    "hwmon": hwmon.open_meters,
    "slurm": slurm_energy.open_meters,
    "estimated": estimated.open_meters,
}
"""What opens the meters of a kind; raises :class:`~joulecast.measure.power.meters.MeterUnavailable`."""

ALL_METERS = tuple(METERS)
"""All kinds, the best one first: what is tried where a user names none."""
