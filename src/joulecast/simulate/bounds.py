"""The least time that a step can take: its longest path, if no two transfers shared a port.

A search does not simulate what takes longer at least than the best so far.

A device computes one thing at a time, a transfer is never faster than alone, and nothing starts before what
it waits for is done. The longest path through a step at those rates is therefore never above its simulated
time. What a device does in a turn depends on its state before (when its compute, and its streams of weights
and gradients, are free) and on what arrives from other stages: each outcome is the latest of some of these,
each with a delay. The delays are worked out once for turns alike, and a step of thousands of turns is
followed in milliseconds where its simulation takes seconds.

Where compute and gradients slow each other down (by ``1 + gamma`` each), a device takes longer than its path
says. From its first compute on, let it compute for C seconds, its stream of gradients or weights flow for G,
both if alone, and let it not compute for N seconds. In x seconds of both, either gets as far as in
x / (1 + gamma) alone, so that G <= x / (1 + gamma) + N, and all takes N + C + gamma x / (1 + gamma), which is
at least C + N + gamma max(0, G - N). That grows with N, if gamma is at most 1, so that a least N does: what
the device waits for collectives between its ops, and for earlier stages behind its last backward.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from joulecast.simulate.compiler import Compiler, TurnWork
from joulecast.simulate.phases import Bucket, Key, Segment, reduction
from joulecast.simulate.shared_links import alone
from joulecast.simulate.strategy import size_along
from joulecast.simulate.transfers import Flow

Delays = dict[Hashable, float]
"""Seconds behind what a turn starts from: a time is the latest of all of these, each with its delay."""
_COMPUTE, _WEIGHTS, _GRADIENTS, _SENT = "compute", "weights", "gradient", "sent"
_STATE = (_COMPUTE, _WEIGHTS, _GRADIENTS, _SENT)
"""When a device's compute and its streams are free, and when the last of its gradients are summed."""


def _latest(times: Iterable[Delays]) -> Delays:
    found: Delays = {}
    for time in times:
        for start, delay in time.items():
            if delay > found.get(start, -1.0):
                found[start] = delay
    return found


def _later(time: Delays, seconds: float) -> Delays:
    return {start: delay + seconds for start, delay in time.items()}


@dataclass(frozen=True)
class _Effect:
    """What a turn does: the new state, and what it sends to other stages, as delays."""

    computing_s: float
    idle_s: float
    """Between its first and last compute, at least."""
    flowing_s: dict[str, float]
    """Of the bytes on each stream that slows compute down, alone."""
    early_s: float
    """Of those that flow before it computes, at most."""
    last_sends: dict[Key, float]
    """What it sends when all its compute is done, and the least seconds of that."""
    receives: list[Key]
    starts_by_receiving: bool
    state: dict[str, Delays]
    sends: dict[Key, Delays]


