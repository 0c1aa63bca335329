"""The processes of a run: none of them is left when the run is over, however it ended.

A rank that waits for a missing one spins, and a stopped rank does nothing; both would hold the machine for
ever. So the kernel ends a rank when its launcher ends, and also some time after the run's limit. The process
that started the launcher ends every process that has the run's mark, an environment variable, and removes
the shared memory that the ranks have listed. The ranks also leave a sign that they have begun; without it, a
scheduler that never starts them would be waited for until the run's limit.
"""

import ctypes
import math
import os
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from joulecast.errors import JoulecastError

_MARK = "JOULECAST_RUN"
"""Environment variable of all processes of a run: the folder where its ranks leave a file when they begin."""

_STARTER = "JOULECAST_STARTER"
_LIMIT_S = "JOULECAST_RUN_LIMIT_S"
_BEGUN = "begun"
_SHARED_MEMORY = Path("/dev/shm")
_SHARED = "shm."
_LOOK_S = 1.0
_LATER_S = 60.0
"""Seconds after the run's limit when the kernel ends a rank that its launcher has not ended."""

_PR_SET_PDEATHSIG = 1
_CLOCK_MONOTONIC, _SIGEV_SIGNAL = 1, 0


class NotBegun(JoulecastError):
    """Raised when the ranks of a run have not begun in time."""


class NotFinished(JoulecastError):
    """Raised when the ranks of a run have not finished in time."""


# ---- in a rank


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * 48),
    )


class _Times(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))


def _killed_in(seconds: float) -> None:
    """Have the kernel kill this process later, even if it is stopped or spins in a library."""
    with suppress(
        OSError, AttributeError
    ):  # with an old C library only the launcher's limit remains
        library, timer = ctypes.CDLL(None), ctypes.c_void_p()
        event = _Event(None, signal.SIGKILL, _SIGEV_SIGNAL)
        if library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0:
            times = _Times(0, 0, math.ceil(seconds), 0)
            library.timer_settime(timer, 0, ctypes.byref(times), None)


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _end_with(parent: int) -> None:
    """Have this process end when its parent ends."""
    if _threads(parent) == 1:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return

    # With several threads the kernel would watch the one that started this process; it may end earlier.
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def tie_to_launcher() -> None:
    """Have this rank end with its launcher, and at the latest some time after the run's limit.

    A rank without a launcher may outlive the process that started it: its record counts. In a process that
    is no rank, nothing is done.
    """
    if _MARK not in os.environ:
        return
    _killed_in(float(os.environ[_LIMIT_S]) + _LATER_S)
    parent = os.getppid()
    if parent != int(os.environ[_STARTER]):
        _end_with(parent)


def note_begun(rank: int) -> None:
    """List the shared memory that MPI has opened for this rank; rank 0 also leaves the sign that it began."""
    if _MARK not in os.environ:
        return
    folder = Path(os.environ[_MARK])
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        paths = {Path(line.split()[-1]) for line in maps if f" {_SHARED_MEMORY}/" in line}
        for path in paths:
            if path.parent == _SHARED_MEMORY:  # one without a name ends with "(deleted)"
                (folder / f"{_SHARED}{path.name}").touch()
    if rank == 0:
        with suppress(OSError):
            (folder / _BEGUN).touch()


# ---- in the process that starts the launcher


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that nothing is left running or half-written."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _marked(mark: Path) -> list[psutil.Process]:
    """The processes of a run that still exist."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == str(mark):
                found.append(process)
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and its process group, first by SIGTERM, then by SIGKILL."""
    for how, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, how)
            process.wait(patience_s)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _end_all(mark: Path) -> None:
    """Kill the remaining processes of a run: ranks that are stopped, or in sessions of their own."""
    until = time.monotonic() + 5.0
    while (left := _marked(mark)) and time.monotonic() < until:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1.0)


def _is_used(path: Path) -> bool:
    """Whether a process of this user has mapped or opened a file; other users cannot open our files."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(path) in (process / "maps").read_text(errors="replace"):
                return True
            if any(os.readlink(opened) == str(path) for opened in (process / "fd").iterdir()):
                return True
    return False


def remove_shared_memory(scratch: Path) -> None:
    """Remove the shared memory on this host that runs in ``scratch`` have listed and left behind.

    Nothing that another user owns or that a process still uses is removed.
    """
    for named in scratch.glob(f"**/{_SHARED}*"):
        path = _SHARED_MEMORY / named.name.removeprefix(_SHARED)
        with suppress(OSError):
            found = path.lstat()
            ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            if ours and not _is_used(path):
                path.unlink()


def _wait(
    process: subprocess.Popen[bytes], mark: Path, timeout_s: float, start_timeout_s: float
) -> int:
    begin = time.monotonic()
    while not (mark / _BEGUN).exists():
        waited_s = time.monotonic() - begin
        if waited_s > min(timeout_s, start_timeout_s):
            if timeout_s > start_timeout_s:
                raise NotBegun(f"its ranks had not begun after {start_timeout_s:.0f} s")
            break
        with suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_S)
        os.listdir(mark)  # makes the client of a file server look again
    return process.wait(max(0.0, timeout_s - (time.monotonic() - begin)))


def run_to_end(
    command: Sequence[str],
    environment: dict[str, str],
    log: TextIO,
    lock: int,
    scratch: Path,
    *,
    timeout_s: float,
    start_timeout_s: float = math.inf,
) -> int:
    """The exit code of a launcher, after all processes of its run on this host are gone.

    Args:
        command: the launcher with its ranks, or a single rank.
        log: gets what they print.
        lock: descriptor of the machine's lock, which they inherit.
        scratch: folder that all hosts of the run see.
        timeout_s: they are ended when they have not finished by then.
        start_timeout_s: they are ended when they have not begun by then.

    Raises:
        NotFinished: the ranks had not finished in time.
        NotBegun: the ranks had not begun in time.
    """
    mark = Path(tempfile.mkdtemp(prefix=f"{_BEGUN}-", dir=scratch))
    marks = {_MARK: str(mark), _STARTER: str(os.getpid()), _LIMIT_S: str(timeout_s)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**environment, **marks},
        start_new_session=True,
        pass_fds=(lock,),
    )
    try:
        return _wait(process, mark, timeout_s, start_timeout_s)
    except subprocess.TimeoutExpired:
        raise NotFinished(f"not finished after {timeout_s:.0f} s and ended") from None
    finally:
        if process.poll() is None:
            _end(process)
        _end_all(mark)
        remove_shared_memory(mark)
