"""The work of a step: activities of devices and links, who waits for whom, and when they happened."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.simulate.network import Usage


@dataclass(slots=True)
class Activity:
    """One piece of work.

    ``work`` is seconds of compute, or the bytes that a transfer puts through its busiest device port.
    """

    label: str
    devices: tuple[int, ...]
    """Who is busy with it: one device that computes, or all members of a transfer."""
    work: float
    usage: Usage | None = None
    """Ports of a transfer; ``None`` for compute."""
    latency: float = 0.0
    """Seconds before a transfer's bytes flow."""
    gradient: bool = False
    """Whether it is gradient communication, which compute overlaps at a price."""
    parts: tuple[Any, ...] = ()
    """What was fused into it, for the explanation of a step."""
    successors: list[int] = field(default_factory=list)
    waits_for: int = 0


@dataclass(frozen=True)
class Slowdown:
    """What overlap costs: compute takes ``1 + compute`` as long, gradient transfers ``1 + transfer``."""

    compute: float = 0.0
    transfer: float = 0.0
    whole_activity: bool = False


class ActivityGraph:
    """Activities and who waits for whom."""

    def __init__(self) -> None:
        self.activities: list[Activity] = []

    def add(self, activity: Activity, after: Sequence[int] = ()) -> int:
        """Add an activity that waits for others; gives its number."""
        self.activities.append(activity)
        number = len(self.activities) - 1
        for earlier in after:
            self.wait(number, earlier)
        return number

    def wait(self, activity: int, earlier: int) -> None:
        """Let an activity wait for another one."""
        self.activities[earlier].successors.append(activity)
        self.activities[activity].waits_for += 1


@dataclass(frozen=True)
class Timeline:
    """Start and end of every activity, seconds from the start of the step."""

    start_s: list[float]
    end_s: list[float]

    @property
    def duration_s(self) -> float:
        """Time from the start to the end of the last activity."""
        return max(self.end_s, default=0.0)


@dataclass(frozen=True)
class TimedActivity:
    """An activity at its times in the step."""

    activity: Activity
    start_s: float
    end_s: float
