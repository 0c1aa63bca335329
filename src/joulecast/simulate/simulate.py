"""Simulates a training step. This is the main function of the package.

    simulate(graph, platform, parse_strategy("dp=8,tp=2"), batch=32)

gives the time of the step, its parts, and the memory that each device needs.
"""

import gc
import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.graphs.clocks import CLOCK_WIDTH
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.graphs.transformer import attention_of
from joulecast.runs.platforms import Platform
from joulecast.simulate.breakdown import Breakdown, breakdowns, mean_breakdown
from joulecast.simulate.collectives import Kind
from joulecast.simulate.compiler import OPTIMIZER, Compiler
from joulecast.simulate.correction import (
    NO_WAIT,
    HostPace,
    StepKind,
    basis_of,
    costs_in_step,
    host_pace,
    host_paces,
    memory_width,
    step_interval,
)
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.device_mesh import DeviceMesh, build_device_mesh
from joulecast.simulate.event_loop import (
    ActivityGraph,
    Slowdown,
    TimedActivity,
    Timeline,
    execute,
)
from joulecast.simulate.inferred_splits import experts_in, experts_of_token, sequence_length
from joulecast.simulate.memory import (
    Memory,
    exceeds,
    memory_of,
    memory_verdict,
)
from joulecast.simulate.phases import WrittenPhases, reduction
from joulecast.simulate.placement import PlacedOp, check_heads, place
from joulecast.simulate.program import ForwardProgram, ProgramBuilder, StageProgram
from joulecast.simulate.proteus import RingTransfers
from joulecast.simulate.shared_links import SharedLinks
from joulecast.simulate.stage_activations import shape_of
from joulecast.simulate.strategy import Strategy, gradient_passes, text_of
from joulecast.simulate.topology import Topology, topology_of
from joulecast.simulate.transfers import Transfers


@dataclass(frozen=True)
class Assumptions:
    """Assumptions of a simulation besides the strategy. The switches are for ablations."""

    mode: Literal["default", "proteus"] = "default"
    """Model of the step. ``proteus`` has the communication model and overlap of that paper."""
    stragglers: Mapping[int, float] = field(default_factory=dict)
    """Devices that are slower, and the factor on the time that they compute."""
    folded: bool = True
    """Whether one device of each class of equal devices is simulated for the whole class."""
    sharing: bool = True
    """Whether flows that use the same port divide it."""
    training: TrainingSetup = DEFAULT_TRAINING
    """Precision, optimizer, and whether a step is only a forward pass."""
    single_queue: bool = False
    """Whether compute waits for every message that it has sent (an ablation)."""


