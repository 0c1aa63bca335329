"""Running a graph of activities in simulated time.

An activity computes for some seconds of one device, or transfers bytes through the ports of a network that
is shared. Streams need no queues here: a stream is first in, first out, so that each of its activities
simply waits for the one before. Two things change the pace of an activity under way: a transfer that starts
or ends changes the rates of those that share ports with it, and a device that computes while its gradients
travel does both more slowly (the overlap slowdown gamma). Both are rates here, for exactly as long as they
last. With ``whole_activity`` slowdown, as in the paper, an activity that meets the other kind at all is
slowed from end to end.
"""

import heapq

from joulecast.errors import JoulecastError
from joulecast.simulate.activities import (
    Activity,
    ActivityGraph,
    Chain,
    ChainLink,
    Passed,
    Slowdown,
    Timeline,
)
from joulecast.simulate.network import SharedNetwork, Usage

_SAME_TIME = 1e-12
"""Seconds, relative to now: events this close are one event, so that ranks in step stay in step."""


class _Run:
    """The state of one execution: what is under way, how fast, and what ends when."""

    def __init__(self, graph: ActivityGraph, network: SharedNetwork, slowdown: Slowdown) -> None:
        self.activities = list(graph.activities)
        self.count = len(self.activities)
        self.meanwhile: dict[int, int] = {}
        """Of chains that transfer while they compute, a number for what is transferred."""
        for number, activity in enumerate(graph.activities):
            if activity.chain is not None and activity.chain.meanwhile:
                self.meanwhile[number] = len(self.activities)
                self.activities.append(Activity("", activity.devices, 0.0, waits_for=1))
        self.chain_with = {other: chain for chain, other in self.meanwhile.items()}
        self.link_ends: dict[int, dict[int, float]] = {}
        """Of a chain at a link of two parts, those that have ended, and when."""
        self.network = network
        self.slowdown = slowdown
        self.overlaps = slowdown.compute > 0 or slowdown.transfer > 0
        count = len(self.activities)
        self.waits = [activity.waits_for for activity in self.activities]
        self.start = [-1.0] * count
        self.end = [-1.0] * count
        self.left = [activity.work for activity in self.activities]
        self.rate = [0.0] * count
        self.fair = [0.0] * count
        self.since = [0.0] * count
        self.link_start: dict[int, float] = {}
        self.version = [0] * count
        self.stretched = [False] * count
        self.events: list[tuple[float, int, int]] = []
        self.computing: dict[int, int] = {}
        self.sending: dict[int, set[int]] = {}
        self.flowing = [False] * count
        self.at: dict[int, int] = {}
        """The link that each chain under way is at."""
        self.quiet: set[int] = set()
        """Chains that run in one go: no other activity uses their ports."""
        self.chains_on: dict[int, set[int]] = {}
        """Chains under way by the ports that they use at times."""
        self.chain_of: dict[int, int] = {}
        """The chain under way on each device."""
        self.passed: dict[int, list[Passed]] = {}
        self.queued: dict[int, set[int]] = {}
        """Gradient transfers of each device whose gradients are there, under way or not."""
        self.now = 0.0
        self.ready: list[int] = []
        self.changed_flows: set[int] = set()
        self.changed_compute: set[int] = set()
        self.met: set[int] = set()

    def _set_rate(self, activity: int, rate: float) -> None:
        if rate == self.rate[activity]:
            return
        # No rate yet means no progress yet; an infinite one is over at once.
        if self.rate[activity] > 0:
            self.left[activity] -= (self.now - self.since[activity]) * self.rate[activity]
        self.since[activity] = self.now
        self.rate[activity] = rate
        self.version[activity] += 1
        ends = self.now + max(0.0, self.left[activity]) / rate
        heapq.heappush(self.events, (ends, self.version[activity], activity))

    def _begin(self, activity: int) -> None:
        self.since[activity] = self.now
        work = self.activities[activity]
        if work.chain is not None:
            self._enter(activity, work.chain)
            return
        self.start[activity] = self.now
        if work.usage is not None and work.latency > 0:
            heapq.heappush(self.events, (self.now + work.latency, 0, activity))
        else:
            self._flow(activity)

    def _enter(self, activity: int, chain: Chain) -> None:
        """Start a chain, or its next link."""
        if activity not in self.at:
            self.start[activity] = self.now
            self.at[activity] = 0
            self.passed[activity] = []
            self.chain_of[self.activities[activity].devices[0]] = activity
            for port in chain.ports:
                for other in self.chains_on.setdefault(port, set()):
                    self._disturb(other)
                self.chains_on[port].add(activity)
        if self._is_alone(activity, chain):
            self.quiet.add(activity)
            self.version[activity] += 1
            first = self.at[activity]
            ends = self.now + chain.ends[-1] - chain.begins[first]
            heapq.heappush(self.events, (ends, self.version[activity], activity))
            return
        self._begin_link(activity, chain.links[self.at[activity]])

    def _begin_link(self, activity: int, link: ChainLink) -> None:
        self.left[activity] = link.work
        self.rate[activity] = 0.0
        self.link_start[activity] = self.now
        if link.meanwhile is not None:
            self.link_ends[activity] = {}
            self._begin_meanwhile(activity, link.meanwhile)
        if link.usage is not None and link.latency > 0:
            heapq.heappush(self.events, (self.now + link.latency, 0, activity))
        else:
            self._flow(activity)

    def _begin_meanwhile(self, chain: int, link: ChainLink, into: float = 0.0) -> None:
        """Transfer while a chain computes; ``into``: seconds since the start, alone until now."""
        activity, latency = self.meanwhile[chain], link.latency
        devices = self.activities[chain].devices
        self.activities[activity] = Activity(link.label, devices, link.work, link.usage, latency)
        self.left[activity], self.rate[activity] = link.work, 0.0
        self.since[activity] = self.now
        if into < latency or (into == 0.0 and latency > 0):
            heapq.heappush(self.events, (self.now + latency - into, 0, activity))
            return
        if into > 0:
            work = self.activities[chain].chain
            assert work is not None
            rate = work.meanwhile[self.at[chain]][1]
            self.left[activity] = max(0.0, link.work - (into - latency) * rate)
        self._flow(activity)

    def _is_alone(self, activity: int, chain: Chain) -> bool:
        if self.overlaps and self.sending.get(self.activities[activity].devices[0]):
            return False
        return not any(
            len(self.chains_on[port]) > 1 or self.network.is_used(port) for port in chain.ports
        )

    def _disturb(self, activity: int) -> None:
        """Continue a chain link by link that ran in one go, from where it is."""
        if activity not in self.quiet:
            return
        self.quiet.discard(activity)
        self.version[activity] += 1
        chain = self.activities[activity].chain
        assert chain is not None
        first, elapsed = self.at[activity], self.now - self.since[activity]
        number = chain.link_at(first, elapsed)
        if number > first:
            begun = self.since[activity]
            until = begun + chain.begins[number] - chain.begins[first]
            self.passed[activity].append(Passed(first, number, begun, until))
        self.at[activity] = number
        link = chain.links[number]
        into = elapsed - (chain.begins[number] - chain.begins[first])
        self.link_start[activity] = self.now - into
        self.since[activity] = self.now
        self.rate[activity] = 0.0
        if link.meanwhile is not None:
            self._disturb_both(activity, chain, number, into)
            return
        if into < link.latency:
            self.left[activity] = link.work
            heapq.heappush(self.events, (self.now + link.latency - into, 0, activity))
            return
        done = (into - link.latency) * chain.rates[number]
        self.left[activity] = max(0.0, link.work - done)
        self._flow(activity)

    def _disturb_both(self, activity: int, chain: Chain, number: int, into: float) -> None:
        """Continue a link that computes while something is transferred; the longer one is not over."""
        link, start = chain.links[number], self.link_start[activity]
        assert link.meanwhile is not None
        own, other = chain.ends_of(number, start)
        ended = self.link_ends[activity] = {}
        if own < other and into >= chain.own_s[number]:
            ended[activity] = own
        else:
            self.left[activity] = max(0.0, link.work - into)
            self._flow(activity)
        if other <= own and into >= other - start:
            ended[self.meanwhile[activity]] = other
        else:
            self._begin_meanwhile(activity, link.meanwhile, into)

    def _usage(self, activity: int) -> Usage | None:
        """Ports of a transfer, or of the link that a chain is at."""
        work = self.activities[activity]
        return work.usage if work.chain is None else work.chain.links[self.at[activity]].usage

    def _flow(self, activity: int) -> None:
        """Compute, or the bytes of a transfer, get going; rates are set once all of now has started."""
        work = self.activities[activity]
        usage = self._usage(activity)
        self.flowing[activity] = True
        if usage is None:
            self.changed_compute.add(activity)
            if self.overlaps:
                self.computing[work.devices[0]] = activity
                self.met |= self.sending.get(work.devices[0], set())
                if self.slowdown.whole_activity:
                    for transfer in self.queued.get(work.devices[0], ()):
                        self._stretch(transfer, self.slowdown.transfer)
            return
        for port in usage:
            for chain in self.chains_on.get(port, ()):
                if chain != activity:
                    self._disturb(chain)
        self.network.add(activity, usage)
        self.changed_flows.add(activity)
        if work.gradient and self.overlaps:
            for device in work.devices:
                if device in self.chain_of:
                    self._disturb(self.chain_of[device])
                self.sending.setdefault(device, set()).add(activity)
                if device in self.computing:
                    self.changed_compute.add(self.computing[device])

    def _finish(self, activity: int) -> None:
        """An activity is over, or the link that a chain is at."""
        work = self.activities[activity]
        if activity in self.quiet:
            self._end_chain(activity, self.since[activity])
        else:
            self._stop(activity)
            both = self.chain_with.get(activity, activity)
            ends = None
            if both in self.link_ends:
                self.link_ends[both][activity] = self.now
                if len(self.link_ends[both]) < 2:
                    return
                ended, activity = self.link_ends.pop(both), both
                ends = ended[activity], ended[self.meanwhile[activity]]
                work = self.activities[activity]
            if work.chain is not None:
                if self.at[activity] < len(work.chain.links) - 1:
                    number = self.at[activity]
                    start = self.link_start[activity]
                    part = Passed(number, number + 1, start, self.now, ends)
                    self.passed[activity].append(part)
                    self.at[activity] = number + 1
                    self.ready.append(activity)
                    return
                self._end_chain(activity, self.link_start[activity])
        self.end[activity] = self.now
        for later in work.successors:
            if (
                self.slowdown.whole_activity
                and work.usage is None
                and self.activities[later].gradient
            ):
                self.queued.setdefault(work.devices[0], set()).add(later)
            self.waits[later] -= 1
            if self.waits[later] == 0:
                self.ready.append(later)

    def _end_chain(self, activity: int, start_s: float) -> None:
        work = self.activities[activity]
        assert work.chain is not None
        self.quiet.discard(activity)
        self.version[activity] += 1
        count = len(work.chain.links)
        self.passed[activity].append(Passed(self.at[activity], count, start_s, self.now))
        del self.at[activity], self.chain_of[work.devices[0]]
        for port in work.chain.ports:
            self.chains_on[port].discard(activity)

    def _stop(self, activity: int) -> None:
        """What computed or flowed does so no more."""
        work = self.activities[activity]
        self.flowing[activity] = False
        self.version[activity] += 1
        if self._usage(activity) is None:
            if self.overlaps:
                del self.computing[work.devices[0]]
                self.met |= self.sending.get(work.devices[0], set())
        else:
            self.changed_flows |= self.network.remove(activity)
            if work.gradient and self.overlaps:
                for device in work.devices:
                    self.sending[device].discard(activity)
                    if device in self.computing:
                        self.changed_compute.add(self.computing[device])
                    # A gather of weights may wait for no compute at all.
                    if device in self.queued:
                        self.queued[device].discard(activity)

    def _stretch(self, activity: int, slowdown: float) -> None:
        """The paper's overlap: a whole activity takes longer, once, if it meets the other kind at all.

        A transfer overlaps the compute that still runs once its gradients are there, even while it queues.
        """
        if not self.stretched[activity]:
            self.stretched[activity] = True
            if self.rate[activity] > 0:
                self.left[activity] -= (self.now - self.since[activity]) * self.rate[activity]
            self.since[activity] = self.now
            self.left[activity] += slowdown * self.activities[activity].work
            self.rate[activity] = 0.0

    def _set_compute_rate(self, activity: int) -> None:
        slow = self.overlaps and bool(self.sending.get(self.activities[activity].devices[0]))
        if not slow:
            self._set_rate(activity, 1.0)
        elif self.slowdown.whole_activity:
            self._stretch(activity, self.slowdown.compute)
            self._set_rate(activity, 1.0)
        else:
            self._set_rate(activity, 1 / (1 + self.slowdown.compute))

    def _set_flow_rate(self, activity: int) -> None:
        work = self.activities[activity]
        slow = self.overlaps and work.gradient and not self.slowdown.whole_activity
        if slow and any(device in self.computing for device in work.devices):
            self._set_rate(activity, self.fair[activity] / (1 + self.slowdown.transfer))
        else:
            self._set_rate(activity, self.fair[activity])

    def _settle(self) -> None:
        """Start what is ready and give everything that changed its new rate."""
        while self.ready:
            self._begin(self.ready.pop())
        if self.changed_flows:
            for activity, rate in self.network.rates_around(self.changed_flows).items():
                self.fair[activity] = rate
                self.met.add(activity)
            self.changed_flows.clear()
        if self.changed_compute:
            for activity in self.changed_compute:
                if self.flowing[activity]:
                    self._set_compute_rate(activity)
            self.changed_compute.clear()
        if self.met:
            for activity in self.met:
                if self.flowing[activity]:
                    self._set_flow_rate(activity)
            self.met.clear()

    def run(self) -> Timeline:
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
        return Timeline(self.start[: self.count], self.end[: self.count], self.passed)


def execute(
    graph: ActivityGraph, network: SharedNetwork, slowdown: Slowdown | None = None
) -> Timeline:
    """Run all activities.

    Raises:
        JoulecastError: some activities wait for each other; names a few of them.
    """
    timeline = _Run(graph, network, slowdown or Slowdown()).run()
    stuck = [
        activity.label
        for activity, end in zip(graph.activities, timeline.end_s, strict=True)
        if end < 0
    ]
    if stuck:
        raise JoulecastError(
            f"the schedule never ends: {len(stuck)} of {len(graph.activities)} activities wait for each "
            f"other, as {', '.join(stuck[:3])}"
        )
    return timeline
