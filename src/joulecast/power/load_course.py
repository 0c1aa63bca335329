"""The course of a load that is switched on and off, and what a meter shows of it that lags and averages.

A meter that lags by ``lag_s`` and averages over ``width_s`` shows at ``t`` the mean of the load from
``t - lag_s - width_s`` to ``t - lag_s``; a counter's power is a mean between two of its renewals besides.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from joulecast.records.meter_comparison import Span

Floats = NDArray[np.float64]

_IDLE = (1.0, 0.75, 1.5, 1.25)
_LOAD = (1.5, 1.0, 2.0)
"""Lengths of the spans in turn, in parts. They differ: of equal ones, a lag by a whole turn shows no lag."""


@dataclass(frozen=True)
class LoadCourse:
    """Spans without a load and with one, in turn."""

    spans: tuple[Span, ...]

    @classmethod
    def planned(cls, seconds: float) -> "LoadCourse":
        """Half of the time idle and half under load, in seven spans that begin and end idle."""
        lengths = [
            part
            for pair in zip(_IDLE, (*_LOAD, None), strict=True)
            for part in pair
            if part is not None
        ]
        ends = np.concatenate([[0.0], np.cumsum(lengths)]) / sum(lengths) * seconds
        return cls(
            tuple(
                Span(start_s=float(start), stop_s=float(stop), load=place % 2 == 1)
                for place, (start, stop) in enumerate(pairwise(ends))
            )
        )

    @property
    def edges(self) -> Floats:
        """Times at which the load began or ended."""
        return np.array([span.start_s for span in self.spans[1:]])

    @property
    def shortest_s(self) -> float:
        """Length of the shortest span."""
        return min(span.stop_s - span.start_s for span in self.spans)

    @property
    def lasts_s(self) -> float:
        """Length of all of them."""
        return self.spans[-1].stop_s - self.spans[0].start_s

    @cached_property
    def _knots(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Edges; and at each the load, and its integrals once and twice."""
        first, last = self.spans[0].start_s, self.spans[-1].stop_s
        at = np.array([first, *self.edges, last])
        load = np.array([float(span.load) for span in self.spans])
        lengths = np.diff(at)
        once = np.concatenate([[0.0], np.cumsum(load * lengths)])
        twice = np.concatenate([[0.0], np.cumsum(once[:-1] * lengths + load * lengths**2 / 2)])
        return at, np.append(load, 0.0), once, twice

    def _place(self, t: Floats) -> tuple[NDArray[np.intp], Floats]:
        at = self._knots[0]
        index = np.clip(np.searchsorted(at, t, side="right") - 1, 0, len(at) - 1)
        return index, np.maximum(t - at[index], 0.0)

    def _load(self, t: Floats) -> Floats:
        index, _ = self._place(t)
        found: Floats = np.where(t < self._knots[0][0], 0.0, self._knots[1][index])
        return found

    def _once(self, t: Floats) -> Floats:
        index, since = self._place(t)
        _, load, once, _ = self._knots
        found: Floats = once[index] + load[index] * since
        return found

    def _twice(self, t: Floats) -> Floats:
        index, since = self._place(t)
        _, load, once, twice = self._knots
        found: Floats = twice[index] + once[index] * since + load[index] * since**2 / 2
        return found

    def seen(self, begin_s: Floats, end_s: Floats, lag_s: float, width_s: float) -> Floats:
        """Share of the load that a meter shows, 0 to 1.

        Args:
            begin_s, end_s: what a reading is the mean of; equal for watts of a moment.
            lag_s, width_s: of the meter.
        """
        begin, end = begin_s - lag_s, end_s - lag_s
        if np.array_equal(begin, end):
            if width_s <= 0:
                return self._load(end)
            return (self._once(end) - self._once(end - width_s)) / width_s
        length = end - begin
        if width_s <= 0:
            return (self._once(end) - self._once(begin)) / length
        grown = self._twice(end) - self._twice(begin)
        grown = grown - self._twice(end - width_s) + self._twice(begin - width_s)
        found: Floats = grown / (length * width_s)
        return found
