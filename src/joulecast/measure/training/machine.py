"""The machine of a measurement. Only one measurement at a time locks it, and it is quiet when a measurement
begins.

A measurement locks the machine by ``flock`` on a file. Its processes inherit the lock. So it lasts
until the last of them has ended, even if the first one was killed.
"""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import Load, load_now

LOCK_FILE = Path("/tmp/joulecast.lock")
"""One file of the machine, for all users and checkouts."""
LONGEST_WAIT_S = 2 * 3600.0
"""Longest wait for the end of another measurement, unless a run may itself take longer."""
_LOOK_S, _NAMED_LOOK_S = 0.2, 1.0


def _opened_lock() -> int:
    """Open the lock's file read-only: locking needs no right to write. Returns its descriptor."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            return os.open(LOCK_FILE, flags)
        except FileNotFoundError:
            return os.open(LOCK_FILE, flags | os.O_CREAT, 0o444)
    except OSError as error:
        raise JoulecastError(
            f"{LOCK_FILE}: this machine cannot be locked for a measurement ({error.strerror}); have "
            "the owner of that file remove it"
        ) from None


@contextmanager
def machine_lock(log: TextIO, longest_s: float = LONGEST_WAIT_S) -> Iterator[int]:
    """Hold this host for one measurement. Yields the descriptor of the lock, which children inherit.

    Raises:
        JoulecastError: another measurement has locked it for ``longest_s``.
    """
    lock = _opened_lock()
    try:
        until = time.monotonic() + longest_s
        is_noted = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() > until:
                raise JoulecastError(
                    f"another measurement has locked this machine for {longest_s / 3600:.3g} h (`fuser "
                    f"{LOCK_FILE}` names it); wait for its end, or end it"
                )
            if not is_noted:
                _printer(log)("another measurement has locked this machine; waiting for its end")
                is_noted = True
            time.sleep(_LOOK_S)
        yield lock
    finally:
        os.close(lock)


def _printer(log: TextIO) -> Callable[[str], None]:
    """A function that prints a line to the log and to standard error."""

    def print_line(line: str) -> None:
        print(line, file=log, flush=True)
        if log is not sys.stderr:
            print(line, file=sys.stderr, flush=True)

    return print_line


@dataclass(frozen=True)
class Machine:
    """This machine, locked for a measurement.

    Attributes:
        lock: the lock's descriptor, which children inherit.
        wait_s: longest wait for other programs to end.
        tell: gets a line about each wait.
    """

    lock: int
    wait_s: float
    tell: Callable[[str], None]

    def wait_for_quiet(self) -> Load:
        """Wait until other programs have ended, or the longest wait is over. Returns the load of the
        machine."""
        load = load_now()
        begin_s, waited_s, is_announced = time.monotonic(), 0.0, False
        while not load.is_quiet:
            load = load_now(_NAMED_LOOK_S, named=True)
            waited_s = time.monotonic() - begin_s
            if waited_s >= self.wait_s:
                break
            if not load.is_quiet and not is_announced:
                self.tell(f"{load.text()}; waiting up to {self.wait_s:.0f} s for their end")
                is_announced = True
        if not load.is_quiet:
            waited = f" after a wait of {waited_s:.0f} s" if self.wait_s else ""
            self.tell(f"{load.text()}{waited}; what is measured now is marked as disturbed")
        return load


@contextmanager
def held_machine(
    log: TextIO, wait_s: float, longest_s: float = LONGEST_WAIT_S
) -> Iterator[Machine]:
    """Hold this machine for a measurement.

    Args:
        log: gets the messages about waits. Standard error gets them, too.
        wait_s: longest wait for other programs to end.
        longest_s: longest wait for the end of another measurement.
    """
    with machine_lock(log, longest_s) as lock:
        yield Machine(lock, wait_s, _printer(log))
