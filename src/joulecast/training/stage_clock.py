"""The stage clock: starts and stops of a rank's stages."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StageClock:
    """Collects stage intervals on this host's monotonic clock.

    Intervals may come from the training thread and from the thread that communicates; those of one
    thread do not overlap. ``step`` is the current step, warm-up steps being negative.
    """

    def __init__(self) -> None:
        self.step = 0
        self._rows: list[tuple[int, str, float, float]] = []

    def record(self, stage: str, start: float, stop: float) -> None:
        """Record ``stage`` from ``start`` to ``stop``."""
        self._rows.append((self.step, stage, start, stop))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the block as stage ``name``."""
        start = time.monotonic()
        yield
        self._rows.append((self.step, name, start, time.monotonic()))

    def rows(
        self, rank: int, on_run_clock: Callable[[float], float]
    ) -> list[tuple[int, int, str, float, float]]:
        """The intervals as rows of ``stages.parquet`` on the run clock, without warm-up."""
        return [
            (rank, step, stage, on_run_clock(start), on_run_clock(stop))
            for step, stage, start, stop in self._rows
            if step >= 0
        ]
