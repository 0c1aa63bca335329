"""How far a meter's clock lags, as its readings give it away.

Power rises when training begins, is another in evaluations, and falls when the run ends. A meter whose
clock lags shows all of this later. For every possible lag the readings are split by what the log says
the run did then, and the lag under which the levels of these activities explain most of the readings
is the meter's (:func:`lag_behind`). Nodes of one training are compared with each other in the same way,
which is sharper (:func:`lag_between`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.fft import irfft, rfft

from joulecast.importers.traps import Floats, MeterLog, usual_spacing, without_odd_ones
from joulecast.importers.work import Interval

_LEAST_READINGS = 20
_GAP_PERIODS = 3
_OUTSIDE = 3
"""Activities before and after the run; those in it follow."""
_REACH_S = 300.0
_REACH_AMONG_S = 90.0
_UNEXPLAINED = 0.45
"""Share of the readings' variance that the run's activities may leave open at a lag that is believed."""
_GAIN = 2.0
"""The variance left open at no lag, against that at the lag."""
_NEXT_BEST = 1.25
"""The same for any lag further than ``_APART_S`` from it, and than half of it."""
_APART_S = 10.0
_LEAST_CONTRAST = 0.04
"""Standard deviation of readings over the load; less is no activity to go by."""
_LEAST_CORRELATION = 0.85


@dataclass(frozen=True)
class Course:
    """What a run's log says of its activities, in seconds of the run clock."""

    run_s: tuple[float, float]
    init_s: tuple[float, float] | None
    intervals: Sequence[Interval]

    def activities(self, t_s: Floats) -> list[Floats]:
        """Indicators of what is in force at ``t_s``: before, initialisation, after, and in the run
        nothing, training, evaluation, both."""

        def in_force(*phases: str) -> np.ndarray:
            found = np.zeros(len(t_s), dtype=bool)
            for i in self.intervals:
                if i.phase in phases and i.stop_s > self.run_s[0]:
                    first, last = np.searchsorted(t_s, (i.start_s, i.stop_s))
                    found[first:last] = True
            return found

        start_s, stop_s = self.run_s
        inside = (t_s >= start_s) & (t_s < stop_s)
        phases = {i.phase for i in self.intervals}
        training = inside
        if phases & {"epoch", "block"}:
            training = in_force("epoch" if "epoch" in phases else "block")
        evaluation = in_force("evaluation")
        # Jobs may run on after the target is reached.
        busy = inside | training | evaluation
        begun = np.zeros(len(t_s), dtype=bool)
        if self.init_s is not None:
            begun = (t_s >= self.init_s[0]) & ~busy & (t_s < start_s)
        masks = (
            ~busy & ~begun & (t_s < start_s),
            begun,
            ~busy & (t_s >= stop_s),
            busy & ~training & ~evaluation,
            busy & training & ~evaluation,
            busy & evaluation & ~training,
            busy & training & evaluation,
        )
        return [mask.astype(float) for mask in masks]


@dataclass(frozen=True)
class Trace:
    """One meter on an even grid from ``first_s`` on: watts about their mean, 0 where ``known`` is."""

    first_s: float
    last_s: float
    grid_s: float
    watts: Floats
    known: Floats
    load_w: float


def trace_of(meter: MeterLog, grid_s: float) -> Trace | None:
    """``None`` for too few readings, or for readings that never change."""
    good = np.isfinite(meter.watts)
    t_s, first = np.unique(meter.t_s[good], return_index=True)
    period_s = usual_spacing(t_s)
    if len(t_s) < _LEAST_READINGS or period_s is None:
        return None
    # Single odd readings are no activity.
    watts = without_odd_ones(meter.watts[good][first])
    watts = np.clip(watts, *np.quantile(watts, (0.01, 0.99)))
    if np.ptp(watts) < 0.02 * abs(watts.mean()) or not np.ptp(watts):
        return None
    grid = np.arange(t_s[0], t_s[-1], grid_s)
    before = np.clip(np.searchsorted(t_s, grid, side="right") - 1, 0, len(t_s) - 2)
    known = (np.diff(t_s)[before] <= _GAP_PERIODS * period_s).astype(float)
    if known.sum() < _LEAST_READINGS:
        return None
    even = np.interp(grid, t_s, watts)
    even = (even - np.average(even, weights=known)) * known
    return Trace(
        float(t_s[0]), float(t_s[-1]), grid_s, even, known, float(np.quantile(watts, 0.75))
    )


@dataclass(frozen=True)
class Lag:
    """A lag in s; ``sharp`` if no other comes near and it explains the readings; ``clear`` if it also
    explains them far better than no lag does."""

    lag_s: float
    sharp: bool
    clear: bool


def _least_apart(left: Floats, lags_s: Floats, best: int, apart_s: float) -> float:
    """What the next best lag leaves; 0, as the best, where the grid is too coarse to have another."""
    apart = left[np.abs(lags_s - lags_s[best]) > apart_s]
    return float(apart.min()) if len(apart) else 0.0


