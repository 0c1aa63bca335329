"""Clocks of meters against the run's own: lags that the readings themselves give away.

Power rises when training begins, is another in evaluations, and falls when the run ends. A meter whose
clock lags shows all of this later. For every possible lag the readings are split by what the log says
the run did then, and the lag under which the levels of these activities explain most of the readings
is the meter's (:func:`lag_behind`); nodes of one training are compared with each other
in the same way, which is sharper (:func:`_lags_among`). A clock is set right only where the gain is
large and no other lag comes near.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import medfilt

from joulecast.importers.traps import Findings, Floats, MeterLog, usual_spacing
from joulecast.importers.work import Interval

_GRID_S, _MOST_POINTS = 0.5, 16_384
_LEAST_READINGS = 20
_LONGEST_S = 30 * 86_400.0
_REFERENCES = 3
_OUTSIDE = 3
"""Activities before and after the run; those in it follow."""
_REACH_S = 300.0
_REACH_AMONG_S = 90.0
_GAP_PERIODS = 3

_SMALLEST_PERIODS = 2.0
"""Meters average over a period, and nodes take seconds to reach full power: smaller lags are these."""

_UNEXPLAINED = 0.35
"""Share of the readings' variance that the run's activities may leave open at a lag that is believed."""
_GAIN = 2.0
"""The variance left open at no lag, against that at the lag."""
_NEXT_BEST = 1.5
"""The same for any lag further than ``_APART_S`` from it."""
_APART_S = 10.0

_LEAST_CORRELATION = 0.85
_LEAST_COVERED = 0.95
_EDGE_PERIODS = 3.0
_AT_LOAD = 0.85

_ZONE_S, _FURTHEST_ZONE_S = 1800.0, 14 * 3600.0


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
class _Trace:
    """One meter on an even grid from ``first_s`` on: watts about their mean, 0 where ``known`` is."""

    first_s: float
    last_s: float
    grid_s: float
    watts: Floats
    known: Floats
    load_w: float


def _trace(meter: MeterLog, grid_s: float) -> _Trace | None:
    """``None`` for too few readings, or for readings that never change."""
    good = np.isfinite(meter.watts)
    t_s, first = np.unique(meter.t_s[good], return_index=True)
    period_s = usual_spacing(t_s)
    if len(t_s) < _LEAST_READINGS or period_s is None:
        return None
    # Single odd readings are no activity.
    watts = medfilt(meter.watts[good][first], 3)
    watts[[0, -1]] = watts[[1, -2]]
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
    return _Trace(
        float(t_s[0]), float(t_s[-1]), grid_s, even, known, float(np.quantile(watts, 0.75))
    )


@dataclass(frozen=True)
class Lag:
    """A lag in s; ``sharp`` if no other comes near and it explains the readings; ``clear`` if it also
    explains them far better than no lag does."""

    lag_s: float
    sharp: bool
    clear: bool


def _lagged_sums(indicators: Sequence[Floats], values: Sequence[Floats], lags: int) -> np.ndarray:
    """Sums of each value where each indicator holds, for so many lags: (values, indicators, lags)."""
    size = next_fast_len(len(indicators[0]) + len(values[0]), real=True)
    of_values = np.conj(rfft(np.stack(values), size))
    of_indicators = rfft(np.stack(indicators), size)
    sums: np.ndarray = irfft(of_values[:, None] * of_indicators[None], size)[..., :lags]
    return sums


def lag_behind(course: Course, traces: Sequence[_Trace]) -> Lag:
    """Lag of meters with one clock behind the run's.

    The unexplained share at a lag is the variance within the activities over the whole. An activity
    of which less than two seconds were read explains nothing, nor does one outside the run at which
    power is higher than in it.
    """
    grid_s = traces[0].grid_s
    steps = int(_REACH_S / grid_s)
    lags_s = grid_s * np.arange(steps, -steps - 1, -1)
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
    others = left[np.abs(lags_s - lags_s[best]) > _APART_S].min()
    sharp = left[best] <= _UNEXPLAINED and others >= _NEXT_BEST * left[best]
    return Lag(float(lags_s[best]), bool(sharp), bool(sharp and left[steps] >= _GAIN * left[best]))


def _correlations(one: _Trace, other: _Trace, lags: int) -> tuple[Floats, Floats]:
    """Correlation of two meters at every lag of ``other``, and the points that it rests on."""
    shift = round((other.first_s - one.first_s) / one.grid_s)
    # A frame for `one` in which `other` can lie anywhere within the lags.
    ahead = lags + max(0, -shift)
    length = ahead + max(len(one.watts), len(other.watts) + max(0, shift)) + lags
    framed = np.zeros((3, length))
    framed[:, ahead : ahead + len(one.watts)] = one.watts, one.watts**2, one.known
    begin = ahead + shift - lags
    size = next_fast_len(length + len(other.watts), real=True)
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


def _lag_between(one: _Trace, other: _Trace) -> Lag:
    """Lag of ``other`` behind ``one``."""
    grid_s = one.grid_s
    lags = int(_REACH_AMONG_S / grid_s)
    correlation, _ = _correlations(one, other, lags)
    lags_s = grid_s * np.arange(-lags, lags + 1)
    best = int(np.argmax(correlation))
    left = 1 - correlation
    others = left[np.abs(lags_s - lags_s[best]) > _APART_S].min()
    sharp = correlation[best] >= _LEAST_CORRELATION and others >= _NEXT_BEST * left[best]
    return Lag(float(lags_s[best]), bool(sharp), bool(sharp and left[lags] >= _GAIN * left[best]))


def _lags_among(traces: Sequence[_Trace]) -> Floats | None:
    """Lag of each meter behind the middle one of them; ``None`` if some cannot be compared.

    Against that meter which most others can be compared with.
    """
    best: tuple[int, Floats] | None = None
    for one in traces[:_REFERENCES]:
        among = [_lag_between(one, other) for other in traces]
        known = np.array([lag.lag_s if lag.sharp else np.nan for lag in among])
        if best is None or np.isfinite(known).sum() > best[0]:
            best = int(np.isfinite(known).sum()), known
        if best[0] == len(traces):
            break
    if best is None or best[0] <= len(traces) / 2:
        return None
    return best[1] - float(np.nanmedian(best[1]))


def _moved(meter: MeterLog, by_s: float) -> MeterLog:
    return replace(meter, t_s=meter.t_s - by_s)


def _window(meters: Sequence[MeterLog]) -> tuple[float, float]:
    """First and last reading, in the middle of the meters."""
    return (
        float(np.median([meter.t_s.min() for meter in meters])),
        float(np.median([meter.t_s.max() for meter in meters])),
    )


def _by_window(
    meters: Sequence[MeterLog], traces: Sequence[_Trace], course: Course, period_s: float
) -> float | None:
    """Lag of readings that were cut to the run by a clock that was not the run's.

    They last as long as the run, begin and end by the same time off it, and are under load where they
    lie outside. 0 for readings that were cut by the run's own clock; ``None`` for all others.
    """
    first_s, last_s = _window(meters)
    start_s, stop_s = course.run_s
    early_s, late_s = first_s - start_s, last_s - stop_s
    edge_s = _EDGE_PERIODS * period_s
    if abs(late_s - early_s) > edge_s:
        return None
    if max(abs(early_s), abs(late_s)) <= edge_s:
        return 0.0
    loaded = []
    for meter, trace in zip(meters, traces, strict=True):
        outside = (meter.t_s > stop_s + edge_s) | (meter.t_s < start_s - edge_s)
        if outside.any():
            loaded.append(float(np.median(meter.watts[outside])) >= _AT_LOAD * trace.load_w)
    return (early_s + late_s) / 2 if loaded and np.mean(loaded) > 0.5 else None


def _from_another_zone(
    meters: list[MeterLog], course: Course, findings: Findings
) -> list[MeterLog]:
    """Set right clocks that are off by whole half hours, where nothing was read in the run else."""
    start_s, stop_s = course.run_s
    found = []
    for meter in meters:
        first_s, last_s = float(meter.t_s.min()), float(meter.t_s.max())
        if first_s <= stop_s and last_s >= start_s:
            found.append(meter)
            continue
        off_s = round((first_s + last_s - start_s - stop_s) / 2 / _ZONE_S) * _ZONE_S
        moved = _moved(meter, off_s)
        trace = _trace(moved, _GRID_S)
        period_s = usual_spacing(meter.t_s) or 0.0
        fits = False
        if trace is not None and 0 < abs(off_s) <= _FURTHEST_ZONE_S:
            lag = lag_behind(course, [trace])
            fits = lag.sharp and abs(lag.lag_s) <= _EDGE_PERIODS * period_s
            fits = fits or _by_window([moved], [trace], course, period_s) == 0.0
        if fits:
            findings.remark(
                "another time zone", f"{meter.file}: its clock is {off_s / 3600:g} h off, corrected"
            )
        found.append(moved if fits else meter)
    return found


def aligned(meters: Sequence[MeterLog], course: Course, findings: Findings) -> list[MeterLog]:
    """The meters with their clocks set by the run's activities, where these leave no doubt.

    Each correction is a remark. Lags that are certain and cannot be corrected pollute.
    """
    found = _from_another_zone([m for m in meters if len(m.t_s)], course, findings)
    span_s = max((float(np.ptp(m.t_s)) for m in found), default=0.0)
    grid_s = max(_GRID_S, span_s / _MOST_POINTS)
    traced = [(m, t) for m in found if (t := _trace(m, grid_s)) is not None]
    traced = [
        (m, t) for m, t in traced if t.first_s < course.run_s[1] and t.last_s > course.run_s[0]
    ]
    if not traced or span_s > _LONGEST_S:
        return _in_place_of(meters, found)
    logs, traces = [m for m, _ in traced], [t for _, t in traced]
    period_s = float(np.median([usual_spacing(m.t_s) or 0.0 for m in logs]))
    least_s = _SMALLEST_PERIODS * period_s
    among = _lags_among(traces) if len(traces) > 1 else np.zeros(1)
    alone = among is None or np.nanmax(np.abs(among)) < least_s
    own = np.zeros(len(logs)) if alone or among is None else np.nan_to_num(among)
    own[np.abs(own) < period_s / 2] = 0.0
    level = [_moved(m, lag) for m, lag in zip(logs, own, strict=True)]
    shifted = [replace(t, first_s=t.first_s - g) for t, g in zip(traces, own, strict=True)]
    common = lag_behind(course, shifted)
    whole_s = _by_window(level, shifted, course, period_s)
    # Where most nodes differ, their middle is no clock: the run alone says which is right.
    scattered = float(np.mean(np.abs(own) <= period_s)) <= 0.5
    if scattered and whole_s is None and not common.sharp:
        findings.pollute(
            "clocks differ",
            f"its {len(logs)} nodes by up to {np.ptp(own):.1f} s, and which is right cannot be seen",
        )
        return _in_place_of(meters, found)
    if whole_s is None:
        whole_s = common.lag_s if common.clear or scattered else 0.0
    if abs(whole_s) < least_s and not scattered:
        whole_s = 0.0
    lags = own + whole_s
    if not lags.any():
        return _in_place_of(meters, found)
    return _in_place_of(meters, _corrected(found, logs, lags, course, period_s, findings))


def _corrected(
    found: list[MeterLog],
    logs: list[MeterLog],
    lags: Floats,
    course: Course,
    period_s: float,
    findings: Findings,
) -> list[MeterLog]:
    moved = {}
    edge_s = max(
        (1 - _LEAST_COVERED) * (course.run_s[1] - course.run_s[0]), _EDGE_PERIODS * period_s
    )
    for meter, lag_s in zip(logs, lags.tolist(), strict=True):
        if not lag_s:
            continue
        right = _moved(meter, lag_s)
        if right.t_s.max() < course.run_s[1] - edge_s or right.t_s.min() > course.run_s[0] + edge_s:
            findings.pollute(
                "clock shifted", f"{meter.file} by {lag_s:.1f} s, and so it misses part of the run"
            )
            continue
        moved[meter.node] = right
    if len(moved) == len(logs) > 1 and np.ptp(lags) == 0:
        findings.remark("clock shifted", f"all {len(logs)} meters by {lags[0]:.1f} s, corrected")
    else:
        for node, right in moved.items():
            lag_s = float(next(g for m, g in zip(logs, lags, strict=True) if m.node == node))
            findings.remark("clock shifted", f"{right.file} by {lag_s:.1f} s, corrected")
    return [moved.get(meter.node, meter) for meter in found]


def _in_place_of(meters: Sequence[MeterLog], found: Sequence[MeterLog]) -> list[MeterLog]:
    by_node = {meter.node: meter for meter in found}
    return [by_node.get(meter.node, meter) for meter in meters]
