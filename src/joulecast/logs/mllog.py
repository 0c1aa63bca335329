"""MLPerf's log format: ``:::MLLOG {json}`` lines between the other output of a job.

A result file says what the job did, and when. A power file has the readings of one meter during the job. The
content of both is kept as logged, with times in milliseconds since 1970. Lines that cannot be parsed are
counted. So a truncated file is recognised, and its good lines are not lost.

Format: https://github.com/mlcommons/logging (mllog), read from the files of submissions.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MARK = b":::MLLOG"

# Nearly every line of a power file has this shape; json would take three times as long for it.
_READING = re.compile(
    rb'\s*:::MLLOG \{"namespace": ?"[^"\\]*", ?"time_ms": ?(\d{1,15}), ?"event_type": ?"[^"\\]*", ?'
    rb'"key": ?"power_reading", ?"value": ?(-?\d{1,12}(?:\.\d+)?), ?"metadata": ?'
    rb'(?:""|null|\{[^{}]*\})\}\s*'
)

LARGEST = 1e15
"""Times are in ms since 1970, tokens of a training below this; what is above is garbled."""

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


@dataclass
class PowerLog:
    """A power file as logged: times (ms since 1970) and watts of its readings in file order.

    ``estimates`` are constant figures that were not measured, as (ms, watts). ``conversion_eff`` is the
    efficiency of the power supply, as the submitter names it. It is not applied to the readings. ``measured``
    says where the meter reads: before the power supply (``AC``) or behind it (``DC``).
    """

    time_ms: NDArray[np.float64]
    watts: NDArray[np.float64]
    start_ms: float | None = None
    stop_ms: float | None = None
    conversion_eff: float | None = None
    measured: str | None = None
    estimates: list[tuple[float, float]] = field(default_factory=list)
    broken_lines: list[int] = field(default_factory=list)


def number(value: Any) -> float | None:
    """``value`` as a float, if a log can have such a number, also from a string. ``None`` for everything
    else."""
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


def read_result(content: bytes) -> ResultLog:
    """Parse a result file."""
    events, broken = [], []
    system: dict[str, Any] = {}
    dlpal_nodes = None
    for line_number, line in enumerate(content.split(b"\n"), start=1):
        if b":::" not in line:
            continue
        # Ranks that print at once leave several events on one line.
        for piece in line.split(_MARK)[1:]:
            event = _event(piece.decode(errors="replace"))
            if event is None:
                broken.append(line_number)
            else:
                events.append(event)
        if b":::SYSJSON" in line and not system:
            facts = _decode(line.split(b":::SYSJSON", 1)[1].decode(errors="replace"))
            system = facts if isinstance(facts, dict) else {}
        if b":::DLPAL" in line and dlpal_nodes is None:
            # image, job, nodes, names of the nodes, cluster, configuration
            words = line.split(b":::DLPAL", 1)[1].decode(errors="replace").split()
            dlpal_nodes = whole_number(words[2]) if len(words) > 2 else None
    return ResultLog(events, broken, system, dlpal_nodes)


def read_power(content: bytes) -> PowerLog:
    """Parse a power file of a node or a switch."""
    time_ms: list[float] = []
    watts: list[float] = []
    log = PowerLog(np.empty(0), np.empty(0))
    for line_number, line in enumerate(content.split(b"\n"), start=1):
        shaped = _READING.fullmatch(line)
        if shaped:
            time_ms.append(float(shaped[1]))
            watts.append(float(shaped[2]))
            continue
        if _MARK not in line:
            continue
        event = _event(line.split(_MARK, 1)[1].decode(errors="replace"))
        if event is None:
            log.broken_lines.append(line_number)
        elif event.key == "power_reading":
            time_ms.append(event.time_ms)
            read = number(event.value)
            watts.append(math.nan if read is None else read)
        elif event.key == "interconnect_power_est":
            estimate = number(event.value)
            log.estimates.append((event.time_ms, math.nan if estimate is None else estimate))
        elif event.key == "power_measurement_start":
            log.start_ms = event.time_ms
        elif event.key == "power_measurement_stop":
            log.stop_ms = event.time_ms
        elif event.key == "conversion_eff":
            log.conversion_eff = number(event.value)
            log.measured = str(event.metadata.get("measurement_type", ""))
    log.time_ms, log.watts = np.array(time_ms, dtype=float), np.array(watts, dtype=float)
    return log
