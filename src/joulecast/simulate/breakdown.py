"""Breakdown of a step's time: computing, exposed communication, and waiting for others.

A device does not compute during the whole step. While it does not compute, and one of its own messages
travels, this is exposed communication. If none of its messages travels, this is bubble: the device waits for
another stage, or for a straggler.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.simulate.event_loop import ActivityGraph

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one step. The first three add up to the step."""

    computing_s: float
    exposed_communication_s: float
    bubble_s: float
    communication_s: float
    """Seconds in which the device communicates, whether it also computes or not."""


def _covered(starts: Floats, ends: Floats) -> float:
    """Seconds that are in one or more of some intervals."""
    order = np.argsort(starts, kind="stable")
    latest = np.maximum.accumulate(ends[order])
    # Each interval adds only its seconds after the end of all earlier intervals.
    begins = np.maximum(starts[order], np.concatenate([[-np.inf], latest[:-1]]))
    return float(np.maximum(latest - begins, 0.0).sum())


def breakdowns(graph: ActivityGraph, classes: int) -> Floats:
    """The breakdown of each class of devices, over the whole step. A row has the fields of
    :class:`Breakdown`."""
    computing: list[list[int]] = [[] for _ in range(classes)]
    talking: list[list[int]] = [[] for _ in range(classes)]
    for number, activity in enumerate(graph):
        of_kind = computing if activity.usage is None else talking
        for device in activity.devices:
            of_kind[device].append(number)
    starts = np.array([activity.start_s for activity in graph])
    ends = np.array([activity.end_s for activity in graph])
    step_s, found = graph.duration_s, []
    for compute, communication in zip(computing, talking, strict=True):
        computing_s, busy_s, communication_s = (
            _covered(starts[chosen], ends[chosen]) if chosen else 0.0
            for chosen in (compute, compute + communication, communication)
        )
        exposed_s, bubble_s = max(0.0, busy_s - computing_s), max(0.0, step_s - busy_s)
        found.append((computing_s, exposed_s, bubble_s, communication_s))
    return np.array(found)
