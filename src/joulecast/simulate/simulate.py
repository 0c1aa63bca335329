"""Simulates a training step. This is the main function of the package.

    simulate(graph, platform, parse_strategy("dp=8,tp=2"), batch=32)

gives the time of the step, its parts, and the memory that each device needs.
"""

import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.graphs.clocks import CLOCK_WIDTH
from joulecast.graphs.costs import Costs, Scaled, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.graphs.transformer import attention_of
from joulecast.runs.platforms import Platform
from joulecast.simulate.collectives import Kind
from joulecast.simulate.compiler import OPTIMIZER, Compiler
from joulecast.simulate.correction import StepKind, basis_of, memory_width, step_interval
from joulecast.simulate.cost_cache import CachedCosts, cached
from joulecast.simulate.device_mesh import DeviceMesh, build_device_mesh
from joulecast.simulate.event_loop import ActivityGraph, Breakdown, breakdowns, execute
from joulecast.simulate.flows import Transfers
from joulecast.simulate.host_pace import HostPace, host_pace, host_paces
from joulecast.simulate.inferred_splits import experts_in, experts_of_token, sequence_length
from joulecast.simulate.memory import Memory, memory_of, memory_verdict, share_of_memory
from joulecast.simulate.phases import reduction
from joulecast.simulate.placement import PlacedOp, check_heads, place
from joulecast.simulate.program import ProgramBuilder, StageProgram
from joulecast.simulate.proteus import RingTransfers
from joulecast.simulate.shared_links import SharedLinks
from joulecast.simulate.strategy import Strategy, text_of
from joulecast.simulate.topology import Topology, topology_of


