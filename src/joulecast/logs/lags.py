"""How far a log's clock is behind the clock of the run, as its readings show.

Power rises when training begins, has another level in evaluations, and falls when the run ends. If the clock
of a meter lags, the meter shows all of this later. For every possible lag, the readings are grouped by the
activity of the run at their time. Each activity then has a mean power. The lag of the meter is the lag for
which these means explain the readings best.

A lag is reported and never applied, because only a person can know which of two clocks was right.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.fft import irfft, rfft

from joulecast.logs.log import LoggedMeter, usual_spacing
from joulecast.logs.log_times import Floats
from joulecast.logs.run_phases import Interval
from joulecast.quantities import listed

_LEAST_READINGS = 20
_GRID_S, _MOST_POINTS = 0.5, 16_384
_LONGEST_S = 30 * 86_400.0
_MOST_COMPARED = 16
_GAP_PERIODS = 3
_OUTSIDE = 3
"""Number of activities outside of the run. They come first in :meth:`LoggedActivity.activities`."""
_REACH_S = 300.0
_UNEXPLAINED = 0.45
"""Share of the readings' variance that the run's activities may leave open at a lag that is believed."""
_NEXT_BEST = 1.25
"""A lag is believed only if each other lag leaves more than this many times as much variance open. Other lags
differ from it by more than ``_APART_S`` seconds, and by more than half of it."""
_APART_S = 10.0
_LEAST_CONTRAST = 0.04
"""Least standard deviation of the readings, divided by the power under load. With less, the readings show no
activities."""
_SMALL_S, _SMALL_PERIODS, _SMALL_SHARE = 2.0, 3.0, 0.01
"""A lag is small if it is not larger than the largest of three limits: one in s, one in spacings of the
readings, and one as a share of the run. A small lag hardly changes the energy."""


@dataclass(frozen=True)
class LoggedActivity:
    """What a run's log says about its activities, in seconds on the run clock."""

    run_s: tuple[float, float]
    init_s: tuple[float, float] | None = None
    intervals: Sequence[Interval] = ()

    def activities(self, t_s: Floats) -> list[Floats]:
        """For each of seven activities, whether it goes on at ``t_s`` (1 or 0). Three are outside of the run:
        the time before it, its initialisation, and the time after it. Four are in the run: nothing, training,
        evaluation, and both at once."""

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
class Lag:
    """What is known about the lags of a run's nodes: the largest lag in s (``None``: not known, with the
    reason), whether it is large enough to change the energy, and whether all nodes share a clock."""

    lag_s: float | None
    text: str
    matters: bool = False
    of_one_clock: bool = True

    def way_out(self, shift_s: float) -> str:
        """Text that says how to correct the lag. The readings are already shifted by ``shift_s``."""
        if not self.of_one_clock:
            return "correct the times of each node in its file, because --shift moves all of them"
        return f"say --shift {shift_s - (self.lag_s or 0.0):.1f}"

    @property
    def remark(self) -> tuple[str, str]:
        """The remark for the record: its kind, and its text."""
        if self.lag_s is None:
            return "clock lag not known", self.text
        return "clock lag", f"{self.text}; nothing was applied"


@dataclass(frozen=True)
class _Trace:
    """Watts of a meter at equally spaced times from ``first_s`` on, minus their mean. In gaps between
    readings, ``known`` and the watts are 0. ``load_w`` is the power under load."""

    first_s: float
    watts: Floats
    known: Floats
    load_w: float


def _trace_of(meter: LoggedMeter, grid_s: float) -> _Trace | None:
    """The trace of a meter; ``None`` if it has too few readings, or if they never change."""
    good = np.isfinite(meter.power) & np.isfinite(meter.t_s)
    t_s, first = np.unique(meter.t_s[good], return_index=True)
    period_s = usual_spacing(t_s)
    if len(t_s) < _LEAST_READINGS or period_s is None:
        return None
    watts = meter.power[good][first]
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
    return _Trace(float(t_s[0]), even, known, float(np.quantile(watts, 0.75)))


def _lagged_sums(indicators: Sequence[Floats], values: Sequence[Floats], lags: int) -> Floats:
    """For each of ``lags`` lags, the sum of each value over the times at which each indicator is 1: an array
    (values, indicators, lags)."""
    size = 1 << (len(indicators[0]) + len(values[0]) - 1).bit_length()
    of_values = np.conj(rfft(np.stack(values), size))
    of_indicators = rfft(np.stack(indicators), size)
    sums: Floats = irfft(of_values[:, None] * of_indicators[None], size)[..., :lags]
    return sums


