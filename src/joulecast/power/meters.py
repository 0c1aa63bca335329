"""Meters: what can be read, and why something cannot.

A meter belongs to a node and gives, on each read, joules counted since it was opened (counter
first), watts, or both. A read that fails raises :class:`ReadFailed` and is a missing value; it is
never 0. A meter that can no longer be believed raises :class:`MeterFailed`. A meter that is not there
raises :class:`MeterUnavailable` when it is opened, with the reason and the remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class MeterUnavailable(Exception):
    """The meter cannot be opened: why, and how to get it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy = reason, remedy


class ReadFailed(Exception):
    """One read gave nothing; the next one may."""


class MeterFailed(ReadFailed):
    """The meter cannot be believed for the rest of the run: why."""


class Reading(NamedTuple):
    """Watts now and joules since the meter was opened; ``None`` for what the meter does not give."""

    watts: float | None
    joules: float | None


class Meter(Protocol):
    """One meter of one node.

    ``identity`` names the device that is read, the same whichever container of a machine reads it;
    ``None`` for what is no device.
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
class MeteredNodes:
    """What the meters of one host may need to know about its nodes.

    ``pids`` maps a node's name to the processes whose work is the node's when several emulated
    nodes share the host; for a node that is the whole host it is empty. ``core_seconds_per_s`` is
    the capacity of a node in CPU seconds per second. Watts are ``None`` when unknown.
    """

    host_node: str
    pids: dict[str, list[int]] = field(default_factory=dict)
    core_seconds_per_s: float = 1.0
    idle_w: float | None = None
    full_w: float | None = None


Opener = Callable[[MeteredNodes], list[Meter]]
"""Opens the meters of one kind for a host's nodes."""
