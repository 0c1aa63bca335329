"""Programs that print a reading: run with a bound on their time and their output."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from joulecast.measure.power.meters import MeterUnavailable, ReadFailed

_MOST_BYTES = 100_000
_SHOWN = 120
_SECRET = re.compile(
    r"(?i)\b((?:[\w-]*(?:token|password|passwd|secret|api[-_ ]?key)"
    r"|authorization:?(?: bearer| basic)?|bearer)\b)[\s:=]*\S+"
)
_UNPRINTED = str.maketrans({chr(code): " " for code in (*range(32), 127)})


def require_program(program: str, meter: str, remedy: str, *, elsewhere: bool) -> str:
    """The path of a program.

    Raises:
        MeterUnavailable: there is none in ``PATH``.
    """
    found = shutil.which(program)
    if found is None:
        raise MeterUnavailable(
            f"{meter}: there is no program {program}", remedy, elsewhere=elsewhere
        )
    return found


def shown(text: str) -> str:
    """The first line of what a program printed, for an error."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return "nothing"
    # What a site's program prints when it fails may name what it logged in with.
    return _SECRET.sub(r"\1 ***", lines[0].translate(_UNPRINTED))[:_SHOWN]


def output_of(
    words: Sequence[str], timeout_s: float, more_environment: Mapping[str, str] | None = None
) -> str:
    """What a program prints.

    Args:
        words: of its command. They are seen by all users of the machine: no credentials.
        timeout_s: after which it is ended, with all that it started.
        more_environment: variables that it gets in addition.

    Raises:
        ReadFailed: it cannot be started, does not end in time, or fails. Contains what it printed.
    """
    name = os.path.basename(words[0])
    with TemporaryFile() as out, TemporaryFile() as faults:
        try:
            process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=faults,
                env={**os.environ, **(more_environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise ReadFailed(f"{name} cannot be started ({error.strerror})") from error
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise ReadFailed(f"{name} did not answer within {timeout_s:g} s") from None
        out.seek(0)
        faults.seek(0)
        printed = out.read(_MOST_BYTES).decode(errors="replace")
        if code != 0:
            complaint = faults.read(_MOST_BYTES).decode(errors="replace")
            raise ReadFailed(
                f"{name} ended with code {code} and printed: {shown(complaint or printed)}"
            )
    return printed
