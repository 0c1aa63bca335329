"""The problem of partitioning: work, transfers and memory of stages, and the devices for them.

A problem has three parts: a partial order of nodes with work, the outputs that cross between stages, and the
numbers of devices that may share a stage's samples (replicas). The costs of many stages are computed at once:
of all stages that begin after one ideal (:class:`~joulecast.partition.stage_costs.StageCosts`).
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.partition.order import WeighedOrder, set_of_nodes
from joulecast.partition.taskgraph import TaskGraph

CostModel = Literal["compute", "max", "sum"]
Floats = NDArray[np.float64]

PARAMETER_COPIES = 3
"""Bytes in memory for each byte of parameters: weights, gradients and momenta."""
_BOTH_WAYS = 2
"""Number of transfers over a cut for each activation: the activation goes forward, its gradient comes
back."""
_US = 1e6
_ROUNDING = 1e-9
_LARGEST, _EXACT_BITS = 1e300, 51
"""If the sum of all numbers is at least the first value, they are not rounded. The second value is the number
of bits that a sum may have. It is two below a float's 53, because some numbers are counted more than once."""


@dataclass(frozen=True)
class Output:
    """The output of a node, which is sent once to every stage that reads it.

    ``producer`` is a node, ``consumers`` a set of later nodes. ``cost`` is the time to send it in us, or
    its bytes.
    """

    producer: int
    consumers: int
    cost: float


@dataclass(frozen=True)
class Problem:
    """A graph, the devices to partition it on, and the costs that count. Times are in us.

    Attributes:
        name: name of the graph.
        node_names: names of the nodes in ``order``.
        order: partial order of the nodes, with their work as weights.
        work: time of each node on a device.
        outputs: outputs that cross between stages and whose transfer counts.
        traffic: all outputs that cross between stages. Their ``cost`` is in bytes.
        cost: how work and transfers make a stage's time.
        devices: number of devices. Each of them gets a part.
        replicas: numbers of devices that a stage may be on.
        parameters, activations: bytes of each node.
        memory: bytes of a device. A stage may not need more.
        reduce_time: time to send one byte of gradients between the replicas of a stage.
        is_integer: whether all stages' costs are whole numbers.
    """

    name: str
    node_names: tuple[str, ...]
    order: WeighedOrder
    work: Floats
    outputs: tuple[Output, ...]
    traffic: tuple[Output, ...]
    cost: CostModel
    devices: int
    replicas: tuple[int, ...]
    parameters: Floats
    activations: Floats
    memory: float | None = None
    reduce_time: float = 0.0
    is_integer: bool = False

    @property
    def is_straight(self) -> bool:
        """Whether every stage is on one device."""
        return self.replicas == (1,)

    @cached_property
    def rounding(self) -> float:
        """Largest difference between sums of the same weights in different orders. It is 0 if all weights are
        whole numbers."""
        is_whole = all((each == np.floor(each)).all() for each in (self.order.weights, self.work))
        return 0.0 if is_whole else _ROUNDING * self.order.total

    @property
    def only_work_counts(self) -> bool:
        """Whether only work counts: the cost of a stage is the weight of its nodes, every device has one
        stage, and there are no other limits."""
        return self.is_straight and self.memory is None and not self.outputs

    def stashed(self, used: int, replicas: int) -> int:
        """Number of micro-batches whose activations a stage holds (1F1B). It follows from the number of
        devices after the stage."""
        return -(-(self.devices - used) // replicas)

    def stage_memory(
        self, parameters: Floats | float, activations: Floats | float, used: int, replicas: int
    ) -> Floats | float:
        """Memory of a stage, from the bytes of its parameters and activations. ``used`` devices are before
        the stage."""
        return PARAMETER_COPIES * parameters + self.stashed(used, replicas) * activations


def pipeline_problem(
    graph: TaskGraph,
    devices: int,
    cost: CostModel = "compute",
    bandwidth: float | None = None,
    replicate: bool = False,
    memory: float | None = None,
) -> Problem:
    """The problem of cutting a network into stages so that the slowest stage is fast.

    Args:
        graph: what to cut.
        devices: number of devices. All are alike, and each gets a part. There are as many stages as devices,
            or fewer if stages are replicated.
        cost: ``compute`` (work alone), ``max`` (transfers hide behind work, or work behind transfers),
            ``sum``.
        bandwidth: bytes per second of a device's link, in each direction. It is needed for transfers, and for
            the gradients of replicated stages.
        replicate: stages may be on several devices, which split the samples and sum their gradients.
        memory: bytes of a device.

    Raises:
        JoulecastError: there are more stages than nodes, a number is missing or has no effect, or a node
            needs more than ``memory``.
    """
    where = f"graph {graph.name}"
    size = len(graph.tasks)
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
        Output(producer, set_of_nodes(readers), task.activation_bytes)
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
        replicas=tuple(range(1, devices + 1 if replicate else 2)),
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
    used = problem.devices - 1
    for node, name in enumerate(problem.node_names):
        needed = problem.stage_memory(
            float(problem.parameters[node]), float(problem.activations[node]), used, 1
        )
        if needed > problem.memory:
            raise JoulecastError(
                f"{where}: node `{name}` alone needs {needed:.6g} bytes, more than a device's memory of "
                f"{problem.memory:.6g}"
            )


def summable(*parts: Floats) -> list[Floats]:
    """Numbers rounded so that all their sums are exact. The rounding is less than the last bits of their
    sum.

    Sums of the results are the same in any order and on every processor. So rounding decides neither which of
    several equally good pipelines is found, nor whether a pipeline reaches its bound. Whole numbers are not
    changed.
    """
    total = float(sum(np.abs(part).sum() for part in parts))
    if not 0 < total < _LARGEST:
        return list(parts)
    step = 2.0 ** (math.frexp(total)[1] - _EXACT_BITS)
    return [np.round(part / step) * step if step else part for part in parts]
