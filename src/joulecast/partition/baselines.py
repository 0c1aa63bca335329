"""Baseline partitioners: they cut one order of a network's nodes, by one measure.

The paper's Table 1 has the names cudasize and hashrate, but no definition. We reconstructed both from their
names (docs/explanation/partition.md). A baseline gives the ideal after each of its stages.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from joulecast.partition.dynamic_programme import cut_order_by_work, prefixes
from joulecast.partition.problem import PARAMETER_COPIES, Problem
from joulecast.partition.taskgraph import TaskGraph


def proportional_cuts(weights: Sequence[float], stages: int) -> list[int]:
    """Ends of stages with equal shares of the weights. Each end is at the nearest node, and no stage is
    empty."""
    done = np.concatenate([[0.0], np.cumsum(np.asarray(weights, float))])
    ends = [0]
    for stage in range(1, stages):
        share = done[-1] * stage / stages
        end = int(np.abs(done - share).argmin())
        ends.append(min(max(end, ends[-1] + 1), len(weights) - (stages - stage)))
    return [*ends[1:], len(weights)]


def block_cuts(weights: Sequence[float], stages: int) -> list[int]:
    """Ends of blocks of nearly equal weight (Barany and Grinberg 2015), as in torchgpipe. One node at a time
    is moved.

    The lightest block gets a node from its neighbour on the side of the heaviest block. This is repeated
    until the two differ by no more than the weight of one node. At the start, the weight of the lightest node
    is subtracted from all weights.
    """
    least = min(weights)
    done = [0.0, *accumulate(weight - least for weight in weights)]
    ends = [len(weights) * block // stages for block in range(stages + 1)]
    while True:
        blocks = [done[end] - done[begin] for begin, end in pairwise(ends)]
        heaviest = max(range(stages), key=lambda block: (blocks[block], block))
        lightest = min(range(stages), key=lambda block: (blocks[block], block))
        if blocks[heaviest] - blocks[lightest] <= max(weights) - least:
            break
        if heaviest < lightest:
            ends[lightest] -= 1
        else:
            ends[lightest + 1] += 1
    for stage in range(1, stages):  # an empty block is no stage
        ends[stage] = min(max(ends[stage], ends[stage - 1] + 1), len(weights) - stages + stage)
    return ends[1:]


def _weights(graph: TaskGraph, name: str) -> list[float]:
    measures: dict[str, Callable[..., float]] = {
        "uniform": lambda task: 1.0,
        "parameters": lambda task: task.parameter_bytes,
        "cudasize": lambda task: PARAMETER_COPIES * task.parameter_bytes + task.activation_bytes,
        "hashrate": lambda task: task.forward_us if task.flops is None else task.flops,
    }
    return [measures[name](task) for task in graph.tasks]


BASELINES = ("uniform", "parameters", "cudasize", "hashrate", "block partition", "one order, exact")
"""By names: equal numbers of nodes; equal parameters; equal memory (parameters, gradients, optimizer state,
activations); equal FLOPs, or forward time where FLOPs are not known; block partition of the measured time;
the exact cut of the order in the file."""


def baseline_ideals(name: str, graph: TaskGraph, problem: Problem) -> list[int]:
    """The ideal after each stage of a baseline's pipeline. All devices are alike."""
    stages = problem.devices
    if name == "one order, exact":
        return list(cut_order_by_work(problem, range(len(graph.tasks))).ideals)
    if name == "block partition":
        ends = block_cuts([task.work_us for task in graph.tasks], stages)
    else:
        ends = proportional_cuts(_weights(graph, name), stages)
    through = prefixes(range(len(graph.tasks)))
    return [through[end] for end in ends]


def slowest_work(problem: Problem, ideals: Sequence[int]) -> float:
    """Work of the heaviest stage of a chain of ideals."""
    order = problem.order
    return max(order.weight(after & ~before) for before, after in pairwise([0, *ideals]))