@dataclass(frozen=True)
class Simulation:
    """A simulated step. Times in seconds, memory in bytes."""

    graph: OpGraph
    strategy: Strategy
    platform: Platform
    batch: float
    """Number of samples on all devices."""
    step_s: float
    breakdown: Breakdown
    memory: list[Memory]
    """Memory of each stage's devices."""
    cost_sources: dict[str, int]
    """Number of ops by the source of their cost (measured, interpolated, roofline, ...)."""
    device_mesh: DeviceMesh
    activities: ActivityGraph
    timeline: Timeline
    training: TrainingSetup
    optimizer_s: float
    """Seconds of the optimizer (mean over devices). They are part of computing."""
    capacity: list[float]
    """Bytes/s of the ports in the usage of activities."""
    calibration_remark: str | None = None
    """Remark for the user on the measured steps that corrected the simulation."""
    host: HostPace = NO_WAIT
    sm_mhz: float | None = None
    """Clock under a power limit or a set clock; ``None`` if neither was asked for."""

    @property
    def kind(self) -> StepKind:
        """The kind of step. The interval of a step was judged on steps of the same kind."""
        if experts_in(self.graph):
            return "experts"
        return "one" if self.strategy.devices == 1 else "several"

    @property
    def host_stretch(self) -> float:
        """How many times as long devices take as their kernels need. Above 1 the host sets the pace."""
        return max(1.0, self.host.share)

    def timed_activities(self) -> Iterator[TimedActivity]:
        """All activities of the step at their times."""
        times = zip(self.timeline.start_s, self.timeline.end_s, strict=True)
        for activity, (start, end) in zip(self.activities.activities, times, strict=True):
            yield TimedActivity(activity, start, end)

    def without_timeline(self) -> "Simulation":
        """The same simulation without its activities. A ranking of many simulations needs only their
        times."""
        return replace(self, activities=ActivityGraph(), timeline=Timeline([], []))

    @property
    def samples_per_s(self) -> float:
        """Throughput of all devices."""
        return self.batch / self.step_s

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Ends of the 90 % interval of the step; ``None`` if the error of such steps is not known."""
        ends = step_interval(self._ends_by_host_s, self.kind, self.cost_sources)
        if ends is None or self.sm_mhz is None:
            return ends
        down, up = (math.hypot(math.log(end / self.step_s), CLOCK_WIDTH) for end in ends)
        return self.step_s * math.exp(-down), self.step_s * math.exp(up)

    @property
    def _ends_by_host_s(self) -> tuple[float, float]:
        """Seconds of the step with a fast and with a slow host."""
        ops_s = self.breakdown.computing_s - self.optimizer_s
        fast, slow = (
            self.step_s + ops_s * (max(1.0, pace * self.host.share) / self.host_stretch - 1)
            for pace in host_paces()
        )
        return fast, slow

    @property
    def peak_memory_bytes(self) -> float:
        """Peak memory of the device that needs most."""
        reserved = self.platform.require_cluster().device.reserved_bytes
        return max(memory.peak_bytes for memory in self.memory) + reserved

    @property
    def memory_ends_bytes(self) -> tuple[float, float]:
        """Ends of the 90 % interval of that peak."""
        width = memory_width(self.strategy.devices)
        return (1 - width) * self.peak_memory_bytes, (1 + width) * self.peak_memory_bytes

    @property
    def out_of_memory(self) -> bool | None:
        """Whether some device has too little memory; ``None`` if the platform does not say how much it
        has."""
        return exceeds(self.memory, self.platform)

    @property
    def near_memory_limit(self) -> bool:
        """Whether a device is so full that the step may not fit after all, because simulated peaks have
        errors."""
        limit = self.platform.require_cluster().device.memory_bytes
        return limit is not None and self.memory_ends_bytes[1] > limit

    def verdict(self) -> str:
        """One line: whether the step fits in memory, and if not, what does not."""
        return memory_verdict(self.memory, self.platform, self.memory_ends_bytes)

    def as_json(self) -> dict[str, Any]:
        """Plain data of the simulation, without the timeline."""
        parts = self.breakdown
        interval = self.interval_s
        return {
            "network": self.graph.name,
            "platform": self.platform.name,
            "strategy": text_of(self.strategy),
            "devices": self.strategy.devices,
            "batch": self.batch // self.strategy.replicas,
            "global_batch": self.batch,
            "sequence": sequence_length(self.graph),
            "precision": self.training.precision.name,
            "optimizer": self.training.optimizer.name,
            "inference": self.training.inference,
            "sm_mhz": self.sm_mhz,
            "attention": attention_of(self.graph),
            "parameters": sum(tensor.elements for tensor in self.graph.parameters),
            "step_s": self.step_s,
            "step_low_s": interval[0] if interval else None,
            "step_high_s": interval[1] if interval else None,
            "host_stretch": self.host_stretch,
            "basis": basis_of(self.cost_sources),
            "calibration_remark": self.calibration_remark,
            "samples_per_s": self.samples_per_s,
            "computing_s": parts.computing_s,
            "exposed_communication_s": parts.exposed_communication_s,
            "bubble_s": parts.bubble_s,
            "communication_s": parts.communication_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "peak_memory_low_bytes": self.memory_ends_bytes[0],
            "peak_memory_high_bytes": self.memory_ends_bytes[1],
            "near_memory_limit": self.near_memory_limit,
            "state_bytes": max(memory.state_bytes for memory in self.memory),
            "memory": [asdict(memory) for memory in self.memory],
            "out_of_memory": self.out_of_memory,
            "verdict": self.verdict(),
            "op_costs": self.cost_sources,
            "source": "simulated",
        }


def _kinds(
    programs: list[StageProgram], places: int
) -> tuple[set[tuple[Kind, str]], set[tuple[int, int]]]:
    """Collectives with their mesh axes, and pairs of pipeline places between which tensors are sent."""
    kinds: set[tuple[Kind, str]] = set()
    cuts: set[tuple[int, int]] = set()
    for program in programs:
        sent = (*program.first_forward.messages, *program.forward.messages)
        for message in (*sent, *program.backward.messages, *program.tied):
            if message.key is None:
                kinds.add((message.kind, message.axis))
            else:
                cuts.add((message.key[3] % places, message.key[4] % places))
        for gradient in program.gradients:
            for axis in gradient.axes:
                kinds.add((reduction(gradient.zero, axis), axis))
            if gradient.gathered_after_update:
                kinds.add(("all_gather", gradient.sharding.axis))
    return kinds, cuts


@contextmanager
def no_cycles() -> Iterator[None]:
    """Turn off Python's search for reference cycles during a block. The objects of a step have none, and the
    search takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _optimizer_s(graph: ActivityGraph, device_mesh: DeviceMesh) -> float:
    sizes = device_mesh.classes.size
    updates = [activity for activity in graph.activities if activity.label == OPTIMIZER]
    return float(sum(each.work * sizes[each.devices[0]] for each in updates) / sizes.sum())


