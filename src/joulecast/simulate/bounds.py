"""The least time that a step can take. A search skips strategies whose least time is above the best so far.

A device computes one thing at a time. A transfer is never faster than if it runs alone. A piece of work
starts only after everything that it waits for is done. So the least time of a device has three parts. First,
the first micro-batch passes the earlier stages. Then the device does its turns one after the other, each with
the collectives that it waits for. At the end, the last micro-batch passes the earlier stages again, or the
last gradients are summed. Many turns are equal. So only the few different ones are computed, however many
micro-batches there are.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from joulecast.simulate.compiler import Compiler, TurnWork
from joulecast.simulate.device_mesh import uneven
from joulecast.simulate.phases import Bucket, Message
from joulecast.simulate.placement import runs_again
from joulecast.simulate.simulate import Prepared
from joulecast.simulate.strategy import Strategy


class Least(NamedTuple):
    """The least seconds of a step. They are never more than the seconds of the simulated step."""

    step_s: float
    computing_s: float
    """Seconds that a device computes (mean over devices)."""


def stage_seconds(ready: Prepared) -> list[tuple[float, float]]:
    """Seconds of each stage's ops, for the forward pass and the backward pass of a micro-batch. Recomputation
    is in the backward pass. They are 0 if the devices have parts of different sizes."""
    if uneven(ready.placed):
        return [(0.0, 0.0)] * len(ready.programs)
    found = []
    for program in ready.programs:
        seconds = {"forward": 0.0, "backward": 0.0}
        for split, count in Counter(item.split for item in program.items).items():
            for direction in split.directions(ready.training.inference):
                cost = ready.costs.cost(ready.graph, split.op, split.parts, direction)
                seconds[direction] += count * cost.seconds
        for split, count in runs_again(ready.graph, program.items).items():
            cost = ready.costs.cost(ready.graph, split.op, split.parts, "forward")
            seconds["backward"] += count * cost.seconds
        found.append((seconds["forward"], seconds["backward"]))
    return found


def least_computing(stages: list[tuple[float, float]], strategy: Strategy) -> Least:
    """The least time of a step, from the time of computing alone (:func:`stage_seconds`)."""
    # With zero-bubble schedules, the gradients of weights may be computed after the gradient is passed on.
    # Activations may be computed again before the gradient arrives.
    passes_back = strategy.schedule != "zb-h1" and not strategy.tree.recompute
    ends, passed_s = [], 0.0
    for place in range(strategy.pipeline):
        own_s = sum(sum(stage) for stage in stages[place :: strategy.pipeline])
        ends.append(passed_s + strategy.micro_batches * own_s)
        passed_s += stages[place][0] + passes_back * stages[place][1]
    computing_s = strategy.micro_batches * sum(map(sum, stages)) / strategy.pipeline
    return Least(max(ends), computing_s)


class _Turn(NamedTuple):
    """Seconds of a turn until the end of its last compute, of its first send to the next stage, and of its
    last sum of gradients."""

    computed_s: float
    sent_s: float
    summed_s: float


class _Class:
    """A class of devices, and the least times of its turns."""

    def __init__(self, compiler: Compiler, number: int) -> None:
        self.compiler, self.number, self.transfers = compiler, number, compiler.transfers
        mesh = compiler.device_mesh
        self.device, self.pace = mesh.stage_of(number), mesh.pace_of(number)
        works, order = compiler.works(number), compiler.order_of(number)
        self.first, self.last = works[order.works[0]], works[order.works[-1]]
        self.ends_in_backward = order.works[-1].phase == "backward"
        self.turns_s = self.sums_s = 0.0
        updating_s = self.computing_s = compiler.update_seconds(number)
        gathers = compiler.gathered_after_update(number)
        self.update_s = updating_s + sum(map(self._message_s, gathers))
        flowing_s: dict[str, float] = defaultdict(float)
        for name, count in order.counts.items():
            work = works[name]
            self.turns_s += count * self.turn(work).computed_s
            sent = [each for segment in work.segments for each in segment.buckets]
            self.sums_s += count * sum(map(self._sum_s, [*sent, *work.afterwards]))
            self.computing_s += count * self.pace * sum(s.seconds for s in work.segments)
            for stream, seconds in self._flowing(work, [*sent, *work.afterwards]):
                flowing_s[stream] += count * seconds
        self.flowing_s = max(flowing_s.values(), default=0.0)

    def slowed(self, least_s: float) -> float:
        """The least time, with the slowdown by overlap.

        If ``z`` seconds of computing hide ``z`` seconds of exchange, both take ``1 + gamma`` times as long.
        So a step takes at least ``least_s + gamma z``, and at least ``computing + exchange - (1 - gamma) z``.
        ``z`` is not known. If gamma is at most 1, the first bound grows with ``z``, and the second one falls.
        So a step takes at least the time at which the two bounds are equal.
        """
        gamma = min(self.compiler.slowdown.gamma, 1.0)
        return least_s + gamma * max(0.0, self.computing_s + self.flowing_s - least_s)

    def _flowing(self, work: TurnWork, buckets: list[Bucket]) -> Iterator[tuple[str, float]]:
        """The messages that slow computing: the stream of each, and its seconds without latency."""
        flow = self.transfers.flow
        for message in work.phase.messages:
            if message.weights:
                carried = flow(message.kind, message.axis, self.number)
                yield "weights", carried.seconds_alone(message.bytes, latency=False)
        for bucket in buckets:
            for kind, axis, size in bucket.sums(self.compiler.device_mesh.mesh):
                carried = flow(kind, axis, self.number)
                yield bucket.stream, carried.seconds_alone(size, latency=False)

    def turn(self, work: TurnWork, begin_s: float = 0.0) -> _Turn:
        """The least time of a turn.

        Args:
            begin_s: begin of the turn. Seconds count from the moment at which all that the turn receives has
                arrived. With 0, the turn begins at this moment. With minus infinity, what does not need the
                received tensors has been done before.
        """
        messages, done = work.phase.messages, dict[int, float]()
        now = weights_s = begin_s
        summed = []

        def start(number: int) -> None:
            nonlocal weights_s
            message = messages[number]
            before = [now, *(done[earlier] for earlier in message.behind)]
            before += [weights_s] if message.weights else []
            before += [0.0] if message.received is not None else []
            done[number] = max(before) + self._message_s(message)
            weights_s = done[number] if message.weights else weights_s

        for number, message in enumerate(messages):
            if message.after == -1:
                start(number)
        for segment in work.segments:
            arrived = [0.0] if segment.receives else []
            now = max([now, *arrived, *(done[number] for number in segment.needs)])
            now += segment.seconds * self.pace
            for number in segment.starts:
                start(number)
            summed += [now + self._sum_s(bucket) for bucket in segment.buckets]
        summed += [now + self._sum_s(bucket) for bucket in work.afterwards]
        sent = [
            done[number]
            for number in done
            if (crossing := messages[number].crossing)
            and abs(crossing.source - crossing.target) == 1
        ]
        return _Turn(now, min(sent, default=now), max([now, *summed]))

    def _message_s(self, message: Message) -> float:
        if message.crossing is not None:
            flow = self.transfers.send(
                self.number, message.crossing.source, message.crossing.target
            )
        else:
            flow = self.transfers.flow(message.kind, message.axis, self.number)
        return flow.seconds_alone(message.bytes)

    def _sum_s(self, bucket: Bucket) -> float:
        return sum(
            self.transfers.flow(kind, axis, self.number).seconds_alone(size)
            for kind, axis, size in bucket.sums(self.compiler.device_mesh.mesh)
        )


def least_time(compiler: Compiler) -> Least:
    """Seconds that a step takes at least."""
    mesh = compiler.device_mesh.classes
    classes = [_Class(compiler, number) for number in range(mesh.count)]
    # Of the devices at a place of the pipeline, the fastest one passes a micro-batch on.
    heads: dict[int, float] = {}
    tails: dict[int, float] = {}
    for each in classes:
        begin_s = -math.inf if each.device else 0.0
        head_s = each.turn(each.first, begin_s).sent_s
        passed = each.turn(each.last, -math.inf)
        tail_s = passed.sent_s if each.device else passed.summed_s + each.update_s
        heads[each.device] = min(head_s, heads.get(each.device, math.inf))
        tails[each.device] = min(tail_s, tails.get(each.device, math.inf))
    ends = []
    for each in classes:
        first_s, last = each.turn(each.first).computed_s, each.turn(each.last)
        begun_s = first_s
        if each.device:
            arrived_s = sum(heads[place] for place in range(each.device))
            begun_s = max(first_s, arrived_s + each.turn(each.first, -math.inf).computed_s)
        computed_s = begun_s + each.turns_s - first_s
        behind_s = last.summed_s - last.computed_s + each.update_s
        # The gradients of weights are computed after the gradient is passed on.
        if each.device and each.ends_in_backward:
            back_s = sum(tails[place] for place in range(each.device))
            behind_s = max(behind_s, last.sent_s - last.computed_s + back_s)
        ends.append(each.slowed(max(computed_s + behind_s, each.sums_s + each.update_s)))
    computing = sum(c.computing_s * n for c, n in zip(classes, mesh.size.tolist(), strict=True))
    return Least(max(ends), computing / int(mesh.size.sum()))
