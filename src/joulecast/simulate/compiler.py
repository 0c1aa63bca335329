"""Makes one graph of activities from the programs of the stages, for all classes of devices.

The graph holds the micro-batches, the exchange of gradients, and the optimizer. Consecutive steps become one
activity if nothing is sent or awaited between them. With ``mode: proteus``, every op is a separate activity,
because in this mode an overlap slows whole ops.

A device computes one thing at a time. Its messages wait in streams, first in, first out. There is a stream
for feature messages, one for gathers of weights, one for gradients, and one to each device that it sends to.
With ZeRO-2 and 3, the gradients of sharded weights are in the stream of the gathers, because both use one
communicator. The weights of the next block are gathered before the gradients of this block are scattered.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulecast.graphs.costs import Cost, Direction, has_gradient
from joulecast.graphs.opgraph import KINDS, Op, OpGraph
from joulecast.graphs.precision import TrainingSetup
from joulecast.simulate.cost_cache import CachedCosts
from joulecast.simulate.device_mesh import DeviceMesh, uneven
from joulecast.simulate.event_loop import Activity, ActivityGraph, Slowdown
from joulecast.simulate.flows import Transfers
from joulecast.simulate.phases import (
    Bucket,
    Crossing,
    Message,
    Phase,
    Segment,
    Step,
    buckets_of,
    segments_of,
)
from joulecast.simulate.placement import Split
from joulecast.simulate.program import StageProgram
from joulecast.simulate.proteus import BUCKET_BYTES, FIRST_BUCKET_BYTES
from joulecast.simulate.schedules import DeviceOrder, Turn, Work, device_order
from joulecast.simulate.strategy import DDP_BUCKET, DDP_FIRST_BUCKET, Strategy

OPTIMIZER = "optimizer"
"""Label of the activities of the optimizer."""
_AT_THE_END = -1
"""Number in place of the micro-batch, for messages that are sent once a step."""


@dataclass(frozen=True)
class TurnWork:
    """The work of a device in a turn: a phase of a stage (cut into segments), and the gradients that the
    device sends."""

    stage: int
    phase: Phase
    segments: list[Segment]
    afterwards: Sequence[Bucket]
    """Buckets that are sent when everything else is done."""


@dataclass(frozen=True)
class StagePlan:
    """A stage's program, and its costs on devices that hold equally large parts of the stage."""

    program: StageProgram
    costs: Mapping[tuple[Split, Direction], Cost]
    buckets: list[Bucket]
    """Gradients that are sent together."""
    works: dict[tuple[str, bool], TurnWork] = field(default_factory=dict)
    """Work of turns, by phase and ``at_edge`` (:class:`joulecast.simulate.schedules.Work`)."""


def _weights_share(graph: OpGraph, op: Op) -> float:
    """The share of an op's backward that computes the gradients of its weights.

    A matrix product has one product for its weights, and one for its input unless this is data. A lookup has
    only the gradient of its table. Other ops with weights (norms) compute both gradients in one pass.
    """
    if op.kind == "timed":
        return float(op.attributes.get("weights_share", 0.0))
    roles = {graph.tensors[a.tensor].role for a in op.reads if has_gradient(graph, a)}
    if "parameter" not in roles:
        return 0.0
    if KINDS[op.kind] == "lookup" or "activation" not in roles:
        return 1.0
    return 0.5 if KINDS[op.kind] == "matmul" else 0.0


