"""Runs the ranks of a run under a launcher, with a time limit. If ranks fail, it finds the reason.

However a run ends, none of its processes is left afterwards. The launcher has its own process group.
At the run's time limit, this group is ended. When the process that started the launcher ends, the kernel ends
the launcher (``PR_SET_PDEATHSIG``). When the launcher ends, the kernel ends each rank.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from joulecast.errors import JoulecastError
from joulecast.measure.power.sampler import outside_mpi
from joulecast.runs.files.writing import explained_disk_errors

CAMPAIGN = "JOULECAST_CAMPAIGN"
"""Environment variable: the process id of the Snakemake that runs a campaign on this host."""
_RUN = "JOULECAST_RUN"
"""Environment variable of the ranks: the id of the process that started their launcher."""
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_LIBC = ctypes.CDLL(None)
_END_S, _LOOK_S = 5.0, 0.5


class NotFinished(JoulecastError):
    """Raised when the ranks of a run have not finished in time."""


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tie_to_launcher() -> None:
    """Make this rank end when its launcher ends. Does nothing in a process that is no rank.

    Under SLURM, it also does nothing, because SLURM ends its ranks itself. It also does nothing if the parent
    has several threads: the kernel would watch only the thread that started this process, and not the whole
    parent.
    """
    starter = os.environ.get(_RUN)
    if starter is None or "SLURM_STEP_ID" in os.environ:
        return
    parent = os.getppid()
    if psutil.Process(parent).num_threads() == 1:
        end_with_parent()
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end this process in the same way as Ctrl-C. If the campaign's Snakemake ends, this process
    ends in this way, too."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def end_with(campaign: int) -> None:
        while not is_over.wait(_LOOK_S):
            if not psutil.pid_exists(campaign):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    before = signal.signal(signal.SIGTERM, interrupt)
    is_over = threading.Event()
    campaign = os.environ.get(CAMPAIGN)
    # A job of SLURM does not depend on the Snakemake that submitted it: the job continues without it.
    if campaign is not None and "SLURM_JOB_ID" not in os.environ:
        threading.Thread(target=end_with, args=(int(campaign),), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        signal.signal(signal.SIGTERM, before)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a launcher and its group, first by SIGTERM, then by SIGKILL."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, how)
            process.wait(_END_S)
            break
    # Ranks that are stopped, or that are in other groups, end with their launcher.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def own_mpi_environment() -> dict[str, str]:
    """The environment of a launch that is not part of the current job. With the job's environment, MPICH
    would ask `srun` for its ranks."""
    return {**outside_mpi(), "HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}


def leave_mpi_job() -> None:
    """Let MPI start in this process, although it is no rank of a launcher. Call it before MPI is imported."""
    for name in set(os.environ) - set(outside_mpi()):
        del os.environ[name]


def rank_environment(threads: int, *, own_mpi: bool = True) -> dict[str, str]:
    """The environment of ranks that have this number of compute threads.

    Args:
        own_mpi: whether to leave out the variables of the current MPI job (:func:`own_mpi_environment`).
    """
    inherited = own_mpi_environment() if own_mpi else dict(os.environ)
    return {
        # With huge pages, the first use of memory is faster: it takes seconds in each rank. (Only glibc knows
        # this variable.)
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **inherited,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }


def keep_freed_memory() -> None:
    """Let the C library keep memory that torch frees, instead of returning it to the kernel.

    Each backward pass frees and allocates its gradients again. If the kernel has to map them each time, VGG16
    spends a fifth of its step on page faults. Peak memory stays the same.
    """
    with suppress(AttributeError):  # another C library: only slower
        _LIBC.mallopt(_M_MMAP_MAX, 0)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, -1)


def _reason_file(job: Path) -> Path:
    return job.with_name("reason.txt")


def say_reason(error: JoulecastError, job: Path) -> None:
    """Write the reason why this rank fails. It is written to standard error (the log), and to a file next to
    the job.

    A launcher may end before it has passed on all output of its ranks. The file is then still there.
    """
    print(f"error: {error}", file=sys.stderr, flush=True)
    with suppress(OSError):
        _reason_file(job).write_text(str(error), encoding="utf-8")


@contextmanager
def opened_log(file: Path) -> Iterator[TextIO]:
    """Open the log, so that ranks append to it. If its folder is missing, the folder is made."""
    with explained_disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        log = open(file, "a", encoding="utf-8")  # noqa: SIM115 (closed by the block below)
    with log:
        yield log


def run_ranks(
    command: Sequence[str],
    environment: dict[str, str],
    job_file: Path,
    log: TextIO,
    lock: int,
    timeout_s: float,
) -> tuple[int, str | None]:
    """Run a launcher until all its ranks have ended. Returns the launcher's exit code, and the reason for a
    failure that a rank gave.

    Args:
        job_file: file of the ranks' job, in a folder that all hosts see.
        lock: descriptor of the machine's lock. The processes inherit it, so it is held until the last of them
            has ended.

    Raises:
        NotFinished: the ranks had not finished in time.
    """
    log.flush()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**environment, _RUN: str(os.getpid())},
        start_new_session=True,
        pass_fds=(lock,),
        preexec_fn=end_with_parent,
    )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise NotFinished(f"not finished after {timeout_s:.0f} s and ended") from None
    finally:
        if process.poll() is None:
            _end(process)
    reason = None
    with suppress(OSError):
        reason = _reason_file(job_file).read_text(encoding="utf-8")
    return code, reason