def _check_batch(strategy: Strategy, batch: int) -> int:
    """Number of samples of a micro-batch on all replicas, from the samples of a replica's step."""
    if batch < 1 or batch % strategy.micro_batches:
        raise JoulecastError(
            f"batch {batch}: does not divide into {strategy.micro_batches} micro-batches (micro="
            f"{strategy.micro_batches}); take a number that divides the {batch} samples of a replica"
        )
    return batch * strategy.replicas // strategy.micro_batches


def placed_programs(
    graph: OpGraph,
    strategy: Strategy,
    costs: Costs,
    send_s_per_byte: float = 0.0,
    kind: type[StageProgram] = StageProgram,
    gradient_share: float = 1.0,
    parts_sent: int = 1,
) -> tuple[list[PlacedOp], list[StageProgram]]:
    """Place a graph (with the batch of one micro-batch), and make the program of every stage."""
    placed = place(graph, strategy, costs, send_s_per_byte)
    split, written = strategy.sequence_parallel, None
    if strategy.is_inferred:
        # The shards of a strategy change phases only by the gathers of weights.
        stages = tuple(item.stage for item in placed)
        mesh = tuple(strategy.mesh.items())
        overlap = strategy.tensor_overlap
        settings = (mesh, split, overlap, strategy.tree.recompute, gradient_share, parts_sent)
        key = ("phases", settings, stages)
        written = cached(costs).op_cache.once(graph, key, WrittenPhases)
    builder = ProgramBuilder(
        graph,
        placed,
        strategy.mesh,
        split,
        gradient_share,
        written,
        parts_sent,
        strategy.tensor_overlap,
    )
    return placed, [kind(builder, stage) for stage in range(strategy.stages)]


@dataclass(frozen=True)
class Prepared:
    """A strategy placed on a platform, before anything is run."""

    graph: OpGraph
    """The graph for a micro-batch of all replicas together."""
    placed: list[PlacedOp]
    programs: list[StageProgram]
    topology: Topology
    costs: Costs

    training: TrainingSetup = DEFAULT_TRAINING
    communicator_bytes: float = 0.0
    host: HostPace = NO_WAIT

    @cached_property
    def shapes(self) -> list[Hashable]:
        """The shape of each stage: everything that distinguishes it from other stages, except names."""
        return [shape_of(program) for program in self.programs]

    def memory(self, strategy: Strategy) -> list[Memory]:
        """Memory of each stage's devices."""
        places = strategy.pipeline
        return [
            memory_of(
                self.graph,
                strategy,
                self.programs[place::places],
                self.shapes[place::places],
                self.training,
                cached(self.costs).op_cache,
                self.communicator_bytes,
            )
            for place in range(places)
        ]


def prepare(
    graph: OpGraph,
    platform: Platform,
    strategy: Strategy,
    batch: int,
    costs: Costs | None = None,
    training: TrainingSetup = DEFAULT_TRAINING,
    uneven_heads: bool = False,
) -> Prepared:
    """Place a strategy, and make its programs. The memory depends only on these.

    The graph gets the precision of ``training``. For inference, the ops that only a training has are left
    out.

    Raises:
        JoulecastError: an error of :func:`simulate`.
    """
    strategy.check()
    at_batch = graph.with_batch(_check_batch(strategy, batch))
    in_step = costs_in_step(
        costs or roofline_of(platform),
        gradient_passes(strategy),
        at_batch,
        strategy,
        training.inference,
    )
    topology = topology_of(platform, strategy.devices)
    slowest = 1 / min(topology.bytes_per_s) if topology.bytes_per_s else 0.0
    kind = ForwardProgram if training.inference else StageProgram
    gradients, tensor = training.gradient_share, strategy.mesh.get("tensor", 1)
    # Megatron sends a part from each tensor rank, and gathers the parts where a node's link is fast.
    parts_sent = 1 if platform.require_cluster().devices_per_node % tensor else tensor
    placed, programs = placed_programs(
        at_batch, strategy, in_step, slowest, kind, gradients, parts_sent
    )
    host = host_pace(in_step, at_batch, placed, training.inference)
    costs = in_step.stretched(host.share) if host.share > 1 else in_step
    if not uneven_heads and tensor > 1 and not strategy.tree.split:
        check_heads(placed, tensor)
    buffers = platform.require_cluster().communicator_bytes
    return Prepared(at_batch, placed, programs, topology, costs, training, buffers, host)


