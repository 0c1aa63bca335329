"""The estimate: watts from the processor's utilisation, between the idle and full watts in the platform
file. A training on GPUs gets no energy from it.

It is a formula, not a measurement. Every value that is made from the estimate has the source ``estimated``.
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
from joulecast.runs.meter_choice import Covers


def _host_work() -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return float(sum(times[:8]) - idle)


def _process_work(pids: list[int]) -> Callable[[], float]:
    processes = [psutil.Process(pid) for pid in pids]

    def work() -> float:
        try:
            used = [process.cpu_times() for process in processes]
        except psutil.Error as error:
            raise ReadFailed(str(error)) from error
        return float(sum(times.user + times.system for times in used))

    return work


def work_by_node(nodes: MeteredNodes) -> dict[str, Callable[[], float]]:
    """For each node, a function that returns its CPU seconds so far. If they cannot be read, the function
    raises :class:`ReadFailed`."""
    if not nodes.pids:
        return {nodes.host_node: _host_work}
    return {node: _process_work(pids) for node, pids in nodes.pids.items()}


class EstimatedMeter:
    """Estimates the watts of one node as ``idle + (full - idle) * utilisation``, and adds up the joules from
    one read to the next. The utilisation is at most 1.

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
        # The kernel's idle time may go back by a tick. Then the work would go back, too.
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
    return [EstimatedMeter(node, work, nodes) for node, work in work_by_node(nodes).items()]
