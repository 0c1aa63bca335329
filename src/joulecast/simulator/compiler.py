"""One graph of activities from the stages' programs: classes of ranks, micro-batches, gradients, optimizer.

Steps between two points where anything is sent or awaited are fused into one activity, since nothing can
come between them; ``mode: proteus``, where an overlap slows whole ops, leaves every op an activity of its
own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.graphs.costs import Costs, Direction
from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, Training
from joulecast.simulator.executor import Activity, ActivityGraph
from joulecast.simulator.fleet import Fleet, uneven
from joulecast.simulator.program import Key, Message, Phase, StageProgram, Step, reduction
from joulecast.simulator.proteus import BUCKET_BYTES, FIRST_BUCKET_BYTES
from joulecast.simulator.segments import Bucket, Segment, buckets_of, segments_of
from joulecast.simulator.strategy import DDP_BUCKET, DDP_FIRST_BUCKET, Strategy, phases
from joulecast.simulator.transfers import Transfers

OPTIMIZER = "optimizer"
"""Label of its activities."""
_AT_THE_END = -1
"""In place of the micro-batch of what is sent once a step."""
PROTEUS_BUCKETS = (FIRST_BUCKET_BYTES, BUCKET_BYTES)


@dataclass(frozen=True)
class _Plan:
    """A stage's program cut into segments, for devices whose parts are of one size."""

    program: StageProgram
    buckets: list[Bucket]
    forward: list[Segment]
    backward: list[Segment]
    last_backward: list[Segment]


