"""The machine of a measurement. At most one measurement at a time has locked it. Before a measurement begins,
it waits for some time until other programs are quiet.

A measurement locks the machine by ``flock`` on a file. The processes of the measurement inherit the lock. So
the lock lasts until the last of them has ended, even if the first process was killed.
"""

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import Load, load_now

LOCK_FILE = Path("/tmp/joulecast.lock")
"""The file that is locked. There is one on a machine, for all users and all checkouts of joulecast."""
LONGEST_WAIT_S = 2 * 3600.0
"""Longest time (s) to wait for the end of another measurement. It is longer if the run that waits may itself
take longer."""
_LOOK_S, _LONGER_LOOK_S = 0.2, 1.0


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
    """Lock this machine for one measurement. Yields the descriptor of the lock, which child processes
    inherit.

    Args:
        log: gets the messages about waits. Standard error gets them, too.

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
                _tell(log, "another measurement has locked this machine; waiting for its end")
                is_noted = True
            time.sleep(_LOOK_S)
        yield lock
    finally:
        os.close(lock)


def _tell(log: TextIO, line: str) -> None:
    """Print a line to the log and to standard error."""
    for file in dict.fromkeys((log, sys.stderr)):
        print(line, file=file, flush=True)


def wait_for_quiet(log: TextIO, wait_s: float) -> Load:
    """Wait until other programs are quiet, but at most ``wait_s``. Returns their load after the wait."""
    load = load_now()
    begin_s, waited_s, is_announced = time.monotonic(), 0.0, False
    while not load.is_quiet:
        load = load_now(_LONGER_LOOK_S)
        waited_s = time.monotonic() - begin_s
        if waited_s >= wait_s:
            break
        if not load.is_quiet and not is_announced:
            _tell(log, f"{load.text()}; waiting up to {wait_s:.0f} s for their end")
            is_announced = True
    if not load.is_quiet:
        waited = f" after a wait of {waited_s:.0f} s" if wait_s else ""
        _tell(log, f"{load.text()}{waited}; what is measured now is marked as disturbed")
    return load
