"""What stages cost, many at once: all those that begin after one ideal."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from joulecast.partition.order import membership, nodes_of
from joulecast.partition.problem import Floats, Move, Output, Problem


class StageCosts:
    """What all stages between the ideals of a list cost.

    Args:
        problem: as above.
        ideals: the first is empty, the last everything, none before one that it includes.
    """

    def __init__(self, problem: Problem, ideals: Sequence[int]) -> None:
        self.problem, self.ideals = problem, list(ideals)
        order = problem.order
        inside = membership(order, self.ideals)
        self._inside = np.packbits(inside, axis=0, bitorder="little").T.copy()
        """A row a node: which ideals have it, eight a byte."""
        weigh = [order.weights, problem.parameters, problem.activations, problem.work]
        if problem.cpu_work is not None:
            weigh.append(problem.cpu_work)
            cpu_only = membership(order, [problem.not_on_accelerators])[0]
            weigh.append(cpu_only.astype(float))
        # In slices: the membership as floats would be eight times as large.
        columns = np.stack(weigh, axis=1)
        sums = np.concatenate(
            [inside[i : i + 1024].astype(float) @ columns for i in range(0, len(inside), 1024)]
        )
        self.weight, self._parameters, self._activations, self.work = sums[:, :4].T.copy()
        self._cpu_work = sums[:, 4] if problem.cpu_work is not None else None
        self._cpu_only = sums[:, 5] if problem.cpu_work is not None else None
        self._leaving, self._crossing = self._cross(problem.forward, forward=True)
        self._entering, self._crossing_back = self._cross(problem.outputs_back, forward=False)
        maximal = np.zeros_like(self._inside)
        for node in range(order.size):
            later = np.zeros(self._inside.shape[1], np.uint8)
            for reader in nodes_of(order.after[node]):
                later |= self._inside[reader]
            maximal[node] = self._inside[node] & ~later
        self._maximal = _by_ideal(maximal, len(self.ideals))

    def _cross(
        self, outputs: Sequence[Output], forward: bool
    ) -> tuple[Floats, NDArray[np.uint8] | None]:
        """Cost of what crosses each ideal's edge, and which outputs do."""
        if not outputs:
            return np.zeros(len(self.ideals)), None
        crossing = np.zeros((len(outputs), self._inside.shape[1]), np.uint8)
        for row, output in enumerate(outputs):
            own = self._inside[output.producer]
            readers = [self._inside[node] for node in nodes_of(output.consumers)]
            if forward:
                crossing[row] = own & ~np.bitwise_and.reduce(readers)
            else:
                crossing[row] = np.bitwise_or.reduce(readers) & ~own
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
        """Positions before ``end`` of the ideals that include the one at ``begin``."""
        first = (begin + 1) // 8
        last = (end + 7) // 8
        maximal = np.flatnonzero(_unpacked(self._maximal[begin], self.problem.order.size))
        if len(maximal):
            rows = np.bitwise_and.reduce(self._inside[maximal, first:last], axis=0)
            found = np.flatnonzero(np.unpackbits(rows, bitorder="little")) + 8 * first
            return found[(found > begin) & (found < end)]
        return np.arange(begin + 1, end)

    def transfers(self, begin: int, ends: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Cost of what enters and of what leaves the stages from ``begin`` to each of ``ends``.

        Every output counts once where it leaves a stage, and once in every stage that it enters.
        """
        enters, leaves = np.zeros(len(ends)), self._leaving[ends].copy()
        if not len(ends):
            return enters, leaves
        outside = ~self.ideals[begin]
        first, last = int(ends[0]) >> 3, (int(ends[-1]) >> 3) + 1
        inside = self._inside[:, first:last]

        def paid(rows: list[NDArray[np.uint8]], costs: list[float], unless: bool = False) -> Floats:
            """Costs of the outputs whose row has (or, ``unless``, has not) each end, added up."""
            bits = _unpacked(np.stack(rows), 8 * (last - first))
            return np.asarray((costs @ (1.0 - bits if unless else bits))[ends - 8 * first])

        if self._crossing is not None:
            outputs = self.problem.forward
            crossing = np.flatnonzero(_unpacked(self._crossing[begin], len(outputs)))
            costs = [outputs[number].cost for number in crossing]
            waiting = [list(nodes_of(outputs[n].consumers & outside)) for n in crossing]
            if costs:
                some = [np.bitwise_or.reduce(inside[nodes], axis=0) for nodes in waiting]
                enters += paid(some, costs)
                # It was made before this stage: it is not this one that it leaves.
                every = [np.bitwise_and.reduce(inside[nodes], axis=0) for nodes in waiting]
                leaves -= paid(every, costs, unless=True)
        if self._crossing_back is not None:
            outputs = self.problem.outputs_back
            enters += self._entering[ends]
            crossing = np.flatnonzero(_unpacked(self._crossing_back[begin], len(outputs)))
            costs = [outputs[number].cost for number in crossing]
            if costs:
                made = [inside[outputs[number].producer] for number in crossing]
                # Where a later stage reads it too, that counted already: it leaves a stage once.
                only = [
                    row
                    & np.bitwise_and.reduce(inside[list(nodes_of(outputs[n].consumers))], axis=0)
                    for row, n in zip(made, crossing, strict=True)
                ]
                leaves += paid(only, costs)
                for row, number in enumerate(crossing):
                    waits = list(nodes_of(outputs[number].consumers & outside))
                    made[row] = made[row] | np.bitwise_or.reduce(inside[waits], axis=0)
                enters -= paid(made, costs, unless=True)
        return enters, leaves

    def may_take_less(self, limit: float, begin: int, ends: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether the stages from ``begin`` to each of ``ends`` take less by their work alone."""
        most = max(move.devices for move in self.problem.moves)
        found = self.work[ends] - self.work[begin] < most * limit + self.problem.rounding
        if self._cpu_work is not None:
            found |= self._cpu_work[ends] - self._cpu_work[begin] < limit + self.problem.rounding
        return np.asarray(found, bool)

    def times(self, begin: int, ends: NDArray[np.intp]) -> list[Floats]:
        """Time of the stages from ``begin`` to each of ``ends``, for every move."""
        problem = self.problem
        work = self.work[ends] - self.work[begin]
        has_transfers = bool(problem.outputs)
        enters, leaves = self.transfers(begin, ends) if has_transfers else (0.0, 0.0)
        found = []
        for move in problem.moves:
            if move.kind == "cpu":
                assert self._cpu_work is not None
                found.append(self._cpu_work[ends] - self._cpu_work[begin])
                continue
            time = work
            if move.devices > 1:
                parameters = self._parameters[ends] - self._parameters[begin]
                reduced = 4 * (move.devices - 1) * parameters * problem.reduce_time / move.devices
                time = (work + reduced) / move.devices
            if has_transfers and problem.cost == "sum":
                time = time + (enters + leaves) / move.devices
            elif has_transfers:
                time = np.maximum(time, np.maximum(enters, leaves) / move.devices)
            if self._cpu_only is not None and move.kind == "accelerator":
                time = np.where(self._cpu_only[ends] > self._cpu_only[begin], np.inf, time)
            found.append(time)
        return found

    def memory(self, begin: int, ends: NDArray[np.intp], used: int, move: Move) -> Floats:
        """Memory of the stages from ``begin`` to each of ``ends``."""
        needed = self.problem.stage_memory(
            self._parameters[ends] - self._parameters[begin],
            self._activations[ends] - self._activations[begin],
            used,
            move,
        )
        return np.asarray(needed, float)


def _by_ideal(rows: NDArray[np.uint8], ideals: int) -> NDArray[np.uint8]:
    """A row a node, packed along ideals, turned to a row an ideal, packed along nodes."""
    found = []
    for start in range(0, rows.shape[1], 128):
        count = min(1024, ideals - 8 * start)
        bits = np.unpackbits(rows[:, start : start + 128], axis=1, bitorder="little", count=count)
        found.append(np.packbits(bits, axis=0, bitorder="little").T)
    return np.concatenate(found)


def _unpacked(rows: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    return np.unpackbits(rows, axis=-1, bitorder="little", count=count)