@dataclass
class Compiler:
    """Puts the activities of all classes of equal devices into one graph."""

    graph: OpGraph
    strategy: Strategy
    programs: list[StageProgram]
    device_mesh: DeviceMesh
    transfers: Transfers
    costs: CachedCosts
    training: TrainingSetup
    fuse: bool
    blocking: bool
    """Whether compute waits for all messages that were sent before it, as in one queue (an ablation)."""
    sources: Counter[str] = field(default_factory=Counter)
    """Number of ops by the source of their cost."""
    _plans: dict[tuple[int, tuple[bool, ...]], StagePlan] = field(default_factory=dict)

    @property
    def slowdown(self) -> Slowdown:
        """How much computing and the exchange of gradients slow each other down."""
        gamma = self.transfers.cluster.overlap_slowdown or 0.0
        return Slowdown(gamma, whole_activity=not self.fuse)

    def compile(self) -> ActivityGraph:
        """The activities of every class."""
        activities, shared = ActivityGraph(), dict[object, int]()
        for number in range(self.device_mesh.classes.count):
            _Device(self, number, activities, shared).add_step()
        return activities

    def plans_of(self, number: int) -> list[StagePlan]:
        """The stage plans of a class of equal devices: one for each chunk of the network on these devices."""
        places, found = self.device_mesh.places_of(number), []
        for program in self.programs[places.get("pipeline", 0) :: self.strategy.pipeline]:
            more = uneven(program.items)
            key = program.stage, tuple(places[axis] < amount for axis, amount in more)
            if key not in self._plans:
                self._plans[key] = self._plan(program, places)
            found.append(self._plans[key])
        return found

    def _plan(self, program: StageProgram, places: Mapping[str, int]) -> StagePlan:
        usual = (DDP_FIRST_BUCKET, DDP_BUCKET) if self.fuse else (FIRST_BUCKET_BYTES, BUCKET_BYTES)
        if not self.strategy.overlap:
            # After the backward, gradients need no buckets: Megatron and DeepSpeed send them as one.
            usual = (math.inf, math.inf)
        costs = {}
        for split, count in Counter(item.split for item in program.items).items():
            for direction in split.directions(self.training.inference):
                cost = self._cost_of(split, direction, places)
                costs[split, direction] = cost
                self.sources[cost.source] += count
        buckets = buckets_of(program.gradients, self.strategy.bucket_bytes, usual)
        return StagePlan(program, costs, buckets)

    def _cost_of(self, split: Split, direction: Direction, places: Mapping[str, int]) -> Cost:
        parts = split.parts_at(places, self.device_mesh.mesh)
        return self.costs.cost(self.graph, split.op, parts, direction)

    def order_of(self, number: int) -> DeviceOrder:
        """The order of the work of a class of devices in a step."""
        return device_order(self.strategy, self.device_mesh.stage_of(number))

    def works(self, number: int) -> dict[Work, TurnWork]:
        """Everything that a class of devices does in a step. It does most of it many times."""
        plans, found = self.plans_of(number), {}
        for work in self.order_of(number).counts:
            plan, key = plans[work.chunk], (work.phase, work.at_edge)
            if key not in plan.works:
                plan.works[key] = self._work_of(plan, *key)
            found[work] = plan.works[key]
        return found

    def _work_of(self, plan: StagePlan, name: str, at_edge: bool) -> TurnWork:
        """The work of a turn.

        Gradients of all micro-batches are complete with the last one of each chunk. With a zero-bubble
        schedule, the gradients of weights are work of their own (``weights``).
        """
        program, later = plan.program, name == "weights"
        halves = self.strategy.schedule == "zb-h1"
        buckets: list[Bucket] = []
        if name == "forward":
            phase = program.first_forward if at_edge else program.forward
        else:
            phase = program.backward
            if later:
                phase = Phase([replace(step, needs=[], receives=[]) for step in phase.steps])
            if later == halves:
                each = self.strategy.scatter == "each"
                buckets = [b for b in plan.buckets if at_edge or (each and b.zero >= 2)]

        def seconds_of(step: Step) -> float:
            share = float(not later)
            if halves and step.direction == "backward":
                of_weights = _weights_share(self.graph, step.item.op)
                share = of_weights if later else 1 - of_weights
            return plan.costs[step.item.split, step.direction].seconds * share

        sent = buckets if self.strategy.overlap else []
        segments = segments_of(phase, sent, self.fuse, seconds_of)
        return TurnWork(program.stage, phase, segments, [] if sent else buckets)

    def update_seconds(self, number: int) -> float:
        """Seconds of the optimizer on a device of a class: it updates the shard of the weights whose state
        the device keeps."""
        gradients = [g for plan in self.plans_of(number) for g in plan.program.gradients]
        kept = sum(
            g.sharding.bytes / (g.sharding.shards if g.sharding.zero else 1) for g in gradients
        )
        if not (self.training.updates and kept):
            return 0.0
        return self.costs.optimizer(kept, self.training).seconds * self.device_mesh.pace_of(number)

    def gathered_after_update(self, number: int) -> list[Message]:
        """Gathers of weights after the update, because each device has updated only its own shard
        (ZeRO-1)."""
        sizes: dict[str, float] = defaultdict(float)
        for plan in self.plans_of(number):
            for gradient in plan.program.gradients:
                if gradient.gathered_after_update:
                    sizes[gradient.sharding.axis] += gradient.sharding.bytes
        return [
            Message("all_gather", axis, size, "gather updated weights", -1)
            for axis, size in sizes.items()
            if size
        ]