class _Turn:
    """One turn while its delays are worked out: as :meth:`DeviceStreams.run` does it."""

    def __init__(self, compiler: Compiler, number: int, work: TurnWork) -> None:
        self.transfers, self.mesh = compiler.transfers, compiler.device_mesh.mesh
        self.number, self.work = number, work
        self.pace = compiler.device_mesh.pace_of(number)
        self.state: dict[str, Delays] = {name: {name: 0.0} for name in _STATE}
        self.sent: dict[int, Delays] = {}
        self.taken: dict[int, float] = {}
        """Seconds of each collective, at least."""
        self.receives: list[Key] = []
        self.sends: dict[Key, Delays] = {}
        self.idle_s = 0.0
        self.flowing_s: dict[str, float] = {}

    def effect(self) -> _Effect:
        for number, message in enumerate(self.work.phase.messages):
            if message.after == -1:
                self._start(number)
        waiting = bool(self.receives or (self.work.segments and self.work.segments[0].receives))
        early, ended = sum(self.flowing_s.values()), list[int]()
        for segment in self.work.segments:
            self._compute(segment)
            # What starts when one segment ends, and the next one waits for, keeps the device from computing.
            waits = [self.taken[number] for number in segment.needs if number in ended]
            self.idle_s += max(waits, default=0.0)
            ended = segment.starts
            for number in segment.starts:
                self._start(number)
            for _, bucket in self.work.buckets:
                if bucket.after in segment.steps:
                    self._send_bucket(bucket)
        for _, bucket in self.work.afterwards:
            self._send_bucket(bucket)
        changed = {name: time for name, time in self.state.items() if time != {name: 0.0}}
        computing = self.pace * sum(segment.seconds for segment in self.work.segments)
        receives = list(dict.fromkeys(self.receives))
        messages = self.work.phase.messages
        last = {messages[number].key: self.taken[number] for number in ended}
        return _Effect(
            computing,
            self.idle_s,
            self.flowing_s,
            early,
            {key: seconds for key, seconds in last.items() if key is not None},
            receives,
            waiting,
            changed,
            self.sends,
        )

    def _compute(self, segment: Segment) -> None:
        before = [self.state[_COMPUTE], *(self.sent[number] for number in segment.needs)]
        before += [{key: 0.0} for key in segment.receives]
        self.receives += segment.receives
        self.state[_COMPUTE] = _later(_latest(before), segment.seconds * self.pace)

    def _start(self, number: int) -> None:
        message = self.work.phase.messages[number]
        after = [self.state[_COMPUTE], *(self.sent[earlier] for earlier in message.behind)]
        if message.key is not None:
            flow = self.transfers.send(self.number, message.key[3], message.key[4])
            self.sent[number] = self._passed(flow, message.bytes, after)
            self.taken[number] = least_seconds(flow, message.bytes, self.transfers.capacity)
            self.sends[message.key] = self.sent[number]
            return
        if message.received is not None:
            after.append({message.received: 0.0})
            self.receives.append(message.received)
        flow = self.transfers.flow(message.kind, message.axis, self.number)
        if message.weights:
            after.append(self.state[_WEIGHTS])
            self._flows(_WEIGHTS, flow, message.bytes)
        self.sent[number] = self._passed(flow, message.bytes, after)
        self.taken[number] = least_seconds(flow, message.bytes, self.transfers.capacity)
        if message.weights:
            self.state[_WEIGHTS] = self.sent[number]

    def _passed(self, flow: Flow, size: float, after: list[Delays]) -> Delays:
        return _later(_latest(after), least_seconds(flow, size, self.transfers.capacity))

    def _flows(self, stream: str, flow: Flow, size: float) -> None:
        seconds = flow.activity("", size, False).work / alone(flow.usage, self.transfers.capacity)
        self.flowing_s[stream] = self.flowing_s.get(stream, 0.0) + seconds

    def _send_bucket(self, bucket: Bucket) -> None:
        """Sum a bucket, as :meth:`DeviceStreams.send_bucket` does."""
        stream = _WEIGHTS if bucket.zero >= 2 else _GRADIENTS
        done, size = self.state[_COMPUTE], bucket.bytes
        for axis in bucket.axes:
            kind = reduction(bucket.zero, axis)
            flow = self.transfers.flow(kind, axis, self.number)
            done = self._passed(flow, size, [done, self.state[stream]])
            self._flows(stream, flow, size)
            self.state[stream] = done
            if kind == "reduce_scatter":
                size /= size_along(self.mesh, axis)
        self.state[_SENT] = _latest([self.state[_SENT], done])


def least_seconds(flow: Flow, size: float, capacity: list[float]) -> float:
    """Seconds of a transfer that has its ports for itself."""
    activity = flow.activity("", size, False)
    return activity.latency + activity.work / alone(flow.usage, capacity)


_Sums = list[tuple[int, float]]
"""A time as places of other times, each with its delay: it is the latest of them."""
_Channel = dict[int, float]
"""When a message from one class to another stage arrives, by its micro-batch."""


class _Step:
    """The messages under way between the classes of a step, and who waits for them."""

    def __init__(self, compiler: Compiler, gamma: float) -> None:
        self.compiler, self.gamma = compiler, min(gamma, 1.0)
        self.channels: dict[tuple[Key, int], _Channel] = {}
        self.waiting: dict[int, list[_Class]] = {}
        """Classes that wait for more to arrive on a channel, by its id."""
        self.ready: deque[_Class] = deque()
        self.known_after: dict[tuple[int, Key], float] = {}

    def channel(self, key: Key, source: int) -> _Channel:
        """What a class sends under a key."""
        return self.channels.setdefault((key, source), {})

    def run(self) -> "Least":
        """Least seconds of the step."""
        classes = [
            _Class(self, number) for number in range(self.compiler.device_mesh.classes.count)
        ]
        self.ready.extend(classes)
        while self.ready:
            self.ready.popleft().advance()
        sizes = self.compiler.device_mesh.classes.size
        if self.compiler.strategy.schedule != "zb-h1":
            for each in classes:
                each.tail_s = self._tail_s(classes, each.number)
        computing = sum(c.computing_s * n for c, n in zip(classes, sizes.tolist(), strict=True))
        return Least(max(each.end_s() for each in classes), computing / int(sizes.sum()))

    def _tail_s(self, classes: list["_Class"], number: int) -> float:
        """Seconds from the last compute of a class to the end of what waits for it, at least."""
        effect = classes[number].last
        if effect is None:
            return 0.0
        partner = self.compiler.transfers.partner
        return max(
            (
                seconds + self._after(classes, partner(number, key[4]), key)
                for key, seconds in effect.last_sends.items()
            ),
            default=0.0,
        )

    def _after(self, classes: list["_Class"], number: int, key: Key) -> float:
        """Seconds from the arrival of the last such message at a class to the end of what waits for it."""
        effect = classes[number].last
        if effect is None or key not in effect.receives:
            return 0.0
        if (number, key) not in self.known_after:
            partner = self.compiler.transfers.partner
            times = [time[key] for time in effect.state.values() if key in time]
            times += [
                time[key] + self._after(classes, partner(number, sent[4]), sent)
                for sent, time in effect.sends.items()
                if key in time
            ]
            self.known_after[number, key] = max(times, default=0.0)
        return self.known_after[number, key]


