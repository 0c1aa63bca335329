"""Makes the activities of one class of devices in a step, in the order of its work.

A device computes one thing at a time. Its messages wait in streams, first in, first out. There is a stream
for feature messages, one for gathers of weights, one for gradients, and one to each device that it sends to.
With ZeRO-2 and 3, the gradients of sharded weights are in the stream of the gathers, because both use one
communicator. The weights of the next block are gathered before the gradients of this block are scattered.
"""

from typing import TYPE_CHECKING

from joulecast.simulate.event_loop import Activity
from joulecast.simulate.phases import (
    Bucket,
    Key,
    Message,
    reduction,
)
from joulecast.simulate.schedules import Turn
from joulecast.simulate.strategy import size_along

if TYPE_CHECKING:
    from joulecast.simulate.compiler import Compiler, TurnWork


_AT_THE_END = -1
"""Number in place of the micro-batch, for messages that are sent once a step."""


class DeviceStreams:
    """The activities of one class of devices. They are added in the order of its work."""

    def __init__(self, compiler: "Compiler", number: int, device: int) -> None:
        self.compiler = compiler
        self.activities = compiler.activities
        self.transfers = compiler.transfers
        self.number = number
        self.device = device
        """The place of the class in the pipeline."""
        self.pace = compiler.device_mesh.pace_of(number)
        self.last_compute: int | None = None
        self.last_on: dict[object, int] = {}
        """The last message on each stream."""
        self.gradient_messages: list[int] = []

    def _now(self) -> list[int]:
        return [] if self.last_compute is None else [self.last_compute]

    def compute(self, activity: Activity, after: list[int]) -> None:
        """Add an activity of computing. It starts when the computing before it has ended, and when everything
        that it waits for is done."""
        before = self._now()
        if self.compiler.blocking:
            before += list(self.last_on.values())
        self.last_compute = self.activities.add(activity, [*before, *after])

    def _queued(self, stream: object, activity: int) -> None:
        """Let a message wait for the message before it on its stream (first in, first out)."""
        before = self.last_on.get(stream)
        if before is not None and before != activity:
            self.activities.wait(activity, before)
        self.last_on[stream] = activity

    def collective(
        self,
        key: object,
        message: Message,
        after: list[int],
        stream: str = "feature",
        gradient: bool = False,
    ) -> int:
        """Take part in a collective. Another member may already have made its activity."""
        flow = self.transfers.flow(message.kind, message.axis, self.number)
        shared = self.compiler.shared
        number = shared.get((key, flow.number))
        if number is None:
            # Gathers of weights run while others compute, as gradients do.
            overlaps = gradient or message.weights
            activity = flow.activity(message.label, message.bytes, overlaps)
            number = shared[key, flow.number] = self.activities.add(activity)
        for earlier in after:
            self.activities.wait(number, earlier)
        stream = "weights" if message.weights else stream
        self._queued(stream, number)
        return number

    def _send(self, message: Message, micro_batch: int, after: list[int]) -> int:
        assert message.key is not None
        number = self._sent(message.key, micro_batch, self.number, message)
        for earlier in after:
            self.activities.wait(number, earlier)
        self._queued(("to", message.key[4] % self.compiler.strategy.pipeline), number)
        return number

    def _sent(self, key: Key, micro_batch: int, source: int, message: Message | None = None) -> int:
        shared = self.compiler.shared
        flow = self.transfers.send(source, key[3], key[4])
        number = shared.get((key, micro_batch, source))
        if number is None:
            activity = flow.activity(f"send {key[0]}", 0.0, False)
            number = shared[key, micro_batch, source] = self.activities.add(activity)
        if message is not None:
            # The receiver may have come first; only the sender knows the size.
            sized = flow.activity(message.label, message.bytes, False)
            self.activities.activities[number].label = sized.label
            self.activities.activities[number].work = sized.work
            self.activities.activities[number].latency = sized.latency
        return number

    def exchange(self, tied: list[Message]) -> None:
        """For weights that other stages have, too: send their gradients, and wait for the gradients of the
        other stages."""
        ready = [*self._now(), *self.gradient_messages]
        arrived, places = [], self.compiler.strategy.pipeline
        for message in tied:
            assert message.key is not None
            name, direction, layout, own, other = message.key
            if own % places == other % places:
                # Both chunks are on this device.
                continue
            self._send(message, _AT_THE_END, ready)
            theirs: Key = (name, direction, layout, other, own)
            source = self.transfers.partner(self.number, other)
            arrived.append(self._sent(theirs, _AT_THE_END, source))
        self.gradient_messages += arrived

    def send_bucket(self, bucket: Bucket, key: tuple[int, int, int]) -> None:
        """Sum a bucket over all axes along which it is a partial sum. The update waits for this.

        Args:
            bucket: the gradients.
            key: stage of the bucket, its place in the stage, and the micro-batch.
        """
        after, size = self._now(), bucket.bytes
        stream = "weights" if bucket.zero >= 2 else "gradient"
        for axis in bucket.axes:
            kind = reduction(bucket.zero, axis)
            message = Message(kind, axis, size, f"gradients {key[1]}", -1)
            shared = ("gradients", *key, axis)
            after = [self.collective(shared, message, after, stream, gradient=True)]
            if kind == "reduce_scatter":
                size /= size_along(self.compiler.device_mesh.mesh, axis)
        self.gradient_messages += after

    def run(self, turn: Turn, work: "TurnWork") -> None:
        """Add the activities of a turn: the forward pass or the backward pass of a stage for one
        micro-batch."""
        stage, phase = work.stage, work.phase
        sent: dict[int, int] = {}
        direction, micro_batch = turn.phase, turn.micro_batch

        def start(number: int) -> None:
            message = phase.messages[number]
            after = [sent[earlier] for earlier in message.behind] + self._now()
            if message.received is not None:
                source = self.transfers.partner(self.number, message.received[3])
                after.append(self._sent(message.received, micro_batch, source))
            if message.key is not None:
                sent[number] = self._send(message, micro_batch, after)
            else:
                key = (stage, direction, micro_batch, number)
                sent[number] = self.collective(key, message, after)

        for number, message in enumerate(phase.messages):
            if message.after == -1:
                start(number)

        for segment in work.segments:
            arriving = [sent[number] for number in segment.needs]
            for received in segment.receives:
                source = self.transfers.partner(self.number, received[3])
                arriving.append(self._sent(received, micro_batch, source))
            label, seconds = f"{direction} {micro_batch}", segment.seconds * self.pace
            self.compute(Activity(label, (self.number,), seconds, parts=segment.parts), arriving)
            for number in segment.starts:
                start(number)
            for place, bucket in work.sent_behind(segment):
                self.send_bucket(bucket, (stage, place, micro_batch))
