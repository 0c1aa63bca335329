"""The registry of meters: every kind, by the name that the configuration uses. The best kind comes
first.

If two meters cover the same part, the order decides which one counts
(:func:`joulecast.runs.meter_choice.metered`). A counter of the machine itself comes before a command. A
maker's library comes before the kernel's sensors. Measured values come before estimated ones.
"""

from joulecast.measure.power.command_meter import open_command
from joulecast.measure.power.estimated import open_estimates
from joulecast.measure.power.kernel_files import open_hwmon, open_pm_counters
from joulecast.measure.power.meters import Opener
from joulecast.measure.power.zeus_devices import open_cpus, open_gpus, open_soc

METERS: dict[str, Opener] = {
    "pm_counters": open_pm_counters,
    "command": open_command,
    "gpu": open_gpus,
    "cpu": open_cpus,
    "soc": open_soc,
    "hwmon": open_hwmon,
    "estimated": open_estimates,
}
"""For each kind, by its name: the function that opens the meters of this kind. If there are none, it raises
:class:`~joulecast.measure.power.meters.MeterUnavailable`."""

ALL_METERS = tuple(METERS)
"""Names of all kinds, the best kind first. If the user names no kind, all of these are tried."""
