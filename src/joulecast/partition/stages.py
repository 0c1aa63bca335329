"""What each stage of a plan has and costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.partition.order import nodes_of
from joulecast.partition.problem import Problem
from joulecast.partition.stage_costs import StageCosts


@dataclass(frozen=True)
class Stage:
    """One stage: its nodes, the number of devices that share its samples, and what it costs there.

    ``time`` is what counts for the bottleneck, ``work`` its nodes' own time on one device; ``enters`` and
    ``leaves`` are times to send what crosses its edges (of both ways), ``None`` where they do not count;
    ``bytes_in`` and ``bytes_out`` are the activations that cross (as much comes back); ``memory`` is in
    bytes, with the activations of ``stashed`` micro-batches.
    """

    nodes: tuple[str, ...]
    replicas: int
    time: float
    work: float
    enters: float | None
    leaves: float | None
    bytes_in: float
    bytes_out: float
    parameters: float
    activations: float
    memory: float
    stashed: int


def described_stages(
    problem: Problem, ideals: Sequence[int], replicas: Sequence[int]
) -> list[Stage]:
    """What each stage of a chain of ideals has and costs."""
    chain = [0, *ideals]
    costs = StageCosts(problem, chain)
    used, found = 0, []
    for begin, ((before, after), count) in enumerate(zip(pairwise(chain), replicas, strict=True)):
        ends = np.array([begin + 1])
        inside = list(nodes_of(after & ~before))
        enters, leaves = costs.transfers(begin, ends) if problem.outputs else (None, None)
        parameters = float(problem.parameters[inside].sum())
        activations = float(problem.activations[inside].sum())
        found.append(
            Stage(
                nodes=tuple(problem.node_names[node] for node in inside),
                replicas=count,
                time=float(costs.times(begin, ends)[problem.replicas.index(count)][0]),
                work=float(costs.work[begin + 1] - costs.work[begin]),
                enters=None if enters is None else float(enters[0]),
                leaves=None if leaves is None else float(leaves[0]),
                bytes_in=_crossing(problem, before, after, into=True),
                bytes_out=_crossing(problem, before, after, into=False),
                parameters=parameters,
                activations=activations,
                memory=float(problem.stage_memory(parameters, activations, used, count)),
                stashed=problem.stashed(used, count),
            )
        )
        used += count
    return found


def _crossing(problem: Problem, before: int, after: int, into: bool) -> float:
    """Bytes of activations that enter or leave the stage between two ideals; each counts once."""
    stage = after & ~before
    crossing = 0.0
    for output in problem.traffic:
        if stage >> output.producer & 1:
            crosses = not into and output.consumers & ~stage
        else:
            crosses = into and output.consumers & stage
        crossing += output.cost if crosses else 0.0
    return crossing
