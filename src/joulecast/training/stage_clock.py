"""The stage clock: starts and stops of a rank's stages, kept in a file so that a killed run leaves them."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.files.blocks import BlockReader, BlockWriter
from joulecast.records.frames import STAGES

ENDING = ".stages"
"""End of the names of files of stages."""

_KEPT_EVERY_S = 4.0
_COLUMNS = ("step", "stage", "start_s", "stop_s")

Intervals = dict[str, NDArray[Any]]
"""Step, number of the stage in :data:`~joulecast.records.frames.STAGES`, start and stop in s of the host's
clock, each (intervals,)."""


def read_intervals(file: Path) -> tuple[dict[str, Any], Intervals]:
    """The facts and the intervals in a file of stages, as far as they were written, without warm-up.

    Raises:
        JoulecastError: no such file, or it holds something else.
    """
    facts: dict[str, Any] = {}
    parts: dict[str, list[NDArray[Any]]] = {name: [np.empty(0)] for name in _COLUMNS}
    for new, columns in BlockReader(file).new():
        facts |= new
        for name, values in columns.items():
            parts[name].append(values)
    found = {name: np.concatenate(values) for name, values in parts.items()}
    counted = found["step"] >= 0
    intervals = {name: values[counted] for name, values in found.items()}
    return facts, intervals | {name: intervals[name].astype(int) for name in ("step", "stage")}


class StageClock:
    """Collects stage intervals on this host's monotonic clock.

    Intervals may come from the training thread and from the thread that communicates; those of one
    thread do not overlap. ``step`` is the current step, warm-up steps being negative.
    """

    def __init__(self, file: Path | None = None, facts: Mapping[str, Any] | None = None) -> None:
        """Begin.

        Args:
            file: gets the intervals every few seconds; without one, ``rows`` has them all.
            facts: plain data of this rank, for a reader of the file.
        """
        self.step = 0
        self._file = file
        self._writer = None if file is None else BlockWriter(file, per_unit=10**9)
        self.rows: list[tuple[int, str, float, float]] = []
        """Step, stage, start and stop of the intervals that are not in a file."""
        self._kept_s = time.monotonic()
        if self._writer is not None:
            self._writer.append(facts or {}, {})

    def record(self, stage: str, start: float, stop: float) -> None:
        """Record ``stage`` from ``start`` to ``stop``."""
        self.rows.append((self.step, stage, start, stop))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the block as stage ``name``."""
        start = time.monotonic()
        yield
        self.record(name, start, time.monotonic())

    def keep(self, *, at_once: bool = True) -> None:
        """Write what is new to the file: ``at_once``, or every few seconds."""
        now_s = time.monotonic()
        if self._writer is None or not (at_once or now_s - self._kept_s >= _KEPT_EVERY_S):
            return
        self._kept_s = now_s
        # The thread that communicates may add one meanwhile, which waits for the next time.
        new = len(self.rows)
        rows = self.rows[:new]
        steps, stages, starts, stops = zip(*rows, strict=True) if rows else ((), (), (), ())
        values = (steps, [STAGES.index(stage) for stage in stages], starts, stops)
        self._writer.append({}, dict(zip(_COLUMNS, values, strict=True)))
        del self.rows[:new]

    def intervals(self) -> Intervals:
        """All intervals without warm-up; the last call."""
        assert self._file is not None and self._writer is not None
        self.keep()
        self._writer.close()
        return read_intervals(self._file)[1]
