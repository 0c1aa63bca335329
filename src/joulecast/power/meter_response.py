"""What a meter shows of a load that is switched on and off: its levels, noise, renewals and lag.

A model is fitted to the readings: a level, a rise under load, a lag, and a time that the meter averages over.
What several lags and widths explain about as well is the uncertainty. A figure that the readings cannot give
is none, with the reason.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.power.load_course import Floats, LoadCourse

LEAST_CHANGES = 3
"""With fewer changes of its value a meter shows only that it is slow, or has stopped."""
_FLOOR = 1e-4
"""Share of the readings' spread that no model of a meter explains: counters and watts are rounded."""
_AS_GOOD = 8.0
"""A fit is as good as the best one where its squares are larger by this over the number of readings: twice
what one parameter needs for 95 %, as noise follows on itself."""
_LEAST_SHARE, _LEAST_SIGMAS = 0.1, 4.0
"""Share of the spread that a load has to explain, and how sure its rise has to be."""
_WIDTHS, _LAGS, _REFINED = 24, 90, 41
_REGULAR_SHARE = 0.6
"""Share of the times between changes that has to be near the period of a meter that renews regularly."""


@dataclass(frozen=True)
class MeterReadings:
    """Good readings of one meter, in the order of time.

    ``values`` are joules of a counter, else watts; ``changed`` are the places of readings that differ from
    the one before.
    """

    t_s: Floats
    values: Floats
    counter: bool

    @classmethod
    def of(cls, power: pd.DataFrame, *, counter: bool) -> Self:
        """Those of one meter, in the columns of ``power.parquet``."""
        column = "joules" if counter else "watts"
        good = power[power[column].notna() & power["t_s"].notna()].sort_values("t_s", kind="stable")
        good = good.drop_duplicates("t_s")
        return cls(good["t_s"].to_numpy(float), good[column].to_numpy(float), counter)

    @property
    def changed(self) -> NDArray[np.intp]:
        """Places of the readings that brought a new value."""
        return np.flatnonzero(np.diff(self.values) != 0) + 1

    @property
    def interval_s(self) -> float:
        """Usual time between two readings."""
        return float(np.median(np.diff(self.t_s))) if len(self.t_s) > 1 else 0.0

    @property
    def unit_w(self) -> float:
        """Watts that a meter rounds to, as its values show: at most 1 W; 0 for a counter."""
        if self.counter:
            return 0.0
        values = np.unique(self.values)
        for unit_w in (1.0, 0.1, 0.01, 1e-3):
            counts = values / unit_w
            if np.allclose(
                counts, np.round(counts), rtol=0, atol=1e-6 * max(1.0, counts.max(initial=0))
            ):
                return unit_w
        return 0.0

    def stood_still(self) -> tuple[float, float]:
        """Begin and end of the longest time in which the value stayed the same."""
        if not len(self.t_s):
            return 0.0, 0.0
        marks = np.concatenate([[self.t_s[0]], self.t_s[self.changed], [self.t_s[-1]]])
        longest = int(np.diff(marks).argmax())
        return float(marks[longest]), float(marks[longest + 1])

    def means(self) -> tuple[Floats, Floats, Floats]:
        """Watts, each with the begin and the end of what it is the mean of; equal for watts of a moment."""
        if not self.counter:
            return self.t_s, self.t_s, self.values
        ends = self.changed
        begins = np.concatenate([[0], ends[:-1]])
        t_s = self.t_s
        # Until its first change a counter says nothing of when it began to count.
        begins, ends = begins[1:], ends[1:]
        watts = (self.values[ends] - self.values[begins]) / (t_s[ends] - t_s[begins])
        return t_s[begins], t_s[ends], watts

    def level_w(self, start_s: float, stop_s: float) -> float | None:
        """Mean watts between two moments; ``None`` where too few readings lie there."""
        inside = (self.t_s >= start_s) & (self.t_s <= stop_s)
        if inside.sum() < 2:
            return None
        if not self.counter:
            return float(self.values[inside].mean())
        moved = [place for place in self.changed if inside[place]]
        if len(moved) < 2:
            return None
        first, last = moved[0], moved[-1]
        counted = self.values[last] - self.values[first]
        return float(counted / (self.t_s[last] - self.t_s[first]))


@dataclass(frozen=True)
class Renewal:
    """How often a meter has a new value: every ``every_s``, or within ``within_s`` at each reading; or why
    that is not known."""

    every_s: float | None = None
    within_s: float | None = None
    why_not: str | None = None

    @property
    def known_s(self) -> float:
        """Seconds between two new values, 0 where they are not known or too short to be seen."""
        return self.every_s or 0.0


