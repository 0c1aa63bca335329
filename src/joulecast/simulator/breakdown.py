"""Breakdown of a step's time: computing, exposed communication, and waiting for others.

Of a device's step, what it does not compute is exposed communication while something of its own travels,
and bubble while nothing does: it waits for another stage, or for a straggler.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.simulator.executor import ActivityGraph, Timeline
from joulecast.simulator.steady import NONE_LEFT_OUT, Repeats

Intervals = NDArray[np.float64]


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one step, the mean over devices; the first three make the step."""

    computing_s: float
    exposed_communication_s: float
    bubble_s: float
    communication_s: float
    """Something of the device's own travels, whether it computes meanwhile or not."""

    @property
    def step_s(self) -> float:
        """The step."""
        return self.computing_s + self.exposed_communication_s + self.bubble_s

    def longer_by(self, period: "Breakdown", times: int) -> "Breakdown":
        """A step in which that part of it passes so many times more."""
        return Breakdown(
            self.computing_s + times * period.computing_s,
            self.exposed_communication_s + times * period.exposed_communication_s,
            self.bubble_s + times * period.bubble_s,
            self.communication_s + times * period.communication_s,
        )


def _clipped(intervals: Intervals, start: float, stop: float) -> Intervals:
    inside = intervals[(intervals[:, 1] > start) & (intervals[:, 0] < stop)]
    return np.clip(inside, start, stop)


def _merged(intervals: list[tuple[float, float]]) -> Intervals:
    merged: list[list[float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return np.array(merged).reshape(-1, 2)


def _common(first: Intervals, second: Intervals) -> float:
    """Seconds in both of two lists of disjoint intervals."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        total += max(0.0, min(first[i, 1], second[j, 1]) - max(first[i, 0], second[j, 0]))
        if first[i, 1] < second[j, 1]:
            i += 1
        else:
            j += 1
    return total


def _breakdown(compute: Intervals, communication: Intervals, step: float) -> Breakdown:
    computing_s = float((compute[:, 1] - compute[:, 0]).sum())
    communication_s = float((communication[:, 1] - communication[:, 0]).sum())
    exposed = communication_s - _common(compute, communication)
    bubble = max(0.0, step - computing_s - exposed)
    return Breakdown(computing_s, exposed, bubble, communication_s)


def breakdowns(
    graph: ActivityGraph, timeline: Timeline, classes: int, repeats: Repeats = NONE_LEFT_OUT
) -> list[Breakdown]:
    """The breakdown of each class of devices, over the whole step."""
    computing: list[list[tuple[float, float]]] = [[] for _ in range(classes)]
    talking: list[list[tuple[float, float]]] = [[] for _ in range(classes)]
    for activity, start, end in zip(
        graph.activities, timeline.start_s, timeline.end_s, strict=True
    ):
        for device in activity.devices:
            (computing if activity.usage is None else talking)[device].append((start, end))
    found = []
    for busy, travels in zip(computing, talking, strict=True):
        compute, communication = _merged(busy), _merged(travels)
        whole = _breakdown(compute, communication, timeline.duration_s)
        if repeats.times:
            window = repeats.start_s, repeats.stop_s
            period = _breakdown(
                _clipped(compute, *window), _clipped(communication, *window), repeats.period_s
            )
            whole = whole.longer_by(period, repeats.times)
        found.append(whole)
    return found


def mean_breakdown(parts: list[Breakdown], sizes: NDArray[np.int64]) -> Breakdown:
    """The mean over devices of classes of these sizes."""
    share = sizes / sizes.sum()

    def mean(name: str) -> float:
        return float(sum(w * getattr(p, name) for w, p in zip(share, parts, strict=True)))

    return Breakdown(
        mean("computing_s"),
        mean("exposed_communication_s"),
        mean("bubble_s"),
        mean("communication_s"),
    )