def _behind(course: LoggedActivity, traces: Sequence[_Trace], grid_s: float) -> float | None:
    """By how many seconds the meters of one clock are behind the run; ``None`` if no lag is believed.

    The unexplained share at a lag is the variance within the activities, divided by the whole variance.
    An activity of which less than two seconds were read explains nothing. Neither does an activity
    outside of the run in which the power is higher than during the run.
    """
    steps = int(_REACH_S / grid_s)
    lags_s = grid_s * np.arange(steps, -steps - 1, -1, dtype=float)
    left = np.zeros(len(lags_s))
    for trace in traces:
        since_s = grid_s * np.arange(len(trace.watts) + 2 * steps, dtype=float)
        indicators = course.activities(trace.first_s - _REACH_S + since_s)
        sums, counts = _lagged_sums(indicators, (trace.watts, trace.known), len(lags_s))
        counts = np.round(counts, 3)
        level = sums / np.maximum(counts, 0.5)
        in_run = sums[_OUTSIDE:].sum(0) / np.maximum(counts[_OUTSIDE:].sum(0), 0.5)
        explained = np.where(counts >= max(1.0, 2.0 / grid_s), sums * level, 0.0)
        explained[:_OUTSIDE] = np.where(level[:_OUTSIDE] <= in_run, explained[:_OUTSIDE], 0.0)
        left += (1 - explained.sum(0) / (trace.watts**2).sum()) / len(traces)
    best = int(np.argmin(left))
    apart = left[np.abs(lags_s - lags_s[best]) > max(_APART_S, abs(lags_s[best]) / 2)]
    contrast = np.mean([math.sqrt(t.watts.var()) / max(t.load_w, 1.0) for t in traces])
    if (
        left[best] > _UNEXPLAINED
        or not len(apart)
        or apart.min() <= _NEXT_BEST * left[best]
        or contrast < _LEAST_CONTRAST
    ):
        return None
    return float(lags_s[best])


def lag_of(meters: Sequence[LoggedMeter], course: LoggedActivity) -> Lag:
    """How far the clocks of the nodes are behind the run, if the readings show it."""
    start_s, stop_s = course.run_s
    by_node: dict[str, list[LoggedMeter]] = defaultdict(list)
    for meter in meters:
        if meter.trace and meter.source != "estimated" and len(meter.t_s):
            by_node[meter.node].append(meter)
    there = [meter for own in by_node.values() for meter in own]
    if max((len(meter.t_s) for meter in there), default=0) < _LEAST_READINGS:
        return Lag(None, "too few readings")
    span_s = max(float(np.ptp(meter.t_s)) for meter in there)
    period_s = float(np.median([usual_spacing(meter.t_s) or 0.0 for meter in there]))
    edge_s = _SMALL_PERIODS * period_s
    ends_s = [(float(meter.t_s.min()), float(meter.t_s.max())) for meter in there]
    first_s, last_s = np.median(ends_s, axis=0)
    if span_s > _LONGEST_S:
        return Lag(None, "the log is too long")
    if abs(first_s - start_s) <= edge_s and abs(last_s - stop_s) <= edge_s:
        return Lag(None, "the readings begin and end with the run")
    grid_s = max(_GRID_S, span_s / _MOST_POINTS)
    # A reading stands for the period before it.
    behind_s, has_edge = {}, False
    compared = list(by_node.items())[:_MOST_COMPARED]
    for node, own in compared:
        traces = [t for meter in own[:_MOST_COMPARED] if (t := _trace_of(meter, grid_s))]
        has_edge |= bool(traces)
        if traces and (lag_s := _behind(course, traces, grid_s)) is not None:
            behind_s[node] = lag_s - period_s / 2
    if not behind_s:
        why = "the load shows no edge where the run has one" if has_edge else "the load is flat"
        return Lag(None, why)
    small_s = max(_SMALL_S, edge_s, _SMALL_SHARE * (stop_s - start_s))
    values = list(behind_s.values())
    text = f"{float(np.median(values)):.1f} s"
    if np.ptp(values) > edge_s or len(values) < len(compared):
        text = listed([f"{node} {lag_s:.1f} s" for node, lag_s in behind_s.items()])
    worst_s = max(values, key=abs)
    # If only a few nodes show a lag, the clock of all nodes is not wrong.
    of_one_clock = bool(np.ptp(values) <= small_s) and 2 * len(values) > len(compared)
    return Lag(worst_s, text, abs(worst_s) > small_s, of_one_clock)
