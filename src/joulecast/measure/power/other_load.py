"""Load of other programs: how many cores other programs keep busy, and which programs those are.

If other programs run on the machine, their energy and time are measured, too. Before a run, the whole machine
should be idle. During a run, the work of other programs is the work of the machine minus the work of the
run's own processes.
"""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field

LOOK_S = 0.3
"""Seconds for which the load is observed before a measurement. Every measurement takes this much longer."""
_SHORTEST_S = 1.0
NAMED_CORES = 0.1
MOST_NAMES = 3
_INTERPRETERS = ("python", "perl", "ruby", "node", "java", "bash", "sh")


def allowed_cores() -> float:
    """Number of cores that other programs may keep busy on a quiet machine: half a core, or 2 % of the cores
    if that is more."""
    return max(0.5, 0.02 * len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class Load:
    """What other programs do: cores that they keep busy, and the names of the busiest programs."""

    busy_cores: Annotated[float, Field(ge=0, le=1e9)]
    programs: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether other programs are so quiet that a measurement may begin."""
        return self.busy_cores <= allowed_cores()

    def text(self) -> str:
        """The load in words: ``other programs keep 1.9 cores busy (stress-ng)``."""
        names = ", ".join(self.programs) or "short-lived, or not visible from here"
        return f"other programs keep {self.busy_cores:.1f} cores busy ({names})"


def disturbances(before: Load | None, during: Load | None) -> list[str]:
    """Sentences for the record about other programs before and during a measurement. Empty if they did not
    disturb it."""
    return [
        f"{load.text()} {when}".replace("programs keep", "programs kept")
        for load, when in ((before, "before the run"), (during, "during the run"))
        if load is not None and not load.is_quiet
    ]


def machine_work_s() -> float:
    """CPU seconds since the machine was started, of the cores that this process may use."""
    usable = os.sched_getaffinity(0)
    parts = ("user", "nice", "system", "irq", "softirq")
    return float(
        sum(
            getattr(times, part, 0.0)
            for core, times in enumerate(psutil.cpu_times(percpu=True))
            if core in usable
            for part in parts
        )
    )


def _children(pid: int) -> list[int]:
    """Processes that ``pid`` has started and that still run."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):
                found += map(int, (thread / "children").read_text().split())
    return found


def work_of(pids: Iterable[int]) -> float:
    """CPU seconds of some processes and of all their descendants."""
    total = 0.0
    left = list(pids)
    while left:
        pid = left.pop()
        with suppress(psutil.Error):
            # The CPU time of the process, and of its children that have ended.
            total += sum(psutil.Process(pid).cpu_times()[:4])
        left += _children(pid)
    return total


def _name(process: psutil.Process) -> str:
    """The name of a program. If the program is an interpreter, the name of its script is added."""
    name = str(process.name())
    if not name.startswith(_INTERPRETERS):
        return name
    with suppress(psutil.Error, IndexError):
        script = process.cmdline()[1]
        if not script.startswith("-"):
            return f"{name} {Path(script).name}"
    return name


class Programs:
    """The programs of this machine, and how much CPU time each has used since this object was made."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._worked = dict(self._all())

    @staticmethod
    def _all() -> list[tuple[psutil.Process, float]]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                used = process.cpu_times()
                found.append((process, float(used.user + used.system)))
        return found

    def busiest(self, ours: Sequence[int] = ()) -> tuple[str, ...]:
        """Names of the busiest programs, without the processes ``ours`` and this process."""
        elapsed = max(time.monotonic() - self._since_s, 1e-9)
        own, by_name = {*ours, os.getpid()}, dict[str, float]()
        for process, used in self._all():
            cores = (used - self._worked.get(process, 0.0)) / elapsed
            if process.pid in own or cores <= 0:
                continue
            with suppress(psutil.Error):
                name = _name(process)
                by_name[name] = by_name.get(name, 0.0) + cores
        ordered = sorted(by_name, key=lambda name: (-by_name[name], name))
        return tuple(name for name in ordered if by_name[name] >= NAMED_CORES)[:MOST_NAMES]


def load_now(seconds: float = LOOK_S) -> Load:
    """The load during the next ``seconds``. The caller itself should do no work in this time."""
    programs = Programs()
    before, begin = machine_work_s(), time.monotonic()
    time.sleep(seconds)
    busy = (machine_work_s() - before) / (time.monotonic() - begin)
    return Load(round(busy, 3), programs.busiest())


class LoadWatch:
    """The load by other programs, while this process and its children work on this machine."""

    def __init__(self) -> None:
        self._programs = Programs()
        self._began = self._seen()

    @staticmethod
    def _seen() -> tuple[float, float, float]:
        # Includes the children that have ended and were waited for.
        return time.monotonic(), machine_work_s(), sum(os.times()[:4])

    def load(self) -> Load | None:
        """The load by other programs since this object was made; ``None`` if it was made less than a second
        ago."""
        now = self._seen()
        elapsed, machine, own = (b - a for a, b in zip(self._began, now, strict=True))
        if elapsed < _SHORTEST_S:  # clock ticks of 10 ms say too little
            return None
        others = max(0.0, machine - own) / elapsed
        return Load(round(others, 3), self._programs.busiest())
