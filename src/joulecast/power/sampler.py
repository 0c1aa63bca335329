"""The sampler: one process per host that reads its meters at absolute deadlines.

Rank 0 of a host starts it as ``python -m joulecast.power.sampler``, hands it its order as one JSON
line, and ends it by closing its standard input, so that it also ends when the rank dies. It says a line
after its first readings, then holds everything in memory and writes one JSON answer to standard output
when it ends: nothing is written while the ranks train. Times are those of the host's monotonic clock.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from joulecast.power import nvml
from joulecast.power.estimated import HostWork, ProcessWork
from joulecast.power.foreign_load import Programs, machine_work_s, work_of
from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, openers

_WORK_PERIOD_S = 0.5


@dataclass(frozen=True)
class SamplerOrder:
    """What to sample: meter kinds by name, the period, and the nodes of this host."""

    meters: tuple[str, ...]
    period_s: float
    nodes: MeteredNodes
    ranks: tuple[int, ...] = ()
    """Processes of the run on this host: the work of all others is foreign load."""


class _Work:
    """CPU seconds of the machine and of the run's own processes, every so often."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ours = (*ranks, os.getpid())
        self._programs = Programs()
        self.rows: list[list[float]] = []
        self.look()

    def look(self, *, at_once: bool = True) -> None:
        """Add ``[t_s, machine, own]``, all in seconds since some past moment."""
        now_s = time.monotonic()
        if at_once or now_s - self.rows[-1][0] >= _WORK_PERIOD_S:
            self.rows.append([now_s, machine_work_s(), work_of(self._ours)])

    def busiest(self) -> tuple[str, ...]:
        """Names of the busiest other programs."""
        return self._programs.busiest(self._ours)


class _Activity:
    """Utilisation, memory and network traffic of every node of this host."""

    def __init__(self, nodes: MeteredNodes, has_gpu: bool) -> None:
        self._nodes, self._has_gpu = nodes, has_gpu
        self._processes = {n: [psutil.Process(p) for p in pids] for n, pids in nodes.pids.items()}
        self._worked: dict[str, HostWork | ProcessWork] = {
            node: ProcessWork(pids) for node, pids in nodes.pids.items()
        } or {nodes.host_node: HostWork()}
        self._last_s = time.monotonic()
        self._last_work = self._work()
        self._last_network = self._network_bytes()

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

    def rows(self) -> list[list[Any]]:
        """``[node, t_s, cpu, gpu, memory bytes, network bytes/s]`` since the last call; utilisations
        are shares of 1, ``None`` for the GPU where there is none."""
        try:
            now_s, work, memory = time.monotonic(), self._work(), self._memory()
        except (psutil.Error, ReadFailed):
            return []
        elapsed = max(now_s - self._last_s, 1e-9)
        network = self._network_bytes()
        rate = (network - self._last_network) / elapsed
        capacity = self._nodes.core_seconds_per_s
        gpu = nvml.mean_utilisation() if self._has_gpu else None
        rows = [
            [n, now_s, (work[n] - self._last_work[n]) / elapsed / capacity, gpu, memory[n], rate]
            for n in work
        ]
        self._last_s, self._last_work, self._last_network = now_s, work, network
        return rows


def open_all(order: SamplerOrder) -> tuple[list[Meter], list[dict[str, str]]]:
    """Open the meters of an order; those that are not there come back with reason and remedy."""
    opened: list[Meter] = []
    absent = []
    for name in order.meters:
        try:
            opened += openers()[name](order.nodes)
        except MeterUnavailable as missing:
            absent.append({"meter": name, "reason": missing.reason, "remedy": missing.remedy})
    return opened, absent


def sample(
    order: SamplerOrder, stop: threading.Event, begun: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Read all meters at ``t0 + k period`` until ``stop`` is set, and once more after it.

    ``begun`` is called when the meters have been read for the first time.

    A deadline that was missed is counted and skipped, never made up for by a pair of reads.
    """
    meters, absent = open_all(order)
    activity = _Activity(order.nodes, any(meter.name.startswith("nvml") for meter in meters))
    power: list[list[Any]] = []
    activity_rows: list[list[Any]] = []
    work = _Work(order.ranks)
    failed = [0] * len(meters)
    missed, has_begun = 0, False

    def read_everything() -> None:
        for index, meter in enumerate(meters):
            before = time.monotonic()
            try:
                reading = meter.read()
            except ReadFailed:
                failed[index] += 1
                continue
            read_s = (before + time.monotonic()) / 2
            power.append([meter.node, meter.name, read_s, reading.watts, reading.joules])
        activity_rows.extend(activity.rows())
        work.look(at_once=False)

    first = time.monotonic()
    k = 0
    while True:
        k += 1
        behind = int((time.monotonic() - first) / order.period_s)
        if behind >= k:
            missed += behind - k + 1
            k = behind + 1
        if stop.wait(max(0.0, first + k * order.period_s - time.monotonic())):
            break
        read_everything()
        if not has_begun:
            has_begun = True
            begun()
    read_everything()
    work.look()
    return {
        "power": power,
        "activity": activity_rows,
        "work": work.rows,
        "programs": work.busiest(),
        "absent": absent,
        "missed_deadlines": missed,
        "meters": [
            {
                "node": m.node,
                "meter": m.name,
                "source": m.source,
                "counter": m.counter,
                "identity": m.identity,
                "failed": f,
            }
            for m, f in zip(meters, failed, strict=True)
        ],
    }


class Sampler:
    """Handle on the sampler process of this host."""

    def __init__(self, order: SamplerOrder) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "joulecast.power.sampler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()

    def wait_until_begun(self) -> None:
        """Wait for the first readings: what is done before them is not known to any meter."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> dict[str, Any]:
        """End the sampler and return what it read.

        Raises:
            RuntimeError: the sampler had died.
        """
        answer, _ = self._process.communicate()
        if self._process.returncode != 0 or not answer:
            raise RuntimeError(f"the power sampler ended with code {self._process.returncode}")
        # The line of the first readings may not have been waited for.
        read: dict[str, Any] = json.loads(answer.splitlines()[-1])
        return read


def main() -> None:
    """Sample as ordered on standard input until it closes."""
    order = json.loads(sys.stdin.readline())
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    nodes = MeteredNodes(**order["nodes"])
    ranks = tuple(order.get("ranks", ()))
    sampled = SamplerOrder(tuple(order["meters"]), order["period_s"], nodes, ranks)
    try:
        answer = sample(sampled, stop, lambda: print("begun", flush=True))
        json.dump(answer, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        # The rank has ended, and gives the reason itself. The rest of the answer is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