class Compiler:
    """Puts the activities of all classes into one graph."""

    def __init__(
        self,
        graph: OpGraph,
        strategy: Strategy,
        programs: list[StageProgram],
        fleet: Fleet,
        transfers: Transfers,
        costs: Costs,
        fuse: bool,
        training: Training = DEFAULT_TRAINING,
        blocking: bool = False,
    ) -> None:
        self.graph = graph
        self.strategy = strategy
        self.programs = programs
        self.fleet = fleet
        self.transfers = transfers
        self.costs = costs
        self.fuse = fuse
        self.training = training
        self.blocking = blocking
        """Whether there is but one queue: compute waits for what was sent before it (an ablation)."""
        self.activities = ActivityGraph()
        self.sources: dict[str, int] = {}
        """Ops by how their cost is known."""
        self._shared: dict[object, int] = {}
        self._plans: dict[tuple[int, tuple[bool, ...]], _Plan] = {}

    def compile(self) -> ActivityGraph:
        """Build the activities of every class."""
        for number in range(self.fleet.classes.count):
            self._compile_class(number)
        return self.activities

    def _place(self, number: int, axis: str) -> int:
        device = int(self.fleet.classes.first[number])
        return int(self.fleet.place[axis][device]) if axis in self.fleet.place else 0

    def stage_of(self, number: int) -> int:
        """The pipeline stage of a class."""
        return self._place(number, "pipeline")

    def _compile_class(self, number: int) -> None:
        stage = self.stage_of(number)
        more = uneven(self.programs[stage].items, self.fleet.mesh)
        larger = tuple(self._place(number, axis) < remainder for axis, remainder in more)
        if (stage, larger) not in self._plans:
            places = {axis: self._place(number, axis) for axis in self.fleet.mesh}
            self._plans[stage, larger] = self._plan(self.programs[stage], places)
        plan = self._plans[stage, larger]
        lane = _Lane(self, number, stage)
        overlapping = plan.buckets if self.strategy.overlap else []
        forward, backward = plan.program.forward, plan.program.backward
        *earlier, (_, last) = phases(self.strategy, stage)
        for direction, micro_batch in earlier:
            if direction == "forward":
                lane.run(forward, plan.forward, direction, micro_batch)
            else:
                lane.run(backward, plan.backward, direction, micro_batch)
        # Gradients of all micro-batches are complete with the last backward, and sent once.
        lane.run(backward, plan.last_backward, "backward", last, overlapping)
        if not self.strategy.overlap:
            for place, bucket in enumerate(plan.buckets):
                lane.send_bucket(place, bucket)
        lane.exchange(plan.program.tied)
        self._update(lane, plan.program)

    def _plan(self, program: StageProgram, places: Mapping[str, int]) -> "_Plan":
        """Cut a stage's phases into segments, with what they cost a device at these places."""
        usual = (DDP_FIRST_BUCKET, DDP_BUCKET) if self.fuse else PROTEUS_BUCKETS
        buckets = buckets_of(program.gradients, self.strategy.bucket_bytes, usual)
        overlapping = buckets if self.strategy.overlap else []
        plan = _Plan(
            program,
            buckets,
            segments_of(program.forward, [], self.fuse),
            segments_of(program.backward, [], self.fuse),
            segments_of(program.backward, overlapping, self.fuse),
        )
        seconds: dict[tuple[str, Direction], float] = {}
        for phase, segments in (
            (program.forward, plan.forward),
            (program.backward, plan.backward),
            (program.backward, plan.last_backward),
        ):
            for segment in segments:
                for number in segment.steps:
                    step = phase.steps[number]
                    key = (step.item.op.name, step.direction)
                    if key not in seconds:
                        seconds[key] = self._seconds(step, places)
                    segment.parts += ((step, seconds[key]),)
                segment.seconds = sum(part for _, part in segment.parts)
        return plan

    def _seconds(self, step: Step, places: Mapping[str, int]) -> float:
        parts = step.item.parts(self.fleet.mesh)
        for axis, dim in step.item.placement.items():
            # Uneven dims give the first places one more.
            size, count = step.item.op.dim(dim).size, self.fleet.mesh[axis]
            if size % count:
                mine = size // count + (places[axis] < size % count)
                parts[dim] *= size / mine / count
        cost = self.costs.cost(self.graph, step.item.op, parts, step.direction)
        self.sources[cost.source] = self.sources.get(cost.source, 0) + 1
        return cost.seconds

    def _update(self, lane: "_Lane", program: StageProgram) -> None:
        """The optimizer, on the shard of the weights whose state a device keeps."""
        data = self.fleet.mesh.get("data", 1)
        kept = sum(g.bytes / (data if g.zero else 1) for g in program.gradients)
        cost = self.costs.optimizer(kept, self.training)
        if self.training.updates and cost.seconds > 0:
            seconds = cost.seconds * lane.pace
            lane.compute(Activity(OPTIMIZER, (lane.number,), seconds), lane.gradient_messages)
        gathered = sum(g.bytes for g in program.gradients if g.gathered_after_update)
        if gathered and data > 1:
            message = Message("all_gather", "data", gathered, "gather updated weights", -1)
            after = [lane.last_compute] if lane.last_compute is not None else []
            lane.collective(("update", lane.stage), message, after + lane.gradient_messages[-1:])


