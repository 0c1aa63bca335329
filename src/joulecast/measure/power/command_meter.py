"""The meter `command`: a program of the site that prints what the node draws, in watts or joules.

A management controller needs tenths of a second to seconds for an answer, and sometimes gives none. The
sampler must not wait for it, because it has other meters to read. So a :class:`BackgroundMeter` has a thread
that asks. The sampler takes the answers from the thread.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryFile

from joulecast.measure.power.meters import (
    Meter,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    NothingNew,
    ReadFailed,
    Reading,
    identity_of,
    limits_of,
)
from joulecast.runs.meter_choice import Covers

Ask = Callable[[], Reading]
"""A function that asks a slow meter once. It ends within a limited time. If there is no reading, it raises
``ReadFailed``."""

FINISH_S = 6.0
"""At the end of a run: longest time (s) to wait for the last answers of all slow meters together."""
_MOST_KEPT = 1000
_MOST_BYTES = 100_000
_SHOWN = 120
_SECRET = re.compile(
    r"(?i)\b((?:[\w-]*(?:token|password|passwd|secret|api[-_ ]?key)"
    r"|authorization:?(?: bearer| basic)?|bearer)\b)[\s:=]*\S+"
)
_UNPRINTED = str.maketrans({chr(code): " " for code in (*range(32), 127)})
_EVERY_S, TIMEOUT_S = 1.0, 10.0
_READING = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(mW|W|kW|MW|J|kJ|MJ|Wh|kWh)\s*"
)
_WATTS = {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}


class BackgroundMeter:
    """A slow meter of a node. A separate thread asks it every ``every_s`` seconds.

    It has its first reading when it is made. The time of a reading is halfway between question and answer.

    Args:
        every_s: seconds from one question to the next, if the answers are faster.

    Raises:
        ReadFailed: the meter gives no reading now.
    """

    source = "measured"
    covers: Covers | None = "node"
    # The counter of a wattmeter may be renewed by the minute.
    limits = limits_of("node", renewed_s=60.0, moves_within_s=300.0)

    def __init__(
        self, name: str, node: str, ask: Ask, *, every_s: float, identity: str | None
    ) -> None:
        self.name, self.node, self.identity = name, node, identity
        self._ask, self._every_s = ask, every_s
        self._answers: deque[Reading | ReadFailed] = deque(maxlen=_MOST_KEPT)
        self._wake = threading.Event()
        asked_s = time.monotonic()
        first = self._once()
        self.renewed_s = max(every_s, time.monotonic() - asked_s)
        self._answers.append(first)
        self.counter = first.joules is not None
        self._thread: threading.Thread | None = None

    def _once(self) -> Reading:
        before_s = time.monotonic()
        reading = self._ask()
        return reading._replace(at_s=(before_s + time.monotonic()) / 2)

    def _keep_asking(self) -> None:
        next_s = time.monotonic() + self._every_s
        while True:
            self._wake.wait(max(0.0, next_s - time.monotonic()))
            is_last = self._wake.is_set()
            next_s = time.monotonic() + self._every_s
            try:
                self._answers.append(self._once())
            except ReadFailed as failed:
                self._answers.append(failed)
            except Exception as error:
                # A fault in this code ends the meter. The fault is its reason.
                self._answers.append(MeterFailed(f"{type(error).__name__}: {error}"))
                break
            if is_last:
                break

    def read(self) -> Reading:
        """The oldest reading that was not returned before.

        Raises:
            NothingNew: all readings were returned before.
            ReadFailed: the question got no answer.
        """
        if self._thread is None:
            # A meter that was only opened, to see whether it is there, has no thread.
            self._thread = threading.Thread(target=self._keep_asking, daemon=True)
            self._thread.start()
        if not self._answers:
            raise NothingNew("no answer since the last one")
        answer = self._answers.popleft()
        if isinstance(answer, ReadFailed):
            raise answer
        return answer

    def request_last_reading(self) -> None:
        """Ask for one last answer. The thread then stops."""
        self._wake.set()

    def wait(self, until_s: float) -> None:
        """Wait for the last answer, at most until the monotonic clock shows ``until_s``."""
        if self._thread is not None:
            self._thread.join(max(0.0, until_s - time.monotonic()))


def finish_all(meters: Sequence[Meter]) -> bool:
    """Get the last answers of all slow meters, as far as they come in time. Returns whether there are slow
    meters."""
    slow = [meter for meter in meters if isinstance(meter, BackgroundMeter)]
    for meter in slow:
        meter.request_last_reading()
    until_s = time.monotonic() + FINISH_S
    for meter in slow:
        meter.wait(until_s)
    return bool(slow)


def _shown(text: str) -> str:
    """For an error message: the first line that a program printed. What looks like a password is masked."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return "nothing"
    # If the program of a site fails, its message may contain a password.
    return _SECRET.sub(r"\1 ***", lines[0].translate(_UNPRINTED))[:_SHOWN]


