"""Meters: what can be read, and why something cannot.

A meter belongs to a node and gives, on each read, joules counted since it was opened (counter
first), watts, or both. A read that fails raises :class:`ReadFailed` and is a missing value; it is
never 0. A meter that can no longer be believed raises :class:`MeterFailed`. A meter that is not there
raises :class:`MeterUnavailable` when it is opened, with the reason and the remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from joulecast.runs.covers import Covers


class MeterUnavailable(Exception):
    """The meter cannot be opened: why, and how to get it.

    ``elsewhere``: this is no machine for such a meter, or it was not set up, so that its absence is worth a
    line only to those who ask for all meters.
    """

    def __init__(self, reason: str, remedy: str, *, elsewhere: bool = False) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy, self.elsewhere = reason, remedy, elsewhere


class ReadFailed(Exception):
    """One read gave nothing; the next one may."""


class MeterFailed(ReadFailed):
    """The meter cannot be believed for the rest of the run: why."""


class NothingNew(ReadFailed):
    """The meter has no reading that was not given before; it is slower than its reader, and not at fault."""


class Reading(NamedTuple):
    """Watts now and joules since the meter was opened; ``None`` for what the meter does not give.

    ``at_s`` is when it was taken, on the monotonic clock; ``None``: when it was asked for.
    """

    watts: float | None
    joules: float | None
    at_s: float | None = None


READING = ("t_s", "watts", "joules")
"""Columns of a meter's readings."""


class Meter(Protocol):
    """One meter of one node.

    ``identity`` names the device that is read, the same whichever container of a machine reads it;
    ``None`` for what is no device. What :class:`About` has, a meter may say too.
    """

    node: str
    name: str
    source: str
    counter: bool
    identity: str | None

    def read(self) -> Reading:
        """Read once.

        Raises:
            ReadFailed: this read gave nothing.
            MeterFailed: no read gives anything from now on.
        """
        ...


@dataclass(frozen=True)
class About:
    """What a meter says of its figures, where it has attributes of these names.

    ``covers`` is what draws the power; ``remark`` is what a reader of the figures should know; ``renewed_s``
    is how often the meter itself has something new, in seconds.
    """

    covers: Covers | None = None
    remark: str | None = None
    renewed_s: float | None = None

    @classmethod
    def of(cls, meter: Meter) -> "About":
        """What ``meter`` says."""
        return cls(*(getattr(meter, name, None) for name in ("covers", "remark", "renewed_s")))


@dataclass(frozen=True)
class MeteredNodes:
    """What the meters of one host may need to know about its nodes.

    ``pids`` maps a node's name to the processes whose work is the node's when several emulated
    nodes share the host; for a node that is the whole host it is empty. ``core_seconds_per_s`` is
    the capacity of a node in CPU seconds per second. Watts are ``None`` when unknown. ``sysfs_root`` is the
    folder of the kernel's files; ``power_command`` has the words of the site's command.
    """

    host_node: str
    pids: dict[str, list[int]] = field(default_factory=dict)
    core_seconds_per_s: float = 1.0
    idle_w: float | None = None
    full_w: float | None = None
    sysfs_root: str = "/sys"
    power_command: tuple[str, ...] = ()


Opener = Callable[[MeteredNodes], list[Meter]]
"""Opens the meters of one kind for a host's nodes."""