def renewal_of(readings: MeterReadings, course: LoadCourse) -> Renewal:
    """How often the value of a meter really renews."""
    changed, interval_s = readings.changed, readings.interval_s
    # A steady meter changes with the load, however often it is renewed.
    needed = 2 * len(course.edges) + 1
    if len(changed) < needed:
        return Renewal(
            why_not=f"its value changed {len(changed)} times in {_span_s(readings):.3g} s, {needed} changes "
            "show how often it is renewed"
        )
    gaps = np.diff(readings.t_s[changed])
    short = float(np.quantile(gaps, 0.25))
    near = gaps[gaps <= short + max(short / 2, 1.01 * interval_s)]
    period = float(near.mean())
    if np.mean(np.abs(gaps - period) <= max(period / 2, 1.01 * interval_s)) < _REGULAR_SHARE:
        return Renewal(
            why_not=f"its value changes at irregular times, from every {gaps.min():.2g} s on"
        )
    if period <= 1.5 * interval_s:
        return Renewal(within_s=interval_s)
    return Renewal(every_s=period)


def _span_s(readings: MeterReadings) -> float:
    return float(readings.t_s[-1] - readings.t_s[0]) if len(readings.t_s) else 0.0


@dataclass(frozen=True)
class Response:
    """How a meter follows the load.

    ``half_s`` is the time until half of a change is seen, at the least and most; ``widths_s`` the time over
    which it averages, likewise; ``settled_s`` the time after which a change is seen whole, at the most.
    """

    half_s: tuple[float, float]
    widths_s: tuple[float, float]
    settled_s: float


@dataclass(frozen=True)
class _Seen:
    """What is fitted: watts, and what each is the mean of; ``renewed`` of them are independent."""

    begin_s: Floats
    end_s: Floats
    watts: Floats
    renewed: int

    @classmethod
    def of(cls, readings: MeterReadings, renewal: Renewal) -> Self:
        begin, end, watts = readings.means()
        places = readings.changed
        if renewal.every_s is not None:
            # The value came between two readings; those after it repeat it.
            half_s = readings.interval_s / 2
            if not readings.counter:
                begin = end = readings.t_s[places]
                watts = readings.values[places]
            begin, end = begin - half_s, end - half_s
        return cls(begin, end, watts, min(len(watts), len(places)))

    def squares(
        self, course: LoadCourse, lag_s: float, width_s: float
    ) -> tuple[float, float, float]:
        """Squares that a lag and a width leave, the rise in watts, and the spread of the load."""
        load = course.seen(self.begin_s, self.end_s, lag_s, width_s)
        load = load - load.mean()
        watts = self.watts - self.watts.mean()
        spread, both, whole = float(load @ load), float(load @ watts), float(watts @ watts)
        if spread <= 1e-9 * len(load) or both <= 0:
            return whole, 0.0, spread
        return max(0.0, whole - both**2 / spread), both / spread, spread


def follow(readings: MeterReadings, course: LoadCourse, renewal: Renewal) -> Response | None:
    """How a meter follows the load; ``None``: it does not."""
    seen = _Seen.of(readings, renewal)
    whole = float(((seen.watts - seen.watts.mean()) ** 2).sum()) if len(seen.watts) else 0.0
    if seen.renewed < LEAST_CHANGES or whole <= 0:
        return None
    least_s = max(readings.interval_s, course.lasts_s / 1000)
    widths = np.concatenate([[0.0], np.geomspace(least_s, course.lasts_s, _WIDTHS)])
    lags = np.linspace(0.0, course.lasts_s / 3, _LAGS)
    tried = _tried(seen, course, lags, widths)
    best = min(tried)
    # Near the best one, finely.
    step = lags[1]
    fine = np.clip(np.linspace(best[1] - 1.5 * step, best[1] + 1.5 * step, _REFINED), 0, None)
    near = widths[np.abs(np.arange(len(widths)) - int(np.searchsorted(widths, best[2]))) <= 2]
    narrow = np.unique(np.concatenate([near, (near[1:] + near[:-1]) / 2]))
    tried += _tried(seen, course, np.unique(fine), narrow)
    squares, lag, width = min(tried)
    _, rise, spread = seen.squares(course, lag, width)
    # Readings that repeat a value say nothing more.
    independent = spread * seen.renewed / len(seen.watts)
    sigma_w = np.sqrt(squares / max(len(seen.watts) - 4, 1) / independent) if spread else np.inf
    if 1 - squares / whole < _LEAST_SHARE or rise <= _LEAST_SIGMAS * sigma_w:
        return None
    most = squares * (1 + _AS_GOOD / max(seen.renewed - 4, 1)) + _FLOOR * whole
    good = np.array([(w / 2 + a, w, w + a) for s, a, w in tried if s <= most])
    return Response(
        (float(good[:, 0].min()), float(good[:, 0].max())),
        (float(good[:, 1].min()), float(good[:, 1].max())),
        float(good[:, 2].max()),
    )


def _tried(
    seen: _Seen, course: LoadCourse, lags: Floats, widths: Floats
) -> list[tuple[float, float, float]]:
    return [
        (seen.squares(course, float(lag), float(width))[0], float(lag), float(width))
        for width in widths
        for lag in lags
    ]