def output_of(words: Sequence[str], timeout_s: float) -> str:
    """Run a program. Returns its output.

    Args:
        words: words of the command. All users of the machine can see them, so they must contain no
            credentials.
        timeout_s: after this time, the program and all processes that it started are ended.

    Raises:
        ReadFailed: the program cannot be started, does not end in time, or fails. If it fails, the error
            contains the first line of the output.
    """
    name = os.path.basename(words[0])
    with TemporaryFile() as out, TemporaryFile() as faults:
        try:
            process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=faults,
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
                f"{name} ended with code {code} and printed: {_shown(complaint or printed)}"
            )
    return printed


class SiteCommand:
    """Makes readings from the output of the site's command. If the first output is in joules, all must be in
    joules; if it is in watts, all must be in watts."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._first: tuple[bool, float] | None = None
        """Two facts about the first reading: whether it was an energy, and its amount in joules or watts."""

    def ask(self) -> Reading:
        """Run the command once.

        Raises:
            ReadFailed: the command fails, or prints no reading.
        """
        printed = output_of(self._words, TIMEOUT_S)
        match = _READING.fullmatch(printed)
        if match is None:
            raise ReadFailed(
                f"the command printed {_shown(printed)!r}, expected a number with its unit, such as 231.5 W "
                "or 12345 J"
            )
        counts, amount = match[2] in _JOULES, float(match[1]) * (_WATTS | _JOULES)[match[2]]
        self._first = self._first or (counts, amount)
        if counts != self._first[0]:
            raise ReadFailed(
                f"the command printed {_shown(printed)!r}, another quantity than before"
            )
        return Reading(None, amount - self._first[1]) if counts else Reading(amount, None)


def open_command(nodes: MeteredNodes) -> list[Meter]:
    """The meter that runs the command of the configuration key ``power.command``.

    Raises:
        MeterUnavailable: the configuration has no command, or the command prints no reading.
    """
    words = nodes.power_command
    if not words:
        raise MeterUnavailable(
            "command: no command is set",
            "set power.command to a command that prints the watts (231.5 W) or joules (12345 J) of the node",
            not_applicable=True,
        )
    remedy = "run the words of power.command by hand, on the node"
    if shutil.which(words[0]) is None:
        raise MeterUnavailable(f"command: there is no program {words[0]}", remedy)

    def opened() -> list[Meter]:
        return [
            BackgroundMeter(
                "command",
                nodes.host_node,
                SiteCommand(words).ask,
                every_s=_EVERY_S,
                identity=identity_of("command"),
            )
        ]

    # A management controller sometimes gives no answer. One failure must not cost a run its energy.
    with suppress(ReadFailed):
        return opened()
    time.sleep(_EVERY_S)
    try:
        return opened()
    except ReadFailed as error:
        raise MeterUnavailable(f"command: {error}", remedy) from None
