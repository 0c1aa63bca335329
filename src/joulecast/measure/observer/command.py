"""The command that is measured. Its signals, its output and its exit code are the same as without
joulecast."""

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from joulecast.errors import JoulecastError

_FORWARDED = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)


@dataclass(frozen=True)
class Ending:
    """How a command ended: its return code, as in :mod:`subprocess` (below 0: a signal ended it), and the
    time of its end on the host's clock in s."""

    code: int
    began_s: float
    ended_s: float

    @property
    def fault(self) -> str | None:
        """Reason why the command counts as failed; ``None`` if it succeeded."""
        if self.code == 0:
            return None
        if self.code < 0:
            return f"failed: the command was ended by {signal.Signals(-self.code).name}"
        return f"failed: the command ended with exit code {self.code}"


def _in_front_of_a_terminal() -> bool:
    """Whether a terminal sends Ctrl-C to this process, also if standard input comes from elsewhere."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


class Command:
    """A command that runs as a child process, in the same terminal and process group as this process."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._previous: dict[int, Any] = {}
        self.began_s = time.monotonic()
        try:
            # The command inherits the open files of a launcher. MPICH's ranks talk to Hydra by one of them.
            self._process = subprocess.Popen(list(words), env=dict(environment), close_fds=False)
        except OSError as error:
            raise JoulecastError(
                f"{words[0]}: cannot be started ({error.strerror}); give the command behind `--` as your "
                "shell would find it"
            ) from None

        def forward(number: int, frame: FrameType | None) -> None:
            # A terminal sends Ctrl-C to the command, too. A second one would kill a command that is about to
            # end.
            if number in (signal.SIGINT, signal.SIGQUIT) and _in_front_of_a_terminal():
                return
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

        for number in _FORWARDED:
            self._previous[number] = signal.signal(number, forward)

    def to_the_end(self) -> Ending:
        """Wait for the end."""
        ending = self.wait()
        assert ending is not None
        return ending

    def wait(self, seconds: float | None = None) -> Ending | None:
        """Wait for the end, but at most the given seconds. Returns ``None`` if the command still runs
        then."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        ended_s = time.monotonic()
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous.clear()
        return Ending(code, self.began_s, ended_s)


def end_as(ending: Ending, leave: Callable[[int], None]) -> None:
    """End this process in the same way as the command ended: by its exit code, or by its signal."""
    if ending.code < 0:
        number = -ending.code
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        # A core file is the command's, not ours.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
    leave(ending.code if ending.code >= 0 else 128 - ending.code)
