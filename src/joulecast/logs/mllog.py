"""MLPerf's log format: ``:::MLLOG {json}`` lines between the other output of a job.

A result file says what the job did, and when. A power file has the readings of one meter during the job. The
content of both is kept as logged, with times in milliseconds since 1970. Lines that cannot be parsed are
counted. So a truncated file is recognised, and its good lines are not lost.

Format: https://github.com/mlcommons/logging (mllog), read from the files of submissions.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MARK = b":::MLLOG"

LARGEST = 1e15
"""The largest number in a log. Times (in ms since 1970) and the tokens of a training are below it. A larger
number is garbled."""

_decoder = json.JSONDecoder()


@dataclass(frozen=True)
class Event:
    """One line: ``time_ms`` since 1970, its key, value and metadata."""

    time_ms: float
    key: str
    value: Any
    metadata: dict[str, Any]


@dataclass(frozen=True)
class ResultLog:
    """A result file: its events in the order of the file, the numbers of broken lines, and the ``:::SYSJSON``
    and ``:::DLPAL`` lines. (Only some submitters print such lines.)"""

    events: list[Event]
    broken_lines: list[int]
    system: dict[str, Any]
    dlpal_nodes: int | None

    def first(self, key: str) -> Event | None:
        """The first event of that key."""
        return next((event for event in self.events if event.key == key), None)


@dataclass(frozen=True)
class PowerLog:
    """A power file as logged: times (ms since 1970) and watts of its readings in file order.

    ``conversion_eff`` is the efficiency of the power supply, as the submitter names it. It is not applied to
    the readings. ``measured`` says where the meter reads: before the power supply (``AC``) or behind it
    (``DC``).
    """

    time_ms: NDArray[np.float64]
    watts: NDArray[np.float64]
    start_ms: float | None = None
    stop_ms: float | None = None
    conversion_eff: float | None = None
    measured: str | None = None
    broken_lines: Sequence[int] = ()


def number(value: Any) -> float | None:
    """``value``, a number or a string, as a float. ``None`` if it is no number, or above :data:`LARGEST`."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        read = float(value)
    except (ValueError, OverflowError):
        return None
    return read if abs(read) <= LARGEST else None


def whole_number(value: Any) -> int | None:
    """``value`` as a positive integer, also from a string; ``None`` for everything else."""
    read = number(value)
    return int(read) if read is not None and read >= 1 and read == int(read) else None


def _decode(text: str) -> Any:
    """The JSON object at the start of ``text``, whatever follows it; ``None`` where it is broken."""
    try:
        value = _decoder.raw_decode(text.lstrip())[0]
        # JSON can contain half of a character (a lone surrogate), which cannot be written again.
        json.dumps(value, ensure_ascii=False).encode() if "\\ud" in text.lower() else None
        return value
    except (ValueError, RecursionError):
        return None


def _event(text: str) -> Event | None:
    content = _decode(text)
    if not isinstance(content, dict):
        return None
    time_ms, key = number(content.get("time_ms")), content.get("key")
    if time_ms is None or not isinstance(key, str):
        return None
    metadata = content.get("metadata")
    return Event(time_ms, key, content.get("value"), metadata if isinstance(metadata, dict) else {})


def _events(content: bytes) -> tuple[list[Event], list[int]]:
    """The events of a file, and the numbers of broken lines."""
    events, broken = [], []
    for line_number, line in enumerate(content.split(b"\n"), start=1):
        # Ranks that print at once leave several events on one line.
        for piece in line.split(_MARK)[1:]:
            event = _event(piece.decode(errors="replace"))
            if event is None:
                broken.append(line_number)
            else:
                events.append(event)
    return events, broken


def read_result(content: bytes) -> ResultLog:
    """Parse a result file."""
    texts, jobs = (
        [text.decode(errors="replace") for text in re.findall(mark + rb"(.*)", content)]
        for mark in (b":::SYSJSON", b":::DLPAL")
    )
    system = next((facts for facts in map(_decode, texts) if isinstance(facts, dict)), {})
    # image, job, nodes, names of the nodes, cluster, configuration
    nodes = next((words[2] for job in jobs if len(words := job.split()) > 2), None)
    return ResultLog(*_events(content), system, whole_number(nodes))


def read_power(content: bytes) -> PowerLog:
    """Parse a power file of a node."""
    events, broken = _events(content)
    readings = [event for event in events if event.key == "power_reading"]
    last = {event.key: event for event in events}
    start, stop, efficiency = (
        last.get(key)
        for key in ("power_measurement_start", "power_measurement_stop", "conversion_eff")
    )
    return PowerLog(
        np.array([event.time_ms for event in readings], dtype=float),
        np.array([number(event.value) for event in readings], dtype=float),
        None if start is None else start.time_ms,
        None if stop is None else stop.time_ms,
        None if efficiency is None else number(efficiency.value),
        str(efficiency.metadata.get("measurement_type", "")) if efficiency else None,
        broken,
    )
