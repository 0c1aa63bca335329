"""The event loop: runs the activities of a step, of devices and links, in simulated time.

An activity computes on one device for some seconds, or transfers bytes through the ports of a shared network.
A stream is first in, first out. It needs no queue in this module, because each of its activities waits for
the one before. Two things change the pace of a running activity. A transfer that starts or ends changes the
rates of all transfers that share ports with it. A device that computes while its gradients travel does both
more slowly (the overlap slowdown gamma). Both change the pace only while they last. With ``whole_activity``
slowdown, as in the paper, an activity is slowed from its begin to its end if it meets the other kind at any
time.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.simulate.shared_links import SharedLinks, Usage


@dataclass(slots=True)
class Activity:
    """One piece of work.

    ``work`` is the seconds of computing, or the bytes of a transfer at its busiest device port.
    """

    label: str
    devices: tuple[int, ...]
    """Devices that are busy: the device that computes, or all members of a transfer."""
    work: float
    usage: Usage | None = None
    """Ports of a transfer; ``None`` for compute."""
    latency: float = 0.0
    """Seconds before a transfer's bytes flow."""
    gradient: bool = False
    """Whether it sends gradients. If compute overlaps such a transfer, both may become slower."""
    parts: Sequence[Any] = ()
    """Parts that were fused into the activity, for the explanation of a step."""
    successors: list[int] = field(default_factory=list)
    waits_for: int = 0
    start_s: float = -1.0
    """Seconds from the start of the step, when it has run."""
    end_s: float = -1.0


@dataclass(frozen=True)
class Slowdown:
    """The slowdown by overlap: computing and gradient transfers take ``1 + gamma`` times as long."""

    gamma: float = 0.0
    whole_activity: bool = False


class ActivityGraph(list[Activity]):
    """Activities, and for which other activities each one waits."""

    def add(self, activity: Activity, after: Sequence[int] = ()) -> int:
        """Add an activity that waits for others. Returns its number."""
        self.append(activity)
        number = len(self) - 1
        for earlier in after:
            self.wait(number, earlier)
        return number

    def wait(self, activity: int, earlier: int) -> None:
        """Let an activity wait for another one."""
        self[earlier].successors.append(activity)
        self[activity].waits_for += 1

    @property
    def duration_s(self) -> float:
        """Time from the start of the step to the end of the last activity."""
        return max((activity.end_s for activity in self), default=0.0)


_SAME_TIME = 1e-12
"""Relative tolerance of times. Events within it are one event, so that equal ranks stay together."""