class _Lane:
    """The activities of one class, as they are added in order."""

    def __init__(self, compiler: Compiler, number: int, stage: int) -> None:
        self.compiler = compiler
        self.activities = compiler.activities
        self.number = number
        self.stage = stage
        self.pace = float(compiler.fleet.pace[compiler.fleet.classes.first[number]])
        self.last_compute: int | None = None
        self.last_on: dict[object, int] = {}
        """Last message on each stream."""
        self.gradient_messages: list[int] = []

    def compute(self, activity: Activity, after: list[int]) -> None:
        before = [] if self.last_compute is None else [self.last_compute]
        if self.compiler.blocking:
            before += list(self.last_on.values())
        self.last_compute = self.activities.add(activity, [*before, *after])

    def _queued(self, stream: object, activity: int) -> None:
        """First in, first out: a message waits for the one before it on its stream."""
        before = self.last_on.get(stream)
        if before is not None and before != activity:
            self.activities.wait(activity, before)
        self.last_on[stream] = activity

    def collective(
        self,
        key: object,
        message: Message,
        after: list[int],
        gradient: bool = False,
    ) -> int:
        """Join a collective, which its other members may have made already."""
        flow = self.compiler.transfers.flow(message.kind, message.axis, self.number)
        shared = self.compiler._shared
        if (key, flow.number) not in shared:
            activity = flow.activity(message.label, message.bytes, gradient)
            shared[key, flow.number] = self.activities.add(activity)
        number = shared[key, flow.number]
        for earlier in after:
            self.activities.wait(number, earlier)
        self._queued(
            "gradient" if gradient else "weights" if message.weights else "feature", number
        )
        return number

    def _send(self, message: Message, micro_batch: int, after: list[int]) -> int:
        assert message.key is not None
        number = self._sent(message.key, micro_batch, self.number, message)
        for earlier in after:
            self.activities.wait(number, earlier)
        self._queued(("to", message.key[4]), number)
        return number

    def _sent(self, key: Key, micro_batch: int, source: int, message: Message | None = None) -> int:
        shared = self.compiler._shared
        flow = self.compiler.transfers.send(source, key[3], key[4])
        if (key, micro_batch, source) not in shared:
            activity = flow.activity(f"send {key[0]}", 0.0, False)
            shared[key, micro_batch, source] = self.activities.add(activity)
        number = shared[key, micro_batch, source]
        if message is not None:
            # The receiver may have come first; only the sender knows the size.
            sized = flow.activity(message.label, message.bytes, False)
            self.activities.activities[number].label = sized.label
            self.activities.activities[number].work = sized.work
            self.activities.activities[number].latency = sized.latency
        return number

    def exchange(self, tied: list[Message]) -> None:
        """Send gradients of weights that other stages have too, and wait for theirs."""
        own = [] if self.last_compute is None else [self.last_compute]
        ready = [*own, *self.gradient_messages]
        arrived = []
        for message in tied:
            assert message.key is not None
            name, direction, layout, _, other = message.key
            self._send(message, _AT_THE_END, ready)
            theirs: Key = (name, direction, layout, other, self.stage)
            source = self.compiler.transfers.partner(self.number, other)
            arrived.append(self._sent(theirs, _AT_THE_END, source))
        self.gradient_messages += arrived

    def send_bucket(self, place: int, bucket: Bucket) -> None:
        """Reduce a bucket over all axes along which it is a partial sum, and wait for it at the end."""
        after = [] if self.last_compute is None else [self.last_compute]
        for axis in bucket.axes:
            kind = reduction(bucket.zero, axis)
            message = Message(kind, axis, bucket.bytes, f"gradients {place}", -1)
            key = ("gradients", self.stage, place, axis)
            after = [self.collective(key, message, after, gradient=True)]
        self.gradient_messages += after

    def run(
        self,
        phase: Phase,
        segments: list[Segment],
        direction: str,
        micro_batch: int,
        buckets: Sequence[Bucket] = (),
    ) -> None:
        """Add the activities of one micro-batch's forward or backward."""
        sent: dict[int, int] = {}
        transfers = self.compiler.transfers

        def start(number: int) -> None:
            message = phase.messages[number]
            after = [sent[earlier] for earlier in message.behind]
            after += [] if self.last_compute is None else [self.last_compute]
            if message.key is not None:
                sent[number] = self._send(message, micro_batch, after)
            else:
                key = (self.stage, direction, micro_batch, number)
                sent[number] = self.collective(key, message, after)

        for number, message in enumerate(phase.messages):
            if message.after == -1:
                start(number)
        for segment in segments:
            after = [sent[number] for number in segment.needs]
            for received in segment.receives:
                source = transfers.partner(self.number, received[3])
                after.append(self._sent(received, micro_batch, source))
            label = f"{direction} {micro_batch}"
            seconds = segment.seconds * self.pace
            self.compute(Activity(label, (self.number,), seconds, parts=segment.parts), after)
            for number in segment.starts:
                start(number)
            for place, bucket in enumerate(buckets):
                if bucket.after in segment.steps:
                    self.send_bucket(place, bucket)
