"""Makes one graph of activities from the programs of the stages, for all classes of ranks.

The graph holds the micro-batches, the exchange of gradients, and the optimizer. Consecutive steps become one
activity if nothing is sent or awaited between them. With ``mode: proteus``, every op is a separate activity,
because in this mode an overlap slows whole ops.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from joulecast.graphs.costs import Cost, Costs, Direction
from joulecast.graphs.opgraph import KINDS, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.device_mesh import DeviceMesh, uneven
from joulecast.simulate.device_streams import DeviceStreams
from joulecast.simulate.event_loop import Activity, ActivityGraph
from joulecast.simulate.phases import Bucket, Message, Phase, Segment, Step, buckets_of, segments_of
from joulecast.simulate.placement import Split, remainder
from joulecast.simulate.program import StageProgram
from joulecast.simulate.proteus import BUCKET_BYTES, FIRST_BUCKET_BYTES
from joulecast.simulate.schedules import Turn, device_order
from joulecast.simulate.strategy import DDP_BUCKET, DDP_FIRST_BUCKET, Strategy
from joulecast.simulate.transfers import Transfers

OPTIMIZER = "optimizer"
"""Label of the activities of the optimizer."""
PROTEUS_BUCKETS = (FIRST_BUCKET_BYTES, BUCKET_BYTES)


@dataclass(frozen=True)
class TurnWork:
    """The work of a device in a turn: a phase of a stage (cut into segments), and the gradients that the
    device sends."""

    stage: int
    phase: Phase
    segments: list[Segment]
    buckets: Sequence[tuple[int, Bucket]] = ()
    """Buckets that are sent as soon as they are ready, each with its place among all buckets."""
    afterwards: Sequence[tuple[int, Bucket]] = ()
    """Buckets that are sent when everything else is done."""

    @cached_property
    def ready_after(self) -> dict[int, list[tuple[int, Bucket]]]:
        """The buckets that are ready after each step. A segment ends with such a step."""
        found: dict[int, list[tuple[int, Bucket]]] = {}
        for place, bucket in self.buckets:
            found.setdefault(bucket.after, []).append((place, bucket))
        return found

    def sent_behind(self, segment: Segment) -> Sequence[tuple[int, Bucket]]:
        """The buckets that are sent when a segment ends."""
        return self.ready_after.get(segment.steps[-1], ())


@dataclass(frozen=True)
class StagePlan:
    """A stage's program, cut into segments. It is for devices with parts of the same size."""

    program: StageProgram
    buckets: list[Bucket]
    each: list[tuple[int, Bucket]]
    """Buckets that are sent after every micro-batch, each with its place among all buckets."""
    first_forward: list[Segment]
    forward: list[Segment]
    backward: list[Segment]
    last_backward: list[Segment]
    weights: list[Segment]
    """Segments for the gradients of weights, if the schedule leaves them for later."""
    last_weights: list[Segment]
    works: dict[tuple[str, bool], TurnWork] = field(default_factory=dict)
    """Work of turns, by phase and whether it is the first forward or last backward of the step."""

    @property
    def all_segments(self) -> Iterator[tuple[Phase, list[Segment]]]:
        """All lists of segments, each with its phase."""
        yield self.program.first_forward, self.first_forward
        yield self.program.forward, self.forward
        for segments in (self.backward, self.last_backward, self.weights, self.last_weights):
            yield self.program.backward, segments


def _weights_share(graph: OpGraph, op: Op) -> float:
    """The share of an op's backward that computes the gradients of its weights.

    A matrix product has one product for its weights, and one for its input unless this is data. A lookup has
    only the gradient of its table. Other ops with weights (norms) compute both gradients in one pass.
    """
    if op.kind == "timed":
        return float(op.attributes.get("weights_share", 0.0))
    roles = {graph.tensors[access.tensor].role for access in op.reads}
    if "parameter" not in roles:
        return 0.0
    if KINDS[op.kind] == "lookup" or "activation" not in roles:
        return 1.0
    return 0.5 if KINDS[op.kind] == "matmul" else 0.0


