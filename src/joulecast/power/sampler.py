"""The sampler: one process per host that reads its meters at absolute deadlines.

Rank 0 of a host starts it as ``python -m joulecast.power.sampler``, hands it its order as one JSON
line, and ends it by closing its standard input, so that it also ends when the rank dies. It says a line
after its first readings. Once a second it puts what it has read into a file that both hold in memory, so
that nothing but the last second is lost if it is killed. Times are those of the host's monotonic clock.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

import psutil

from joulecast.power import nvml
from joulecast.power.background import finish_all
from joulecast.power.estimated import HostWork, ProcessWork
from joulecast.power.foreign_load import Programs, machine_work_s, work_of
from joulecast.power.meter_registry import METERS
from joulecast.power.meters import (
    About,
    Meter,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    NothingNew,
    ReadFailed,
)

_WORK_PERIOD_S = 0.5
_KEPT_EVERY_S = 1.0
_END_S = 30.0
"""Seconds that a sampler may take to end: a meter may hang."""

Part = dict[str, Any]


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
        self._looked_s = self._worked_s = 0.0
        self.look()

    def look(self, *, at_once: bool = True) -> None:
        """Add ``[t_s, machine, own]``, all in seconds since some past moment."""
        now_s = time.monotonic()
        if at_once or now_s - self._looked_s >= _WORK_PERIOD_S:
            self._looked_s = now_s
            # A process that has ended leaves nothing to read, unless its parent is ours too.
            self._worked_s = max(self._worked_s, work_of(self._ours))
            self.rows.append([now_s, machine_work_s(), self._worked_s])

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
        except (psutil.Error, ReadFailed, OSError):
            return []
        elapsed = max(now_s - self._last_s, 1e-9)
        network = self._network_bytes()
        # Counters of an interface that went away go with it.
        rate = max(0.0, (network - self._last_network) / elapsed)
        capacity = self._nodes.core_seconds_per_s
        gpu = nvml.mean_utilisation() if self._has_gpu else None
        rows = [
            [
                n,
                now_s,
                max(0.0, work[n] - self._last_work[n]) / elapsed / capacity,
                gpu,
                memory[n],
                rate,
            ]
            for n in work
        ]
        self._last_s, self._last_work, self._last_network = now_s, work, network
        return rows


def open_all(order: SamplerOrder) -> tuple[list[Meter], list[dict[str, str]]]:
    """Open the meters of an order; those that are not there come back with reason and remedy.

    A kind that this machine is not made for is passed over where another one has something to say.
    """
    opened: list[Meter] = []
    absent: list[dict[str, str]] = []
    elsewhere: list[dict[str, str]] = []
    for name in order.meters:
        try:
            opened += METERS[name](order.nodes)
        except MeterUnavailable as missing:
            row = {"meter": name, "reason": missing.reason, "remedy": missing.remedy}
            (elsewhere if missing.elsewhere else absent).append(row)
        except Exception as error:
            reason = f"{name}: cannot be opened ({_said(error)})"
            absent.append({"meter": name, "reason": reason, "remedy": "leave it out of `meters`"})
    return opened, absent if opened or absent else elsewhere


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _Readings:
    """What the meters gave, and how each of them fared."""

    def __init__(self, meters: list[Meter]) -> None:
        self._meters = meters
        self._failed = [0] * len(meters)
        self._faults: list[str | None] = [None] * len(meters)
        self.rows: list[list[Any]] = []

    def read(self) -> None:
        """Read all meters that have not failed. A meter's fault is its own: the others are read on."""
        for index, meter in enumerate(self._meters):
            while self._faults[index] is None and self._read_one(index, meter):
                pass

    def _read_one(self, index: int, meter: Meter) -> bool:
        """Read a meter; return whether it may have kept more."""
        before = time.monotonic()
        try:
            reading = meter.read()
        except NothingNew:
            return False
        except MeterFailed as fault:
            self._faults[index] = str(fault)
        except ReadFailed:
            self._failed[index] += 1
        except Exception as error:
            self._faults[index] = f"its reading failed ({_said(error)})"
        else:
            read_s = reading.at_s or (before + time.monotonic()) / 2
            self.rows.append([meter.node, meter.name, read_s, reading.watts, reading.joules])
            return reading.at_s is not None
        return False

    def meters(self) -> list[dict[str, Any]]:
        """A row a meter: what it is, how many reads failed, and ``fault``: why it failed for good."""
        return [
            {
                "node": m.node,
                "meter": m.name,
                "source": m.source,
                "counter": m.counter,
                "identity": m.identity,
                "failed": failed,
                "fault": fault,
                "about": asdict(About.of(m)),
            }
            for m, failed, fault in zip(self._meters, self._failed, self._faults, strict=True)
        ]


_ROWS = ("power", "activity", "work")


