"""The command that is measured. Its signals, its output and its exit code are the same as without
joulecast."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from joulecast.errors import JoulecastError

_FORWARDED = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)

_TO_ALL_S = 0.5
"""Seconds in which a signal that was sent to all processes ends the lookout."""


def fault_of(code: int) -> str | None:
    """Reason why a command counts as failed, from its return code (below 0: a signal ended it); ``None`` if
    it succeeded."""
    if code == 0:
        return None
    if code < 0:
        return f"failed: the command was ended by {signal.Signals(-code).name}"
    return f"failed: the command ended with exit code {code}"


def _new_lookout() -> subprocess.Popen[bytes]:
    """A process that a signal to the whole process group ends. It ends with this process, too."""
    lookout = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    # It must leave no core file.
    resource.prlimit(lookout.pid, resource.RLIMIT_CORE, (0, 0))
    return lookout


class Command:
    """A command that runs as a child process, in the same terminal and process group as this process."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._previous: dict[int, Any] = {}
        self._lookout = _new_lookout()
        try:
            # The command inherits the open files of a launcher. MPICH's ranks talk to Hydra by one of them.
            self._process = subprocess.Popen(list(words), env=dict(environment), close_fds=False)
        except OSError as error:
            raise JoulecastError(
                f"{words[0]}: cannot be started ({error.strerror}); give the command behind `--` as your "
                "shell would find it"
            ) from None

        def forward(number: int, frame: FrameType | None) -> None:
            # A terminal (Ctrl-C), `timeout` and SLURM send a signal to all processes, so to the command, too.
            # If we also sent it, the command would get it twice, such as while it saves a checkpoint.
            with suppress(subprocess.TimeoutExpired):
                ended_by = -self._lookout.wait(_TO_ALL_S)
                self._lookout = _new_lookout()
                if ended_by == number:
                    return
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

        for number in _FORWARDED:
            self._previous[number] = signal.signal(number, forward)

    def to_the_end(self) -> int:
        """Wait for the end. Returns the return code, as in :mod:`subprocess`."""
        code = self._process.wait()
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        # It may be stopped.
        self._lookout.kill()
        self._lookout.communicate()
        return code

    def within(self, seconds: float | None) -> int | None:
        """Wait at most the given seconds (``None``: to the end). Returns the return code, or ``None`` if the
        command still runs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return self.to_the_end()
        return None


def end_as(code: int, leave: Callable[[int], None]) -> None:
    """End this process in the same way as the command ended: by its exit code, or by its signal."""
    if code < 0:
        number = -code
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        # A core file is the command's, not ours.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
    leave(code if code >= 0 else 128 - code)
