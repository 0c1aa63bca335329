"""The costs of stages. All stages that begin after one ideal are computed at once. Also the description of
each stage of a plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from joulecast.partition.order import membership, nodes_in_set
from joulecast.partition.problem import Floats, Problem


class StageCosts:
    """The costs of all stages between the ideals of a list.

    Args:
        problem: what stages cost, and the devices.
        ideals: the first is empty, and the last has all nodes. Each comes after all ideals that it includes.
    """

    def __init__(self, problem: Problem, ideals: Sequence[int]) -> None:
        self.problem, self.ideals = problem, list(ideals)
        order = problem.order
        inside = membership(order, self.ideals)
        self._inside = np.packbits(inside, axis=0, bitorder="little").T.copy()
        """One row for each node: which ideals have the node, as bits (eight ideals in a byte)."""
        # In slices: the membership as floats would be eight times as large.
        columns = np.stack(
            [order.weights, problem.parameters, problem.activations, problem.work], axis=1
        )
        sums = np.concatenate(
            [inside[i : i + 1024].astype(float) @ columns for i in range(0, len(inside), 1024)]
        )
        self.weight, self._parameters, self._activations, self.work = sums.T.copy()
        self._leaving, self._crossing = self._cross()
        maximal = np.zeros_like(self._inside)
        for node in range(order.size):
            later = np.zeros(self._inside.shape[1], np.uint8)
            for reader in nodes_in_set(order.after[node]):
                later |= self._inside[reader]
            maximal[node] = self._inside[node] & ~later
        self._maximal = _by_ideal(maximal, len(self.ideals))

    def _cross(self) -> tuple[Floats, NDArray[np.uint8] | None]:
        """For each ideal: the cost of the outputs that cross its edge, and which outputs these are."""
        outputs = self.problem.outputs
        if not outputs:
            return np.zeros(len(self.ideals)), None
        crossing = np.zeros((len(outputs), self._inside.shape[1]), np.uint8)
        for row, output in enumerate(outputs):
            readers = [self._inside[node] for node in nodes_in_set(output.consumers)]
            crossing[row] = self._inside[output.producer] & ~np.bitwise_and.reduce(readers)
        by_ideal = _by_ideal(crossing, len(self.ideals))
        cost = np.array([output.cost for output in outputs])
        total = np.concatenate(
            [
                _unpacked(by_ideal[i : i + 1024], len(outputs)) @ cost
                for i in range(0, len(by_ideal), 1024)
            ]
        )
        return total, by_ideal

    def stages_after(self, begin: int, end: int) -> NDArray[np.intp]:
        """Positions (before ``end``) of the ideals that include the ideal at ``begin``."""
        first = (begin + 1) // 8
        last = (end + 7) // 8
        maximal = np.flatnonzero(_unpacked(self._maximal[begin], self.problem.order.size))
        if len(maximal):
            rows = np.bitwise_and.reduce(self._inside[maximal, first:last], axis=0)
            found = np.flatnonzero(np.unpackbits(rows, bitorder="little")) + 8 * first
            return found[(found > begin) & (found < end)]
        return np.arange(begin + 1, end)

    def transfers(self, begin: int, ends: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Costs of the transfers into and out of the stages from ``begin`` to each of ``ends``.

        Every output counts once for the stage that it leaves, and once for every stage that it enters.
        """
        enters, leaves = np.zeros(len(ends)), self._leaving[ends].copy()
        if not len(ends) or self._crossing is None:
            return enters, leaves
        outputs, outside = self.problem.outputs, ~self.ideals[begin]
        crossing = np.flatnonzero(_unpacked(self._crossing[begin], len(outputs)))
        if not len(crossing):
            return enters, leaves
        first, last = int(ends[0]) >> 3, (int(ends[-1]) >> 3) + 1
        inside = self._inside[:, first:last]
        costs = np.array([outputs[number].cost for number in crossing])

        def by_output(combine: np.ufunc) -> NDArray[np.uint8]:
            """For each output (row) and each end (column), whether the ideal at this end contains readers of
            the output after ``begin``. With ``bitwise_or``, one of them is enough. With ``bitwise_and``, it
            must contain all."""
            rows = [
                combine.reduce(inside[list(nodes_in_set(outputs[n].consumers & outside))], axis=0)
                for n in crossing
            ]
            return _unpacked(np.stack(rows), 8 * (last - first))[:, ends - 8 * first]

        enters += costs @ by_output(np.bitwise_or)
        # It was made before this stage: it is not this one that it leaves.
        leaves -= costs @ (1.0 - by_output(np.bitwise_and))
        return enters, leaves

    def may_take_less(self, limit: float, begin: int, ends: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether the work alone of the stages from ``begin`` to each of ``ends`` takes less than ``limit``,
        with as many replicas as are allowed."""
        most = max(self.problem.replicas)
        found = self.work[ends] - self.work[begin] < most * limit + self.problem.rounding
        return np.asarray(found, bool)

    def times(self, begin: int, ends: NDArray[np.intp]) -> list[Floats]:
        """Time of the stages from ``begin`` to each of ``ends``, for every number of replicas."""
        problem = self.problem
        work = self.work[ends] - self.work[begin]
        has_transfers = bool(problem.outputs)
        enters, leaves = self.transfers(begin, ends) if has_transfers else (0.0, 0.0)
        found = []
        for replicas in problem.replicas:
            time = work
            if replicas > 1:
                parameters = self._parameters[ends] - self._parameters[begin]
                reduced = 4 * (replicas - 1) * parameters * problem.reduce_time / replicas
                time = (work + reduced) / replicas
            if has_transfers and problem.cost == "sum":
                time = time + (enters + leaves) / replicas
            elif has_transfers:
                time = np.maximum(time, np.maximum(enters, leaves) / replicas)
            found.append(time)
        return found

    def memory(self, begin: int, ends: NDArray[np.intp], used: int, replicas: int) -> Floats:
        """Memory of the stages from ``begin`` to each of ``ends``."""
        needed = self.problem.stage_memory(
            self._parameters[ends] - self._parameters[begin],
            self._activations[ends] - self._activations[begin],
            used,
            replicas,
        )
        return np.asarray(needed, float)


def _by_ideal(rows: NDArray[np.uint8], ideals: int) -> NDArray[np.uint8]:
    """Transpose packed bits: from a row for each node to a row for each ideal."""
    found = []
    for start in range(0, rows.shape[1], 128):
        count = min(1024, ideals - 8 * start)
        bits = np.unpackbits(rows[:, start : start + 128], axis=1, bitorder="little", count=count)
        found.append(np.packbits(bits, axis=0, bitorder="little").T)
    return np.concatenate(found)


def _unpacked(rows: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    return np.unpackbits(rows, axis=-1, bitorder="little", count=count)


@dataclass(frozen=True)
class Stage:
    """One stage: its nodes, the number of devices that share its samples, and what it costs.

    ``time`` counts for the bottleneck. ``work`` is the time of its nodes on one device. ``enters`` and
    ``leaves`` are the times of the transfers at its two edges, with activations and gradients; ``None`` if
    transfers do not count. ``bytes_in`` and ``bytes_out`` are the activations that cross its edges. (The
    gradients that come back have as many bytes.) ``memory`` is in bytes. It contains the activations of
    ``stashed`` micro-batches.
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
    """The stages of a chain of ideals, each with its nodes and costs."""
    chain = [0, *ideals]
    costs = StageCosts(problem, chain)
    used, found = 0, []
    for begin, ((before, after), count) in enumerate(zip(pairwise(chain), replicas, strict=True)):
        ends = np.array([begin + 1])
        inside = list(nodes_in_set(after & ~before))
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
