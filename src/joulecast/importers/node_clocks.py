"""Clocks of nodes with several meters: what one log holds of a node has one clock.

The meters of a node are added up, so that the run's activity shows best, and moved together.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joulecast.importers.clocks import aligned
from joulecast.importers.lags import Course, lag_behind, trace_of
from joulecast.importers.traps import Findings, MeterLog, usual_spacing

_GRID_S, _MOST_POINTS = 0.5, 16_384
_FEWEST = 20


def nodes_of(meters: Sequence[MeterLog]) -> list[MeterLog]:
    """One meter a node: the only one there is, else the sum of those that were read at the same time.

    Estimates and totals show no clock, and are left out where there is something better.
    """
    of_node: dict[str, list[MeterLog]] = defaultdict(list)
    for meter in meters:
        of_node[meter.node].append(meter)
    return [_summed(own) for own in of_node.values()]


def _summed(own: Sequence[MeterLog]) -> MeterLog:
    if len(own) == 1:
        return own[0]
    telling = [m for m in own if m.trace and m.source != "estimated" and len(m.t_s) > 1]
    if len(telling) < 2:
        return telling[0] if telling else own[0]
    first_s = max(float(m.t_s.min()) for m in telling)
    last_s = min(float(m.t_s.max()) for m in telling)
    grid_s = min(usual_spacing(m.t_s) or _GRID_S for m in telling)
    if last_s - first_s < 2 * grid_s:
        return max(telling, key=lambda m: len(m.t_s))
    points = min(len(m.t_s) for m in telling) if last_s > first_s else 2
    t_s = np.linspace(first_s, last_s, max(points, 2))
    watts = np.zeros(len(t_s))
    for meter in telling:
        order = np.argsort(meter.t_s, kind="stable")
        watts += np.interp(t_s, meter.t_s[order], np.nan_to_num(meter.watts[order]))
    file = telling[0].file if len({m.file for m in telling}) == 1 else f"{len(telling)} files"
    return replace(telling[0], file=file, t_s=t_s, watts=watts, joules=None)


def aligned_by_node(
    meters: Sequence[MeterLog], course: Course, findings: Findings, *, notes_lag: bool
) -> list[MeterLog]:
    """The meters with the clocks of their nodes set by the run's activity, where it leaves no doubt.

    With ``notes_lag`` a remark says the lag, whether it was applied, and why it is not known.
    """
    before = nodes_of(meters)
    after = aligned(before, course, findings)
    shifts = {
        old.node: float(old.t_s[0] - new.t_s[0])
        for old, new in zip(before, after, strict=True)
        if len(old.t_s) and len(new.t_s)
    }
    if notes_lag:
        findings.remark("clock lag", _lag_in_words(after, shifts, course))
    alone = Counter(meter.node for meter in meters)
    by_node = {meter.node: meter for meter in after}
    return [
        by_node[meter.node]
        if alone[meter.node] == 1
        else replace(meter, t_s=meter.t_s - shifts.get(meter.node, 0.0))
        for meter in meters
    ]


def _lag_in_words(meters: Sequence[MeterLog], shifts: dict[str, float], course: Course) -> str:
    lags = sorted({round(lag_s, 1) for lag_s in shifts.values()})
    if any(lags):
        return f"{', '.join(f'{lag_s:g}' for lag_s in lags)} s, applied"
    there = [m for m in meters if m.trace and m.source != "estimated"]
    if not any(len(m.t_s) >= _FEWEST for m in there):
        return "not known (too few readings); nothing was applied"
    span_s = max(float(np.ptp(m.t_s)) for m in there if len(m.t_s))
    grid_s = max(_GRID_S, span_s / _MOST_POINTS)
    traces = [t for m in there if len(m.t_s) and (t := trace_of(m, grid_s)) is not None]
    traces = [t for t in traces if t.first_s < course.run_s[1] and t.last_s > course.run_s[0]]
    if not traces:
        return "not known (the load is flat); nothing was applied"
    lag = lag_behind(course, traces)
    if not lag.sharp:
        return "not known (the load shows no edge where the run has one); nothing was applied"
    return f"{lag.lag_s:g} s, which is within what the meter averages over; nothing was applied"