class _Device:
    """The activities of one class of devices. They are added in the order of its work."""

    def __init__(
        self, compiler: Compiler, number: int, activities: ActivityGraph, shared: dict[object, int]
    ) -> None:
        self.compiler, self.number = compiler, number
        self.activities = activities
        self.shared = shared
        """Activities in which several classes take part."""
        self.transfers = compiler.transfers
        self.pace = compiler.device_mesh.pace_of(number)
        self.last_compute: list[int] = []
        """The activity of computing that was added last, if there is one."""
        self.last_on: dict[object, int] = {}
        """The last message on each stream."""
        self.gradient_messages: list[int] = []

    def add_step(self) -> None:
        compiler = self.compiler
        works, order = compiler.works(self.number), compiler.order_of(self.number)
        for turn, name in zip(order.turns, order.works, strict=True):
            work = works[name]
            self._run(turn, work)
            for bucket in work.afterwards:
                self._send_bucket(bucket, work.stage, turn.micro_batch)
        for plan in compiler.plans_of(self.number):
            self._exchange(plan.program.tied)
        seconds = compiler.update_seconds(self.number)
        if seconds > 0:
            self._compute(Activity(OPTIMIZER, (self.number,), seconds), self.gradient_messages)
        for message in compiler.gathered_after_update(self.number):
            key = ("update", compiler.device_mesh.stage_of(self.number), message.axis)
            self._collective(key, message, self.last_compute + self.gradient_messages[-1:])

    def _compute(self, activity: Activity, after: list[int]) -> None:
        """Add an activity of computing. It starts when the computing before it has ended, and when everything
        that it waits for is done."""
        queue = list(self.last_on.values()) if self.compiler.blocking else []
        self.last_compute = [self.activities.add(activity, [*self.last_compute, *queue, *after])]

    def _queue(self, stream: object, activity: int, after: list[int]) -> None:
        """Let a message wait for others, and for the message before it on its stream (first in, first
        out)."""
        for earlier in after:
            self.activities.wait(activity, earlier)
        before = self.last_on.get(stream, activity)
        if before != activity:
            self.activities.wait(activity, before)
        self.last_on[stream] = activity

    def _collective(
        self,
        key: object,
        message: Message,
        after: list[int],
        stream: str = "feature",
        gradient: bool = False,
    ) -> int:
        """Take part in a collective. Another member may already have made its activity."""
        flow = self.transfers.flow(message.kind, message.axis, self.number)
        number = self.shared.get((key, flow.number))
        if number is None:
            # Gathers of weights run while others compute, as gradients do.
            activity = flow.activity(message.label, message.bytes, gradient or message.weights)
            number = self.shared[key, flow.number] = self.activities.add(activity)
        self._queue("weights" if message.weights else stream, number, after)
        return number

    def _send(
        self, crossing: Crossing, message: Message, micro_batch: int, after: list[int]
    ) -> int:
        number = self._sent(crossing, micro_batch, self.number)
        # The receiver may have added the message first. Only the sender knows its size.
        sized = self.transfers.send(self.number, crossing.source, crossing.target).activity(
            "", message.bytes, False
        )
        activity = self.activities[number]
        activity.label, activity.work, activity.latency = message.label, sized.work, sized.latency
        self._queue(("to", crossing.target % self.compiler.strategy.pipeline), number, after)
        return number

    def _sent(self, crossing: Crossing, micro_batch: int, source: int) -> int:
        """The activity of a message between stages that a class sends."""
        number = self.shared.get((crossing, micro_batch, source))
        if number is None:
            activity = self.transfers.send(source, crossing.source, crossing.target).activity(
                "", 0.0, False
            )
            number = self.shared[crossing, micro_batch, source] = self.activities.add(activity)
        return number

    def _received(self, crossing: Crossing, micro_batch: int) -> int:
        sender = self.transfers.partner(self.number, crossing.source)
        return self._sent(crossing, micro_batch, sender)

    def _exchange(self, tied: list[Message]) -> None:
        """For weights that other stages have, too: send their gradients, and wait for the gradients of the
        other stages."""
        ready = [*self.last_compute, *self.gradient_messages]
        arrived, places = [], self.compiler.strategy.pipeline
        for message in tied:
            crossing = message.crossing
            assert crossing is not None
            own, other = crossing.source, crossing.target
            # If not, both chunks are on this device.
            if own % places != other % places:
                self._send(crossing, message, _AT_THE_END, ready)
                back = crossing._replace(source=other, target=own)
                arrived.append(self._received(back, _AT_THE_END))
        self.gradient_messages += arrived

    def _send_bucket(self, bucket: Bucket, stage: int, micro_batch: int) -> None:
        """Sum a bucket over all axes along which it is a partial sum. The update waits for this."""
        after = self.last_compute
        for kind, axis, size in bucket.sums(self.compiler.device_mesh.mesh):
            message = Message(kind, axis, size, f"gradients {bucket.number}", -1)
            shared = ("gradients", stage, bucket.number, micro_batch, axis)
            after = [self._collective(shared, message, after, bucket.stream, gradient=True)]
        self.gradient_messages += after

    def _run(self, turn: Turn, work: TurnWork) -> None:
        """Add the activities of a turn."""
        stage, phase, micro_batch = work.stage, work.phase, turn.micro_batch
        sent: dict[int, int] = {}

        def start(number: int) -> None:
            message = phase.messages[number]
            after = [sent[earlier] for earlier in message.behind] + self.last_compute
            if message.received is not None:
                after.append(self._received(message.received, micro_batch))
            if message.crossing is not None:
                sent[number] = self._send(message.crossing, message, micro_batch, after)
            else:
                key = (stage, turn.phase, micro_batch, number)
                sent[number] = self._collective(key, message, after)

        for number, message in enumerate(phase.messages):
            if message.after == -1:
                start(number)
        label = f"{turn.phase} {micro_batch}"
        for segment in work.segments:
            arriving = [sent[number] for number in segment.needs]
            arriving += [self._received(key, micro_batch) for key in segment.receives]
            seconds, parts = segment.seconds * self.pace, segment.parts
            self._compute(Activity(label, (self.number,), seconds, parts=parts), arriving)
            for number in segment.starts:
                start(number)
            for bucket in segment.buckets:
                self._send_bucket(bucket, stage, micro_batch)
