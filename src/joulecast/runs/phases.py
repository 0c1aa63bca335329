"""Phases of an imported run: training, evaluating, both at once, or standing still.

A log from outside has no stages of ranks. It says when epochs, blocks and evaluations began and ended, and
how much work they did. Two phases can overlap, because an evaluation may run on its own nodes while the
others train. The split uses these times alone, never power. A run is split into

- **training**: the steady part of the training, in which every unit of work takes the same time;
- **evaluating**: evaluations while no training runs;
- **both**: evaluations during training;
- **stalled**: the rest, such as start-up, building data loaders, and the additional time of a segment that
  was slower than the others.

Energy is then integrated over the same intervals, if the run has a meter.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.runs.integration import EnergyCurve
from joulecast.runs.meter_choice import Metering
from joulecast.runs.record import RunRecord
from joulecast.runs.spans import Span, intersection, length, subtract, union

Floats = NDArray[np.float64]

_SLOWER_THAN_STEADY = 0.02
"""If a segment is slower than steady work by less than this share, this is noise, and not a stall."""

SHORTEST_BREAK_S = 1.0
"""The shortest pause of the training (s) that counts as a break. After a shorter pause, the device is still
warm, and its clocks are still high."""

_RAMP_S = 6.0
"""Power climbs for 4 to 6 s after a start; the steady power is read after that."""

_LEAST_COVERED = 0.5
"""Least share of a run between its first and its last reading. With less, the run has no energy."""

_WHOLE = 1 - 1e-6
"""A part of a run with at least this share of its time counts as the whole run, because the log counts the
work right before the end."""

_LOADED_S = 2.0
_IDLE_WINDOW_S = 60.0
"""Idle power is read in this time (s) before the run. Two parts of it do not count: the ``_LOADED_S`` seconds
after the zero of the clock (the job's init), in which the job is loaded on the node; and the ``_LOADED_S``
seconds before the run."""


@dataclass(frozen=True)
class Phases:
    """A run split by time.

    Intervals and seconds are on the run clock. ``training`` and ``evaluating`` may overlap. ``starts`` says
    how often the device started again after a break. ``steady`` is the part of the training that no stall
    interrupts.
    """

    training: list[Span]
    steady: list[Span]
    evaluating: list[Span]
    stalled_inside_s: float
    stalled_outside_s: float
    starts: int


class _Phase(NamedTuple):
    """An interval, such as an epoch, or training between two interruptions. ``work`` is in the record's unit;
    NaN if the log does not say it."""

    number: float
    start_s: float
    stop_s: float
    work: float


def _by_name(phases: pd.DataFrame) -> dict[str, list[_Phase]]:
    """The phases of a record by their name, in the order of time."""
    columns = [phases[c].tolist() for c in ("phase", "index", "start_s", "stop_s", "samples")]
    named: dict[str, list[_Phase]] = {}
    for name, *values in sorted(zip(*columns, strict=True), key=lambda row: row[2]):
        named.setdefault(name, []).append(_Phase(*values))
    return named


def _segments(phases: dict[str, list[_Phase]], start_s: float, stop_s: float) -> list[_Phase]:
    """The training segments: the epochs if the log has several, else the blocks, else the time between
    evaluations.

    Blocks whose work is not known are taken only if there is nothing else. Epochs whose work is not known
    are taken only if the work of the blocks is not known either.
    """
    epochs, blocks = phases.get("epoch", []), phases.get("block", [])
    known = [any(c.work > 0 for c in parts) for parts in (epochs, blocks)]
    if len(epochs) > 1 and (known[0] or not (known[1] and len(blocks) > 1)):
        return epochs
    evaluations = [(e.start_s, e.stop_s) for e in phases.get("evaluation", [])]
    divide = not evaluations or any(b.work > 0 for b in blocks)
    # Evaluations that lie inside blocks do not divide the training.
    spans = [(b.start_s, b.stop_s) for b in blocks]
    divide |= any(_within(e, span) for e in evaluations for span in spans)
    if len(blocks) > 1 and divide:
        return blocks
    begin = blocks[0].start_s if blocks else start_s
    segments, done = [], 0.0
    for evaluation in phases.get("evaluation", []):
        segments.append(_Phase(np.nan, begin, evaluation.start_s, evaluation.number - done))
        begin, done = evaluation.stop_s, evaluation.number
    if stop_s - begin > SHORTEST_BREAK_S or not segments:
        segments.append(_Phase(np.nan, begin, stop_s, np.nan))
    return segments


def _within(part: Span, whole: Span) -> bool:
    return whole[0] <= part[0] and part[1] <= whole[1]


def _interrupt(phases: dict[str, list[_Phase]], segments: list[_Phase], inside: list[Span]) -> bool:
    """Whether evaluations inside of segments stop the training.

    They do not if an epoch begins or ends during an evaluation. Otherwise the paces of the segments show it:
    each pace is computed with the time of the evaluations, and without it. If evaluations interrupt, the
    paces without this time agree better; if not, the paces with it. If both agree about equally well, an
    evaluation inside an epoch interrupts, and an evaluation inside one of several blocks does not: by the
    rules of the log, a block is training only.
    """
    epochs, blocks = phases.get("epoch", []), phases.get("block", [])
    edges = [edge for e in epochs for edge in (e.start_s, e.stop_s)]
    if len(epochs) > 1 and any(a < edge < b for a, b in inside for edge in edges):
        return False
    by_rule = len(epochs) > 1 or len(blocks) < 2
    worked = [s for s in segments if s.work > 0]
    work = np.array([s.work for s in worked])
    lasting = np.array([s.stop_s - s.start_s for s in worked])
    evaluated = np.array([length(intersection([(s.start_s, s.stop_s)], inside)) for s in worked])
    if len(worked) < 3:
        return by_rule
    with_them, without = _disagreement(lasting / work), _disagreement((lasting - evaluated) / work)
    if with_them < without / 2:
        return False
    return True if without < with_them / 2 else by_rule


def _disagreement(paces: Floats) -> float:
    """Median distance of paces from their median, divided by this median."""
    middle = float(np.median(paces))
    return float(np.median(np.abs(paces - middle))) / middle if middle > 0 else math.inf


def split_by_time(record: RunRecord) -> Phases:
    """Split an imported run, which has a start and a stop, into training, evaluating and stalled."""
    run = (record.info.outcome.start_s, record.info.outcome.stop_s)
    phases = _by_name(record.phases)
    all_segments = _segments(phases, *run)
    segments = [s for s in all_segments if s.stop_s > s.start_s]
    evaluations = [
        (max(e.start_s, run[0]), min(e.stop_s, run[1])) for e in phases.get("evaluation", [])
    ]
    whole = [(s.start_s, s.stop_s) for s in segments]
    inside = [e for e in evaluations if any(_within(e, segment) for segment in whole)]
    if not inside or not _interrupt(phases, segments, inside):
        inside = []
    training = intersection(subtract(union(whole), inside), [run])
    evaluating = union([e for e in evaluations if e[1] > e[0]])
    worked = [s for s in segments if s.work > 0]
    lasting = [length(subtract([(s.start_s, s.stop_s)], inside)) for s in worked]
    stalled_inside, slow = 0.0, []
    if len(worked) > 1:
        paces = np.array([t / s.work for t, s in zip(lasting, worked, strict=True)])
        steady = float(np.quantile(paces, 0.5, method="lower"))
        for seconds, segment in zip(lasting, worked, strict=True):
            excess = seconds - segment.work * steady
            if excess > _SLOWER_THAN_STEADY * seconds:
                stalled_inside += excess
                slow.append((segment, excess))
    breaks = [
        (a, b) for a, b in subtract([run], training) if b - a > SHORTEST_BREAK_S and b < run[1]
    ]
    starts_at_once = not breaks or breaks[0][0] > run[0]
    return Phases(
        training,
        subtract(training, [(segment.start_s, segment.stop_s) for segment, _ in slow]),
        evaluating,
        min(stalled_inside, length(training)),
        max(0.0, length([run]) - length(union([*training, *evaluating]))),
        len(breaks) + starts_at_once + sum(excess > SHORTEST_BREAK_S for _, excess in slow),
    )


def _meters(record: RunRecord, metering: Metering) -> list[EnergyCurve]:
    """The meters that count: those that were read over most of the run."""
    run = record.info.outcome.start_s, record.info.outcome.stop_s
    used = {(m.node, m.meter) for m in metering.meters}
    curves: dict[str, list[EnergyCurve | None]] = {}
    for (node, meter), readings in record.power.groupby(["node", "meter"], sort=False):
        if (node, meter) in used:
            curves.setdefault(node, []).append(_curve(readings, *run))
    found = []
    for of_node in curves.values():
        known = [curve for curve in of_node if curve is not None]
        # If a part of a node were missing, the node would seem to draw less.
        if len(known) == len(of_node) and (meter := _of_node(known)) is not None:
            found.append(meter)
    return found


def _curve(readings: pd.DataFrame, start_s: float, stop_s: float) -> EnergyCurve | None:
    """Curve of one meter; ``None`` if it was not read over most of the run."""
    try:
        curve = EnergyCurve.of(readings)
    except ValueError:
        return None
    read_s = min(curve.t_s[-1], stop_s) - max(curve.t_s[0], start_s)
    if curve.watts is not None:
        inside = curve.t_s[(curve.t_s >= start_s) & (curve.t_s <= stop_s)]
        # Two readings are too few for a run. Readings outside of the run do not count.
        read_s = np.ptp(inside) if len(inside) > 2 else 0.0
    return curve if read_s / (stop_s - start_s) >= _LEAST_COVERED else None


def _of_node(curves: list[EnergyCurve]) -> EnergyCurve | None:
    """The meters of a node as one, with their energies added up; ``None`` if they were not read at the
    same time."""
    if len(curves) == 1:
        return curves[0]
    first_s = max(curve.t_s[0] for curve in curves)
    last_s = min(curve.t_s[-1] for curve in curves)
    t_s = np.unique(np.concatenate([curve.t_s for curve in curves]))
    t_s = t_s[(t_s >= first_s) & (t_s <= last_s)]
    if len(t_s) < 2:
        return None
    watts = [np.interp(t_s, c.t_s, c.watts) for c in curves if c.watts is not None]
    joules = np.sum([curve.at(t_s) for curve in curves], axis=0)
    # Sums of straight lines are straight lines. A counter among the meters has none.
    return EnergyCurve(t_s, joules, np.sum(watts, axis=0) if len(watts) == len(curves) else None)


def _joules(meters: list[EnergyCurve], parts: dict[str, list[Span]]) -> dict[str, float]:
    """Joules of all meters in each part of the run."""
    joules = {}
    for name, part in parts.items():
        starts_s, stops_s = np.array(part).reshape(-1, 2).T
        of_all = sum(meter.between(starts_s, stops_s) for meter in meters)
        joules[name] = float(np.sum(of_all))
    return joules


def _known_of_total(
    joules: dict[str, float], parts: dict[str, list[Span]], run: Span
) -> dict[str, float]:
    """The joules of the parts of a run that has only one figure for its whole energy. They are known for
    parts that are empty, or as long as the run; NaN for all others."""
    whole_s = _WHOLE * length([run])
    known = {name: length(spans) == 0 or length(spans) >= whole_s for name, spans in parts.items()}
    return {name: each if known[name] else math.nan for name, each in joules.items()}


def _idle_w(meters: list[EnergyCurve], start_s: float, below_w: float) -> float:
    """Watts of a node with the job loaded, before the run starts; NaN if nothing was read then.

    It is the mean of the lower quartiles of the meters, because some jobs warm up in the minute before the
    run. If a job warms up for longer, this mean is not below ``below_w``, and it is NaN, too.
    """
    since, until = max(_LOADED_S, start_s - _IDLE_WINDOW_S), start_s - _LOADED_S
    before = [m.power[(m.t_s >= since) & (m.t_s <= until)] for m in meters]
    quartiles = [np.quantile(watts, 0.25) for watts in before if len(watts) >= 3]
    idle_w = float(np.mean(quartiles)) if quartiles else float("nan")
    return float("nan") if idle_w > below_w else idle_w


def _lowest_w(meters: list[EnergyCurve], start_s: float, stop_s: float) -> float:
    """Watts of a node at its lowest reading during the run and right after it. Idle power cannot be
    above this. It is for runs whose meters were not read before they started."""
    # A slow meter is read twice after the run, too.
    after_s = [max(_IDLE_WINDOW_S / 2, 2 * float(np.median(np.diff(m.t_s)))) for m in meters]
    near = [
        m.power[(m.t_s >= start_s) & (m.t_s <= stop_s + after)]
        for m, after in zip(meters, after_s, strict=True)
    ]
    lowest = [watts.min() for watts in near if len(watts)]
    return float(np.mean(lowest)) if lowest else float("nan")


def _past_ramps(steady: list[Span]) -> list[Span]:
    """The spans of steady training, without the first and the last ``_RAMP_S`` seconds of each. Short spans
    are left out."""
    lasting = union([(a - SHORTEST_BREAK_S / 2, b + SHORTEST_BREAK_S / 2) for a, b in steady])
    return [(a + _RAMP_S, b - _RAMP_S) for a, b in lasting if b - a > 3 * _RAMP_S]


def _evaluators(meters: list[EnergyCurve], alone: list[Span], idle_w: float) -> float:
    """Share of the nodes that do not train while the others do, judged by what each node draws in
    training alone; NaN if this is not known."""
    edges = np.array(alone).reshape(-1, 2)
    if not meters or length(alone) < _RAMP_S:
        return float("nan")
    drawn = [float(m.between(edges[:, 0], edges[:, 1]).sum()) for m in meters]
    drawn_w = np.array(drawn) / length(alone)
    middle = (idle_w + float(np.median(drawn_w))) / 2
    return float((drawn_w < middle).mean()) if np.isfinite(middle) else float("nan")


def _has_phases(record: RunRecord) -> bool:
    """Whether the log divides the run into phases."""
    counts = record.phases["phase"].value_counts()
    return (
        any(counts.get(name, 0) for name in ("epoch", "block")) or counts.get("evaluation", 0) > 1
    )


_TIMES = ("training_s", "evaluating_s", "both_s", "stalled_s", "stalled_training_s", "starts")
_POWERS = ("energy_j", "training_j", "evaluating_j", "idle_w", "lowest_w", "steady_w", "evaluators")


def observe_phases(record: RunRecord) -> dict[str, Any]:
    """Seconds and joules of the phases of one imported run, all nodes together.

    Returns:
        ``training_s``; ``both_s`` (the part of it in which an evaluation runs, too); ``evaluating_s``
        (without training); ``stalled_s``; ``starts``; and ``has_phases`` (whether the log divides the run).
        The other values are NaN without a meter. They are ``energy_j``; ``training_j`` (with stalls and
        evaluations during the training); ``evaluating_j``; ``idle_w``, ``lowest_w`` and ``steady_w`` of a
        node; and ``evaluators`` (the number of nodes that only evaluate). Nodes without readings are assumed
        to draw the mean of the others. A total without a trace gives only ``energy_j``.
    """
    info = record.info
    row: dict[str, Any] = dict.fromkeys((*_TIMES, *_POWERS), np.nan)
    run = (info.outcome.start_s, info.outcome.stop_s)
    if run[1] <= run[0]:
        return row
    split = split_by_time(record)
    both = intersection(split.training, split.evaluating)
    evaluating = subtract(split.evaluating, split.training)
    training_s = length(split.training) - split.stalled_inside_s
    row |= {
        "training_s": training_s,
        "evaluating_s": length(evaluating),
        "both_s": min(length(both), training_s),
        "stalled_s": split.stalled_inside_s + split.stalled_outside_s,
        "has_phases": _has_phases(record),
        "stalled_training_s": split.stalled_inside_s,
        "starts": split.starts,
    }
    metering = info.metering
    meters = _meters(record, metering)
    if not meters:
        return row
    every_node = info.spec.nodes / len(meters)
    past = _past_ramps(split.steady)
    parts = {"run": [run], "training": split.training, "evaluating": evaluating, "past ramps": past}
    joules = _joules(meters, parts)
    if not metering.has_trace:
        joules = _known_of_total(joules, parts, run)
    row |= {
        "energy_j": joules["run"] * every_node,
        "training_j": joules["training"] * every_node,
        "evaluating_j": joules["evaluating"] * every_node,
    }
    if not metering.has_trace:
        return row
    lowest_w = _lowest_w(meters, *run)
    load_w = joules["run"] / length([run]) / len(meters)
    row |= {
        "idle_w": _idle_w(meters, run[0], (lowest_w + load_w) / 2),
        "lowest_w": lowest_w,
        "steady_w": joules["past ramps"] / length(past) / len(meters) if past else np.nan,
    }
    if both:
        floor_w = row["idle_w"] if np.isfinite(row["idle_w"]) else row["lowest_w"]
        share = _evaluators(meters, subtract(split.training, split.evaluating), floor_w)
        row["evaluators"] = share * info.spec.nodes
    return row
