"""Breakdown of a step's time: computing, exposed communication, and waiting for others.

A device does not compute during the whole step. While it does not compute, and one of its own messages
travels, this is exposed communication. If none of its messages travels, this is bubble: the device waits for
another stage, or for a straggler.
"""

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.simulate.event_loop import ActivityGraph

Intervals = list[tuple[float, float]]


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one step. The first three add up to the step."""

    computing_s: float
    exposed_communication_s: float
    bubble_s: float
    communication_s: float
    """Seconds in which the device communicates, whether it also computes or not."""


def _covered(intervals: Intervals) -> float:
    """Seconds that are in one or more of the intervals."""
    if not intervals:
        return 0.0
    starts, ends = np.array(intervals).T
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    # An interval adds the seconds behind the end of all before it.
    begins = np.maximum(starts, np.concatenate([[-np.inf], latest[:-1]]))
    return float(np.maximum(latest - begins, 0.0).sum())


def breakdowns(graph: ActivityGraph, classes: int) -> list[Breakdown]:
    """The breakdown of each class of devices, over the whole step."""
    computing: list[Intervals] = [[] for _ in range(classes)]
    talking: list[Intervals] = [[] for _ in range(classes)]
    for activity in graph:
        of_kind = computing if activity.usage is None else talking
        for device in activity.devices:
            of_kind[device].append((activity.start_s, activity.end_s))
    step_s, found = graph.duration_s, []
    for compute, communication in zip(computing, talking, strict=True):
        computing_s, busy_s = _covered(compute), _covered(compute + communication)
        exposed_s, bubble_s = max(0.0, busy_s - computing_s), max(0.0, step_s - busy_s)
        found.append(Breakdown(computing_s, exposed_s, bubble_s, _covered(communication)))
    return found


def mean_breakdown(parts: list[Breakdown], sizes: NDArray[np.int64]) -> Breakdown:
    """The mean breakdown of all devices. ``sizes`` are the numbers of devices in the classes."""
    return Breakdown(*np.average([astuple(part) for part in parts], axis=0, weights=sizes).tolist())
