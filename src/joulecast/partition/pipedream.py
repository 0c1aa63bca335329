"""The answer of PipeDream's optimizer, by its own arithmetic. It is for comparison, not for use.

Its faults are kept. At a boundary, it also counts nodes that no other stage reads. The first stage pays no
transfer. States are listed from the first source only. Source: Harlap et al. 2018,
`optimizer_graph_hierarchical.py`. Times are in seconds, as in that file.
"""

import math
from dataclasses import dataclass

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.partition.order import (
    PartialOrder,
    TooManyIdeals,
    membership,
    nodes_in_set,
    set_of_nodes,
)
from joulecast.partition.taskgraph import TaskGraph

MOST_STATES = 5000
"""Largest number of states. It is limited because the programme tries all pairs of states."""


@dataclass(frozen=True)
class CompatStage:
    """A stage as a range of states, the devices that share it, and its time without transfers."""

    ideal: int
    devices: int
    work_s: float


@dataclass(frozen=True)
class CompatPlan:
    """PipeDream's answer: the seconds of the slowest stage, the stages, and the number of states."""

    bottleneck_s: float
    stages: tuple[CompatStage, ...]
    states: int


def _boundary_bytes(graph: TaskGraph, order: PartialOrder, ideal: int) -> float:
    """Bytes of what PipeDream takes as the boundary. It is too large if branches of different lengths meet.

    A node counts as soon as some maximal node comes after it and does not come after all of its readers,
    even if another maximal node does.
    """
    maximal = order.antichain(ideal)
    chosen = set_of_nodes(maximal)
    behind = [order.down[node] & ~(1 << node) for node in maximal]
    return float(
        sum(
            graph.tasks[node].activation_bytes
            for node in nodes_in_set(ideal)
            if chosen >> node & 1
            or any(down >> node & 1 and order.after[node] & ~down & ~chosen for down in behind)
        )
    )


def compat_plan(
    graph: TaskGraph,
    devices: int,
    bandwidth: float,
    replicate: bool = False,
    counts_transfers: bool = False,
) -> CompatPlan:
    """The pipeline that PipeDream's optimizer finds.

    Args:
        graph: the profile, without its inputs.
        devices: number of machines. All are on one level.
        bandwidth: bytes per second.
        replicate: ``False`` is PipeDream's option ``--straight_pipeline``.
        counts_transfers: ``True`` is PipeDream's option ``--activation_compression_ratio 1``. Otherwise,
            sending activations costs nothing.

    Raises:
        JoulecastError: there are more stages than states, or too many states for PipeDream's programme.
    """
    order = PartialOrder([[graph.index[name] for name in task.reads] for task in graph.tasks])
    try:
        ideals = order.ideals_from(order.down[0], MOST_STATES)
    except TooManyIdeals:
        raise JoulecastError(
            f"graph {graph.name} has more than {MOST_STATES} states. PipeDream's optimizer enumerates all "
            "states, so it gives no answer here; use --mode exact"
        ) from None
    if devices > len(ideals):
        raise JoulecastError(f"graph {graph.name}: {devices} stages are more than its states")
    inside = membership(order, ideals).astype(float)
    # Whole numbers are added up: that is exact, whichever way the processor does it.
    sizes = [(t.work_us, t.parameter_bytes) for t in graph.tasks]
    work, parameters = (inside @ np.array(sizes, float)).T
    work /= 1e6
    count = len(ideals)
    # `follows[k, j]`: state k is an ideal within state j.
    follows = inside @ (1 - inside).T == 0
    follows[np.tril_indices(count)] = False
    between = np.where(follows, work[None, :] - work[:, None], math.inf)
    weights = parameters[None, :] - parameters[:, None]
    best = np.full((devices + 1, count), math.inf)
    came = np.full((devices + 1, count, 2), -1)
    if counts_transfers:
        boundary = np.array([_boundary_bytes(graph, order, ideal) for ideal in ideals])
        outgoing = boundary.copy()
        outgoing[-1] = 0.0
    for used in range(1, devices + 1):
        if used == 1 or replicate:
            best[used] = (work + 4 * (used - 1) * parameters / (bandwidth * used)) / used
            came[used, :, 1] = used
        for shared in range(1, used) if replicate else range(1, min(used, 2)):
            reduced = 4 * (shared - 1) * weights / (bandwidth * shared)
            time = (between + reduced) / shared
            value = np.maximum(best[used - shared][:, None], time)
            if counts_transfers:
                transfer = 2.0 * np.maximum(boundary[:, None], outgoing[None, :])
                value = np.maximum(value, transfer / (bandwidth * shared))
            value[~follows] = math.inf
            before = value.argmin(axis=0)
            found = value[before, np.arange(count)]
            better = found < best[used]
            best[used, better] = found[better]
            came[used, better, 0] = before[better]
            came[used, better, 1] = shared
    stages: list[CompatStage] = []
    state, used = count - 1, devices
    while state >= 0:
        before, shared = (int(value) for value in came[used, state])
        own = work[state] - (work[before] if before >= 0 else 0.0)
        stages.append(CompatStage(ideals[state], shared, float(own)))
        state, used = before, used - shared
    return CompatPlan(float(best[devices, -1]), tuple(reversed(stages)), count)
