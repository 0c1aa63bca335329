"""How others cut a network: in one order of its nodes, by one measure.

cudasize and hashrate are names in the paper's Table 1 without a definition; these are reconstructions
(partition.md, section 1), as good as their names tell. A baseline gives the ideals after each of its stages.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from joulecast.graphs.taskgraph import TaskGraph
from joulecast.partition.problem import PARAMETER_COPIES, Problem
from joulecast.partition.search import cut_order_by_work, prefixes


def proportional_cuts(weights: Sequence[float], stages: int) -> list[int]:
    """Ends of stages with equal shares of the weights, each at the nearest node; none is empty."""
    done = np.concatenate([[0.0], np.cumsum(np.asarray(weights, float))])
    ends = [0]
    for stage in range(1, stages):
        share = done[-1] * stage / stages
        end = int(np.abs(done - share).argmin())
        ends.append(min(max(end, ends[-1] + 1), len(weights) - (stages - stage)))
    return [*ends[1:], len(weights)]


def block_cuts(weights: Sequence[float], stages: int) -> list[int]:
    """Ends of blocks that no move of one node at a border evens out (Barany and Grinberg 2015, in short).

    The border next to the heaviest block gives a node to its lighter neighbour as long as that lowers the
    heavier of the two; the largest block shrinks until no border can move.
    """
    done = np.concatenate([[0.0], np.cumsum(np.asarray(weights, float))])
    ends = [0, *proportional_cuts([1.0] * len(weights), stages)]

    def weight(block: int) -> float:
        return float(done[ends[block + 1]] - done[ends[block]])

    moved = True
    while moved:
        moved = False
        for block in sorted(range(stages), key=weight, reverse=True):
            for border, step, other in ((block, 1, block - 1), (block + 1, -1, block + 1)):
                if not 0 <= other < stages or ends[block + 1] - ends[block] < 2:
                    continue
                before = max(weight(block), weight(other))
                ends[border] += step
                if max(weight(block), weight(other)) < before:
                    moved = True
                    break
                ends[border] -= step
            if moved:
                break
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
    """The ideals after each stage of a baseline's pipeline; all devices are alike."""
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
