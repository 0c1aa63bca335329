"""The processes of a run: none of them is left when the run is over, however it ended.

The launcher is a group of its own that ends at the run's limit. The kernel ends it when the process that
started it ends (``PR_SET_PDEATHSIG``), and ends each rank when its launcher ends.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

import psutil

from joulecast.errors import JoulecastError

CAMPAIGN = "JOULECAST_CAMPAIGN"
"""Environment variable: the process id of the Snakemake that runs a campaign on this host."""
_RUN = "JOULECAST_RUN"
"""Environment variable of the ranks: the process that started their launcher."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_END_S, _LOOK_S = 5.0, 0.5


class NotFinished(JoulecastError):
    """Raised when the ranks of a run have not finished in time."""


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tie_to_launcher() -> None:
    """Have this rank end with its launcher; does nothing in a process that is no rank.

    A rank without a launcher, or under SLURM, which ends its ranks itself, is left alone: of a parent with
    several threads the kernel would watch the one that started this process.
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
    """Let SIGTERM end this process as Ctrl-C does, and so does the end of the campaign's Snakemake."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    is_over = threading.Event()
    campaign = os.environ.get(CAMPAIGN)
    # A job of SLURM is its own: it ends its run also where the Snakemake that submitted it is gone.
    if campaign is not None and "SLURM_JOB_ID" not in os.environ:
        watch = threading.Thread(target=_end_with, args=(int(campaign), is_over), daemon=True)
        watch.start()
    try:
        yield
    finally:
        is_over.set()
        signal.signal(signal.SIGTERM, before)


def _end_with(campaign: int, is_over: threading.Event) -> None:
    while not is_over.wait(_LOOK_S):
        if not psutil.pid_exists(campaign):
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a launcher and its group, first by SIGTERM, then by SIGKILL."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, how)
            process.wait(_END_S)
            break
    # Ranks that are stopped, or in groups of their own, go with their launcher.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_to_end(
    command: Sequence[str],
    environment: dict[str, str],
    log: TextIO,
    lock: int,
    *,
    timeout_s: float,
) -> int:
    """The exit code of a launcher.

    Args:
        command: the launcher with its ranks, or a single rank.
        log: gets what they print.
        lock: descriptor of the machine's lock, which they inherit: it is held until the last one is gone.
        timeout_s: they are ended when they have not finished by then.

    Raises:
        NotFinished: the ranks had not finished in time.
    """
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
    begin_s = time.monotonic()
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        waited_s = time.monotonic() - begin_s
        raise NotFinished(f"not finished after {waited_s:.0f} s and ended") from None
    finally:
        if process.poll() is None:
            _end(process)
