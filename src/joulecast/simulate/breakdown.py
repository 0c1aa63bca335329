"""Breakdown of a step's time: computing, exposed communication, and waiting for others.

A device does not compute during the whole step. While it does not compute, and one of its own messages
travels, this is exposed communication. If none of its messages travels, this is bubble: the device waits for
another stage, or for a straggler.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.simulate.event_loop import ActivityGraph, Timeline

Intervals = NDArray[np.float64]


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one step, the mean over devices. The first three add up to the step."""

    computing_s: float
    exposed_communication_s: float
    bubble_s: float
    communication_s: float
    """Seconds in which the device communicates, whether it also computes or not."""

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.computing_s + self.exposed_communication_s + self.bubble_s


def _merged(intervals: list[tuple[float, float]]) -> Intervals:
    """Merge intervals that overlap, and sort them."""
    if not intervals:
        return np.empty((0, 2))
    starts, ends = np.array(intervals).T
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    opens = np.concatenate([[True], starts[1:] > latest[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return np.stack([starts[opens], latest[closes]], axis=1)


def _common(first: Intervals, second: Intervals) -> float:
    """Seconds that are in both of two lists of disjoint intervals."""
    return _covered(first, second[:, 1]) - _covered(first, second[:, 0])


def _covered(intervals: Intervals, until: Intervals) -> float:
    """Seconds of disjoint intervals before each time in ``until``, summed over these times."""
    if not len(intervals):
        return 0.0
    before = np.concatenate([[0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])])
    place = np.searchsorted(intervals[:, 0], until, side="right")
    open_for = np.minimum(until, intervals[place - 1, 1]) - intervals[place - 1, 0]
    inside = np.where(place > 0, before[place - 1] + open_for, 0.0)
    return float(inside.sum())


def _breakdown(compute: Intervals, communication: Intervals, step: float) -> Breakdown:
    computing_s = float((compute[:, 1] - compute[:, 0]).sum())
    communication_s = float((communication[:, 1] - communication[:, 0]).sum())
    exposed = communication_s - _common(compute, communication)
    bubble = max(0.0, step - computing_s - exposed)
    return Breakdown(computing_s, exposed, bubble, communication_s)


def breakdowns(graph: ActivityGraph, timeline: Timeline, classes: int) -> list[Breakdown]:
    """The breakdown of each class of devices, over the whole step."""
    computing: list[list[tuple[float, float]]] = [[] for _ in range(classes)]
    talking: list[list[tuple[float, float]]] = [[] for _ in range(classes)]
    times = zip(timeline.start_s, timeline.end_s, strict=True)
    for activity, interval in zip(graph.activities, times, strict=True):
        of_kind = computing if activity.usage is None else talking
        for device in activity.devices:
            of_kind[device].append(interval)
    step_s = timeline.duration_s
    return [
        _breakdown(_merged(computing[device]), _merged(talking[device]), step_s)
        for device in range(classes)
    ]


def mean_breakdown(parts: list[Breakdown], sizes: NDArray[np.int64]) -> Breakdown:
    """The mean breakdown of all devices. ``sizes`` are the numbers of devices in the classes."""
    share = sizes / sizes.sum()

    def mean(name: str) -> float:
        return float(sum(w * getattr(p, name) for w, p in zip(share, parts, strict=True)))

    return Breakdown(
        mean("computing_s"),
        mean("exposed_communication_s"),
        mean("bubble_s"),
        mean("communication_s"),
    )
