"""Running a graph of tasks in simulated time.

Compute tasks take seconds of one device; transfers take bytes through the ports of a network that they
share. Streams need no queues here: a stream is first in, first out, so that each of its tasks simply waits
for the one before. Two things change the pace of a task under way: a transfer that starts or ends changes
the rates of those that share ports with it, and a device that computes while its gradients travel does both
more slowly (the overlap slowdown gamma). Both are rates here, for exactly as long as they last. With
``whole_task_slowdown``, as in the paper, a task that meets the other kind at all is slowed from end to end.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.simulator.network import SharedNetwork, Usage

_SAME_TIME = 1e-12
"""Seconds, relative to now: events this close are one event, so that ranks in step stay in step."""


@dataclass(slots=True)
class Task:
    """One piece of work.

    ``work`` is seconds of compute, or the bytes that a transfer puts through its busiest device port.
    """

    label: str
    devices: tuple[int, ...]
    """Who is busy with it: one device that computes, or all members of a transfer."""
    work: float
    usage: Usage | None = None
    """Ports of a transfer; ``None`` for compute."""
    latency: float = 0.0
    """Seconds before a transfer's bytes flow."""
    gradient: bool = False
    """Whether it is gradient communication, which compute overlaps at a price."""
    parts: tuple[Any, ...] = ()
    """What was fused into it, for whoever explains it."""
    successors: list[int] = field(default_factory=list)
    waits_for: int = 0


@dataclass(frozen=True)
class Slowdown:
    """What overlap costs: compute takes ``1 + compute`` as long, gradient transfers ``1 + transfer``."""

    compute: float = 0.0
    transfer: float = 0.0
    whole_task: bool = False


