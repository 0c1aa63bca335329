"""The stages of a rank's steps, on its host's clock."""

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.runs.frames import STAGES

Intervals = dict[str, NDArray[Any]]
"""Step, number of the stage in :data:`~joulecast.runs.frames.STAGES`, start and stop in s of the host's
clock, each (intervals,)."""

_NUMBER = {stage: number for number, stage in enumerate(STAGES)}


class StageClock:
    """Collects stage intervals on this host's monotonic clock.

    Intervals come from the training thread and from the thread that communicates. Intervals of one thread do
    not overlap. ``step`` is the number of the current step. Warm-up steps have negative numbers.
    """

    def __init__(self) -> None:
        self.step = 0
        # 32 bytes an interval: a training of days has millions.
        self._rows = array("d")

    def record(self, stage: str, start: float, stop: float) -> None:
        """Record ``stage`` from ``start`` to ``stop``."""
        self._rows.extend((self.step, _NUMBER[stage], start, stop))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the time of a ``with`` block as stage ``name``."""
        start = time.monotonic()
        yield
        self.record(name, start, time.monotonic())

    def intervals(self) -> Intervals:
        """All intervals except those of warm-up steps."""
        table = np.array(self._rows).reshape(-1, 4)
        step, stage, start_s, stop_s = table[table[:, 0] >= 0].T
        return {
            "step": step.astype(int),
            "stage": stage.astype(int),
            "start_s": start_s,
            "stop_s": stop_s,
        }
