"""Time of something on a quiet machine, estimated from repetitions on one that is not always quiet.

On a rented machine other guests use the same caches and memory, and slow everything by a few or by tens of
percent, for tenths of a second or for minutes. Nothing in this system tells: the process has its core all
the time. So what is compared is the mean of the fastest quarter of repetitions, of what is predicted as of
what a prediction is made of; the repetitions have to be spread over the session.
"""

from collections.abc import Sequence
from statistics import fmean

FEWEST = 3
"""The quarter of few repetitions has so many, or all."""


def quietest(seconds: Sequence[float]) -> list[int]:
    """Positions of the fastest quarter, the fastest first."""
    by_time = sorted(range(len(seconds)), key=seconds.__getitem__)
    return by_time[: max(FEWEST, len(by_time) // 4)]


def quiet_mean(seconds: Sequence[float]) -> float:
    """Mean of the fastest quarter; NaN of nothing."""
    return fmean(seconds[i] for i in quietest(seconds)) if len(seconds) else float("nan")
