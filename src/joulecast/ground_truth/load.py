"""Cores: who else uses them, whether that disturbed us, and keeping them awake."""

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

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


LATE_S = 0.005


def is_polluted(late_s: float) -> bool:
    """Whether an iteration was disturbed: a rank noticed an end of its computing 5 ms late.

    Load of others is recorded but not judged: ranks have real-time priority. On two cores of which
    others already wanted 1 to 1.8, two more busy processes changed no median of three configurations
    by more than repeats without them differed (0.8 %).
    """
    return late_s > LATE_S


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
    bursts) the median was 0.1, 0.2 and 2.4 % shorter with spinners. They run only when nobody else
    wants the core (``SCHED_IDLE``), and end with this process.
    """
    arguments = ((str(core), str(os.getpid())) for core in sorted(os.sched_getaffinity(0)))
    spinners = [subprocess.Popen([sys.executable, "-c", _SPINNER, *pair]) for pair in arguments]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
