"""The figures of each compared meter, with the reason for each that its readings cannot give."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from joulecast.power.load_course import LoadCourse
from joulecast.power.meter_response import (
    LEAST_CHANGES,
    MeterReadings,
    Renewal,
    Response,
    follow,
    renewal_of,
)
from joulecast.records.meter_comparison import MeterFigures
from joulecast.records.metering import PARTS, MeterInfo, kind_of

_MAY_STAND_S = 10.0
"""A meter of the kernel or of a driver that shows the same for longer, whatever the load, stands still."""
_ASKED = ("command", "redfish", "ipmi", "slurm")
_ASKED_MAY_STAND_S = 300.0
"""What is asked of a controller or a wattmeter may be renewed by the minute."""
_MAY_STAND_RENEWALS = 10
_MARGIN = 1.1
"""A comparison that is asked for anew should be longer than the least by this."""
_DISTURBED = "while other programs were at work: compare on a quiet machine"
_LEAST_NOISE = 5
"""Readings under a steady load that a spread is made of."""


@dataclass(frozen=True)
class SpanLevels:
    """Mean watts of a meter in each span, ``None`` where it had not settled; how uncertain each is; and what
    the meter rounds to."""

    watts: tuple[float | None, ...]
    sigma_w: float
    unit_w: float


def _may_stand_s(info: MeterInfo) -> float:
    usual_s = _ASKED_MAY_STAND_S if kind_of(info.meter) in _ASKED else _MAY_STAND_S
    return max(usual_s, 3 * (info.renewed_s or 0.0))


def _stands_still(
    info: MeterInfo, readings: MeterReadings, course: LoadCourse, renewal: Renewal
) -> str | None:
    """What is wrong with a meter whose value stays the same while the load begins or ends."""
    begin, end = readings.stood_still()
    changes = len(readings.changed)
    if 0 < changes < LEAST_CHANGES or (
        changes and renewal.every_s is None and not renewal.within_s
    ):
        return None  # it may be slow
    allowed_s = max(_may_stand_s(info), _MAY_STAND_RENEWALS * renewal.known_s)
    edges = course.edges
    if end - begin > allowed_s and ((edges > begin) & (edges < end - allowed_s / 2)).any():
        return f"stood still for {end - begin:.3g} s while the load began or ended"
    return None


def _too_few_changes(info: MeterInfo, readings: MeterReadings, course: LoadCourse) -> str | None:
    changes = len(readings.changed)
    if len(readings.t_s) < 2:
        return f"it gave {len(readings.t_s)} readings"
    if changes >= LEAST_CHANGES:
        return None
    span_s = float(readings.t_s[-1] - readings.t_s[0])
    longer_s = max(_may_stand_s(info), _longer_s(course, span_s / max(changes, 1)))
    what = "changed once" if changes == 1 else f"changed {changes} times"
    if not changes:
        what = "did not change"
    stopped = ", or has stopped" if not changes else ""
    return (
        f"its value {what} in {span_s:.3g} s: it is too slow for this comparison{stopped}; compare for "
        f"{longer_s:.0f} s or more"
    )


def _longer_s(course: LoadCourse, settled_s: float) -> float:
    """Seconds of a comparison whose shortest span is longer than what a meter takes to settle."""
    return _MARGIN * settled_s * course.lasts_s / course.shortest_s


def figures_of(
    info: MeterInfo,
    power: pd.DataFrame,
    course: LoadCourse,
    loaded: Collection[str],
    *,
    disturbed: bool = False,
) -> tuple[MeterFigures, SpanLevels | None]:
    """The figures of one meter, and its level in each span.

    Args:
        info: what it is, and how it was read.
        power: readings of all meters.
        course: when the load ran.
        loaded: what the load worked on: ``cpu``, ``gpu``.
        disturbed: whether other programs were at work: they may hide the load from a sound meter.
    """
    if not info.available:
        return MeterFigures(why_not={"all": f"it failed: {info.reason}"}), None
    own = power[(power["node"] == info.node) & (power["meter"] == info.meter)]
    readings = MeterReadings.of(own, counter=info.counter)
    renewal = renewal_of(readings, course) if len(readings.t_s) else Renewal()
    fault = _stands_still(info, readings, course, renewal)
    if fault is not None:
        return MeterFigures(fault=fault, why_not={"all": f"it {fault}"}), None
    slow = _too_few_changes(info, readings, course)
    if slow is not None:
        return MeterFigures(why_not={"all": slow}), None
    why_not = {} if renewal.why_not is None else {"renewed_s": renewal.why_not}
    base = MeterFigures(
        renewed_s=renewal.every_s, renewed_within_s=renewal.within_s, why_not=why_not
    )
    parts = PARTS[info.covers] if info.covers else frozenset()
    if parts and not parts & {*loaded}:
        return _of_unloaded(
            base, readings, course, f"no load ran on what it covers ({info.covers})"
        )
    response = follow(readings, course, renewal)
    if response is None:
        period_s = renewal.every_s or renewal.within_s
        if period_s is None or period_s > course.shortest_s / 2:
            slow = _too_slow(readings, course, period_s)
            return base.model_copy(update={"why_not": {**why_not, "all": slow}}), None
        # Memory draws little more for a load that works in the caches.
        should_follow = not disturbed and (not parts or bool(parts & {"cpu", "gpu"}))
        why = "it does not follow the load"
        if disturbed:
            why += f", {_DISTURBED}"
        elif should_follow:
            why += ": it covers something else, or is broken"
        figures, levels = _of_unloaded(base, readings, course, why)
        fault = "does not follow the load" if should_follow else None
        return figures.model_copy(update={"fault": fault}), levels
    figures, settled = _of_response(base, readings, course, renewal, response)
    if disturbed and "all" in figures.why_not:
        why_not = {**figures.why_not, "all": f"{figures.why_not['all']}; {_DISTURBED}"}
        figures = figures.model_copy(update={"why_not": why_not})
    return figures, settled


def _too_slow(readings: MeterReadings, course: LoadCourse, period_s: float | None) -> str:
    """Why it is not known whether a meter follows the load."""
    span_s = float(readings.t_s[-1] - readings.t_s[0])
    every_s = period_s or span_s / len(readings.changed)
    return (
        f"its value changed {len(readings.changed)} times in {span_s:.3g} s, which shows nothing of loads as "
        f"short as {course.shortest_s:.2g} s; compare for {_longer_s(course, 2 * every_s):.0f} s or more"
    )


def _of_unloaded(
    base: MeterFigures, readings: MeterReadings, course: LoadCourse, why: str
) -> tuple[MeterFigures, SpanLevels]:
    """Figures of a meter that shows nothing of the load: all of each span counts."""
    levels = _levels(readings, course, 0.0)
    return _with_levels(base, readings, course, levels, 0.0, {"lag_s": why}), levels


def _of_response(
    base: MeterFigures,
    readings: MeterReadings,
    course: LoadCourse,
    renewal: Renewal,
    response: Response,
) -> tuple[MeterFigures, SpanLevels | None]:
    least_s, most_s = response.half_s
    resolution_s = readings.interval_s / 2
    narrowest_s, widest_s = response.widths_s
    settled_s = response.settled_s + renewal.known_s + readings.interval_s
    if settled_s >= course.shortest_s:
        slow = (
            f"it may take {settled_s:.2g} s to show a change whole, and the shortest load or rest lasted "
            f"{course.shortest_s:.2g} s; compare for {_longer_s(course, settled_s):.0f} s or more"
        )
        return base.model_copy(update={"why_not": {**base.why_not, "all": slow}}), None
    uncertain_s = (most_s - least_s) / 2 + resolution_s
    known = {
        "lag_s": (most_s + least_s) / 2,
        "lag_uncertainty_s": uncertain_s,
        "averages_over_s": (narrowest_s + widest_s) / 2
        if narrowest_s > max(2 * readings.interval_s, renewal.known_s)
        else None,
    }
    levels = _levels(readings, course, settled_s)
    return _with_levels(
        base.model_copy(update=known), readings, course, levels, settled_s, {}
    ), levels


def _levels(readings: MeterReadings, course: LoadCourse, settled_s: float) -> SpanLevels:
    found = tuple(readings.level_w(span.start_s + settled_s, span.stop_s) for span in course.spans)
    spread = [_spread_w(readings, span.start_s + settled_s, span.stop_s) for span in course.spans]
    count = sum(len(each) for each in spread)
    each_w = float(np.sqrt(sum(float((s**2).sum()) for s in spread) / max(count - len(spread), 1)))
    a_span = max(count / len(spread), 1.0)
    return SpanLevels(found, each_w / float(np.sqrt(a_span)), readings.unit_w)


def _spread_w(readings: MeterReadings, start_s: float, stop_s: float) -> "np.ndarray":
    """Differences of single readings from their mean, between two moments."""
    begin, end, watts = readings.means()
    inside = watts[(begin >= start_s) & (end <= stop_s)]
    return inside - inside.mean() if len(inside) else inside


def _mean(levels: SpanLevels, course: LoadCourse, *, load: bool) -> float | None:
    """Mean of the spans of one kind, the longer ones counting more."""
    pairs = [
        (watts, span.stop_s - span.start_s)
        for watts, span in zip(levels.watts, course.spans, strict=True)
        if watts is not None and span.load == load
    ]
    lengths = sum(length for _, length in pairs)
    return sum(w * length for w, length in pairs) / lengths if pairs else None


def _with_levels(
    base: MeterFigures,
    readings: MeterReadings,
    course: LoadCourse,
    levels: SpanLevels,
    settled_s: float,
    why_not: Mapping[str, str],
) -> MeterFigures:
    reasons = {**base.why_not, **why_not}
    idle_w, load_w = (_mean(levels, course, load=load) for load in (False, True))
    for name, value in (("idle_w", idle_w), ("load_w", load_w)):
        if value is None:
            reasons[name] = "it has fewer than two readings after it had settled"
    spread = [
        _spread_w(readings, span.start_s + settled_s, span.stop_s)
        for span in course.spans
        if span.load
    ]
    steady = np.concatenate(spread)
    noise_w = None
    if len(steady) - len(spread) >= _LEAST_NOISE:
        noise_w = float(np.sqrt((steady**2).sum() / (len(steady) - len(spread))))
    else:
        reasons["noise_w"] = f"it has {len(steady)} readings under a steady load"
    watts = {
        name: None if value is None else max(0.0, value)
        for name, value in (("idle_w", idle_w), ("load_w", load_w), ("noise_w", noise_w))
    }
    return base.model_copy(update={**watts, "why_not": reasons})
