"""Clocks of meters set by the run's own activity, where that leaves no doubt.

All meters of a run may be late together, each by its own lag, or by whole hours. A clock is set right
only where the gain is large and no other lag comes near; the lags themselves come from
:mod:`joulecast.importers.lags`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joulecast.importers.lags import Course, Trace, lag_behind, lag_between, trace_of
from joulecast.importers.traps import Findings, Floats, MeterLog, usual_spacing

_GRID_S, _MOST_POINTS = 0.5, 16_384
_LONGEST_S = 30 * 86_400.0
_REFERENCES = 3
_MOST_COMPARED = 16
_SMALLEST_PERIODS = 2.0
"""Meters average over a period, and nodes take seconds to reach full power: smaller lags are these."""
_LEAST_COVERED = 0.95
_EDGE_PERIODS = 3.0
_LOADED, _AT_END, _OFF_PERIODS = 1.5, 0.25, 5
_AT_LOAD = 0.85
_ZONE_S, _FURTHEST_ZONE_S = 1800.0, 14 * 3600.0


def _lags_among(traces: Sequence[Trace]) -> Floats | None:
    """Lag of each meter behind the middle one of them; ``None`` if some cannot be compared.

    Against that meter which most others can be compared with.
    """
    best: tuple[int, Floats] | None = None
    for one in traces[:_REFERENCES]:
        among = [lag_between(one, other) for other in traces]
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
    meters: Sequence[MeterLog], traces: Sequence[Trace], course: Course, period_s: float
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
    meters: list[MeterLog], course: Course, grid_s: float, findings: Findings
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
        trace = trace_of(moved, grid_s)
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
    there = [meter for meter in meters if len(meter.t_s)]
    span_s = max((float(np.ptp(meter.t_s)) for meter in there), default=0.0)
    if span_s > _LONGEST_S:
        return list(meters)
    grid_s = max(_GRID_S, span_s / _MOST_POINTS)
    found = _from_another_zone(there, course, grid_s, findings)
    traced = [(m, t) for m in found if (t := trace_of(m, grid_s)) is not None]
    traced = [
        (m, t) for m, t in traced if t.first_s < course.run_s[1] and t.last_s > course.run_s[0]
    ]
    if not traced:
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
    common = lag_behind(course, shifted[:: -(-len(shifted) // _MOST_COMPARED)])
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
        # A reading stands for the period before it.
        whole_s -= period_s / 2 if whole_s else 0.0
    if abs(whole_s) < least_s - period_s / 2 and not scattered:
        whole_s = 0.0
    lags = own + whole_s
    if lags.any():
        found = _corrected(found, logs, own, lags, course, period_s, findings)
    else:
        _remark_end(logs, course, period_s, findings)
    return _in_place_of(meters, found)


def _remark_end(
    meters: Sequence[MeterLog], course: Course, period_s: float, findings: Findings
) -> None:
    """Note where the load ends: long before the run does, or long after, without a word in the log."""
    stop_s = max([course.run_s[1], *(i.stop_s for i in course.intervals)])
    for meter in meters:
        order = np.argsort(meter.t_s)
        t_s, watts = meter.t_s[order], np.nan_to_num(meter.watts[order])
        idle_w, load_w = float(watts.min()), float(np.quantile(watts, 0.75))
        if load_w <= _LOADED * max(idle_w, 0.0):
            continue
        last_s = t_s[np.flatnonzero(watts > idle_w + _AT_END * (load_w - idle_w))[-1]]
        # It has to be seen to stay low.
        if t_s[-1] - max(last_s, stop_s) < _OFF_PERIODS * period_s:
            continue
        if abs(last_s - stop_s) > _OFF_PERIODS * period_s:
            way = "after" if last_s > stop_s else "before"
            findings.remark(
                "load off the run",
                f"{meter.file}: it ends {abs(last_s - stop_s):.0f} s {way} the run; a job that runs on "
                "or waits, or a clock",
            )


def _corrected(
    found: list[MeterLog],
    logs: list[MeterLog],
    own: Floats,
    lags: Floats,
    course: Course,
    period_s: float,
    findings: Findings,
) -> list[MeterLog]:
    moved = {}
    edge_s = max(
        (1 - _LEAST_COVERED) * (course.run_s[1] - course.run_s[0]), _EDGE_PERIODS * period_s
    )
    for meter, own_s, lag_s in zip(logs, own.tolist(), lags.tolist(), strict=True):
        if not lag_s:
            continue
        right = _moved(meter, lag_s)
        if right.t_s.max() < course.run_s[1] - edge_s or right.t_s.min() > course.run_s[0] + edge_s:
            text = f"{meter.file} by {lag_s:.1f} s, and so it misses part of the run"
            if own_s or _seen_inside(meter, lag_s, course, period_s):
                findings.pollute("clock shifted", text)
            else:
                findings.remark(
                    "load off the run",
                    f"{meter.file}: a job that waits {abs(lag_s):.0f} s, or a clock",
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


def _seen_inside(meter: MeterLog, lag_s: float, course: Course, period_s: float) -> bool:
    """Whether readings of the run alone show the lag too: one edge may be a job that waits."""
    start_s, stop_s = course.run_s
    inside = (meter.t_s > start_s + max(lag_s, 0.0)) & (meter.t_s < stop_s + min(lag_s, 0.0))
    trace = trace_of(replace(meter, t_s=meter.t_s[inside], watts=meter.watts[inside]), _GRID_S)
    if trace is None or stop_s - start_s > _GRID_S * _MOST_POINTS:
        return False
    lag = lag_behind(course, [trace])
    return lag.clear and abs(lag.lag_s - lag_s) <= 2 * period_s


def _in_place_of(meters: Sequence[MeterLog], found: Sequence[MeterLog]) -> list[MeterLog]:
    by_node = {meter.node: meter for meter in found}
    return [by_node.get(meter.node, meter) for meter in meters]
