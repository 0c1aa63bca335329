"""Judges the meters of a run: which readings can be believed, and whether the run's energy can be believed.

Power logs from outside have many faults: another unit, nodes that share a meter, half a minute without
readings, a meter that stands still or reads 10 W under a loaded node. Nothing is repaired. Readings that
are impossible are dropped. A run whose energy cannot be believed is left out of fits, with the reason.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.logs.log import Findings, LoggedMeter, usual_spacing
from joulecast.logs.log_times import Floats
from joulecast.runs.integration import reading_quality
from joulecast.runs.meter_choice import NO_TRACE, MeterInfo

_MOST_W = 100e3
"""No node draws more watts. (A rack with 72 accelerators has 18 nodes, and is supplied with up to 132 kW.)"""
_LEAST_NODE_W, _MOST_ACCELERATOR_W = 20.0, 5e3
"""Least watts of a loaded node for each of its accelerators (if their number is not known: of the node), and
most watts for each accelerator. A small board with one accelerator draws more than the first. Accelerators of
2.3 kW are announced, and their part of the host draws less than they do. Readings outside of these limits are
in another unit: readings in kW that are taken for W are below them."""
_LOADED_PART_W = (0.5, 3e3)
"""Least and most watts of a loaded GPU, module, socket or memory. A DIMM draws 1 W or more. No device is
cooled for 3 kW."""
_SPIKE = 10.0
"""A reading of this many times the power under load is a fault of the meter."""
_NO_VALUE_W = 65_535.0
"""What a BMC says if it has no value: all of its 16 bits are set."""
_LEAST_READINGS = 10
"""Least number of readings whose quantiles are compared."""
_LEAST_IN_RUN, _FEW_IN_RUN = 5, 50
"""Least number of readings in a run, and the number below which there is a remark. A run that begins or ends
between two readings has an energy that is uncertain by half of a reading: by a tenth, and by 1 %."""
_ONE_WAY = 0.75
"""If at least this share of the readings rises (or falls), the readings are a count. For watts, the share is
at most 0.63 (MLPerf v4.0)."""
_UNLIKE = 1.6
"""A node is unlike the others if it reads this many times more or less. If only one of the two supplies of a
node is metered, the node reads half. Equal nodes differ by 2 % (MLPerf v4.0). A node that only evaluates
differs by a factor of 1.35."""
_FAILED_SHARE = 0.05
"""A node in training does not fall below this share of its own median. Idle power is 0.3 to 0.45 of the
median on nodes of 8 GPUs, and a tenth on workstations. Meters that failed (MLPerf v4.0) read less than 0.01
of it."""
_FAILED_ABOVE_W = 1000.0
"""Median watts above which :data:`_FAILED_SHARE` is used, because the share is known for large nodes only."""
_MOST_UNREAD = 0.2
"""Largest share of a run without readings. In MLPerf v4.0, it is at most 0.17 in runs without a fault, and
0.204 in a run whose meters failed."""
_GAP_PERIODS = 3
"""A gap is longer than this number of periods: two readings may be missing, and a reading may be late by less
than one period."""
_OVER_IDLE = 1.1
"""A node in training draws at least this many times its idle power. Idle power itself scatters by some
percent."""
_COARSEST = 0.05
"""Largest unit of a counter, as a share of a run's energy: repeats may differ by as much. Also the largest
share of a run in which a counter may restart."""
_ZONE_S, _BEYOND_S, _LONG_S = 1800.0, 600.0, 6000.0
"""The least difference (s) between time zones; the time outside of a run in which a meter may show that its
clock has another one; and the shortest run for which this is looked at. (A shorter one hardly overlaps with
such a log.)"""
_JITTER_PERIODS = 0.5
"""Stamps may go back by at most this share of a period. After a gap, a meter catches up: a reading may have a
stamp up to 0.24 s before the stamp in the line above (MLPerf v4.0, a reading every 2 s). If stamps go back
further, a clock was set."""

Span = tuple[float, float]


@dataclass(frozen=True)
class CheckedMeter:
    """The readings that can be believed, in order of time, and what is known of the meter. A counter has
    ``joules``."""

    t_s: Floats
    watts: Floats
    info: MeterInfo
    joules: Floats | None = None


def checked_meters(
    meters: Sequence[LoggedMeter],
    accelerators_per_node: int | None,
    run_s: Span | None,
    findings: Findings,
) -> list[CheckedMeter]:
    """Judge the meters of a run. If start and stop of the run are known, only this time is judged, else all
    readings."""
    for meter in meters:
        check_watts(meter, accelerators_per_node, run_s, findings)
    # Parts of a node may differ: memory draws less than processors, a supply in reserve draws little.
    _compare([meter for meter in meters if meter.is_of_node and meter.device is None], findings)
    _find_idle_gpus(meters, run_s, findings)
    found = [checked(meter, run_s, findings) for meter in meters]
    _mark_shared(meters, [meter.info for meter in found], findings)
    return found


def _load_w(meter: LoggedMeter, run_s: Span | None) -> float:
    """Watts of a meter under load. For a counter: the mean over the run. For a meter of watts: the upper
    quartile of the readings in the run, or of all readings if none is in the run. NaN if there are none."""
    watts = meter.power
    if meter.joules is not None and len(meter.t_s) > 1:
        # A coarse counter does not change most of the time, so its two ends give the mean.
        ends = np.array(run_s) if run_s is not None else meter.t_s[[0, -1]]
        return float(np.diff(np.interp(ends, meter.t_s, meter.joules))[0] / np.ptp(ends))
    if run_s is not None:
        inside = _within(meter.t_s, run_s)
        watts = watts[inside] if inside.any() else watts
    watts = watts[np.isfinite(watts)]
    return float(np.quantile(watts, 0.75)) if len(watts) else math.nan


def _within(t_s: Floats, run_s: Span) -> np.ndarray:
    inside: np.ndarray = (t_s >= run_s[0]) & (t_s <= run_s[1])
    return inside


def check_watts(
    meter: LoggedMeter, accelerators: int | None, run_s: Span | None, findings: Findings
) -> None:
    """Find readings that cannot be watts of what the meter covers: they have another unit, or are counts
    of joules."""
    load_w = _load_w(meter, run_s)
    if math.isnan(load_w) or meter.source == "estimated":
        return
    # If the column states its unit, its readings are watts, even if they only rise.
    if meter.joules is None and not meter.by_unit and (way := _only(meter)):
        findings.leave_out("counter for watts", f"{meter.file}: its readings only {way}")
        return
    (least_w, most_w), of = _LOADED_PART_W, f"a {meter.covers}"
    if meter.is_of_node and meter.device is not None:
        of, most_w = "a part of a node", _MOST_W
    elif meter.covers in (None, "node"):
        of, least_w, most_w = "a node", _LEAST_NODE_W, _MOST_W
        if accelerators is not None and not meter.by_unit:
            least_w, most_w = accelerators * _LEAST_NODE_W, accelerators * _MOST_ACCELERATOR_W
            of = f"a node of {accelerators} accelerators"
    elif meter.covers == "gpu" and meter.device is None:
        of, most_w = "a node's GPUs", _MOST_W
        if accelerators is not None:
            least_w, most_w = (accelerators * watts for watts in _LOADED_PART_W)
            of = f"a node's {accelerators} GPUs"
    if not least_w <= load_w <= most_w:
        findings.leave_out(
            "implausible watts",
            f"{meter.file}: {load_w:.4g} W for most of the run, {of} under load draws {least_w:g} to "
            f"{most_w:g} W; if its unit is another, say --unit, if it is of a small board, `import csv` has "
            "--covers module",
        )


def _only(meter: LoggedMeter) -> str | None:
    """``rise`` or ``fall`` if nearly all readings do this, as the readings of a counter that rarely wraps;
    else ``None``."""
    steps = np.diff(meter.power[np.argsort(meter.t_s, kind="stable")])
    steps = steps[np.isfinite(steps)]
    if len(steps) < 2 * _LEAST_READINGS:
        return None
    up, down = float(np.mean(steps > 0)), float(np.mean(steps < 0))
    # Watts rise by little over the whole log. A count rises by as much as its own size.
    climb = abs(float(steps[steps > 0].sum() if up > down else steps[steps < 0].sum()))
    if max(up, down) < _ONE_WAY or climb < abs(float(np.nanmedian(meter.power))):
        return None
    return "rise" if up > down else "fall"


def _compare(meters: Sequence[LoggedMeter], findings: Findings) -> None:
    """Find nodes that read a multiple or a fraction of the others at each of three levels: the lower
    quartile, the median and the 99th percentile.

    All three levels are compared, because a node that only evaluates draws less than the others during most
    of a run, and sometimes as much as they do. Such a node has no fault.
    """
    known = {
        meter.file: np.quantile(watts, (0.25, 0.5, 0.99))
        for meter in meters
        if len(watts := meter.power[np.isfinite(meter.power)]) >= _LEAST_READINGS
    }
    if len(known) < 2:
        return
    levels = np.stack(list(known.values()))
    usual = np.median(levels, axis=0) if len(known) > 2 else levels.max(axis=0)
    for file, own in known.items():
        ratios = own / np.maximum(usual, 1.0)
        if ratios.max() < 1 / _UNLIKE or ratios.min() > _UNLIKE:
            findings.leave_out(
                "unlike the other nodes",
                f"{file} reads {np.median(ratios):.2g} times what they do all along; if they are parts of "
                "one node, say --node",
            )


def _find_idle_gpus(meters: Sequence[LoggedMeter], run_s: Span | None, findings: Findings) -> None:
    """Note which nodes have GPUs that draw little, because a log may have GPUs that the run did not use."""
    of_node: dict[str, list[float]] = defaultdict(list)
    for meter in meters:
        if meter.covers == "gpu" and meter.device is not None:
            of_node[meter.node].append(_load_w(meter, run_s))
    for node, loads_w in of_node.items():
        if idle := sum(load_w < max(loads_w) / _UNLIKE for load_w in loads_w):
            text = f"{node}: {idle} of {len(loads_w)} draw far less than another; take out those not in use"
            findings.remark("idle GPUs", text)


def _mark_shared(
    meters: Sequence[LoggedMeter], infos: Sequence[MeterInfo], findings: Findings
) -> None:
    """Note which nodes have the same readings: several power supplies behind one meter.

    In a submission, and in the total of a job, the meter's reading was divided evenly. So sums over nodes are
    right, but single nodes are not. In the log of a tool, it may also be one node under two names.
    """
    groups: dict[bytes, list[MeterInfo]] = defaultdict(list)
    for meter, info in zip(meters, infos, strict=True):
        if len(meter.t_s) > 1 and (meter.is_of_node or not meter.trace):
            groups[meter.power.tobytes()].append(info)
    shared = [group for group in groups.values() if len({info.node for info in group}) > 1]
    for group in shared:
        for info in group:
            info.shared_with = [other.node for other in group if other.node != info.node]
    if shared:
        alike = " = ".join(info.node for info in shared[0])
        once = meters[0].by_unit and meters[0].trace
        findings.remark(
            "shared meters",
            f"{len({info.node for info in infos})} nodes have {len(groups)} distinct sequences of readings "
            f"({alike}{' and others' if len(shared) > 1 else ''}); "
            + ("if it is one node, it counts twice" if once else "only their sum is meaningful"),
        )


def checked(meter: LoggedMeter, run_s: Span | None, findings: Findings) -> CheckedMeter:
    """Judge one meter, over the run from ``run_s[0]`` to ``run_s[1]`` if both are known.

    Readings that no meter of a node can have are dropped and counted as failed. The stamps stay as logged.
    Two checks are for loaded nodes only: that the power never falls to idle, and that it does not stay at one
    value. These are made neither for a part of a node nor for an estimate.
    """
    name, info = meter.file, about_meter(meter)
    t_s, watts = meter.t_s, meter.power
    if not len(t_s):
        info.reason = f"{name} holds none of the run"
        findings.leave_out("node without readings", info.reason)
        return CheckedMeter(t_s, watts, info)
    if meter.joules is not None:
        return _checked_counter(meter, meter.joules, info, run_s, findings)
    period_s = usual_spacing(t_s)
    _check_order(t_s, period_s or 0.0, name, findings)
    order = np.argsort(t_s, kind="stable")
    t_s, watts = _one_a_moment(t_s[order], watts[order], name, findings)
    most_w = _LOADED_PART_W[1] if meter.covers == "gpu" and meter.device is not None else _MOST_W
    if meter.is_of_node and meter.device is None:
        most_w = np.fmin(most_w, _SPIKE * _load_w(meter, run_s))
    possible = (watts >= 0) & (watts <= most_w) & (watts != _NO_VALUE_W)
    # If a log says that it has no value, a reading has failed.
    absurd = ~possible & ~(np.isnan(watts) & meter.by_unit)
    if absurd.any():
        wrong = watts[absurd]
        worst = wrong[np.argmax(np.abs(np.nan_to_num(wrong)))]
        example = f"such as {worst:g} W" if np.isfinite(worst) else "that are no number"
        findings.leave_out("absurd watts", f"{name}: {len(wrong)} readings {example}")
    good = possible.copy()
    if run_s is not None and meter.is_of_node:
        inside = _within(t_s, run_s)
        loaded = watts[inside & possible]
        usual_w = float(np.median(loaded)) if len(loaded) else 0.0
        # A node that trains draws more than 0 W.
        least_w = _FAILED_SHARE * usual_w if usual_w > _FAILED_ABOVE_W else np.finfo(float).tiny
        good &= ~(inside & (usual_w > 0) & (watts < least_w))
    info.readings, info.failed_reads = int(good.sum()), int((~good).sum())
    found = CheckedMeter(t_s[good], watts[good], info)
    if not info.readings:
        info.reason = f"{name} holds no reading that a node's meter can give"
        if meter.by_unit:
            findings.leave_out("node without readings", info.reason)
        return found
    info.available = True
    if run_s is not None and period_s is None:
        findings.leave_out("too few readings", f"{name} holds a single one")
    elif run_s is not None and period_s is not None:
        failed = t_s[~good & _within(t_s, run_s)]
        if len(failed):
            findings.remark(
                "failed readings",
                f"{name}: {len(failed)} below {_FAILED_SHARE:g} of its median or impossible, between "
                f"{failed[0]:.0f} and {failed[-1]:.0f} s",
            )
        _check_coverage(found, run_s, period_s, name, findings)
        _check_number(found, run_s, meter.is_of_node, name, findings)
        _check_ends(found, run_s, name, findings)
        if meter.is_of_node:
            _check_frozen(found, run_s, name, findings)
            _check_load(found, run_s, name, findings)
    return found


def about_meter(meter: LoggedMeter) -> MeterInfo:
    """The facts about a meter that do not depend on its readings."""
    about = [meter.remark, None if meter.trace else NO_TRACE]
    return MeterInfo(
        node=meter.node,
        meter=meter.name,
        available=False,
        source=meter.source,
        counter=meter.joules is not None,
        supply=meter.supply,
        conversion_eff=meter.conversion_eff,
        covers=meter.covers,
        trace=meter.trace,
        remark="; ".join(filter(None, about)) or None,
    )


def _checked_counter(
    meter: LoggedMeter, joules: Floats, info: MeterInfo, run_s: Span | None, findings: Findings
) -> CheckedMeter:
    """Judge a counter. It shows the energy between two readings, however far apart they are."""
    t_s, first = np.unique(meter.t_s, return_index=True)
    good = np.isfinite(joules[first])
    info.readings, info.failed_reads = int(good.sum()), int((~good).sum())
    t_s, joules, watts = t_s[good], joules[first][good], meter.power[first][good]
    found = CheckedMeter(t_s, watts, info, joules)
    if len(t_s) < 2:
        info.reason = f"{meter.file} holds {len(t_s)} readings of the counter, two are needed"
        findings.leave_out("node without readings", info.reason)
        return found
    info.available = True
    steps = np.diff(joules)
    fastest_w = float((steps / np.diff(t_s)).max())
    if fastest_w > _MOST_W:
        findings.leave_out(
            "absurd watts", f"{meter.file}: its counter rises by {fastest_w:.4g} J in a second"
        )
    if run_s is None:
        return found
    lost_s = sum(max(0.0, min(b, run_s[1]) - max(a, run_s[0])) for a, b in meter.lost)
    if lost_s > 0:
        text = f"{meter.file}: what it counted in {lost_s:.4g} s, in which it restarted, is missing"
        far = lost_s > _COARSEST * (run_s[1] - run_s[0])
        (findings.leave_out if far else findings.remark)("counter began anew", text)
    read_s = min(t_s[-1], run_s[1]) - max(t_s[0], run_s[0])
    info.coverage = max(0.0, float(read_s)) / (run_s[1] - run_s[0])
    info.longest_gap_s = float(np.diff(t_s).max())
    if read_s <= 0:
        findings.leave_out("clocks do not overlap", _apart(meter.file, t_s, run_s))
    elif meter.trace:
        took_j = float(np.diff(np.interp(run_s, t_s, joules))[0])
        unit_j = float(steps[steps > 0].min(initial=np.inf))
        coarse_j = unit_j if (steps == 0).any() and unit_j < math.inf else 0.0
        off_s = sum(float(np.abs(t_s - end_s).min()) for end_s in run_s)
        off_j = coarse_j + took_j * off_s / (run_s[1] - run_s[0])
        if coarse_j > _COARSEST * took_j:
            findings.leave_out(
                "coarse counter",
                f"{meter.file}: it counts by {unit_j:.4g} J, and the run took {took_j:.4g} J",
            )
        elif off_j > took_j / 100:
            text = f"{meter.file}: its counts let the energy be off by {100 * off_j / took_j:.0f} %"
            findings.remark("few readings", text)
        _check_unread(info.coverage, meter.file, findings)
    return found


def _apart(name: str, t_s: Floats, run_s: Span) -> str:
    return (
        f"{name}: its readings lie between {t_s[0]:.0f} and {t_s[-1]:.0f} s, the run between "
        f"{run_s[0]:.0f} and {run_s[1]:.0f} s; if a clock is wrong, say --shift"
    )


def _check_unread(coverage: float, name: str, findings: Findings) -> None:
    if 1 - coverage > _MOST_UNREAD:
        findings.leave_out(
            "coverage",
            f"{name}: {100 * (1 - coverage):.1f} % of the run is without readings, more than "
            f"{100 * _MOST_UNREAD:.0f} %",
        )


def _check_order(t_s: Floats, period_s: float, name: str, findings: Findings) -> None:
    steps = np.diff(t_s)
    # A log may have the newest reading first.
    if (steps < 0).any() and (steps > 0).any():
        back_s = -float(steps.min())
        text = f"{name}: {int((steps < 0).sum())} stamps go back, by up to {back_s:.3f} s"
        if back_s > _JITTER_PERIODS * period_s:
            findings.leave_out("non-monotonic stamps", text)
        else:
            findings.remark("stamps out of order", text)


def _one_a_moment(
    t_s: Floats, watts: Floats, name: str, findings: Findings
) -> tuple[Floats, Floats]:
    """Means of the readings with the same stamp. Lines that are there twice change nothing."""
    other = int(((np.diff(t_s) == 0) & (np.diff(watts) != 0)).sum())
    if not other:
        return t_s, watts
    text = f"{name}: {other} of {len(t_s)} readings bear the time of another; their mean counts"
    findings.remark("stamps twice", text)
    moments, place, counts = np.unique(t_s, return_inverse=True, return_counts=True)
    return moments, np.bincount(place, weights=watts) / counts


def _check_frozen(meter: CheckedMeter, run_s: Span, name: str, findings: Findings) -> None:
    """Find a meter that stays at one value for a long time, and otherwise changes with most readings. (A
    meter that reads in large steps stays at one value again and again.)"""
    inside = _within(meter.t_s, run_s)
    t_s, first = np.unique(meter.t_s[inside], return_index=True)
    watts = meter.watts[inside][first]
    if len(watts) < _LEAST_READINGS:
        return
    edges = np.concatenate([[0], np.flatnonzero(np.diff(watts)) + 1, [len(watts)]])
    lengths = np.diff(edges)
    longest, begin = int(lengths.max()), int(edges[lengths.argmax()])
    seconds = float(t_s[begin + longest - 1] - t_s[begin])
    others, values = len(watts) - longest, len(lengths) - 1
    if seconds > _MOST_UNREAD * (run_s[1] - run_s[0]) and 2 * values >= others:
        findings.leave_out(
            "frozen meter",
            f"{name}: {longest} readings of {watts[begin]:g} W in a row, from {t_s[begin]:.0f} s on for "
            f"{seconds:.0f} s",
        )


def _check_load(meter: CheckedMeter, run_s: Span, name: str, findings: Findings) -> None:
    """Find a meter whose readings do not belong to this training. During a training, a node draws more than
    before and after it."""
    t_s, watts = meter.t_s, meter.watts
    parts = [watts[t_s < run_s[0]], watts[_within(t_s, run_s)], watts[t_s > run_s[1]]]
    if min(map(len, parts)) < _LEAST_READINGS:
        return
    before_w, load_w, after_w = (
        float(np.quantile(part, q)) for part, q in zip(parts, (0.05, 0.9, 0.05), strict=True)
    )
    idle_w = min(before_w, after_w)
    if load_w < _OVER_IDLE * idle_w:
        findings.leave_out(
            "not under load",
            f"{name}: {load_w:.4g} W in the run, {idle_w:.4g} W before or after it",
        )


def _check_ends(meter: CheckedMeter, run_s: Span, name: str, findings: Findings) -> None:
    """Find a meter whose clock has another time zone: it is idle at one end of a long run, and under load
    beyond the other end. (Lags of minutes are found by :mod:`joulecast.logs.lags`.)"""
    start_s, stop_s = run_s
    spans = (
        (start_s - _BEYOND_S, start_s),
        (start_s, start_s + _ZONE_S),
        (stop_s - _ZONE_S, stop_s),
        (stop_s, stop_s + _BEYOND_S),
    )
    before, first, last, after = (meter.watts[_within(meter.t_s, span)] for span in spans)
    for idle, load, beyond, text in (
        (first, last, after, "idle in the first half hour of the run, under load after it"),
        (last, first, before, "idle in the last half hour of the run, under load before it"),
    ):
        if stop_s - start_s < _LONG_S or min(map(len, (idle, load, beyond))) < _LEAST_READINGS:
            continue
        if min(np.median(load), np.median(beyond)) > _UNLIKE * np.quantile(idle, 0.9):
            findings.leave_out("clock lag", f"{name}: {text}; is it another --timezone?")


def _check_number(
    meter: CheckedMeter, run_s: Span, is_of_node: bool, name: str, findings: Findings
) -> None:
    """Find a meter that has few values in the run. If a node's meter is slow, the log may repeat each of its
    values. (A GPU at its power limit may draw the same all the time, so there each reading counts.)"""
    watts = meter.watts[_within(meter.t_s, run_s)]
    values = 1 + np.count_nonzero(np.diff(watts)) if is_of_node else len(watts)
    if 0 < len(watts) < _LEAST_IN_RUN:
        findings.leave_out("too few readings", f"{name}: {len(watts)} in the run")
    elif 0 < values < _FEW_IN_RUN:
        text = f"{name}: {values} values in the run, so its energy may be off by up to {50 / values:.0f} %"
        findings.remark("few readings", text)


def _check_coverage(
    meter: CheckedMeter, run_s: Span, period_s: float, name: str, findings: Findings
) -> None:
    """Find how much of the run lies in gaps between readings, or before the first or after the last one."""
    t_s, info = meter.t_s, meter.info
    if not _within(t_s, run_s).any():
        findings.leave_out("clocks do not overlap", _apart(name, t_s, run_s))
        info.coverage = 0.0
        return
    info.coverage, info.longest_gap_s = reading_quality(t_s, *run_s, period_s)
    gaps = np.diff([run_s[0], *np.clip(t_s, *run_s), run_s[1]])
    gaps = gaps[gaps > _GAP_PERIODS * period_s]
    if len(gaps):
        findings.remark(
            "gaps",
            f"{name}: {len(gaps)} longer than {_GAP_PERIODS} x {period_s:.2f} s in the run, the "
            f"longest {gaps.max():.1f} s, together {gaps.sum():.0f} s",
        )
    _check_unread(info.coverage, name, findings)
