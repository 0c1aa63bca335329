"""What a pipeline partition costs: work, transfers, memory, and the devices that stages are put on.

A problem is a partial order of nodes with work, the outputs that cross between stages, and the moves by which
the next stage can be formed: on one device, on several that share its samples (replication), or, with two
kinds of devices, on one of either. What a stage costs is computed for many stages at once
(:class:`StageCosts`): all those that begin after one ideal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.graphs.placement import PlacementGraph
from joulecast.graphs.taskgraph import TaskGraph
from joulecast.partition.order import WeighedOrder, bits_of, membership, nodes_of

CostModel = Literal["compute", "max", "sum"]
Floats = NDArray[np.float64]

PARAMETER_COPIES = 3
"""Weights, gradients and momenta."""
_BOTH_WAYS = 2
"""An activation goes forward, its gradient comes back."""
_US = 1e6
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Output:
    """What a node hands on, once to every stage that reads it.

    ``producer`` is a node, ``consumers`` a set of others, before it (a gradient), after it, or neither;
    ``cost`` is the time to send it, in the problem's unit.
    """

    producer: int
    consumers: int
    cost: float


@dataclass(frozen=True)
class Move:
    """One way of forming the next stage.

    Attributes:
        kind: ``device`` or ``accelerator`` (pays for transfers), or ``cpu`` (does not).
        devices: that share the stage's samples.
    """

    kind: Literal["device", "accelerator", "cpu"]
    devices: int = 1


@dataclass(frozen=True)
class Problem:
    """What is to be partitioned, on what, and what counts.

    Attributes:
        name: of the graph.
        node_names: of the order's nodes.
        members: what each node is made of, in a file's own names.
        order: the nodes, weighed with their work on the fastest kind of device.
        work: of each node on a device (or accelerator).
        outputs: what crosses between stages, and counts.
        traffic: what crosses forward, whether it counts or not: its ``cost`` is in bytes.
        cost: how work and transfers make a stage's time.
        devices: how many there are; of two kinds: accelerators.
        moves: by which stages are formed.
        parameters, activations: bytes of each node, or sizes.
        memory: of a device; a stage may not need more.
        reduce_time: time to send one byte of gradients between the replicas of a stage.
        cpus, cpu_work: the second kind of devices, and each node's work there.
        not_on_accelerators: set of the nodes that only a CPU can run.
        uses_all: whether all devices must have a stage (else as many as pays).
        is_integer: whether all stages' costs are whole numbers of the unit.
        unit: of work and costs.
    """

    name: str
    node_names: tuple[str, ...]
    members: tuple[tuple[str, ...], ...]
    order: WeighedOrder
    work: Floats
    outputs: tuple[Output, ...]
    traffic: tuple[Output, ...]
    cost: CostModel
    devices: int
    moves: tuple[Move, ...]
    parameters: Floats
    activations: Floats
    memory: float | None = None
    reduce_time: float = 0.0
    cpus: int = 0
    cpu_work: Floats | None = None
    not_on_accelerators: int = 0
    uses_all: bool = True
    is_integer: bool = False
    unit: str = "us"

    @property
    def is_straight(self) -> bool:
        """Whether every stage is on one device, and all devices are alike."""
        return len(self.moves) == 1

    @cached_property
    def rounding(self) -> float:
        """What sums of weights may differ by for the order of their terms; nothing, if all are whole."""
        weights = [self.order.weights, self.work]
        weights += [] if self.cpu_work is None else [self.cpu_work]
        is_whole = all((each == np.floor(each)).all() for each in weights)
        return 0.0 if is_whole else _ROUNDING * self.order.total

    def reach(self, move: Move, bottleneck: float) -> float:
        """The most weight that a stage can have if it takes no longer than this."""
        work = self.cpu_work if move.kind == "cpu" else self.work
        assert work is not None
        # Nodes that another kind of device runs faster weigh less than they take here.
        share = self.order.weights[work > 0] / work[work > 0]
        if move.kind == "accelerator" and self.not_on_accelerators:
            share = np.minimum(share, 1.0)
        return move.devices * bottleneck * float(share.max(initial=0.0)) + self.rounding

    @property
    def only_work_counts(self) -> bool:
        """Whether stages cost what their nodes weigh, one on every device, and nothing else limits them."""
        return self.is_straight and self.uses_all and self.memory is None and not self.outputs

    @cached_property
    def forward(self) -> tuple[Output, ...]:
        """Outputs that a later stage may read."""
        down = self.order.down
        return tuple(each for each in self.outputs if each.consumers & ~down[each.producer])

    @cached_property
    def outputs_back(self) -> tuple[Output, ...]:
        """Outputs that an earlier stage may read; those that either may are in both."""
        up = self.order.up
        return tuple(each for each in self.outputs if each.consumers & ~up[each.producer])

    @cached_property
    def states(self) -> list[tuple[int, int]]:
        """Devices (or accelerators) and CPUs used so far: the states of the dynamic programme."""
        return [(a, c) for a in range(self.devices + 1) for c in range(self.cpus + 1)]

    def stashed(self, used: int, move: Move) -> int:
        """Micro-batches whose activations a stage holds: as many as are under way behind it (1F1B)."""
        if move.kind != "device":
            return 1
        return -(-(self.devices - used) // move.devices)

    def stage_memory(
        self, parameters: Floats | float, activations: Floats | float, used: int, move: Move
    ) -> Floats | float:
        """Memory of a stage with so many bytes, the first of whose devices is number ``used``."""
        if move.kind == "cpu":
            return 0.0
        if move.kind == "accelerator":
            return parameters
        return PARAMETER_COPIES * parameters + self.stashed(used, move) * activations


def pipeline_problem(
    graph: TaskGraph,
    devices: int,
    cost: CostModel = "compute",
    bandwidth: float | None = None,
    replicate: bool = False,
    memory: float | None = None,
) -> Problem:
    """Cutting a network into ``devices`` stages, or fewer that are replicated, so that the slowest is fast.

    Args:
        graph: what to cut.
        devices: all alike; each gets a part.
        cost: ``compute`` (work alone), ``max`` (transfers hide behind work, or the other way), ``sum``.
        bandwidth: bytes per second of a device's link, each way; for transfers, and for the gradients of
            replicated stages.
        replicate: stages may be on several devices, which split the samples and sum their gradients.
        memory: bytes of a device.

    Raises:
        JoulecastError: more stages than nodes, a missing or useless number, a node too large for ``memory``.
    """
    where = f"graph {graph.name}"
    size = len(graph.tasks)
    if devices < 1:
        raise JoulecastError(f"--devices {devices}: at least one is needed")
    if devices > size and not replicate:
        raise JoulecastError(
            f"{where}: {devices} stages are more than its {size} nodes; give fewer --devices, or --replicate"
        )
    if memory is not None and not memory > 0:
        raise JoulecastError(f"--memory {memory:g}: must be above 0")
    if bandwidth is not None and not bandwidth > 0:
        raise JoulecastError(f"--bandwidth {bandwidth:g}: must be above 0")
    if bandwidth is None and (cost != "compute" or replicate):
        needs = "--replicate" if cost == "compute" else f"--cost {cost}"
        raise JoulecastError(f"{needs} needs --bandwidth, the bytes per second of a device's link")
    per_byte = _US / bandwidth if bandwidth is not None else 0.0
    traffic = tuple(
        Output(producer, bits_of(readers), task.activation_bytes)
        for producer, (task, readers) in enumerate(zip(graph.tasks, graph.readers, strict=True))
        if readers and task.activation_bytes
    )
    work = np.array([task.work_us for task in graph.tasks], float)
    parameters = np.array([task.parameter_bytes for task in graph.tasks], float)
    activations = np.array([task.activation_bytes for task in graph.tasks], float)
    problem = Problem(
        name=graph.name,
        node_names=tuple(task.name for task in graph.tasks),
        members=tuple((task.name,) for task in graph.tasks),
        order=WeighedOrder(
            [[graph.index[name] for name in task.reads] for task in graph.tasks],
            work.tolist(),
        ),
        work=work,
        outputs=()
        if cost == "compute"
        else tuple(replace(each, cost=_BOTH_WAYS * each.cost * per_byte) for each in traffic),
        traffic=traffic,
        cost=cost,
        devices=devices,
        moves=tuple(Move("device", count) for count in range(1, devices + 1 if replicate else 2)),
        parameters=parameters,
        activations=activations,
        memory=memory,
        reduce_time=per_byte,
        is_integer=cost == "compute" and not replicate,
    )
    _check_memory(where, problem)
    return problem


def _check_memory(where: str, problem: Problem) -> None:
    if problem.memory is None:
        return
    # The last stage holds one micro-batch: no node needs less than there.
    last, used = problem.moves[0], problem.devices - 1
    for node, name in enumerate(problem.node_names):
        needed = problem.stage_memory(
            float(problem.parameters[node]), float(problem.activations[node]), used, last
        )
        if needed > problem.memory:
            raise JoulecastError(
                f"{where}: node `{name}` alone needs {needed:.6g} bytes, more than a device's memory of "
                f"{problem.memory:.6g}"
            )


def placement_problem(graph: PlacementGraph) -> Problem:
    """Placing a graph on accelerators and CPUs, as its file asks for; it may leave some of them empty."""
    work = np.array([each.accelerator_load for each in graph.classes], float)
    cpu_work = np.array([each.cpu_load for each in graph.classes], float)
    on_accelerators = np.array([each.runs_on_accelerator for each in graph.classes])
    fastest = np.where(on_accelerators, work, cpu_work) if graph.accelerators else cpu_work
    if graph.cpus:
        fastest = np.minimum(fastest, cpu_work)
    outputs = tuple(Output(o.producer, bits_of(o.consumers), o.cost) for o in graph.outputs)
    moves = [Move("accelerator")] if graph.accelerators else []
    moves += [Move("cpu")] if graph.cpus else []
    if not moves:
        raise JoulecastError(f"graph {graph.name}: no device to place it on")
    return Problem(
        name=graph.name,
        node_names=tuple(each.name for each in graph.classes),
        members=tuple(each.nodes for each in graph.classes),
        order=WeighedOrder([each.reads for each in graph.classes], fastest.tolist()),
        work=work,
        outputs=outputs,
        traffic=(),
        cost="sum",
        devices=graph.accelerators,
        moves=tuple(moves),
        parameters=np.array([each.size for each in graph.classes], float),
        activations=np.zeros(len(graph.classes)),
        # A limit that even everything together keeps is none.
        memory=graph.memory if sum(each.size for each in graph.classes) > graph.memory else None,
        cpus=graph.cpus,
        cpu_work=cpu_work if graph.cpus else None,
        not_on_accelerators=bits_of(np.flatnonzero(~on_accelerators).tolist()),
        uses_all=False,
        unit="the file's",
    )


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