def simulate(
    graph: OpGraph,
    platform: Platform,
    strategy: Strategy,
    batch: int,
    costs: Costs | None = None,
    assumptions: Assumptions | None = None,
) -> Simulation:
    """Simulate one training step.

    Args:
        graph: the network.
        platform: devices and links.
        strategy: how it is parallelised.
        batch: samples in one step of a replica. (If only the batch is split, a replica is a device.)
        costs: seconds of ops. By default, the platform's roofline gives them.
        assumptions: differences from the platform's file, and ablations.

    Raises:
        JoulecastError: strategy, graph and platform do not fit together. The error says what to change. A
            step that does not fit in memory is no error: see :meth:`Simulation.verdict`.
    """
    assumed = assumptions or Assumptions()
    # The paper's own model splits GPT's 12 heads over 8 devices.
    uneven_heads = assumed.mode == "proteus"
    ready = prepare(graph, platform, strategy, batch, costs, assumed.training, uneven_heads)
    return run_prepared(ready, graph, platform, strategy, assumed)


def compiler_of(
    ready: Prepared, platform: Platform, strategy: Strategy, assumed: Assumptions
) -> Compiler:
    """The compiler for the activities of a step. It has the folded devices, and the flows between them."""
    cluster, topology = platform.require_cluster(), ready.topology
    numbers = np.arange(strategy.devices, dtype=np.int64)
    device_mesh = build_device_mesh(
        strategy,
        ready.placed,
        topology.node_of(numbers),
        topology.widths,
        assumed.stragglers,
        # A folded flow is several that share ports: without sharing each has to be one of its own.
        assumed.folded and (assumed.sharing or assumed.mode == "proteus"),
        by_place=cluster.collective_algorithm not in ("ring", "nccl"),
    )
    kinds, cuts = _kinds(ready.programs, strategy.pipeline)
    if assumed.mode == "proteus":
        transfers: Transfers = RingTransfers(
            device_mesh, topology, cluster, kinds, cuts, assumed.sharing
        )
    else:
        chosen = experts_of_token(ready.graph)
        transfers = Transfers(device_mesh, topology, cluster, kinds, cuts, chosen)
    return Compiler(
        ready.graph,
        strategy,
        ready.programs,
        device_mesh,
        transfers,
        ready.costs,
        fuse=assumed.mode != "proteus",
        training=ready.training,
        blocking=assumed.single_queue,
    )


def run_prepared(
    ready: Prepared,
    graph: OpGraph,
    platform: Platform,
    strategy: Strategy,
    assumed: Assumptions,
    compiler: Compiler | None = None,
) -> Simulation:
    """Simulate a strategy that :func:`prepare` has prepared. If a compiler from :func:`compiler_of` is given,
    it is used."""
    compiler = compiler or compiler_of(ready, platform, strategy, assumed)
    device_mesh, capacity = compiler.device_mesh, compiler.transfers.capacity
    proteus = assumed.mode == "proteus"
    gamma = platform.require_cluster().overlap_slowdown or 0.0
    slowdown = Slowdown(gamma, gamma, whole_activity=proteus)

    with no_cycles():
        activities = compiler.compile()
        links = SharedLinks(capacity, assumed.sharing and not proteus)
        timeline = execute(activities, links, slowdown)
        by_class = breakdowns(activities, timeline, device_mesh.classes.count)
    return Simulation(
        graph=graph,
        strategy=strategy,
        platform=platform,
        batch=ready.graph.batch * strategy.micro_batches,
        step_s=timeline.duration_s,
        breakdown=mean_breakdown(by_class, device_mesh.classes.size),
        memory=ready.memory(strategy),
        cost_sources=compiler.sources,
        device_mesh=device_mesh,
        activities=activities,
        timeline=timeline,
        training=ready.training,
        optimizer_s=_optimizer_s(activities, device_mesh),
        host=ready.host,
        capacity=capacity,
    )
