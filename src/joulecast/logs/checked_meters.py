"""A run's meters judged: which readings can be believed, and whether the run's energy can.

Power logs from outside are full of traps: a unit that is another, nodes that share a meter, half a minute
without readings, a meter that stands still or reads 10 W under a loaded node. Nothing is repaired. What no
meter can read is dropped, and a run whose energy cannot be believed is polluted.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulecast.logs.log import Findings, LoggedMeter, usual_spacing
from joulecast.logs.log_times import Floats
from joulecast.runs.covers import Covers
from joulecast.runs.integration import reading_quality
from joulecast.runs.metering import MEASURED_SWITCH, NO_TRACE, MeterInfo

_ABSURD_W = 100e3
"""No node draws more."""

_LEAST_JUDGED = 10
_PER_ACCELERATOR_W = (100.0, 2500.0)
_LOADED_W: dict[Covers | None, tuple[float, float]] = {
    None: (50.0, 50e3),
    "node": (5.0, 50e3),
    "module": (5.0, 5e3),
    "gpu": (1.0, 3e3),
    "socket": (0.5, 2e3),
    "cpu": (0.5, 2e3),
    "memory": (0.05, 1e3),
}
"""What a loaded part can draw."""
_STEADILY = 0.75
"""A third of a meter's steps go either way; of a counter's one in a hundred goes back."""

_ALIKE, _UNLIKE, _UNLIKE_OF_TWO = 1.2, 1.4, 1.6
_LOADED, _IDLE = 1.5, 1.15

_FAILED_SHARE = 0.25
"""A node in training does not fall below this share of its own median: idle with the job loaded is
0.3 to 0.45 of it on 8-GPU nodes. A meter that does has failed."""
_FAILED_ABOVE_W = 100.0
"""Below this median a small reading is not evidence of anything."""

_MOST_SPELLS, _MOST_FAILED = 5, 0.01
"""A meter that fails again and again is not read between either, or its register wraps."""
_GAP_PERIODS = 3
_LARGEST_OUTAGE = 0.10
_LARGEST_CUT, _CUT_PERIODS, _MOST_IN_GAPS = 0.05, 5, 0.25
"""Shares of a run that may be without readings at either end, and in gaps: what a straight line
between readings makes up for, and what it does not."""
_LEAST_COVERAGE = 0.5

_LEAST_FROZEN, _TIMES_LIKELY, _MOST_FROZEN = 8, 3, 0.02
_OVER_IDLE, _UNDER_ONE_SIDE = 1.1, 0.95
_OUTSIDE_S, _LEAST_OUTSIDE = 10.0, 5
_OFTEN_STILL, _COARSEST = 0.1, 0.05
"""Share of a counter's steps that are none, and its unit as a share of a run's energy."""
_JITTER_PERIODS = 0.5
"""After a gap meters catch up, and a reading may be stamped up to 0.24 s before the one in front of
it (2 s apart). What goes back further is a clock that was set."""

Span = tuple[float, float]


@dataclass(frozen=True)
class CheckedMeter:
    """The readings that can be believed, in order of time, and what is known of the meter; ``joules`` of a
    counter."""

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
    """Judge the meters of a run, over the run where its start and stop are known."""
    _check_watts(meters, accelerators_per_node, run_s, findings)
    _compare([meter for meter in meters if meter.is_of_node], findings)
    found = [checked(meter, run_s, findings) for meter in meters]
    _mark_shared(meters, [meter.info for meter in found], findings)
    return found


def _load_w(meter: LoggedMeter, run_s: Span | None) -> float:
    """Watts that a meter gives for most of the run, or of all where none lie in it; NaN without."""
    watts = meter.power
    if meter.joules is not None and len(meter.t_s) > 1:
        # A coarse counter stands still most of the time.
        ends = np.array(run_s) if run_s is not None else meter.t_s[[0, -1]]
        return float(np.diff(np.interp(ends, meter.t_s, meter.joules))[0] / np.ptp(ends))
    if run_s is not None:
        inside = (meter.t_s >= run_s[0]) & (meter.t_s <= run_s[1])
        watts = watts[inside] if inside.any() else watts
    watts = watts[np.isfinite(watts)]
    return float(np.quantile(watts, 0.75)) if len(watts) else math.nan


def _check_watts(
    meters: Sequence[LoggedMeter], accelerators: int | None, run_s: Span | None, findings: Findings
) -> None:
    """Find readings that are no watts of what they cover: of another unit, or a count of joules."""
    for meter in meters:
        usual_w = _load_w(meter, run_s)
        if math.isnan(usual_w) or len(meter.t_s) < _LEAST_JUDGED or meter.source == "estimated":
            continue
        least_w, most_w = _LOADED_W[meter.covers]
        of = f"a {meter.covers or 'node'}"
        if accelerators is not None and not meter.by_unit:
            least_w, most_w = (accelerators * watts for watts in _PER_ACCELERATOR_W)
            of = f"a node of {accelerators} accelerators"
        low_w, _, high_w = _levels(meter)
        # A node that only evaluates is under load at times.
        at_times = (
            len(meters) > 1 and least_w <= high_w <= most_w and bool(high_w > _LOADED * low_w)
        )
        # A column whose unit is stated is watts, however they rise; a count soon exceeds what a part draws.
        if meter.joules is None and not meter.by_unit and (way := _only(meter)):
            findings.pollute("counter for watts", f"{meter.file}: its readings only {way}")
        elif not (least_w <= usual_w <= most_w or at_times):
            findings.pollute(
                "implausible watts",
                f"{meter.file}: {usual_w:.4g} W for most of the run, {of} under load draws {least_w:g} to "
                f"{most_w:g} W; if its unit is another, say --unit",
            )


def _only(meter: LoggedMeter) -> str | None:
    """The way in which readings do little else than ``rise`` or ``fall``, as a counter's, wraps being
    few; else ``None``."""
    steps = np.diff(meter.power[np.argsort(meter.t_s, kind="stable")])
    steps = steps[np.isfinite(steps)]
    if len(steps) < 2 * _LEAST_JUDGED:
        return None
    up, down = float(np.mean(steps > 0)), float(np.mean(steps < 0))
    # Watts climb by little in all, a count by as much as it holds.
    climb = abs(float(steps[steps > 0].sum() if up > down else steps[steps < 0].sum()))
    if max(up, down) < _STEADILY or climb < abs(float(np.nanmedian(meter.power))):
        return None
    return "rise" if up > down else "fall"


def _levels(meter: LoggedMeter) -> Floats:
    """Low, usual and high watts of a meter, single odd readings apart; NaN without readings."""
    watts = meter.power[np.isfinite(meter.power)]
    if len(watts) > 2:
        watts = np.median(np.stack([watts[:-2], watts[1:-1], watts[2:]]), axis=0)
    levels: Floats = np.quantile(watts, (0.02, 0.5, 0.99)) if len(watts) else np.full(3, np.nan)
    return levels


def _compare(meters: Sequence[LoggedMeter], findings: Findings) -> None:
    """Find nodes that read a multiple of the others, or stand idle next to them.

    A node that only evaluates draws less than the others for most of a run, and not in the same
    proportion always.
    """
    known = [(meter, _levels(meter)) for meter in meters if len(meter.t_s) >= _LEAST_JUDGED]
    known = [(meter, own) for meter, own in known if np.isfinite(own).all()]
    if len(known) < 2:
        return
    levels = np.stack([own for _, own in known])
    usual = np.median(levels, axis=0) if len(known) > 2 else levels.max(axis=0)
    unlike = _UNLIKE if len(known) > 2 else _UNLIKE_OF_TWO
    for meter, own in known:
        ratios = own / np.maximum(usual, 1.0)
        low, ratio, high = np.quantile(ratios, (0.0, 0.5, 1.0))
        if high <= _ALIKE * low and not 1 / unlike <= ratio <= unlike:
            findings.pollute(
                "unlike the other nodes",
                f"{meter.file} reads {ratio:.2g} times what they do all along",
            )
        elif usual[2] > _LOADED * max(usual[0], own[2]) and own[2] < _IDLE * own[0]:
            findings.pollute(
                "idle meter",
                f"{meter.file} stays at {own[1]:.4g} W; the other nodes rise to {usual[2]:.4g} W",
            )


def _mark_shared(
    meters: Sequence[LoggedMeter], infos: Sequence[MeterInfo], findings: Findings
) -> None:
    """Note which nodes have the same readings: several supplies behind one meter.

    The meter's share was dealt out evenly, so sums over nodes are right where a single node is not.
    """
    groups: dict[bytes, list[MeterInfo]] = defaultdict(list)
    for meter, info in zip(meters, infos, strict=True):
        if len(meter.t_s) > 1 and (meter.is_of_node or not meter.trace):
            groups[meter.power.tobytes()].append(info)
    shared = [group for group in groups.values() if len(group) > 1]
    for group in shared:
        for info in group:
            info.shared_with = [other.node for other in group if other.node != info.node]
    if shared:
        alike = " = ".join(info.node for info in shared[0])
        findings.remark(
            "shared meters",
            f"{len(meters)} nodes have {len(groups)} distinct sequences of readings ({alike}"
            f"{' and others' if len(shared) > 1 else ''}); only their sum is meaningful",
        )


def checked(meter: LoggedMeter, run_s: Span | None, findings: Findings) -> CheckedMeter:
    """Judge one meter, over the run from ``run_s[0]`` to ``run_s[1]`` where both are known.

    What no meter of a node can read is dropped and counted as failed; the stamps stay as logged. What is true
    of a loaded node alone (it never falls to idle, it does not stand at one value) is not asked of a part of
    one, nor of an estimate.
    """
    name, info = meter.file, _about(meter)
    t_s, watts = meter.t_s, meter.power
    if not len(t_s):
        info.reason = f"{name} holds no reading"
        findings.pollute("node without readings", f"{name} holds none")
        return CheckedMeter(t_s, watts, info)
    if meter.joules is not None:
        return _checked_counter(meter, meter.joules, info, run_s, findings)
    period_s = usual_spacing(t_s)
    _check_order(t_s, period_s or 0.0, name, findings)
    order = np.argsort(t_s, kind="stable")
    t_s, watts = _one_a_moment(t_s[order], watts[order], name, findings)
    possible = (watts >= 0) & (watts <= _ABSURD_W)
    # Where a log says that it has no figure, a read has failed.
    absurd = ~possible & ~(np.isnan(watts) & meter.by_unit)
    if absurd.any():
        wrong = watts[absurd]
        worst = wrong[np.argmax(np.abs(np.nan_to_num(wrong)))]
        example = f"such as {worst:g} W" if np.isfinite(worst) else "that are no number"
        findings.pollute("absurd watts", f"{name}: {len(wrong)} readings {example}")
    good = possible.copy()
    inside = np.zeros(len(t_s), dtype=bool)
    if run_s is not None:
        inside = (t_s >= run_s[0]) & (t_s <= run_s[1])
        loaded = inside & possible
        usual_w = float(np.median(watts[loaded])) if loaded.any() else 0.0
        if usual_w > _FAILED_ABOVE_W and meter.is_of_node:
            good &= ~(inside & (watts < _FAILED_SHARE * usual_w))
    info.readings, info.failed_reads = int(good.sum()), int((~good).sum())
    found = CheckedMeter(t_s[good], watts[good], info)
    if not info.readings:
        info.reason = f"{name} holds no reading that a node's meter can give"
        if meter.by_unit:
            findings.pollute("node without readings", info.reason)
        return found
    info.available = True
    if run_s is not None and period_s is None:
        findings.pollute("coverage", f"{name} holds a single reading")
    elif run_s is not None and period_s is not None:
        _check_coverage(info, t_s, inside, good, run_s, period_s, name, findings)
        if meter.is_of_node:
            _check_frozen(t_s[inside & good], watts[inside & good], run_s, name, findings)
            _check_load(found, run_s, name, findings)
    return found


def _about(meter: LoggedMeter) -> MeterInfo:
    """What is known of a meter before its readings are looked at."""
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
    """A counter that counts up; between two readings it knows what passed, however far apart they are."""
    t_s, first = np.unique(meter.t_s, return_index=True)
    good = np.isfinite(joules[first])
    info.readings, info.failed_reads = int(good.sum()), int((~good).sum())
    t_s, joules, watts = t_s[good], joules[first][good], meter.power[first][good]
    found = CheckedMeter(t_s, watts, info, joules)
    if len(t_s) < 2:
        info.reason = f"{meter.file} holds {len(t_s)} readings of the counter, two are needed"
        findings.pollute("node without readings", info.reason)
        return found
    info.available = True
    steps = np.diff(joules)
    fastest_w = float((steps / np.diff(t_s)).max())
    if fastest_w > _ABSURD_W:
        findings.pollute(
            "absurd watts", f"{meter.file}: its counter rises by {fastest_w:.4g} J in a second"
        )
    if run_s is None:
        return found
    read_s = min(t_s[-1], run_s[1]) - max(t_s[0], run_s[0])
    info.coverage = max(0.0, float(read_s)) / (run_s[1] - run_s[0])
    info.longest_gap_s = float(np.diff(t_s).max())
    if read_s <= 0:
        findings.pollute("clocks do not overlap", _apart(meter.file, t_s, run_s))
    elif meter.trace:
        _check_ends(t_s, run_s, usual_spacing(t_s) or 0.0, meter.file, findings)
        risen, took_j = steps[steps > 0], float(np.diff(np.interp(run_s, t_s, joules))[0])
        if len(risen) and np.mean(steps == 0) > _OFTEN_STILL and risen.min() > _COARSEST * took_j:
            findings.remark(
                "coarse counter",
                f"{meter.file}: it counts by {risen.min():.4g} J, and the run took {took_j:.4g} J",
            )
        _check_half(info.coverage, meter.file, findings)
    return found


def _apart(name: str, t_s: Floats, run_s: Span) -> str:
    return (
        f"{name}: its readings lie between {t_s[0]:.0f} and {t_s[-1]:.0f} s, the run between "
        f"{run_s[0]:.0f} and {run_s[1]:.0f} s; if a clock is wrong, say --shift"
    )


def _check_half(coverage: float, name: str, findings: Findings) -> None:
    if coverage < _LEAST_COVERAGE:
        findings.pollute(
            "coverage", f"{name} covers {100 * coverage:.0f} % of the run, half is needed"
        )


def checked_switch(meter: LoggedMeter, findings: Findings) -> CheckedMeter:
    """A switch's own readings, kept as what they are; they are not judged by a training's load."""
    order = np.argsort(meter.t_s, kind="stable")
    t_s, watts = meter.t_s[order], meter.power[order]
    good = (watts >= 0) & (watts <= _ABSURD_W)
    findings.remark(
        "switch readings",
        f"{meter.file}: {int(good.sum())} of {len(watts)} kept, not counted with the nodes",
    )
    info = _about(meter).model_copy(
        update={
            "meter": MEASURED_SWITCH,
            "available": bool(good.any()),
            "reason": None
            if good.any()
            else f"{meter.file} holds no reading that a meter can give",
            "readings": int(good.sum()),
            "failed_reads": int((~good).sum()),
        }
    )
    return CheckedMeter(t_s[good], watts[good], info)


def _check_order(t_s: Floats, period_s: float, name: str, findings: Findings) -> None:
    steps = np.diff(t_s)
    if (steps < 0).any():
        back_s = -float(steps.min())
        text = f"{name}: {int((steps < 0).sum())} stamps go back, by up to {back_s:.3f} s"
        if back_s > _JITTER_PERIODS * period_s:
            findings.pollute("non-monotonic stamps", text)
        else:
            findings.remark("stamps out of order", text)


def _check_ends(t_s: Floats, run_s: Span, period_s: float, name: str, findings: Findings) -> None:
    """Note what is missing before the first and after the last reading: no straight line leads there."""
    for missing_s, end in ((t_s[0] - run_s[0], "start"), (run_s[1] - t_s[-1], "end")):
        text = f"{name}: no reading for {missing_s:.0f} s at the {end} of the run"
        if missing_s > max(_LARGEST_CUT * (run_s[1] - run_s[0]), _CUT_PERIODS * period_s):
            findings.pollute("cut off", text)
        elif missing_s > _GAP_PERIODS * period_s:
            findings.remark("gaps", text)


def _one_a_moment(
    t_s: Floats, watts: Floats, name: str, findings: Findings
) -> tuple[Floats, Floats]:
    """Means of the readings that bear one stamp; lines that are there twice change nothing."""
    other = int(((np.diff(t_s) == 0) & (np.diff(watts) != 0)).sum())
    if not other:
        return t_s, watts
    text = f"{name}: {other} of {len(t_s)} readings bear the time of another; their mean counts"
    findings.remark("stamps twice", text)
    moments, place, counts = np.unique(t_s, return_inverse=True, return_counts=True)
    return moments, np.bincount(place, weights=watts) / counts


def _check_frozen(t_s: Floats, watts: Floats, run_s: Span, name: str, findings: Findings) -> None:
    """Find a meter that stands at one value for longer than its resolution makes likely.

    ``n`` readings of which a share ``p`` equals the one before have a longest spell of equal ones of about
    ``1 + log(n) / log(1/p)``; ``p`` is taken from what is not the longest spell.
    """
    t_s, first = np.unique(t_s, return_index=True)
    watts = watts[first]
    if len(watts) < _LEAST_FROZEN:
        return
    edges = np.concatenate([[0], np.flatnonzero(np.diff(watts)) + 1, [len(watts)]])
    lengths = np.diff(edges)
    longest = int(lengths.max())
    begin = int(edges[lengths.argmax()])
    others = len(watts) - longest
    equal = int((lengths - 1).sum()) - (longest - 1)
    share = min(equal / others, 0.99) if others > _LEAST_FROZEN else 0.2
    likely = 1 + math.log(len(watts)) / math.log(1 / max(share, 1 / len(watts)))
    seconds = float(t_s[begin + longest - 1] - t_s[begin])
    if longest < max(_LEAST_FROZEN, _TIMES_LIKELY * likely):
        return
    text = (
        f"{name}: {longest} readings of {watts[begin]:g} W in a row, from {t_s[begin]:.0f} s on for "
        f"{seconds:.0f} s; {likely:.0f} are likely"
    )
    matters = seconds > _MOST_FROZEN * (run_s[1] - run_s[0])
    (findings.pollute if matters else findings.remark)("frozen meter", text)


def _check_load(meter: CheckedMeter, run_s: Span, name: str, findings: Findings) -> None:
    """Find readings that are not of this training: a node in it draws more than an idle one."""
    t_s, watts = meter.t_s, meter.watts
    inside = watts[(t_s >= run_s[0]) & (t_s <= run_s[1])]
    sides = (watts[t_s < run_s[0] - _OUTSIDE_S], watts[t_s > run_s[1] + _OUTSIDE_S])
    idle = [float(np.quantile(w, 0.05)) for w in sides if len(w) >= _LEAST_OUTSIDE]
    if not idle or len(inside) < _LEAST_OUTSIDE:
        return
    idle_w, load_w = min(idle), float(np.quantile(inside, 0.9))
    # One side alone may be under load itself: a job that warms up, or runs on.
    if load_w < (_OVER_IDLE if len(idle) == 2 else _UNDER_ONE_SIDE) * idle_w:
        findings.pollute(
            "not under load",
            f"{name}: {load_w:.4g} W in the run, {idle_w:.4g} W before or after it",
        )


def _check_coverage(
    info: MeterInfo,
    t_s: Floats,
    inside: NDArray[np.bool_],
    good: NDArray[np.bool_],
    run_s: Span,
    period_s: float,
    name: str,
    findings: Findings,
) -> None:
    if not inside.any():
        findings.pollute("clocks do not overlap", _apart(name, t_s, run_s))
        info.coverage = 0.0
        return
    believed, _ = reading_quality(t_s, *run_s, period_s)
    info.coverage, info.longest_gap_s = reading_quality(t_s[good], *run_s, period_s)
    failed = inside & ~good
    if failed.any():
        # The gap around failed reads, not their number: what lies between them is unknown as well.
        text = (
            f"{name}: {int(failed.sum())} readings below {_FAILED_SHARE:g} of its median or "
            f"impossible, between {t_s[failed][0]:.0f} and {t_s[failed][-1]:.0f} s; "
            f"{100 * (1 - info.coverage):.0f} % of the run is without readings"
        )
        spells = int((np.diff(failed.astype(int), prepend=0) == 1).sum())
        often = spells >= _MOST_SPELLS and failed.mean() > _MOST_FAILED * inside.mean()
        if often or (1 - info.coverage > _LARGEST_OUTAGE and info.coverage < believed):
            findings.pollute("meter outage", f"{text}, in {spells} spells")
        else:
            findings.remark("failed readings", text)
    _check_ends(t_s, run_s, period_s, name, findings)
    gaps, unread = (np.diff(np.clip(each, *run_s)) for each in (t_s[good], t_s))
    gaps = gaps[gaps > _GAP_PERIODS * period_s]
    unread_s = unread[unread > _GAP_PERIODS * period_s].sum()
    if len(gaps):
        findings.remark(
            "gaps",
            f"{name}: {len(gaps)} longer than {_GAP_PERIODS} x {period_s:.2f} s in the run, the "
            f"longest {gaps.max():.1f} s, together {gaps.sum():.0f} s",
        )
    if unread_s > _MOST_IN_GAPS * (run_s[1] - run_s[0]):
        findings.pollute("long gaps", f"{name}: {unread_s:.0f} s of the run lie in them")
    _check_half(info.coverage, name, findings)