class _Run:
    """The state of one execution: the running activities, their rates, and when they end."""

    def __init__(self, graph: ActivityGraph, links: SharedLinks, slowdown: Slowdown) -> None:
        self.activities = list(graph)
        self.links = links
        self.slowdown = slowdown
        self.overlaps = slowdown.gamma > 0
        count = len(self.activities)
        self.waits = [activity.waits_for for activity in self.activities]
        self.left = [activity.work for activity in self.activities]
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
        """Gradient transfers of each device whose gradients are ready, whether they run or not."""
        self.now = 0.0
        self.ready: list[int] = []
        self.changed_flows: set[int] = set()
        self.changed_compute: set[int] = set()
        self.met: set[int] = set()

    def _advance(self, activity: int) -> None:
        """Take off the work that an activity has done at its rate until now."""
        # Without a rate, there is no progress yet. With an infinite rate, the activity ends at once.
        if self.rate[activity] > 0:
            self.left[activity] -= (self.now - self.since[activity]) * self.rate[activity]
        self.since[activity] = self.now

    def _set_rate(self, activity: int, rate: float) -> None:
        if rate == self.rate[activity]:
            return
        self._advance(activity)
        self.rate[activity] = rate
        self.version[activity] += 1
        ends = self.now + max(0.0, self.left[activity]) / rate
        heapq.heappush(self.events, (ends, self.version[activity], activity))

    def _flow(self, activity: int) -> None:
        """Start compute, or the bytes of a transfer. Rates are set after everything has started."""
        work = self.activities[activity]
        usage = work.usage
        self.flowing[activity] = True
        if usage is None:
            self.changed_compute.add(activity)
            if self.overlaps:
                self.computing[work.devices[0]] = activity
                self.met |= self.sending.get(work.devices[0], set())
                if self.slowdown.whole_activity:
                    for transfer in self.queued.get(work.devices[0], ()):
                        self._stretch(transfer)
            return
        self.links.add(activity, usage)
        self.changed_flows.add(activity)
        if work.gradient and self.overlaps:
            for device in work.devices:
                self.sending.setdefault(device, set()).add(activity)
                if device in self.computing:
                    self.changed_compute.add(self.computing[device])

    def _finish(self, activity: int) -> None:
        """End an activity."""
        work = self.activities[activity]
        work.end_s = self.now
        self.flowing[activity] = False
        self.version[activity] += 1
        if work.usage is None:
            if self.overlaps:
                del self.computing[work.devices[0]]
                self.met |= self.sending.get(work.devices[0], set())
        else:
            self.changed_flows |= self.links.remove(activity)
            if work.gradient and self.overlaps:
                for device in work.devices:
                    self.sending[device].discard(activity)
                    if device in self.computing:
                        self.changed_compute.add(self.computing[device])
                    # A gather of weights may wait for no compute at all.
                    if device in self.queued:
                        self.queued[device].discard(activity)
        queues = self.slowdown.whole_activity and work.usage is None
        for later in work.successors:
            if queues and self.activities[later].gradient:
                self.queued.setdefault(work.devices[0], set()).add(later)
            self.waits[later] -= 1
            if self.waits[later] == 0:
                self.ready.append(later)

    def _stretch(self, activity: int) -> None:
        """Make an activity longer, as the paper does: its whole work, and only once, if any part overlaps.

        A transfer that is queued counts as overlapping if compute still runs when its gradients are ready.
        """
        if not self.stretched[activity]:
            self.stretched[activity] = True
            self._advance(activity)
            self.left[activity] += self.slowdown.gamma * self.activities[activity].work
            self.rate[activity] = 0.0

    def _settle(self) -> None:
        """Start activities that are ready, and update all rates that changed."""
        while self.ready:
            number = self.ready.pop()
            activity = self.activities[number]
            self.since[number] = activity.start_s = self.now
            if activity.usage is not None and activity.latency > 0:
                heapq.heappush(self.events, (self.now + activity.latency, 0, number))
            else:
                self._flow(number)
        if self.changed_flows:
            for number, rate in self.links.rates_around(self.changed_flows).items():
                self.fair[number] = rate
                self.met.add(number)
            self.changed_flows.clear()
        for number in self.changed_compute:
            if self.flowing[number]:
                rate = 1.0
                if self.overlaps and self.sending.get(self.activities[number].devices[0]):
                    if self.slowdown.whole_activity:
                        self._stretch(number)
                    else:
                        rate /= 1 + self.slowdown.gamma
                self._set_rate(number, rate)
        self.changed_compute.clear()
        slows = self.overlaps and not self.slowdown.whole_activity
        for number in self.met:
            if self.flowing[number]:
                rate, activity = self.fair[number], self.activities[number]
                if (
                    slows
                    and activity.gradient
                    and not self.computing.keys().isdisjoint(activity.devices)
                ):
                    rate /= 1 + self.slowdown.gamma
                self._set_rate(number, rate)
        self.met.clear()

    def run(self) -> None:
        self.ready = [activity for activity, waits in enumerate(self.waits) if waits == 0]
        self._settle()
        events = self.events
        while events:
            self.now = events[0][0]
            until = self.now * (1 + _SAME_TIME) + _SAME_TIME
            while events and events[0][0] <= until:
                _, version, activity = heapq.heappop(events)
                if version == 0:
                    self._flow(activity)
                elif version == self.version[activity]:
                    self._finish(activity)
            if self.ready or self.changed_flows or self.changed_compute or self.met:
                self._settle()


def execute(graph: ActivityGraph, links: SharedLinks, slowdown: Slowdown | None = None) -> None:
    """Run all activities, and note in each when it started and ended.

    Raises:
        JoulecastError: some activities wait for each other. The error names a few of them.
    """
    _Run(graph, links, slowdown or Slowdown()).run()
    stuck = [activity.label for activity in graph if activity.end_s < 0]
    if stuck:
        raise JoulecastError(
            f"the schedule never ends: {len(stuck)} of {len(graph)} activities wait for each "
            f"other, as {', '.join(stuck[:3])}"
        )


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Breakdown:
    """Seconds of one step. The first three add up to the step.

    A device does not compute during the whole step. While it does not compute, and one of its own messages
    travels, this is exposed communication. If none of its messages travels, this is bubble: the device waits
    for another stage, or for a straggler.
    """

    computing_s: float
    exposed_communication_s: float
    bubble_s: float
    communication_s: float
    """Seconds in which the device communicates, whether it also computes or not."""


def _covered(starts: Floats, ends: Floats) -> float:
    """Seconds that are in one or more of some intervals."""
    order = np.argsort(starts, kind="stable")
    latest = np.maximum.accumulate(ends[order])
    # Each interval adds only its seconds after the end of all earlier intervals.
    begins = np.maximum(starts[order], np.concatenate([[-np.inf], latest[:-1]]))
    return float(np.maximum(latest - begins, 0.0).sum())


def breakdowns(graph: ActivityGraph, classes: int) -> Floats:
    """The breakdown of each class of devices, over the whole step. A row has the fields of
    :class:`Breakdown`."""
    computing: list[list[int]] = [[] for _ in range(classes)]
    talking: list[list[int]] = [[] for _ in range(classes)]
    for number, activity in enumerate(graph):
        of_kind = computing if activity.usage is None else talking
        for device in activity.devices:
            of_kind[device].append(number)
    starts = np.array([activity.start_s for activity in graph])
    ends = np.array([activity.end_s for activity in graph])
    step_s, found = graph.duration_s, []
    for compute, communication in zip(computing, talking, strict=True):
        computing_s, busy_s, communication_s = (
            _covered(starts[chosen], ends[chosen]) if chosen else 0.0
            for chosen in (compute, compute + communication, communication)
        )
        exposed_s, bubble_s = max(0.0, busy_s - computing_s), max(0.0, step_s - busy_s)
        found.append((computing_s, exposed_s, bubble_s, communication_s))
    return np.array(found)