def _joined(parts: Iterable[Part]) -> Part:
    """The parts of a sampler's answer as one: rows one after the other, of all else the last."""
    answer: Part = {name: [] for name in _ROWS}
    answer |= {"meters": [], "absent": [], "missed_deadlines": 0, "programs": [], "died": None}
    for part in parts:
        for name, value in part.items():
            if name in _ROWS:
                answer[name].extend(value)
            else:
                answer[name] = value
    return answer


def sample(
    order: SamplerOrder,
    stop: threading.Event,
    begun: Callable[[], None] = lambda: None,
    keep: Callable[[Part], None] | None = None,
) -> Part:
    """Read all meters at ``t0 + k period`` until ``stop`` is set, and once more after it.

    A deadline that was missed is counted and skipped, never made up for by a pair of reads.

    Args:
        order: what to sample.
        stop: ends it.
        begun: is called when the meters have been read for the first time.
        keep: gets what is new once a second.

    Returns:
        All of it: ``power`` ``[node, meter, t_s, watts, joules]``, ``activity``, ``work``, ``meters``,
        ``absent``, ``missed_deadlines``, ``programs``.
    """
    meters, absent = open_all(order)
    activity = _Activity(order.nodes, any(meter.name.startswith("nvml") for meter in meters))
    readings, work = _Readings(meters), _Work(order.ranks)
    activity_rows: list[list[Any]] = []
    parts: list[Part] = []
    missed, has_begun, kept_s = 0, False, time.monotonic()

    def hand_over(**last: Any) -> None:
        rows = {"power": readings.rows, "activity": activity_rows, "work": work.rows}
        part: Part = {name: list(new) for name, new in rows.items()}
        part |= {"meters": readings.meters(), "absent": absent, "missed_deadlines": missed, **last}
        for new in rows.values():
            new.clear()
        (keep or parts.append)(part)

    def read_everything() -> None:
        readings.read()
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
        if time.monotonic() - kept_s >= _KEPT_EVERY_S:
            kept_s = time.monotonic()
            hand_over()
    read_everything()
    work.look()
    # The fast ones are read by then, so that none of them waits for a controller that takes its time.
    if finish_all(meters):
        readings.read()
    hand_over(programs=work.busiest())
    return _joined(parts)


class Sampler:
    """Handle on the sampler process of this host."""

    def __init__(self, order: SamplerOrder) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI"))}
        self._order = order
        self._kept = os.memfd_create("joulecast-sampler")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "joulecast.power.sampler", str(self._kept)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._kept,),
            text=True,
            env=environment,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asdict(order)) + "\n")
            self._process.stdin.flush()

    def wait_until_begun(self) -> None:
        """Wait for the first readings: what is done before them is not known to any meter."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def stop(self) -> Part:
        """End the sampler and return what it read, as :func:`sample` does.

        A sampler that was killed, or does not end, has ``died``: the reason. What it read before is kept.
        """
        died = None
        try:
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            died = f"did not end within {_END_S:g} s"
        if died is None and self._process.returncode < 0:
            died = f"was ended by {signal.Signals(-self._process.returncode).name}"
        elif died is None and self._process.returncode != 0:
            died = f"ended with code {self._process.returncode}"
        answer = _joined(self._parts())
        if died is not None:
            answer["died"] = f"the power sampler {died}"
            if not answer["meters"]:
                remedy = "see what it printed in the log of the run"
                answer["absent"] = [
                    {"meter": name, "reason": answer["died"], "remedy": remedy}
                    for name in self._order.meters
                ]
        return answer

    def _parts(self) -> list[Part]:
        """What the sampler has handed over; a last part that it could not finish is left out."""
        parts = []
        with os.fdopen(self._kept, "rb") as kept:
            kept.seek(0)
            for line in kept:
                with suppress(ValueError):
                    parts.append(json.loads(line))
        return parts


def main() -> None:
    """Sample as ordered on standard input until it closes; the argument is the file to hand over in."""
    # A terminal sends these to all that run in it; who started the sampler needs it to the end, and closes
    # its standard input, also by ending.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    def say_begun() -> None:
        # The rank may have ended, and gives the reason itself.
        with suppress(BrokenPipeError):
            print("begun", flush=True)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    nodes = MeteredNodes(**order["nodes"])
    if order["nodes"].get("settings") is not None:
        from joulecast.records.meter_settings import MeterSettings

        nodes = replace(nodes, settings=MeterSettings(**order["nodes"]["settings"]))
    ranks = tuple(order.get("ranks", ()))
    sampled = SamplerOrder(tuple(order["meters"]), order["period_s"], nodes, ranks)
    with open(int(sys.argv[1]), "wb", buffering=0) as kept:
        sample(sampled, stop, say_begun, lambda part: _hand_over(kept, part))


def _hand_over(kept: IO[bytes], part: Part) -> None:
    kept.write(json.dumps(part).encode() + b"\n")


if __name__ == "__main__":
    main()