class TaskGraph:
    """Tasks and who waits for whom."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def add(self, task: Task, after: Sequence[int] = ()) -> int:
        """Add a task that waits for others; gives its number."""
        self.tasks.append(task)
        number = len(self.tasks) - 1
        for earlier in after:
            self.wait(number, earlier)
        return number

    def wait(self, task: int, earlier: int) -> None:
        """Let a task wait for another one."""
        self.tasks[earlier].successors.append(task)
        self.tasks[task].waits_for += 1


@dataclass(frozen=True)
class Timeline:
    """Start and end of every task, seconds from the start of the step."""

    start_s: list[float]
    end_s: list[float]

    @property
    def duration_s(self) -> float:
        """From the start to the end of the last task."""
        return max(self.end_s, default=0.0)


class _Run:
    """The state of one execution: what is under way, how fast, and what ends when."""

    def __init__(self, graph: TaskGraph, network: SharedNetwork, slowdown: Slowdown) -> None:
        self.tasks = graph.tasks
        self.network = network
        self.slowdown = slowdown
        self.overlaps = slowdown.compute > 0 or slowdown.transfer > 0
        count = len(self.tasks)
        self.waits = [task.waits_for for task in self.tasks]
        self.start = [-1.0] * count
        self.end = [-1.0] * count
        self.left = [task.work for task in self.tasks]
        self.rate = [0.0] * count
        self.fair = [0.0] * count
        self.since = [0.0] * count
        self.version = [0] * count
        self.stretched = [False] * count
        self.events: list[tuple[float, int, int]] = []
        self.computing: dict[int, int] = {}
        self.sending: dict[int, set[int]] = {}
        self.flowing = [False] * count
        self.queued: dict[int, set[int]] = {}
        """Gradient transfers of each device whose gradients are there, under way or not."""
        self.now = 0.0

    def _set_rate(self, task: int, rate: float) -> None:
        if rate == self.rate[task]:
            return
        # No rate yet means no progress yet; an infinite one is over at once.
        if self.rate[task] > 0:
            self.left[task] -= (self.now - self.since[task]) * self.rate[task]
        self.since[task] = self.now
        self.rate[task] = rate
        self.version[task] += 1
        ends = self.now + max(0.0, self.left[task]) / rate
        heapq.heappush(self.events, (ends, self.version[task], task))

    def _begin(self, task: int) -> None:
        self.start[task] = self.now
        self.since[task] = self.now
        work = self.tasks[task]
        if work.usage is not None and work.latency > 0:
            heapq.heappush(self.events, (self.now + work.latency, 0, task))
        else:
            self._flow(task)

    def _flow(self, task: int) -> None:
        """Compute, or the bytes of a transfer, get going; rates are set once all of now has started."""
        work = self.tasks[task]
        self.flowing[task] = True
        if work.usage is None:
            self.changed_compute.add(task)
            if self.overlaps:
                self.computing[work.devices[0]] = task
                self.met |= self.sending.get(work.devices[0], set())
                if self.slowdown.whole_task:
                    for transfer in self.queued.get(work.devices[0], ()):
                        self._stretch(transfer, self.slowdown.transfer)
            return
        self.network.add(task, work.usage)
        self.changed_flows.add(task)
        if work.gradient and self.overlaps:
            for device in work.devices:
                self.sending.setdefault(device, set()).add(task)
                if device in self.computing:
                    self.changed_compute.add(self.computing[device])

    def _finish(self, task: int) -> None:
        work = self.tasks[task]
        self.end[task] = self.now
        self.flowing[task] = False
        self.version[task] += 1
        if work.usage is None:
            if self.overlaps:
                del self.computing[work.devices[0]]
                self.met |= self.sending.get(work.devices[0], set())
        else:
            self.changed_flows |= self.network.remove(task)
            if work.gradient and self.overlaps:
                for device in work.devices:
                    self.sending[device].discard(task)
                    if device in self.computing:
                        self.changed_compute.add(self.computing[device])
                    if self.slowdown.whole_task:
                        self.queued[device].discard(task)
        for later in work.successors:
            if self.slowdown.whole_task and work.usage is None and self.tasks[later].gradient:
                self.queued.setdefault(work.devices[0], set()).add(later)
            self.waits[later] -= 1
            if self.waits[later] == 0:
                self.ready.append(later)

    def _stretch(self, task: int, slowdown: float) -> None:
        """The paper's overlap: a whole task takes longer, once, if it meets the other kind at all.

        A transfer meets the compute that goes on once its gradients are there, even while it queues.
        """
        if not self.stretched[task]:
            self.stretched[task] = True
            if self.rate[task] > 0:
                self.left[task] -= (self.now - self.since[task]) * self.rate[task]
            self.since[task] = self.now
            self.left[task] += slowdown * self.tasks[task].work
            self.rate[task] = 0.0

    def _set_compute_rate(self, task: int) -> None:
        slow = self.overlaps and bool(self.sending.get(self.tasks[task].devices[0]))
        if not slow:
            self._set_rate(task, 1.0)
        elif self.slowdown.whole_task:
            self._stretch(task, self.slowdown.compute)
            self._set_rate(task, 1.0)
        else:
            self._set_rate(task, 1 / (1 + self.slowdown.compute))

    def _set_flow_rate(self, task: int) -> None:
        work = self.tasks[task]
        slow = self.overlaps and work.gradient and not self.slowdown.whole_task
        if slow and any(device in self.computing for device in work.devices):
            self._set_rate(task, self.fair[task] / (1 + self.slowdown.transfer))
        else:
            self._set_rate(task, self.fair[task])

    def _settle(self) -> None:
        """Start what is ready and give everything that changed its new rate."""
        while self.ready:
            self._begin(self.ready.pop())
        if self.changed_flows:
            for task, rate in self.network.rates_around(self.changed_flows).items():
                self.fair[task] = rate
                self.met.add(task)
        for task in self.changed_compute:
            if self.flowing[task]:
                self._set_compute_rate(task)
        for task in self.met:
            if self.flowing[task]:
                self._set_flow_rate(task)

    def _forget_changes(self) -> None:
        self.ready: list[int] = []
        self.changed_flows: set[int] = set()
        self.changed_compute: set[int] = set()
        self.met: set[int] = set()

    def run(self) -> Timeline:
        self._forget_changes()
        self.ready = [task for task, waits in enumerate(self.waits) if waits == 0]
        self._settle()
        events = self.events
        while events:
            self.now = events[0][0]
            until = self.now * (1 + _SAME_TIME) + _SAME_TIME
            self._forget_changes()
            while events and events[0][0] <= until:
                _, version, task = heapq.heappop(events)
                if version == 0:
                    self._flow(task)
                elif version == self.version[task]:
                    self._finish(task)
            self._settle()
        return Timeline(self.start, self.end)


def execute(graph: TaskGraph, network: SharedNetwork, slowdown: Slowdown | None = None) -> Timeline:
    """Run all tasks.

    Raises:
        JoulecastError: some tasks wait for each other; names a few of them.
    """
    timeline = _Run(graph, network, slowdown or Slowdown()).run()
    stuck = [task.label for task, end in zip(graph.tasks, timeline.end_s, strict=True) if end < 0]
    if stuck:
        raise JoulecastError(
            f"the schedule never ends: {len(stuck)} of {len(graph.tasks)} tasks wait for each other, "
            f"as {', '.join(stuck[:3])}"
        )
    return timeline
