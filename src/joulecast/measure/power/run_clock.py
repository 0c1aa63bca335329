"""The clock of a run: that of one host, and how the clocks of the others relate to it."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Times = TypeVar("Times", float, NDArray[np.float64])


@dataclass(frozen=True)
class ClockOffset:
    """Rank 0's clock minus a host's own, with its largest error; ``at_s`` is when it was measured, on the
    host's clock."""

    offset_s: float
    uncertainty_s: float
    at_s: float


@dataclass(frozen=True)
class RunClock:
    """Converts times of one host's monotonic clock to the run clock.

    Clocks of two hosts drift apart by some 10 ppm, tens of milliseconds in an hour. The offset is taken to
    change linearly between the measurements before and after the run. ``origin_s`` is the run clock's zero
    on rank 0's monotonic clock.
    """

    origin_s: float
    before: ClockOffset
    after: ClockOffset

    @property
    def _lasted_s(self) -> float:
        return self.after.at_s - self.before.at_s

    @property
    def drift(self) -> float:
        """Growth of the offset, in seconds per second."""
        grown = self.after.offset_s - self.before.offset_s
        return grown / self._lasted_s if self._lasted_s > 0 else 0.0

    def __call__(self, host_s: Times) -> Times:
        offset = self.before.offset_s + self.drift * (host_s - self.before.at_s)
        return host_s + offset - self.origin_s

    def facts(self) -> dict[str, float]:
        """The clock's facts for the record; the offset is that before the run."""
        doubt_s = self.before.uncertainty_s + self.after.uncertainty_s
        return {
            "offset_s": self.before.offset_s,
            "uncertainty_s": max(self.before.uncertainty_s, self.after.uncertainty_s),
            "drift_ppm": 1e6 * self.drift,
            "drift_uncertainty_ppm": 1e6 * doubt_s / self._lasted_s if self._lasted_s > 0 else 0.0,
        }
