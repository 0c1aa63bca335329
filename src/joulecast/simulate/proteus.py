"""The conventions of the original simulator, for parity with its outputs (``mode: proteus``): costs, links.

They are only needed for parity, and are not better than ours:

* Biases are added in a pass of their own.
* Pooling reads its whole window for every value that it writes.
* Attention writes its scores, and each op reads them again.
* The optimizer moves a parameter four times.
* A gradient bucket closes at 25 MB (of 10^6 bytes).
* Every op costs a launch of 2 us.

With these conventions, our results agree with outputs of the original simulator without overlap. The outputs
are for convolutional networks on one device, and for GPT on 8 devices of a node, split by batch and by
tensor.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from joulecast.graphs.costs import Cost, Direction, Parts, Roofline, part_of, roofline_of
from joulecast.graphs.opgraph import KINDS, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.runs.platforms import Cluster, Platform, Ring
from joulecast.simulate.collectives import Kind, hops_of
from joulecast.simulate.device_mesh import DeviceMesh, Ints
from joulecast.simulate.event_loop import Activity
from joulecast.simulate.flows import Flow, Transfers
from joulecast.simulate.topology import Hops, Topology

FIRST_BUCKET_BYTES = 1e6
BUCKET_BYTES = 25e6
_OPTIMIZER_PASSES = 4


_PASSES: dict[str, float] = {"layer_norm": 5, "dropout": 3, "concat": 4, "cross_entropy": 4}
"""Passes over the output of an op in each direction, if they differ from the roofline."""

_SCORE_PASSES = 6.2
"""Passes over the scores of an attention in the forward. The backward has twice as many."""


@dataclass(frozen=True)
class ProteusRoofline(Roofline):
    """The roofline with the conventions of Proteus' public code."""

    launch_s: float = 2e-6

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        seconds = self._seconds(graph, op, parts, direction)
        if seconds is None:
            return super().cost(graph, op, parts, direction)
        return Cost(seconds + self.launch_s, "roofline")

    def _seconds(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> float | None:
        written_bytes = sum(graph.tensors[a.tensor].bytes * part_of(a, parts) for a in op.writes)
        written = written_bytes / self.bytes_per_s
        if op.kind == "cross_entropy":
            logits = graph.tensors[op.reads[0].tensor].bytes * part_of(op.reads[0], parts)
            return _PASSES[op.kind] * logits / self.bytes_per_s
        if KINDS[op.kind] == "pool":
            window: float = math.prod(op.attributes.get("kernel", (1, 1)))
            return (1 + window) * written
        if op.kind in _PASSES:
            return _PASSES[op.kind] * written
        times = 1 if direction == "forward" else 2
        if op.kind == "attention":
            scores = math.prod(
                dim.size / parts.get(dim.name, 1) for dim in op.dims if dim.name != "head_dim"
            )
            itemsize = graph.tensors[op.writes[0].tensor].itemsize
            size = op.dim("head_dim").size / parts.get("head_dim", 1)
            products = 4.0 * scores * size / self.flops_per_s
            return times * (products + _SCORE_PASSES * scores * itemsize / self.bytes_per_s)
        biased = sum(graph.tensors[a.tensor].role == "parameter" for a in op.reads) > 1
        if KINDS[op.kind] == "matmul" and biased:
            plain = super().cost(graph, op, parts, direction).seconds - self.launch_s
            return plain + written
        return None

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        passes = _OPTIMIZER_PASSES if training.updates else 0
        return Cost(passes * parameter_bytes / self.bytes_per_s, "roofline")


def proteus_costs(platform: Platform, precision: str = "fp32") -> ProteusRoofline:
    """The original's roofline with a platform's peak rates.

    Raises:
        JoulecastError: the platform's file does not have them. The error names the key.
    """
    plain = roofline_of(platform, precision)
    return ProteusRoofline(plain.flops_per_s, plain.bytes_per_s)


class NcclCost(NamedTuple):
    """Cost of a collective in the communication model of the paper, for NCCL's ring algorithm and its
    protocol Simple. The constants are NCCL's own."""

    bandwidth_bytes_per_s: float
    """Bytes of the collective, divided by its seconds without ``latency_s``."""
    latency_s: float


_LAUNCH_S = 8.4e-6
_NVLINK_STEP_S = 3.4e-6
_PCIE_STEP_S = 5.7e-6
_NODE_STEP_S = 9.6e-6
_FOUR_RANKS = 0.7
_LARGE = 1.9
_LARGE_FROM_BYTES_PER_RANK = 65536 / 16


def nccl_cost(kind: Kind, ring: Ring, ranks: int, nodes: int, size: float) -> NcclCost:
    """Bandwidth and latency of a collective in the paper's model.

    Args:
        kind: kind of collective. ``send`` is priced as a broadcast.
        ring: bus bandwidth and kind of the ring that NCCL would build.
        size: bytes of the collective. (Large all-reduces over several nodes have longer steps.)
    """
    # A broadcast's bytes count a step for each rank, its latency for each rank but one.
    passes = 2 if kind == "all_reduce" else 1
    steps, between = passes * (ranks - 1), passes * (nodes - 1)
    rate = ring.bytes_per_s
    if ranks == 4 and nodes == 1:
        rate *= _FOUR_RANKS
    step = _NVLINK_STEP_S if ring.nvlink else _PCIE_STEP_S
    latency = _LAUNCH_S + (steps - between) * step + between * _NODE_STEP_S
    if kind == "all_reduce" and nodes > 1 and size >= ranks * _LARGE_FROM_BYTES_PER_RANK:
        latency *= _LARGE
    return NcclCost(rate if kind == "send" else rate * ranks / steps, latency)


@dataclass(frozen=True, kw_only=True)
class RingFlow(Flow):
    """A flow around a ring. NCCL would build this ring for the devices of the flow."""

    ring: Ring
    ranks: int
    nodes: int

    def activity(self, label: str, size: float, gradient: bool) -> Activity:
        latency = nccl_cost(self.kind, self.ring, self.ranks, self.nodes, size).latency_s
        return Activity(label, self.members, size, self.usage, latency, gradient)


class RingTransfers(Transfers):
    """All flows of a strategy in the paper's model, which knows rings and no ports."""

    def __init__(
        self,
        device_mesh: DeviceMesh,
        topology: Topology,
        cluster: Cluster,
        kinds: set[tuple[Kind, str]],
        cuts: set[tuple[int, int]],
        sharing: bool,
    ) -> None:
        self.sharing = sharing
        around_rings = cluster.model_copy(update={"collective_algorithm": "ring"})
        # The rings in the platform's file already contain the rates of lines between devices.
        super().__init__(device_mesh, replace(topology, pairs=()), around_rings, kinds, cuts)

    @property
    def seen_by(self) -> Ints:
        """All devices count, because groups share ports that no class represents."""
        return np.arange(self.topology.devices)

    def priced(self) -> tuple[list[Flow], list[float]]:
        """All flows, and the bytes/s of their ports. Each flow has its own port. If several groups of one
        kind cross the same link above the devices, the rate of their port is divided by their number."""
        flows: list[Flow] = []
        capacity = []
        for number, (kind, group, members) in enumerate(self.specs):
            ring, ranks, nodes = self._ring(group), len(group), self.topology.nodes_of(group)
            rate = nccl_cost(kind, ring, ranks, nodes, 0.0).bandwidth_bytes_per_s
            rate /= self._sharers(number) if self.sharing else 1.0
            capacity.append(rate)
            price = {number: 1.0}, rate, ((1.0, 0.0),)
            flows.append(
                RingFlow(number, kind, members, *price, ring=ring, ranks=ranks, nodes=nodes)
            )
        return flows, capacity

    def _ring(self, group: Ints) -> Ring:
        """The ring that the platform's file gives for a group, or the slowest port on its way."""
        per_node = self.topology.devices_per_node
        nodes = np.unique(self.topology.node_of(group))
        places = sorted({int(device) % per_node for device in group})
        name = "-".join(map(str, places)) + ("xN" if len(nodes) > 1 else "")
        if name in self.cluster.rings:
            return self.cluster.rings[name]
        hops = hops_of("all_gather", "ring", group.reshape(1, -1), np.zeros(1, dtype=np.int64))
        slowest = int(self.topology.levels_crossed(hops).max())
        rates = self.topology.bytes_per_s[: slowest + 1]
        return Ring(bytes_per_s=min(rates), nvlink=self.cluster.links[0].name == "nvlink")

    def _sharers(self, number: int) -> float:
        """Number of groups of the same kind that cross the same port between units of devices."""
        kind, group, _ = self.specs[number]
        load = next(each for each in self.loads if number in each.flow)
        first_shared = 2 * self.topology.devices
        shared = (load.port >= first_shared) if self.topology.widths[:1] == (1,) else load.port >= 0
        crossed = self.topology.load(
            hops_of(kind, "ring", group.reshape(1, -1), np.array([number]))
            if kind != "send"
            else Hops(np.array([number]), group[:1], group[1:], np.ones(1)),
            group,
        ).port
        on_my_ports = shared & np.isin(load.port, crossed)
        totals = np.bincount(load.port[on_my_ports], weights=load.times[on_my_ports])
        return float(totals.max()) if len(totals) else 1.0
