"""Meters: what can be read, and why something cannot.

A meter belongs to a node and gives, on each read, joules counted since it was opened (counter
first), watts, or both. A read that fails raises :class:`ReadFailed` and is a missing value; it is
never 0. A meter that can no longer be believed raises :class:`MeterFailed`. A meter that is not there
raises :class:`MeterUnavailable` when it is opened, with the reason and the remedy.

An energy counter can restart (a driver is loaded anew), run backwards, jump, or stop. What it says is
believed only while the power between two readings is possible for the device (:class:`Register`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from joulecast.runs.covers import Covers
from joulecast.runs.provenance import boot_id

MOST_NODE_W = 50_000.0
"""Watts that no node draws."""


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


def identity_of(device: str) -> str | None:
    """A device's name, the same in all containers of this machine; ``None`` if the boot is not known."""
    boot = boot_id()
    return None if boot is None else f"{boot}:{device}"


@dataclass(frozen=True)
class Limits:
    """What is possible for a device and its register.

    Attributes:
        least_w: watts that a device which is on cannot fall below, as a mean over ``moves_within_s``.
        most_w: watts that it cannot exceed.
        renewed_s: how often the register is renewed.
        moves_within_s: how long its count may stay the same.
    """

    least_w: float
    most_w: float
    renewed_s: float
    moves_within_s: float


class Register:
    """The energy counter of a device.

    After a fault it counts on from what it says then. What it missed is not known, so that joules from before
    a fault to after it are none.

    Args:
        first: its count when it is opened.
        at_s: when that was.
        unit_j: joules of one count.
        limits: what is possible.
    """

    def __init__(
        self,
        first: int,
        at_s: float,
        *,
        unit_j: float,
        limits: Limits,
    ) -> None:
        self._last, self._last_s = first, at_s
        self._unit_j, self._limits = unit_j, limits
        self._counted = self._seen = 0
        self._seen_s = at_s

    def joules(self, count: int, before_s: float, after_s: float) -> float:
        """Joules since it was opened.

        Args:
            count: what the register says.
            before_s: just before it was read.
            after_s: just after.

        Raises:
            MeterFailed: it cannot be believed.
        """
        fault = self._look(count, before_s, after_s)
        if fault is not None:
            self._last, self._last_s = count, before_s
            self._seen, self._seen_s = self._counted, after_s
            raise MeterFailed(fault)
        return self._counted * self._unit_j

    def _look(self, count: int, before_s: float, after_s: float) -> str | None:
        step, elapsed_s = count - self._last, after_s - self._last_s
        # The first of two reads may have been of a count that was about to be renewed.
        most_j = self._limits.most_w * (elapsed_s + self._limits.renewed_s)
        if step < 0 or step * self._unit_j > most_j:
            return (
                f"its counter went from {self._last * self._unit_j:.6g} to {count * self._unit_j:.6g} J "
                f"in {elapsed_s:.3g} s: it restarted or is broken"
            )
        self._last, self._last_s = count, before_s
        self._counted += step
        # A slow read may be of its end: only what lies surely between two reads counts as standing still.
        stood_s, moved_j = before_s - self._seen_s, (self._counted - self._seen) * self._unit_j
        if stood_s > self._limits.moves_within_s:
            if moved_j < self._limits.least_w * stood_s:
                return f"its counter moved by {moved_j:.2g} J in {stood_s:.2g} s: it stands still"
            self._seen, self._seen_s = self._counted, after_s
        return None
