"""The estimate: watts from utilisation, between the idle and full watts of the platform file.

It is a formula, not a measurement, and every figure made from it carries the source ``estimated``.
"""

import time

import psutil

from joulecast.measure.power.meters import (
    Meter,
    MeteredNodes,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.runs.covers import Covers


class HostWork:
    """CPU seconds that the whole host has worked."""

    def __call__(self) -> float:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return float(sum(times[:8]) - idle)


class ProcessWork:
    """CPU seconds that some processes have worked."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]

    def __call__(self) -> float:
        try:
            used = [process.cpu_times() for process in self._processes]
        except psutil.Error as error:
            raise ReadFailed(str(error)) from error
        return float(sum(times.user + times.system for times in used))


class EstimatedMeter:
    """Integrates ``idle + (full - idle) * utilisation`` of one node between its reads.

    The utilisation is not clipped at 1: a padded (emulated) node works in bursts whose mean is what
    counts, and clipping would lose energy.
    """

    source = "estimated"
    counter = True
    name = "estimated"
    covers: Covers = "node"
    identity: str | None = None

    def __init__(self, node: str, work: HostWork | ProcessWork, nodes: MeteredNodes) -> None:
        if nodes.idle_w is None or nodes.full_w is None:
            raise MeterUnavailable(
                "estimated: the platform has no watts", "give idle_w and full_w in its file"
            )
        self.node = node
        self._work, self._capacity = work, nodes.core_seconds_per_s
        self._idle_w, self._dynamic_w = nodes.idle_w, nodes.full_w - nodes.idle_w
        self._first_s = self._last_s = time.monotonic()
        self._first_work = self._last_work = work()

    def read(self) -> Reading:
        # The kernel's idle time may go back by a tick, and work with it.
        now_s, work = time.monotonic(), max(self._last_work, self._work())
        elapsed = now_s - self._last_s
        if elapsed <= 0:
            raise ReadFailed("two reads at the same time")
        utilisation = (work - self._last_work) / elapsed / self._capacity
        self._last_s, self._last_work = now_s, work
        total_work = (work - self._first_work) / self._capacity
        joules = self._idle_w * (now_s - self._first_s) + self._dynamic_w * total_work
        return Reading(self._idle_w + self._dynamic_w * utilisation, joules)


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """One estimate for each node of this host."""
    if not nodes.pids:
        return [EstimatedMeter(nodes.host_node, HostWork(), nodes)]
    return [EstimatedMeter(node, ProcessWork(pids), nodes) for node, pids in nodes.pids.items()]
