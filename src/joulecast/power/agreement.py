"""Whether a device's energy counter and its watts tell of the same device.

The counters of some GPUs stand still or count in another unit than they say, while their watts are sound.
"""

from joulecast.power.meters import MeterFailed

_AT_LEAST_S = 5.0
_MOST_GAP_S, _LEAST_READINGS = 0.6, 15
"""Rarer watts say too little of what a device drew between them."""
_MOST_TIMES = 4.0
"""Watts are samples of a load that changes: only what lies far apart is a fault."""
_LEAST_J = 50.0


class Agreement:
    """Compares the joules of a counter with those of the watts that were read with it."""

    def __init__(self) -> None:
        self._first_s = self._last_s = self._first_j = self._last_w = 0.0
        self._by_watts_j = 0.0
        self._readings = 0

    def check(self, joules: float, watts: float, at_s: float) -> None:
        """Take one reading of both.

        Raises:
            MeterFailed: over some seconds they are far apart.
        """
        if not self._readings or at_s - self._last_s > _MOST_GAP_S:
            self._readings = 0
            self._first_s = self._last_s = at_s
            self._first_j, self._by_watts_j = joules, 0.0
        self._by_watts_j += (watts + self._last_w) / 2 * (at_s - self._last_s)
        self._last_s, self._last_w = at_s, watts
        self._readings += 1
        if at_s - self._first_s < _AT_LEAST_S or self._readings < _LEAST_READINGS:
            return
        counted_j, by_watts_j = joules - self._first_j, self._by_watts_j
        self._readings = 0
        less, more = sorted((counted_j, by_watts_j))
        if more > _LEAST_J and more > _MOST_TIMES * less:
            raise MeterFailed(
                f"its counter moved by {counted_j:.4g} J where its watts add up to {by_watts_j:.4g} J"
            )