def _fast_length(least: int) -> int:
    """A power of two, or three quarters of one."""
    power = 1 << (least - 1).bit_length()
    return 3 * power // 4 if 3 * power // 4 >= least else power


def _lagged_sums(indicators: Sequence[Floats], values: Sequence[Floats], lags: int) -> np.ndarray:
    """Sums of each value where each indicator holds, for so many lags: (values, indicators, lags)."""
    size = _fast_length(len(indicators[0]) + len(values[0]))
    of_values = np.conj(rfft(np.stack(values), size))
    of_indicators = rfft(np.stack(indicators), size)
    sums: np.ndarray = irfft(of_values[:, None] * of_indicators[None], size)[..., :lags]
    return sums


def lag_behind(course: Course, traces: Sequence[Trace]) -> Lag:
    """Lag of meters with one clock behind the run's.

    The unexplained share at a lag is the variance within the activities over the whole. An activity
    of which less than two seconds were read explains nothing, nor does one outside the run at which
    power is higher than in it.
    """
    grid_s = traces[0].grid_s
    steps = int(_REACH_S / grid_s)
    lags_s = grid_s * np.arange(steps, -steps - 1, -1, dtype=float)
    least = max(1.0, 2.0 / grid_s)
    left = np.zeros(len(lags_s))
    for trace in traces:
        at_s = (
            trace.first_s - _REACH_S + grid_s * np.arange(len(trace.watts) + 2 * steps, dtype=float)
        )
        indicators = course.activities(at_s)
        sums, counts = _lagged_sums(indicators, (trace.watts, trace.known), len(lags_s))
        counts = np.round(counts, 3)
        level = sums / np.maximum(counts, 0.5)
        in_run = sums[_OUTSIDE:].sum(0) / np.maximum(counts[_OUTSIDE:].sum(0), 0.5)
        explained = np.where(counts >= least, sums * level, 0.0)
        explained[:_OUTSIDE] = np.where(level[:_OUTSIDE] <= in_run, explained[:_OUTSIDE], 0.0)
        left += (1 - explained.sum(0) / (trace.watts**2).sum()) / len(traces)
    best = int(np.argmin(left))
    apart_s = max(_APART_S, abs(lags_s[best]) / 2)
    others = _least_apart(left, lags_s, best, apart_s)
    contrast = np.mean([math.sqrt(t.watts.var()) / max(t.load_w, 1.0) for t in traces])
    sharp = (
        left[best] <= _UNEXPLAINED
        and others > _NEXT_BEST * left[best]
        and contrast >= _LEAST_CONTRAST
    )
    return Lag(float(lags_s[best]), bool(sharp), bool(sharp and left[steps] >= _GAIN * left[best]))


def _correlations(one: Trace, other: Trace, lags: int) -> tuple[Floats, Floats]:
    """Correlation of two meters at every lag of ``other``, and the points that it rests on."""
    shift = round((other.first_s - one.first_s) / one.grid_s)
    # A frame for `one` in which `other` can lie anywhere within the lags.
    ahead = lags + max(0, -shift)
    length = ahead + max(len(one.watts), len(other.watts) + max(0, shift)) + lags
    framed = np.zeros((3, length))
    framed[:, ahead : ahead + len(one.watts)] = one.watts, one.watts**2, one.known
    begin = ahead + shift - lags
    size = _fast_length(length + len(other.watts))
    spectra = rfft(framed, size)
    mine = np.conj(rfft(np.stack([other.watts, other.watts**2, other.known]), size))

    def sums(of_one: int, of_other: int) -> Floats:
        found: Floats = irfft(spectra[of_one] * mine[of_other], size)
        return found[begin : begin + 2 * lags + 1][::-1]

    count = np.maximum(np.round(sums(2, 2)), 1.0)
    mean_one, mean_other = sums(0, 2) / count, sums(2, 0) / count
    variance_one = np.maximum(sums(1, 2) / count - mean_one**2, 0)
    variance_other = np.maximum(sums(2, 1) / count - mean_other**2, 0)
    whole = np.sqrt(variance_one * variance_other)
    products = sums(0, 0) / count - mean_one * mean_other
    correlation = np.where(whole > 0, products / np.maximum(whole, 1e-9), 0.0)
    return np.where(count >= 0.5 * other.known.sum(), correlation, -1.0), count


def lag_between(one: Trace, other: Trace) -> Lag:
    """Lag of ``other`` behind ``one``."""
    grid_s = one.grid_s
    lags = int(_REACH_AMONG_S / grid_s)
    correlation, _ = _correlations(one, other, lags)
    lags_s = grid_s * np.arange(-lags, lags + 1, dtype=float)
    best = int(np.argmax(correlation))
    left = 1 - correlation
    others = _least_apart(left, lags_s, best, _APART_S)
    sharp = correlation[best] >= _LEAST_CORRELATION and others > _NEXT_BEST * left[best]
    return Lag(float(lags_s[best]), bool(sharp), bool(sharp and left[lags] >= _GAIN * left[best]))
