"""Marks of one process: what it did, with begin and length. They are appended to a file while the process
runs.

A mark is 17 bytes: its kind, its start on the host's monotonic clock (s), its length (s) and an amount. A
million steps take less than 100 MiB. The marks of a step are written by one call. So a process that is killed
loses only the marks of its current step. If a mark cannot be written, it is lost, and the training continues.

On a GPU, the host launches kernels long before they run. So an event in the GPU's stream marks a moment of
the training. Its time is read after the device has passed it. It is the time of an earlier event, plus the
time that the device's own clock counts between the two events. The host waits for the device once, at the
first event, to relate the clocks.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ROW = struct.Struct("<Bdff")
"""Kind, start (s), length (s), amount."""

FETCH, BACKWARD, UPDATE, EXCHANGE, HIDDEN, PREFETCH = range(6)
"""Kinds of marks. In brackets: the amount in a mark of this kind. Waiting for a batch (samples in the batch);
a backward pass; an update (number of the optimizer); an exchange that nothing hides; the part of an exchange
that computing hides (seconds of the other part, which nothing hides); a batch that another thread fetched
(samples in the batch)."""

PART = -1
"""Amount in the mark of an update, in place of the number of an optimizer. It means that the mark continues
the update before it. Such a mark ends no step."""

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables with the rank of a process and the number of ranks. In a batch script and under `mpiexec`,
`SLURM_PROCID` is 0 in all ranks. So SLURM is the last one, and counts only in a job step."""
_FURTHEST_S = 60.0
"""Longest time between two events that are compared. The device gives this time in single precision, so a
longer time would be inexact."""
_MOST = 100_000
"""Most marks that wait for the end of a step, or for the device. Without an optimizer of torch, no step
ends."""

Resolved = Callable[[float, float], None]


def _place() -> tuple[int | None, int | None]:
    """The rank of this process and the number of ranks, as its launcher says."""
    for names in LAUNCHERS:
        rank, ranks = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and ranks.isdigit():
            return int(rank), int(ranks)
    return None, None


def _boot() -> str | None:
    """The boot id of the running kernel, which no other machine has."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return None


class Marks:
    """The marks of this process. While no folder is open for them, new marks are dropped. A forked process
    has its own marks."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._rows: deque[bytes] = deque(maxlen=_MOST)
        self._file: int | None = None
        self._facts: dict[str, Any] = {}
        os.register_at_fork(after_in_child=self._forget)

    def open(self, folder: str) -> None:
        """Write into ``folder`` from now on. Earlier facts are kept."""
        self.close()
        self._folder = folder

    def close(self) -> None:
        """Write the remaining marks. Later marks are dropped, until a folder is opened again."""
        self.write()
        if self._file is not None:
            os.close(self._file)
        self._file = self._folder = None

    def _forget(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._rows.clear()
        self._file = None

    def add(self, kind: int, start: float, stop: float, amount: float = 0.0) -> None:
        """Add a mark. It is written together with the other marks of its step."""
        if self._folder is not None:
            self._rows.append(ROW.pack(kind, start, max(0.0, stop - start), amount))

    def write(self) -> None:
        """Write the marks of a step."""
        if not self._rows:
            return
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(
                    self.path("marks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
                )
                self._save()
            os.write(self._file, b"".join(self._rows))
        self._rows.clear()

    def note(self, **facts: Any) -> None:
        """Note facts about this process. For each name, the newest fact counts."""
        new = {name: value for name, value in facts.items() if self._facts.get(name) != value}
        self._facts.update(new)
        if new and self._file is not None:
            with suppress(OSError):
                self._save()

    def _save(self) -> None:
        rank, ranks = _place()
        here = {"node": os.uname().nodename, "boot": _boot()}
        known = {"rank": rank, "ranks": ranks, **here, **self._facts}
        partial = self.path("partial")
        with open(partial, "w") as file:
            json.dump(known, file)
        os.replace(partial, self.path("json"))

    def path(self, ending: str) -> str:
        """Path of the file of this process whose name ends in ``ending``."""
        return os.path.join(self._folder or "", f"{os.getpid()}.{ending}")


class Moment:
    """A moment on the host's clock, and the event that the device passes when it reaches this point."""

    __slots__ = ("event", "host_s")

    def __init__(self, host_s: float, event: Any = None) -> None:
        self.host_s, self.event = host_s, event


class HostClock:
    """Moments on the host's clock only."""

    def now(self) -> Moment:
        """The moment of the call."""
        return Moment(time.monotonic())

    def add(self, start: Moment, stop: Moment, resolved: Resolved) -> None:
        """Call ``resolved`` with the times of ``start`` and ``stop``, in s."""
        resolved(start.host_s, stop.host_s)

    def read(self) -> None:
        """Do nothing: all times are known at once."""


class DeviceClock(HostClock):
    """Moments in the stream of a device.

    Args:
        new_event: makes an event, such as ``torch.cuda.Event`` with timing, and records it in the stream.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._known = new_event()
        self._known.synchronize()
        self._known_s = time.monotonic()
        self._waiting: deque[tuple[Moment, Moment, Resolved]] = deque(maxlen=_MOST)

    def now(self) -> Moment:
        return Moment(time.monotonic(), self._new_event())

    def add(self, start: Moment, stop: Moment, resolved: Resolved) -> None:
        self._waiting.append((start, stop, resolved))

    def read(self) -> None:
        """Find the times of the events that the device has passed so far. Pass them to the functions that
        wait for them. Never waits for the device."""
        while self._waiting:
            start, stop, resolved = self._waiting[0]
            if stop.event is not None and not stop.event.query():
                return
            self._waiting.popleft()
            resolved(self._time(start), self._time(stop))
            if stop.event is not None:
                stop_s = self._time(stop)
                if stop_s - self._known_s > _FURTHEST_S:
                    self._known, self._known_s = stop.event, stop_s

    def _time(self, moment: Moment) -> float:
        if moment.event is None:
            # The moment was noted before the device was known.
            return moment.host_s
        return self._known_s + float(self._known.elapsed_time(moment.event)) / 1e3


def clock_of(device: str) -> HostClock:
    """The clock for a training on a device of this type (a name of torch, such as ``cuda``)."""
    torch = sys.modules.get("torch")
    if device != "cuda" or torch is None:
        return HostClock()

    def new_event() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return DeviceClock(new_event)
