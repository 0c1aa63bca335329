"""The work of a step: activities of devices and links, who waits for whom, and when they happened.

A chain is compute and collectives that strictly follow each other on one class of devices. A tensor-parallel
layer computes, sums, computes, sums: nothing else of the device's own comes between, so that a whole pass
through such layers is one activity of many links. Of what is gathered again for a gradient of weights, the
transfer is under way while a link computes. A chain runs in one go while no other activity uses its ports and
no gradients are in flight. When another one arrives, the chain continues link by link, as if its links were
activities, until it is alone again.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.simulate.network import Usage, alone


@dataclass(frozen=True)
class ChainLink:
    """Compute (without ``usage``), or a transfer; numbers as those of an activity."""

    label: str
    work: float
    usage: Usage | None = None
    latency: float = 0.0
    meanwhile: "ChainLink | None" = None
    """A transfer that starts with compute; the link ends when both have ended."""


class Chain:
    """Links one behind the other, and when each ends if nothing disturbs them."""

    def __init__(self, links: Sequence[ChainLink], capacity: Sequence[float]) -> None:
        self.links = tuple(links)
        self.rates = [_rate(link, capacity) for link in self.links]
        self.own_s = [_seconds(*each) for each in zip(self.links, self.rates, strict=True)]
        """Seconds of each link, without what is under way meanwhile."""
        self.meanwhile = {
            place: (link.meanwhile, _rate(link.meanwhile, capacity))
            for place, link in enumerate(self.links)
            if link.meanwhile is not None
        }
        """Transfers that are under way while a link computes, and their rates."""
        seconds = list(self.own_s)
        for place, each in self.meanwhile.items():
            seconds[place] = max(seconds[place], _seconds(*each))
        self.ends = list(accumulate(seconds))
        """Seconds from its start."""
        self.begins = [0.0, *self.ends[:-1]]

    @cached_property
    def ports(self) -> frozenset[int]:
        """Ports that any of its links uses."""
        links = [*self.links, *(link for link, _ in self.meanwhile.values())]
        return frozenset(port for link in links if link.usage for port in link.usage)

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """When its links begin and end, and which of them compute."""
        computes = np.array([link.usage is None for link in self.links])
        begins = np.array(self.begins)
        return begins, begins + np.array(self.own_s), computes

    @cached_property
    def meanwhile_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Places of links with a transfer meanwhile, and the seconds that it takes."""
        seconds = [_seconds(*each) for each in self.meanwhile.values()]
        return np.array(list(self.meanwhile), dtype=np.int64), np.array(seconds, dtype=np.float64)

    def ends_of(self, number: int, start_s: float) -> tuple[float, float]:
        """When a link's own work ends and the transfer meanwhile, if nothing disturbs them."""
        end = start_s + self.own_s[number]
        if number not in self.meanwhile:
            return end, end
        return end, start_s + _seconds(*self.meanwhile[number])

    @property
    def computing_s(self) -> float:
        """Seconds of compute."""
        return sum(link.work for link in self.links if link.usage is None)

    def link_at(self, first: int, elapsed_s: float) -> int:
        """The link that is under way so long after the start of the first one."""
        found = bisect_right(self.ends, self.begins[first] + elapsed_s, lo=first)
        return min(found, len(self.links) - 1)


def _rate(link: ChainLink, capacity: Sequence[float]) -> float:
    return 1.0 if link.usage is None else alone(link.usage, capacity)


def _seconds(link: ChainLink, rate: float) -> float:
    return link.latency + link.work / rate


@dataclass(frozen=True)
class Passed:
    """Links of a chain that went through one behind the other, or one link that was slowed down."""

    first: int
    stop: int
    start_s: float
    end_s: float
    ends: tuple[float, float] | None = None
    """Of one link that computes while something is transferred: the end of each."""


def link_times(chain: Chain, passed: Sequence[Passed]) -> list[tuple[ChainLink, float, float]]:
    """Every link of a chain, with its start and end."""
    found: list[tuple[ChainLink, float, float]] = []
    for part in passed:
        shift = part.start_s - chain.begins[part.first]
        for number in range(part.first, part.stop):
            link, start = chain.links[number], chain.begins[number] + shift
            own_end, other_end = part.ends or chain.ends_of(number, start)
            if part.stop == part.first + 1 and link.meanwhile is None:
                own_end = part.end_s
            found.append((link, start, own_end))
            if link.meanwhile is not None:
                found.append((link.meanwhile, start, other_end))
    return found


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
    chain: Chain | None = None
    """Links of compute and transfers, one behind the other; its ``work`` is their compute."""
    link_parts: tuple[tuple[Any, ...], ...] = ()
    """What was fused into each of a chain's links that compute."""
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
    passed: dict[int, list[Passed]] = field(default_factory=dict)
    """How the links of chains went by."""

    @property
    def duration_s(self) -> float:
        """Time from the start to the end of the last activity."""
        return max(self.end_s, default=0.0)


@dataclass(frozen=True)
class TimedActivity:
    """An activity at its times in the step, or a link of a chain as an activity of its own."""

    activity: Activity
    start_s: float
    end_s: float


def timed_activities(graph: ActivityGraph, timeline: Timeline) -> Iterator[TimedActivity]:
    """Every activity of a step, and every link of a chain."""
    for number, activity in enumerate(graph.activities):
        chain = activity.chain
        if chain is None:
            yield TimedActivity(activity, timeline.start_s[number], timeline.end_s[number])
            continue
        computes = iter(activity.link_parts)
        for link, start, end in link_times(chain, timeline.passed[number]):
            parts = next(computes) if link.usage is None else ()
            label = activity.label if link.usage is None else link.label
            own = Activity(
                label, activity.devices, link.work, link.usage, link.latency, parts=parts
            )
            yield TimedActivity(own, start, end)
