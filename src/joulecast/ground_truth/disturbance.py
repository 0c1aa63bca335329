"""Disturbance of measurements: load of other programs, iterations that do not count, cores that sleep."""

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_KERNEL_THREADS = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def foreign_cpu_s(ours: Collection[int]) -> float:
    """CPU seconds, up to now, of all processes but ``ours``, those that take only idle time,
    and the kernel's own threads.

    A difference of two calls is what others used in between, to some 10 ms a process. Children that
    ended are counted with their parents. Time that the hypervisor took away counts as well.
    """
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ours:
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # After the name: state, parent, ...; user, system and those of ended children are 11 to 14,
        # the scheduling policy is 38.
        is_kernel = _KERNEL_THREADS in (int(fields[1]), int(folder.name))
        if not is_kernel and int(fields[38]) != os.SCHED_IDLE:
            ticks += sum(int(field) for field in fields[11:15])
    stolen = Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]
    return (ticks + int(stolen)) / _TICKS_PER_S


class ForeignLoad:
    """Measures the cores that other processes use during an iteration.

    Args:
        ours: processes of the job.
        looks: whether this rank does it; one is enough.
    """

    def __init__(self, ours: Collection[int], looks: bool) -> None:
        self._ours, self._looks = frozenset(ours), looks

    def begin(self) -> None:
        """Begin an iteration."""
        self._begun_s = time.monotonic()
        self._used_s = foreign_cpu_s(self._ours) if self._looks else 0.0

    def cores(self) -> float:
        """Cores that others have used on average since the beginning; 0 where nothing was looked at."""
        if not self._looks:
            return 0.0
        used_s = foreign_cpu_s(self._ours) - self._used_s
        return round(max(0.0, used_s / (time.monotonic() - self._begun_s)), 3)


LATE_S = 0.005
"""A sleeping rank that notices the end of its computing later than this was disturbed."""
WAITING = 0.03
"""A computing rank without a core for more than this share was disturbed, if that is longer than its clock
of CPU time is off by."""
FOREIGN = 0.2
"""Ranks that compute are disturbed by other processes with more cores than this: their memory traffic."""
_WAITING_S = 5e-5
_LONG_S = 0.1


def is_polluted(row: Mapping[str, Any]) -> bool:
    """Whether an iteration was disturbed.

    The load of others is not judged where ranks sleep: they have real-time priority. On two cores of which
    others already wanted 1 to 1.8, two more busy processes changed no median of three configurations by more
    than repeats without them differed (0.8 %).

    Args:
        row: has ``late_s`` where ranks sleep; ``seconds``, ``waited_share`` and ``foreign_cores`` where they
            compute.
    """
    if "late_s" in row:
        return bool(row["late_s"] > LATE_S)
    waited = row["waited_share"]
    # The clocks and ticks are too coarse to judge a few milliseconds.
    is_long = row["seconds"] >= _LONG_S
    return bool(
        (waited > WAITING and waited * row["seconds"] > _WAITING_S)
        or (is_long and row["foreign_cores"] > FOREIGN)
    )


_SPINNER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    pass
"""


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep all cores from sleeping while the block runs.

    A virtual core that sleeps is given back late, it seems: the timers of ``tbf`` are then late too,
    and a link loses some of its rate. In three trials in pairs (8 ranks, a step of 0.55 s, 16 KiB
    bursts) the median was 0.1, 0.2 and 2.4 % shorter with spinners. They run only when no other
    process wants the core (``SCHED_IDLE``), and end with this process.
    """
    arguments = ((str(core), str(os.getpid())) for core in sorted(os.sched_getaffinity(0)))
    spinners = [subprocess.Popen([sys.executable, "-c", _SPINNER, *pair]) for pair in arguments]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
