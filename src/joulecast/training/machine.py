"""The machine of a measurement: held by one measurement at a time, and quiet when it begins.

A measurement holds the machine by binding an abstract UNIX socket. Its name belongs to the machine, not to a
folder, user or checkout, and is no file that could be created or removed. The processes of the
measurement inherit the socket, so the machine is held until the last of them is gone, even if their starter
was killed. About other users' processes only the kernel is trusted.

A small file of the user has the time of the last wait that did not lead to a quiet machine: for some minutes
after it, measurements do not wait again.
"""

import errno
import os
import pwd
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from joulecast.errors import JoulecastError
from joulecast.power.foreign_load import Load, wait_for_quiet

_NAME = "joulecast-measurement"
"""Name of the socket, for all users and checkouts of a machine (of a network namespace)."""

LONGEST_WAIT_S = 2 * 3600.0
"""Longest wait for the end of another measurement, unless a run may itself take longer."""

_LOOK_S = 0.2
_MOST_HOLDERS = 3
_MOST_LETTERS = 80
_NO_NEW_WAIT_S = 600.0


def _described(pid: int) -> str:
    """A process for an error message; its command is cleaned, as its owner can choose any text."""
    try:
        process = psutil.Process(pid)
        command, user = " ".join(process.cmdline()) or process.name(), process.username()
    except psutil.Error:
        return f"process {pid}"
    shown = "".join(letter if letter.isprintable() else "?" for letter in command)
    shown = shown if len(shown) <= _MOST_LETTERS else f"{shown[:_MOST_LETTERS]}..."
    return f"process {pid} of {user} (`{shown}`)"


def _binder() -> str:
    """The process that bound the name, from the kernel: it may be gone while its children hold the name."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        asking.connect(f"\0{_NAME}")
        size = struct.calcsize("3i")
        said = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = struct.unpack("3i", said)
        if psutil.pid_exists(pid):
            return _described(pid)
        with suppress(KeyError):
            return f"what process {pid} of {pwd.getpwuid(uid).pw_name} has left"
    return "a process that cannot be seen from here"


def holders() -> str:
    """The processes that hold the machine, as text for the user."""
    with suppress(OSError):
        lines = Path("/proc/net/unix").read_text().splitlines()
        nodes = {line.split()[6] for line in lines if line.endswith(f" @{_NAME}")}
        links = {f"socket:[{node}]" for node in nodes}
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # another user's, or gone
                if any(os.readlink(opened) in links for opened in (process / "fd").iterdir()):
                    found.append(int(process.name))
        if found:
            more = len(found) - _MOST_HOLDERS
            named = ", ".join(_described(pid) for pid in sorted(found)[:_MOST_HOLDERS])
            return f"{named} and {more} more" if more > 0 else named
    return _binder()


def _is_bound(name: socket.socket) -> bool:
    try:
        name.bind(f"\0{_NAME}")
        name.listen(1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise JoulecastError(
            f"this machine cannot be held for a measurement ({error.strerror}): that needs Linux, and its "
            "abstract UNIX sockets"
        ) from None
    return True


@contextmanager
def machine_lock(log: TextIO, longest_s: float = LONGEST_WAIT_S) -> Iterator[int]:
    """Hold this host for one measurement; yields the lock's descriptor, for children to inherit.

    Raises:
        JoulecastError: another measurement has held it for ``longest_s``; names the processes.
    """
    with socket.socket(socket.AF_UNIX) as name:
        until = time.monotonic() + longest_s
        is_noted = False
        while not _is_bound(name):
            if time.monotonic() > until:
                raise JoulecastError(
                    f"another measurement has held this machine for {longest_s / 3600:.3g} h: "
                    f"{holders()}; wait for its end or end it, then start again"
                )
            if not is_noted:
                _printer(log)(f"{holders()} measures; waiting for its end")
                is_noted = True
            time.sleep(_LOOK_S)
        yield name.fileno()


def _printer(log: TextIO) -> Callable[[str], None]:
    """A function that prints a line to the log and to standard error."""

    def print_line(line: str) -> None:
        print(line, file=log, flush=True)
        if log is not sys.stderr:
            print(line, file=sys.stderr, flush=True)

    return print_line


@contextmanager
def _note() -> Iterator[int]:
    """Descriptor of the file with the last vain wait; an error if another user owns it, or it is a link."""
    path = Path(tempfile.gettempdir()) / f"joulecast-vain-wait-{os.getuid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "is of another user", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def _last_vain_wait_s() -> float:
    with suppress(ValueError, OSError), _note() as note:
        return float(os.pread(note, 64, 0))
    return 0.0


def _note_vain_wait(when_s: float | None) -> None:
    with suppress(OSError), _note() as note:
        os.ftruncate(note, 0)
        if when_s is not None:
            os.pwrite(note, str(int(when_s)).encode(), 0)  # rounded down, so never in the future


@dataclass(frozen=True)
class Machine:
    """This machine, held for a measurement; children inherit ``lock``, the lock's descriptor."""

    lock: int
    _wait_s: float
    _since_s: float
    _print: Callable[[str], None]

    def wait_for_quiet(self) -> Load:
        """The load of the machine, after other programs have ended or the longest wait is over.

        After a vain wait, the same campaign's measurements of the next 10 minutes do not wait.
        """
        vain_s = _last_vain_wait_s()
        is_of_now = self._since_s <= vain_s and 0 <= time.time() - vain_s < _NO_NEW_WAIT_S
        patience_s = 0.0 if is_of_now else self._wait_s
        load, waited_s = wait_for_quiet(patience_s, self._print)
        if load.is_quiet:
            _note_vain_wait(None)
            return load
        if patience_s:
            _note_vain_wait(time.time())
        waited = f" after a wait of {waited_s:.0f} s" if patience_s else ""
        self._print(f"{load.text()}{waited}; what is measured now is marked as disturbed")
        return load


@contextmanager
def held_machine(
    log: TextIO, wait_s: float, since_s: float = 0.0, longest_s: float = LONGEST_WAIT_S
) -> Iterator[Machine]:
    """Hold this machine for a measurement.

    Args:
        log: gets the messages about waits, as does standard error.
        wait_s: longest wait for other programs to end.
        since_s: when the campaign was started (seconds since the epoch): vain waits of earlier campaigns
            do not shorten its own.
        longest_s: longest wait for the end of another measurement.
    """
    with machine_lock(log, longest_s) as lock:
        yield Machine(lock, wait_s, since_s, _printer(log))