@dataclass(frozen=True)
class _Known:
    """An effect by places in a class's list of times."""

    effect: _Effect
    receives: list[tuple[_Channel, int]]
    sends: list[tuple[_Channel, _Sums]]
    state: list[tuple[int, _Sums]]


class _Class:
    """A class of devices on its way through the step."""

    def __init__(self, step: _Step, number: int) -> None:
        self.step, self.compiler, self.number = step, step.compiler, number
        self.plans = self.compiler.plans_of(number)
        device = self.compiler.device_of(number)
        self.turns = self.compiler.turns(device, self.plans)
        self.places: dict[Hashable, int] = {name: i for i, name in enumerate(_STATE)}
        self.times = [0.0] * len(_STATE)
        self.effects: dict[int, _Known] = {}
        self.update_s = self.compiler.update_seconds(
            self.plans, self.compiler.device_mesh.pace_of(number)
        )
        self.computing_s = self.update_s
        self.idle_s, self.flowing_s = 0.0, {_WEIGHTS: 0.0, _GRADIENTS: 0.0}
        self.last: _Effect | None = None
        """Of the turn that it has done last."""
        self.head_s = self.early_s = self.tail_s = 0.0
        """Before its first compute, flowing before it, and behind the last, at least."""
        self.upcoming = next(self.turns, None)

    def advance(self) -> None:
        """Do all turns whose input is there; then wait for that of the next."""
        times, effects = self.times, self.effects
        while self.upcoming is not None:
            turn, work = self.upcoming
            micro_batch = turn.micro_batch
            effect = effects.get(id(work)) or self._learnt(work)
            for channel, place in effect.receives:
                if micro_batch not in channel:
                    self.step.waiting.setdefault(id(channel), []).append(self)
                    return
                times[place] = channel[micro_batch]
            if self.last is None and effect.effect.starts_by_receiving:
                self.head_s = times[effect.receives[0][1]]
                self.early_s = effect.effect.early_s
            self.last = effect.effect
            for channel, sums in effect.sends:
                channel[micro_batch] = max([times[place] + delay for place, delay in sums])
                if id(channel) in self.step.waiting:
                    self.step.ready.extend(self.step.waiting.pop(id(channel)))
            new = [max([times[p] + delay for p, delay in sums]) for _, sums in effect.state]
            for (place, _), time in zip(effect.state, new, strict=True):
                times[place] = time
            self.computing_s += self.last.computing_s
            self.idle_s += self.last.idle_s
            for name, seconds in self.last.flowing_s.items():
                self.flowing_s[name] += seconds
            self.upcoming = next(self.turns, None)

    def _learnt(self, work: TurnWork) -> _Known:
        effect = _Turn(self.compiler, self.number, work).effect()
        for key in effect.receives:
            if key not in self.places:
                self.places[key] = len(self.times)
                self.times.append(0.0)
        partner = self.compiler.transfers.partner
        # Work is remembered by its plan, so that its id stays its own.
        known = self.effects[id(work)] = _Known(
            effect,
            [
                (self.step.channel(key, partner(self.number, key[3])), self.places[key])
                for key in effect.receives
            ],
            [
                (self.step.channel(key, self.number), self._sums(time))
                for key, time in effect.sends.items()
            ],
            [(self.places[name], self._sums(time)) for name, time in effect.state.items()],
        )
        return known

    def _sums(self, time: Delays) -> _Sums:
        return [(self.places[start], delay) for start, delay in time.items()]

    def _slowed_s(self, tail_s: float) -> float:
        """What its compute takes at least, slowed by its gradients, without the optimizer."""
        idle = self.idle_s + tail_s
        overlapped = max(0.0, max(self.flowing_s.values()) - self.early_s - idle)
        computing = self.computing_s - self.update_s
        return self.head_s + computing + idle + self.step.gamma * overlapped

    def end_s(self) -> float:
        """When it is done, with its gradients, the optimizer, and what is gathered behind it."""
        done = max(self.times[self.places[name]] for name in (_COMPUTE, _SENT))
        done = max(done, self._slowed_s(0.0)) + self.update_s
        transfers = self.compiler.transfers
        for message in self.compiler.gathered_after_update(self.plans):
            flow = transfers.flow(message.kind, message.axis, self.number)
            done += least_seconds(flow, message.bytes, transfers.capacity)
        # Others end then; it updates its own weights meanwhile.
        return max(done, self._slowed_s(self.tail_s))


@dataclass(frozen=True)
class Least:
    """What a step takes at least: never above what its simulation gives."""

    step_s: float
    computing_s: float
    """Seconds that a device computes, the mean over devices."""


def least_time(compiler: Compiler, gamma: float = 0.0) -> Least:
    """Seconds that a step takes at least; ``gamma``: the overlap slowdown, while both are under way."""
    return _Step(compiler, gamma).run()