class Compiler:
    """Puts the activities of all classes into one graph."""

    def __init__(
        self,
        graph: OpGraph,
        strategy: Strategy,
        programs: list[StageProgram],
        device_mesh: DeviceMesh,
        transfers: Transfers,
        costs: Costs,
        fuse: bool,
        training: TrainingSetup = DEFAULT_TRAINING,
        blocking: bool = False,
    ) -> None:
        self.graph = graph
        self.strategy = strategy
        self.programs = programs
        self.device_mesh = device_mesh
        self.transfers = transfers
        self.costs = cached(costs)
        self.fuse = fuse
        self.training = training
        self.blocking = blocking
        """Whether compute waits for all messages that were sent before it, as in one queue (an ablation)."""
        self.split_backward = strategy.schedule == "zb-h1"
        self.activities = ActivityGraph()
        self.sources: dict[str, int] = {}
        """Number of ops by the source of their cost."""
        self.shared: dict[object, int] = {}
        """Activities in which several classes take part."""
        self._plans: dict[tuple[int, tuple[int, ...]], StagePlan] = {}

    def compile(self) -> ActivityGraph:
        """Build the activities of every class."""
        self.activities, self.shared = ActivityGraph(), {}
        for number in range(self.device_mesh.classes.count):
            self._compile_class(number)
        return self.activities

    def forget(self) -> None:
        """Drop the activities, because they take most of the memory."""
        self.activities, self.shared = ActivityGraph(), {}

    def _place(self, number: int, axis: str) -> int:
        device = int(self.device_mesh.classes.first[number])
        return int(self.device_mesh.place[axis][device]) if axis in self.device_mesh.place else 0

    def _plan_of(self, number: int, stage: int) -> StagePlan:
        program = self.programs[stage]
        places = {axis: self._place(number, axis) for axis in self.device_mesh.mesh}
        more = uneven(program.items)
        larger = tuple(int(places[axis] < amount) for axis, amount in more)
        if (stage, larger) not in self._plans:
            self._plans[stage, larger] = self._plan(program, places)
        return self._plans[stage, larger]

    def plans_of(self, number: int) -> list[StagePlan]:
        """The stage plans of a class: one for each chunk of the network that it has."""
        device = self.device_of(number)
        stages = range(device, len(self.programs), self.strategy.pipeline)
        return [self._plan_of(number, stage) for stage in stages]

    def device_of(self, number: int) -> int:
        """The place of a class in the pipeline."""
        return self._place(number, "pipeline")

    def turns(self, device: int, plans: list[StagePlan]) -> Iterator[tuple[Turn, TurnWork]]:
        """The turns of a device of the pipeline in a step, in their order, each with its work."""
        order = device_order(self.strategy, device)
        gradients_in = "weights" if self.split_backward else "backward"
        # Gradients of all micro-batches are complete with the last one of each chunk.
        last = {turn.chunk: turn for turn in order if turn.phase == gradients_in}
        first = {turn.chunk: turn for turn in reversed(order) if turn.phase == "forward"}
        for turn in order:
            edge = first if turn.phase == "forward" else last
            yield turn, self._work_of(plans[turn.chunk], turn, turn is edge[turn.chunk])

    def _work_of(self, plan: StagePlan, turn: Turn, at_edge: bool) -> TurnWork:
        """The work of a turn. The first forward and the last backward of a chunk are at the edge."""
        key = (turn.phase, at_edge)
        if key not in plan.works:
            if turn.phase == "forward":
                plan.works[key] = self._forward(plan, at_edge)
            else:
                plan.works[key] = self._backward(plan, turn, at_edge)
        return plan.works[key]

    @staticmethod
    def _forward(plan: StagePlan, first: bool) -> TurnWork:
        program = plan.program
        if first:
            return TurnWork(program.stage, program.first_forward, plan.first_forward)
        return TurnWork(program.stage, program.forward, plan.forward)

    def _backward(self, plan: StagePlan, turn: Turn, last: bool) -> TurnWork:
        """The work of a backward, or of its part for the gradients of weights, with its buckets."""
        phase, stage = plan.program.backward, plan.program.stage
        if turn.phase == "weights":
            phase = Phase(phase.steps)
            segments = plan.last_weights if last else plan.weights
        else:
            segments = plan.last_backward if last else plan.backward
        if self.split_backward and turn.phase != "weights":
            return TurnWork(stage, phase, segments)
        buckets = list(enumerate(plan.buckets)) if last else plan.each
        if self.strategy.overlap:
            return TurnWork(stage, phase, segments, buckets)
        return TurnWork(stage, phase, segments, [], buckets)

    def _compile_class(self, number: int) -> None:
        plans = self.plans_of(number)
        streams = DeviceStreams(self, number, self.device_of(number))
        for turn, work in self.turns(streams.device, plans):
            streams.run(turn, work)
            for place, bucket in work.afterwards:
                streams.send_bucket(bucket, (work.stage, place, turn.micro_batch))
        for plan in plans:
            streams.exchange(plan.program.tied)
        self._update(streams, plans)

    def _plan(self, program: StageProgram, places: Mapping[str, int]) -> StagePlan:
        """Cut a stage's phases into segments, with their costs on a device at these places."""
        usual = (DDP_FIRST_BUCKET, DDP_BUCKET) if self.fuse else PROTEUS_BUCKETS
        if not self.strategy.overlap:
            # After the backward, gradients need no buckets: Megatron and DeepSpeed send them as one.
            usual = (math.inf, math.inf)
        buckets = buckets_of(program.gradients, self.strategy.bucket_bytes, usual)
        each = [
            (place, bucket)
            for place, bucket in enumerate(buckets)
            if bucket.zero >= 2 and self.strategy.scatter == "each"
        ]
        forward = segments_of(program.forward, [], self.fuse)
        first = program.first_forward
        at_last = buckets if self.strategy.overlap else []
        at_each = [bucket for _, bucket in each] if self.strategy.overlap else []
        later = Phase([replace(s, needs=[], receives=[]) for s in program.backward.steps])
        split = self.split_backward
        plan = StagePlan(
            program,
            buckets,
            each,
            forward if first is program.forward else segments_of(first, [], self.fuse),
            forward,
            segments_of(program.backward, [] if split else at_each, self.fuse),
            segments_of(program.backward, [] if split else at_last, self.fuse),
            segments_of(later, at_each, self.fuse) if split else [],
            segments_of(later, at_last, self.fuse) if split else [],
        )
        self._cost(plan, places)
        return plan

    def _cost(self, plan: StagePlan, places: Mapping[str, int]) -> None:
        """Fill in the seconds of a plan's segments."""
        known: dict[tuple[Split, Direction], Cost] = {}
        counted: set[tuple[str, Direction]] = set()
        late = {id(segment) for segment in (*plan.weights, *plan.last_weights)}
        done: set[int] = set()
        for phase, segments in plan.all_segments:
            for segment in segments:
                if id(segment) in done:
                    continue
                done.add(id(segment))
                parts = []
                for number in segment.steps:
                    step = phase.steps[number]
                    key = step.item.split, step.direction
                    if key not in known:
                        known[key] = self._cost_of(step, places)
                    cost, named = known[key], (step.item.op.name, step.direction)
                    if named not in counted:
                        counted.add(named)
                        self.sources[cost.source] = self.sources.get(cost.source, 0) + 1
                    share = 1.0
                    if self.split_backward and step.direction == "backward":
                        share = _weights_share(self.graph, step.item.op)
                        share = share if id(segment) in late else 1 - share
                    elif id(segment) in late:
                        share = 0.0
                    parts.append((step, cost.seconds * share))
                segment.parts = tuple(parts)
                segment.seconds = sum(part for _, part in parts)

    def _cost_of(self, step: Step, places: Mapping[str, int]) -> Cost:
        parts = dict(step.item.parts)
        for axis, dim in step.item.placement.items():
            # Uneven dims give the first places one more.
            size, count = step.item.op.dim(dim).size, self.device_mesh.mesh[axis]
            if size % count:
                more = remainder(size, count)
                mine = size // count + (places[axis] < more if more else 1)
                parts[dim] *= size / mine / count
        return self.costs.cost(self.graph, step.item.op, parts, step.direction)

    def update_seconds(self, plans: list[StagePlan], pace: float) -> float:
        """Seconds of the optimizer on a device: it updates the shard of the weights whose state the device
        keeps."""
        gradients = [gradient for plan in plans for gradient in plan.program.gradients]
        kept = sum(g.sharding.bytes / (g.sharding.shards if g.zero else 1) for g in gradients)
        updated = self.training.updates and kept > 0
        return self.costs.optimizer(kept, self.training).seconds * pace if updated else 0.0

    @staticmethod
    def gathered_after_update(plans: list[StagePlan]) -> list[Message]:
        """Gathers of weights after the update, because each device has updated only its own shard
        (ZeRO-1)."""
        sizes: dict[str, float] = {}
        for gradient in (gradient for plan in plans for gradient in plan.program.gradients):
            if gradient.gathered_after_update:
                axis = gradient.sharding.axis
                sizes[axis] = sizes.get(axis, 0.0) + gradient.sharding.bytes
        return [
            Message("all_gather", axis, size, "gather updated weights", -1)
            for axis, size in sizes.items()
            if size
        ]

    def _update(self, streams: DeviceStreams, plans: list[StagePlan]) -> None:
        """Add the optimizer, and the gather of the weights that it has updated."""
        seconds = self.update_seconds(plans, streams.pace)
        if seconds > 0:
            streams.compute(
                Activity(OPTIMIZER, (streams.number,), seconds), streams.gradient_messages
            )
        for message in self.gathered_after_update(plans):
            after = [streams.last_compute] if streams.last_compute is not None else []
            key = ("update", streams.device, message.axis)
            streams.collective(key, message, after + streams.gradient_messages[-1:])
