"""The machine of a measurement: held by one measurement at a time, and quiet when it begins.

The lock is inherited by the processes of the measurement, so that it is held until the last of them is gone,
also when their starter was killed. The lock's file keeps the time of the last wait that ended without quiet:
for a while after it, the next measurements do not wait again.
"""

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from joulecast.errors import JoulecastError
from joulecast.power.foreign_load import Load, wait_for_quiet

_NO_NEW_WAIT_S = 600.0


@contextmanager
def machine_lock(log: TextIO) -> Iterator[int]:
    """Hold this host for one measurement; gives the lock's descriptor for children to inherit."""
    path = Path(tempfile.gettempdir()) / f"joulecast-measuring-{os.getuid()}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise JoulecastError(
            f"{path}: cannot be the lock of this machine's measurements ({error.strerror}); is it "
            "somebody else's, or a link? Remove it, or set TMPDIR to a folder of your own"
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another measurement holds {path}; waiting for its end", file=log, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _teller(log: TextIO) -> Callable[[str], None]:
    """A function that prints a line where the user looks, and in the log."""

    def tell(line: str) -> None:
        print(line, file=log, flush=True)
        if log is not sys.stderr:
            print(line, file=sys.stderr, flush=True)

    return tell


def _last_vain_wait_s(lock: int) -> float:
    with suppress(ValueError, OSError):
        return float(os.pread(lock, 64, 0))
    return 0.0


def _note_vain_wait(lock: int, when_s: float | None) -> None:
    with suppress(OSError):
        os.ftruncate(lock, 0)
        if when_s is not None:
            os.pwrite(lock, str(int(when_s)).encode(), 0)  # not in the future


@dataclass(frozen=True)
class Machine:
    """This machine, held for a measurement; ``lock`` is the lock's descriptor, for children to inherit."""

    lock: int
    _wait_s: float
    _since_s: float
    _tell: Callable[[str], None]

    def wait_for_quiet(self) -> Load:
        """The load after waiting for other programs to end, for the time that the machine was held with.

        After a wait in vain, the measurements of the next 10 minutes of the same campaign do not wait.
        """
        vain_s = _last_vain_wait_s(self.lock)
        is_of_now = self._since_s <= vain_s and 0 <= time.time() - vain_s < _NO_NEW_WAIT_S
        patience_s = 0.0 if is_of_now else self._wait_s
        load, waited_s = wait_for_quiet(patience_s, self._tell)
        if load.is_quiet:
            _note_vain_wait(self.lock, None)
            return load
        if patience_s:
            _note_vain_wait(self.lock, time.time())
        waited = f" after a wait of {waited_s:.0f} s" if patience_s else ""
        self._tell(f"{load.text()}{waited}; what is measured now is marked as disturbed")
        return load


@contextmanager
def held_machine(log: TextIO, wait_s: float, since_s: float = 0.0) -> Iterator[Machine]:
    """Hold this machine for a measurement.

    Args:
        log: gets the lines that say what is waited for; standard error gets them too.
        wait_s: longest wait for other programs to end.
        since_s: when the campaign was started (seconds of the epoch): waits in vain of earlier ones do not
            shorten its own.
    """
    with machine_lock(log) as lock:
        yield Machine(lock, wait_s, since_s, _teller(log))
