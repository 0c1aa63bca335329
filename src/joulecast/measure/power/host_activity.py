"""The activity of a host while its meters are read: work of its processes, utilisation, memory and
traffic."""

import os
import time

import psutil

from joulecast.measure.power.estimated import work_by_node
from joulecast.measure.power.meters import MeteredNodes, ReadFailed
from joulecast.measure.power.other_load import Programs, machine_work_s, work_of
from joulecast.measure.power.zeus_devices import gpu_utilisation

_WORK_PERIOD_S = 0.5
_EARLY_S = 60.0
_LATER_PERIOD_S = 2.0
"""Seconds between two readings of the kernel's counters after the first minute. In a run of days, more
frequent readings would cost time and show little more."""

ACTIVITY = ("t_s", "cpu_utilisation", "gpu_utilisation", "memory_bytes", "network_bytes_per_s")
"""Columns of a node's activity."""
WORK = ("t_s", "machine_s", "own_s")
"""Columns of the work of a host: time, CPU seconds of the whole machine, and CPU seconds of the run's own
processes. Only differences between two rows have a meaning."""

Row = tuple[float | None, ...]


class _Pace:
    """Says when the kernel's counters are to be read again. After the first minute, this is rare."""

    def __init__(self, early_s: float) -> None:
        self._early_s = early_s
        self._first_s = time.monotonic()
        self._looked_s = -_LATER_PERIOD_S

    def is_due(self) -> bool:
        """Whether the counters are to be read now. If so, they count as read from now on."""
        now_s = time.monotonic()
        period_s = self._early_s if now_s - self._first_s < _EARLY_S else _LATER_PERIOD_S
        if now_s - self._looked_s < period_s:
            return False
        self._looked_s = now_s
        return True


class CpuWork:
    """Reads from time to time the CPU seconds of the machine, and those of the run's own processes."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ours = (*ranks, os.getpid())
        self._programs = Programs()
        self._pace = _Pace(_WORK_PERIOD_S)
        self._worked_s = 0.0

    def look(self, *, at_once: bool = False) -> list[Row]:
        """One row of :data:`WORK`, if a row is due or ``at_once`` is true. Otherwise empty."""
        if not self._pace.is_due() and not at_once:
            return []
        # A process that has ended leaves nothing to read, unless its parent is ours too.
        self._worked_s = max(self._worked_s, work_of(self._ours))
        return [(time.monotonic(), machine_work_s(), self._worked_s)]

    def busiest(self) -> tuple[str, ...]:
        """Names of the busiest programs that do not belong to the run."""
        return self._programs.busiest(self._ours)


class HostActivity:
    """Utilisation, memory and network traffic of every node of this host."""

    def __init__(self, nodes: MeteredNodes, has_gpu: bool) -> None:
        self._nodes, self._has_gpu = nodes, has_gpu
        self._processes = {n: [psutil.Process(p) for p in pids] for n, pids in nodes.pids.items()}
        self._worked = work_by_node(nodes)
        self._pace = _Pace(0.0)
        self._last_s = time.monotonic()
        self._last_work = self._work()
        self._last_network = self._network_bytes()
        self.names = list(self._worked)

    def _work(self) -> dict[str, float]:
        return {node: worked() for node, worked in self._worked.items()}

    def _memory(self) -> dict[str, int]:
        if not self._processes:
            return {self._nodes.host_node: psutil.virtual_memory().used}
        return {n: sum(p.memory_info().rss for p in ps) for n, ps in self._processes.items()}

    @staticmethod
    def _network_bytes() -> int:
        counters = psutil.net_io_counters()
        return 0 if counters is None else counters.bytes_sent + counters.bytes_recv

    def look(self, *, at_once: bool = False) -> list[Row]:
        """One row of :data:`ACTIVITY` for each node, in the order of ``names``. It covers the time since the
        node's last row. Empty if no row is due and ``at_once`` is false, or if the activity cannot be read.
        A utilisation of 1 is full use. That of the GPU is ``None`` if there is no GPU."""
        if not self._pace.is_due() and not at_once:
            return []
        try:
            now_s, work, memory = time.monotonic(), self._work(), self._memory()
        except (psutil.Error, ReadFailed, OSError):
            return []
        elapsed = max(now_s - self._last_s, 1e-9)
        network = self._network_bytes()
        # If an interface goes away, its counters are gone, too. So the sum may fall.
        rate = round(max(0.0, (network - self._last_network) / elapsed))
        capacity = self._nodes.core_seconds_per_s
        gpu = gpu_utilisation() if self._has_gpu else None
        busy = {n: max(0.0, work[n] - self._last_work[n]) / elapsed / capacity for n in self.names}
        self._last_s, self._last_work, self._last_network = now_s, work, network
        return [(now_s, busy[node], gpu, memory[node], rate) for node in self.names]
