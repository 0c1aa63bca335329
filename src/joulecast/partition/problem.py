"""What a pipeline partition costs: work, transfers, memory, and the devices that stages are put on.

A problem is a partial order of nodes with work, the outputs that cross between stages, and the moves by which
the next stage can be formed: on one device, on several that share its samples (replication), or, with two
kinds of devices, on one of either. What a stage costs is computed for many stages at once
(:class:`StageCosts`): all those that begin after one ideal.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.graphs.device_placement import PlacementGraph
from joulecast.graphs.taskgraph import TaskGraph
from joulecast.partition.order import WeighedOrder, bits_of

CostModel = Literal["compute", "max", "sum"]
Floats = NDArray[np.float64]

PARAMETER_COPIES = 3
"""Weights, gradients and momenta."""
_BOTH_WAYS = 2
"""An activation goes forward, its gradient comes back."""
_US = 1e6
_ROUNDING = 1e-9
_LARGEST, _EXACT_BITS = 1e300, 51
"""Of a float's 53 bits two are left for what is counted more than once."""


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
        unordered: set of the nodes that nothing orders, though their source would (orphans of device
            placement).
        mirrored: pairs of nodes, the earlier first: the order that the source demands of those. A pipeline
            of this problem need not keep it.
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
    unordered: int = 0
    mirrored: tuple[tuple[int, int], ...] = ()

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
    work, sending = summable(
        np.array([task.work_us for task in graph.tasks], float),
        np.array([_BOTH_WAYS * each.cost * per_byte for each in traffic], float),
    )
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
        else tuple(
            replace(each, cost=time) for each, time in zip(traffic, sending.tolist(), strict=True)
        ),
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
    work, cpu_work, sending = summable(
        np.array([each.accelerator_load for each in graph.classes], float),
        np.array([each.cpu_load for each in graph.classes], float),
        np.array([each.cost for each in graph.outputs], float),
    )
    on_accelerators = np.array([each.runs_on_accelerator for each in graph.classes])
    cpu_only = np.full(len(work), True) if not graph.accelerators else ~on_accelerators
    fastest = fastest_work(work, cpu_work if graph.cpus else None, cpu_only)
    outputs = tuple(
        Output(each.producer, bits_of(each.consumers), cost)
        for each, cost in zip(graph.outputs, sending.tolist(), strict=True)
    )
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
        # More than one a node are never used, and the programme has a state for every number of them.
        devices=min(graph.accelerators, len(work)),
        moves=tuple(moves),
        parameters=np.array([each.size for each in graph.classes], float),
        activations=np.zeros(len(graph.classes)),
        # A limit that even everything together keeps is none.
        memory=graph.memory if sum(each.size for each in graph.classes) > graph.memory else None,
        cpus=min(graph.cpus, len(work)),
        cpu_work=cpu_work if graph.cpus else None,
        not_on_accelerators=bits_of(np.flatnonzero(~on_accelerators).tolist()),
        uses_all=False,
        unit="the file's",
        unordered=bits_of(n for n, each in enumerate(graph.classes) if each.is_orphan),
        mirrored=graph.mirrored,
    )


def summable(*parts: Floats) -> list[Floats]:
    """Numbers rounded by less than the last bits of their sum, so that all sums are exact.

    Added up in any order they give the same then, on every processor: which of several equally good
    pipelines is found, and whether it reaches its bound, is no matter of rounding. Whole numbers stay.
    """
    total = float(sum(np.abs(part).sum() for part in parts))
    if not 0 < total < _LARGEST:
        return list(parts)
    step = 2.0 ** (math.frexp(total)[1] - _EXACT_BITS)
    return [np.round(part / step) * step if step else part for part in parts]


def fastest_work(work: Floats, cpu_work: Floats | None, is_cpu_only: NDArray[np.bool_]) -> Floats:
    """Each node's work on the fastest kind of device that there is for it."""
    if cpu_work is None:
        return work
    return np.asarray(np.where(is_cpu_only, cpu_work, np.minimum(work, cpu_work)))