@dataclass(frozen=True)
class Assumptions:
    """What a simulation assumes, apart from the strategy. The switches are for ablations."""

    mode: Literal["default", "proteus"] = "default"
    """Model of the step. ``proteus`` has the communication model and the overlap of the Proteus paper."""
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
    every_micro_batch: bool = False
    """Whether all micro-batches are simulated, also if there are very many."""


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
    """The activities of the micro-batches that were simulated."""
    training: TrainingSetup
    optimizer_s: float
    """Seconds of the optimizer (mean over devices). They are part of computing."""
    capacity: list[float]
    """Bytes/s of the ports in the usage of activities."""
    host: HostPace
    calibration_remark: str | None = None
    """Remark for the user on the measured steps that corrected the simulation."""
    sm_mhz: float | None = None
    """Clock under a power limit or a set clock; ``None`` if neither was requested."""

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

    def without_activities(self) -> "Simulation":
        """The same simulation without its activities, which take most of the memory."""
        return replace(self, activities=ActivityGraph())

    @property
    def samples_per_s(self) -> float:
        """Throughput of all devices."""
        return self.batch / self.step_s

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Ends of the 90 % interval of the step; ``None`` if the error of such steps is not known."""
        ops_s = self.breakdown.computing_s - self.optimizer_s
        # A fast and a slow host.
        fast_s, slow_s = (
            self.step_s + ops_s * (max(1.0, pace * self.host.share) / self.host_stretch - 1)
            for pace in host_paces()
        )
        ends = step_interval((fast_s, slow_s), self.kind, self.cost_sources)
        if ends is None or self.sm_mhz is None:
            return ends
        down, up = (math.hypot(math.log(end / self.step_s), CLOCK_WIDTH) for end in ends)
        return self.step_s * math.exp(-down), self.step_s * math.exp(up)

    @property
    def peak_memory_bytes(self) -> float:
        """Peak memory of the device that needs most."""
        reserved = self.platform.require_cluster().device.reserved_bytes
        return max(memory.peak_bytes for memory in self.memory) + reserved

    @property
    def memory_ends_bytes(self) -> tuple[float, float]:
        """Ends of the 90 % interval of :attr:`peak_memory_bytes`."""
        width = memory_width(self.strategy.devices)
        return (1 - width) * self.peak_memory_bytes, (1 + width) * self.peak_memory_bytes

    @property
    def out_of_memory(self) -> bool | None:
        """Whether some device has too little memory; ``None`` if the platform does not say how much it
        has."""
        share = share_of_memory(self.memory, self.platform)
        return None if share is None else share > 1

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
            "optimizer": self.training.optimizer,
            "inference": self.training.inference,
            "sm_mhz": self.sm_mhz,
            "attention": attention_of(self.graph),
            "parameters": sum(tensor.elements for tensor in self.graph.weights),
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
            "op_costs": dict(self.cost_sources),
            "source": "simulated",
        }


def _kinds(
    programs: list[StageProgram], places: int
) -> tuple[set[tuple[Kind, str]], set[tuple[int, int]]]:
    """Collectives with their mesh axes, and pairs of pipeline places between which tensors are sent."""
    kinds: set[tuple[Kind, str]] = set()
    cuts: set[tuple[int, int]] = set()
    for program in programs:
        phases = (program.first_forward, program.forward, program.backward)
        for message in (*(m for phase in phases for m in phase.messages), *program.tied):
            if message.crossing is None:
                kinds.add((message.kind, message.axis))
            else:
                cuts.add((message.crossing.source % places, message.crossing.target % places))
        for gradient in program.gradients:
            kinds |= {(reduction(gradient.sharding.zero, axis), axis) for axis in gradient.axes}
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
    updates = [activity for activity in graph if activity.label == OPTIMIZER]
    return float(sum(each.work * sizes[each.devices[0]] for each in updates) / sizes.sum())


@dataclass(frozen=True)
class Prepared:
    """A strategy placed on a platform, before anything is run."""

    network: OpGraph
    graph: OpGraph
    """The network, for a micro-batch of all replicas together."""
    platform: Platform
    strategy: Strategy
    placed: list[PlacedOp]
    programs: list[StageProgram]
    topology: Topology
    costs: CachedCosts
    training: TrainingSetup
    host: HostPace
    calibration_remark: str | None

    def _memory_at(self, place: int) -> Memory:
        """Memory of the devices at a place of the pipeline."""
        return memory_of(
            self.graph,
            self.strategy,
            self.programs[place :: self.strategy.pipeline],
            self.training,
            self.platform.require_cluster().communicator_bytes,
        )

    @cached_property
    def memory(self) -> list[Memory]:
        """Memory of each stage's devices."""
        return list(map(self._memory_at, range(self.strategy.pipeline)))

    @property
    def fits(self) -> bool:
        """Whether the step fits in memory. The first stage that does not fit ends the test."""
        each = map(self._memory_at, range(self.strategy.pipeline))
        return all((share_of_memory([one], self.platform) or 0.0) <= 1 for one in each)


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

    Raises:
        JoulecastError: an error of :func:`simulate`.
    """
    if batch < 1 or batch % strategy.micro_batches:
        raise JoulecastError(
            f"batch {batch}: does not divide into {strategy.micro_batches} micro-batches (micro="
            f"{strategy.micro_batches}); take a number that divides the {batch} samples of a replica"
        )
    at_batch = graph.with_batch(batch * strategy.replicas // strategy.micro_batches)
    known = cached(costs or roofline_of(platform))
    in_step = known.in_step(at_batch, strategy, training.inference)
    topology = topology_of(platform, strategy.devices)
    slowest = 1 / min(topology.bytes_per_s) if topology.bytes_per_s else 0.0
    placed, tensor = place(at_batch, strategy, in_step, slowest), strategy.mesh.get("tensor", 1)
    # Megatron sends a part from each tensor rank, and gathers the parts where a node's link is fast.
    parts_sent = 1 if topology.devices_per_node % tensor else tensor
    builder = ProgramBuilder(
        at_batch, placed, strategy, training.gradient_share, parts_sent, training.inference
    )
    programs = [StageProgram(builder, stage) for stage in range(strategy.stages)]
    host = host_pace(in_step, at_batch, placed, strategy.mesh, training.inference)
    if host.share > 1:
        # The optimizer does not wait for the host.
        in_step = CachedCosts(Scaled(in_step, host.share, updates=False), in_step.op_cache)
    if not uneven_heads and tensor > 1 and not strategy.tree.split:
        check_heads(placed, tensor)
    remark = known.evidence.remark if known.evidence else None
    return Prepared(
        *(graph, at_batch, platform, strategy, placed, programs, topology, in_step, training),
        *(host, remark),
    )


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
    # In this mode, uneven heads are allowed, because the paper splits GPT's 12 heads over 8 devices.
    uneven_heads = assumed.mode == "proteus"
    ready = prepare(graph, platform, strategy, batch, costs, assumed.training, uneven_heads)
    return run_prepared(ready, assumed)


def compiler_of(ready: Prepared, assumed: Assumptions) -> Compiler:
    """The compiler for the activities of a step. It has the folded devices, and the flows between them."""
    cluster, strategy, topology = ready.platform.require_cluster(), ready.strategy, ready.topology
    proteus = assumed.mode == "proteus"
    device_mesh = build_device_mesh(
        strategy,
        ready.placed,
        topology,
        assumed.stragglers,
        # A folded flow stands for several flows that share ports. Without sharing, each flow has to be
        # separate.
        assumed.folded and (assumed.sharing or proteus),
        by_place=cluster.collective_algorithm not in ("ring", "nccl"),
    )
    exchanges = device_mesh, topology, cluster, *_kinds(ready.programs, strategy.pipeline)
    transfers = (
        RingTransfers(*exchanges, assumed.sharing)
        if proteus
        else Transfers(*exchanges, experts_of_token(ready.graph))
    )
    return Compiler(
        ready.graph,
        strategy,
        ready.programs,
        device_mesh,
        transfers,
        ready.costs,
        ready.training,
        fuse=not proteus,
        blocking=assumed.single_queue,
    )


_SAME_PACE = 3e-4
"""Micro-batches count as equal if their times differ by at most this share. The parts of the times may differ
by ten times this share of the whole."""


def _timed(compiler: Compiler, assumed: Assumptions) -> tuple[ActivityGraph, float, Breakdown]:
    """Activities of a step, its seconds, and their mean parts.

    The first micro-batches of a step fill the pipeline, and the last ones empty it. All others take the same
    time. So if there are very many micro-batches, steps with fewer of them are simulated first. If the last
    micro-batches that were added took the same time each as those added before, all further ones will also
    take this time. This does not hold while the bubble of a device gets much shorter: when the bubble is used
    up, this device sets the pace.
    """
    strategy, classes = compiler.strategy, compiler.device_mesh.classes
    wanted = strategy.micro_batches
    few = [times * strategy.pipeline for times in (1, 2, 3, 5, 8, 13)]
    # GPipe has no part in which all micro-batches are alike: the last forward is the first backward.
    if assumed.every_micro_batch or strategy.schedule == "gpipe" or wanted <= sum(few[:3]):
        few = []
    sharing = assumed.sharing and assumed.mode != "proteus"
    done, row, pace = 0, np.zeros((classes.count, 5)), np.zeros((classes.count, 5))
    for count in [*(count for count in few if 2 * count < wanted), wanted]:
        shorter = strategy.model_copy(update={"micro_batches": count})
        with no_cycles():
            activities = replace(compiler, strategy=shorter).compile()
            links = SharedLinks(compiler.transfers.capacity, sharing)
            execute(activities, links, compiler.slowdown)
            parts = breakdowns(activities, classes.count)
        before, pace_before = row, pace
        row = np.insert(parts, 0, activities.duration_s, axis=1)
        pace = (row - before) / (count - done)
        done = count
        same = _SAME_PACE * pace[0, 0]
        changed, bubble = np.abs(pace - pace_before).max(axis=0), pace[:, 3]
        if changed[0] < same and changed[:4].max() < 10 * same and bubble.min() > -10 * same:
            break
    row = np.maximum(row + (wanted - done) * pace, 0.0)
    _, *mean = np.average(row, axis=0, weights=classes.size).tolist()
    return activities, float(row[0, 0]), Breakdown(*mean)


def run_prepared(ready: Prepared, assumed: Assumptions) -> Simulation:
    """Simulate a strategy that :func:`prepare` has prepared."""
    compiler = compiler_of(ready, assumed)
    device_mesh = compiler.device_mesh
    activities, step_s, breakdown = _timed(compiler, assumed)
    return Simulation(
        graph=ready.network,
        strategy=ready.strategy,
        platform=ready.platform,
        batch=ready.graph.batch * ready.strategy.micro_batches,
        step_s=step_s,
        breakdown=breakdown,
        memory=ready.memory,
        cost_sources=compiler.sources,
        device_mesh=device_mesh,
        activities=activities,
        training=ready.training,
        optimizer_s=_optimizer_s(activities, device_mesh),
        host=ready.host,
        capacity=compiler.transfers.capacity,
        calibration_remark=ready.calibration_remark,
    )
