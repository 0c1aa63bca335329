"""What each stage of a plan has and costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.partition.order import nodes_of
from joulecast.partition.problem import Move, Problem
from joulecast.partition.stage_costs import StageCosts


@dataclass(frozen=True)
class Stage:
    """One stage: its nodes, what it is put on, and what it costs there.

    ``time`` is what counts for the bottleneck, ``work`` its nodes' own time on one device; ``enters`` and
    ``leaves`` are times to send what crosses its edges (of both ways), ``None`` where they do not count;
    ``bytes_in`` and ``bytes_out`` are the activations that cross (as much comes back), ``None`` where a file
    has costs instead;
    ``memory`` in bytes (sizes of the file), with the activations of ``stashed`` micro-batches.
    """

    nodes: tuple[str, ...]
    move: Move
    time: float
    work: float
    enters: float | None
    leaves: float | None
    bytes_in: float | None
    bytes_out: float | None
    parameters: float
    activations: float
    memory: float
    stashed: int


def described_stages(problem: Problem, ideals: Sequence[int], moves: Sequence[Move]) -> list[Stage]:
    """What each stage of a chain of ideals has and costs."""
    chain = [0, *ideals]
    costs = StageCosts(problem, chain)
    used, found = 0, []
    has_transfers = bool(problem.outputs)
    for begin, ((before, after), move) in enumerate(zip(pairwise(chain), moves, strict=True)):
        ends = np.array([begin + 1])
        inside = list(nodes_of(after & ~before))
        pays = has_transfers and move.kind != "cpu"
        enters, leaves = costs.transfers(begin, ends) if pays else (None, None)
        work = costs.work[begin + 1] - costs.work[begin]
        if move.kind == "cpu":
            assert problem.cpu_work is not None
            work = problem.cpu_work[inside].sum()
        parameters = float(problem.parameters[inside].sum())
        activations = float(problem.activations[inside].sum())
        found.append(
            Stage(
                nodes=tuple(name for node in inside for name in problem.members[node]),
                move=move,
                time=float(costs.times(begin, ends)[problem.moves.index(move)][0]),
                work=float(work),
                enters=None if enters is None else float(enters[0]),
                leaves=None if leaves is None else float(leaves[0]),
                bytes_in=_crossing(problem, before, after, into=True),
                bytes_out=_crossing(problem, before, after, into=False),
                parameters=parameters,
                activations=activations,
                memory=float(problem.stage_memory(parameters, activations, used, move)),
                stashed=problem.stashed(used, move),
            )
        )
        used += move.devices if move.kind != "cpu" else 0
    return found


def _crossing(problem: Problem, before: int, after: int, into: bool) -> float | None:
    """Bytes of activations that enter or leave the stage between two ideals; each counts once."""
    if not problem.traffic:
        return None
    stage = after & ~before
    crossing = 0.0
    for output in problem.traffic:
        if stage >> output.producer & 1:
            crosses = not into and output.consumers & ~stage
        else:
            crosses = into and output.consumers & stage
        crossing += output.cost if crosses else 0.0
    return crossing
