"""The estimate: watts from utilisation, between the idle and full watts in the platform file.

It is a formula, not a measurement. Every figure made from it has the source ``estimated``.
"""

import time
from collections.abc import Callable

import psutil

from joulecast.measure.power.meters import (
    Meter,
    MeteredNodes,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.runs.meter_covers import Covers


class HostWork:
    """CPU seconds of all processes of the host so far."""

    def __call__(self) -> float:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return float(sum(times[:8]) - idle)


class ProcessWork:
    """CPU seconds of some processes so far."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]

    def __call__(self) -> float:
        try:
            used = [process.cpu_times() for process in self._processes]
        except psutil.Error as error:
            raise ReadFailed(str(error)) from error
        return float(sum(times.user + times.system for times in used))


class EstimatedMeter:
    """Integrates ``idle + (full - idle) * utilisation`` of one node between its reads. The utilisation
    is at most 1.

    An emulated node has only a part of a core. It works in bursts on the whole core, and then waits as
    long as a slower node would still compute. So the work of a burst above the node's capacity counts in
    the wait after it.
    """

    source = "estimated"
    counter = True
    name = "estimated"
    covers: Covers = "node"
    identity: str | None = None

    def __init__(self, node: str, work: Callable[[], float], nodes: MeteredNodes) -> None:
        if nodes.idle_w is None or nodes.full_w is None:
            raise MeterUnavailable(
                "estimated: the platform has no watts", "give idle_w and full_w in its file"
            )
        self.node = node
        self._work, self._capacity = work, nodes.core_seconds_per_s
        self._idle_w, self._dynamic_w = nodes.idle_w, nodes.full_w - nodes.idle_w
        self._last_s, self._last_work = time.monotonic(), work()
        self._above_capacity = self._joules = 0.0

    def read(self) -> Reading:
        # The kernel's idle time may go back by a tick, and work with it.
        now_s, work = time.monotonic(), max(self._last_work, self._work())
        elapsed = now_s - self._last_s
        if elapsed <= 0:
            raise ReadFailed("two reads at the same time")
        to_do = self._above_capacity + work - self._last_work
        done = min(to_do, elapsed * self._capacity)
        self._last_s, self._last_work, self._above_capacity = now_s, work, to_do - done
        watts = self._idle_w + self._dynamic_w * done / elapsed / self._capacity
        self._joules += watts * elapsed
        return Reading(watts, self._joules)


def open_estimates(nodes: MeteredNodes) -> list[Meter]:
    """One estimate for each node of this host."""
    if not nodes.pids:
        return [EstimatedMeter(nodes.host_node, HostWork(), nodes)]
    return [EstimatedMeter(node, ProcessWork(pids), nodes) for node, pids in nodes.pids.items()]
