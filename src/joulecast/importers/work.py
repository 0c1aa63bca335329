"""What a run did when, and how much of it: phases and the work in each.

MLPerf logs say when epochs, blocks and evaluations begin and end, each with an index. What the index
counts depends on the benchmark: epochs (ResNet, SSD), samples so far under the name of samples (LLMs)
or of epochs (BERT, U-Net), or the share of the one epoch there is (DLRM). Work is counted in epochs
where a run has several, in samples elsewhere.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

import pandas as pd

from joulecast.importers.mllog import Event, number
from joulecast.records.frames import PHASE_COLUMNS

WorkUnit = Literal["samples", "epochs"]

_STARTS = {"epoch_start": "epoch", "block_start": "block", "eval_start": "evaluation"}
_STOPS = {"epoch_stop": "epoch", "block_stop": "block", "eval_stop": "evaluation"}
_INDICES = ("samples_count", "epoch_num", "first_epoch_num", "step", "step_num")

_CUT_SHORT = 0.5
"""A last epoch shorter than this share of the median epoch was not finished."""


@dataclass(frozen=True)
class Interval:
    """One epoch, block or evaluation, in seconds of the run clock.

    ``index`` is what the log counts it with, ``counts_samples`` whether it says that this is a count
    of samples; ``closed`` is false for one whose end is not in the log.
    """

    phase: str
    index: float | None
    start_s: float
    stop_s: float
    counts_samples: bool = False
    closed: bool = True


@dataclass(frozen=True)
class Work:
    """The phases of a run (columns of ``phases.parquet``) and its work: unit and total (0 if the log
    does not tell)."""

    phases: pd.DataFrame
    unit: WorkUnit
    total: int


def _index(event: Event) -> tuple[float | None, bool]:
    for name in _INDICES:
        value = number(event.metadata.get(name))
        if value is not None:
            return value, name == "samples_count"
    return None, False


def intervals_of(events: Iterable[Event], zero_ms: float, run_stop_s: float) -> list[Interval]:
    """Pair the starts and stops of a log; what is open at the end stops with the run.

    A stop belongs to the open interval of the same index, else to the last one opened: BERT's only
    epoch starts as number 0 and stops as number 2.5 million.
    """
    running: dict[str, list[Interval]] = {"epoch": [], "block": [], "evaluation": []}
    done = []
    for event in events:
        at_s = (event.time_ms - zero_ms) / 1000
        index, counts_samples = _index(event)
        if phase := _STARTS.get(event.key):
            # Several ranks may log the same start.
            if not any(other.index == index for other in running[phase]):
                running[phase].append(
                    Interval(phase, index, at_s, math.nan, counts_samples, closed=False)
                )
        elif (phase := _STOPS.get(event.key)) and running[phase]:
            same = [i for i, other in enumerate(running[phase]) if other.index == index]
            begun = running[phase].pop(same[0] if same else -1)
            done.append(replace(begun, stop_s=at_s, closed=True))
    still_open = [interval for opened in running.values() for interval in opened]
    done += [replace(interval, stop_s=run_stop_s) for interval in still_open]
    return sorted(done, key=lambda interval: (interval.start_s, interval.stop_s))


def _samples_so_far(
    evaluations: list[Interval], batch_size: int | None, train_samples: int | None
) -> list[float | None] | None:
    """Samples trained at each evaluation; ``None`` if the evaluations count epochs."""
    known = [e.index for e in evaluations if e.index is not None]
    if not known:
        return [None] * len(evaluations)
    if any(e.counts_samples for e in evaluations):
        return [e.index if e.counts_samples else None for e in evaluations]
    # A share of the data set: DLRM evaluates every twentieth of its only epoch.
    if train_samples and any(index != int(index) for index in known):
        return [None if e.index is None else round(e.index * train_samples) for e in evaluations]
    # No evaluation comes before the first batch, so what is below a batch cannot count samples.
    if max(known) >= (batch_size or 1):
        return [e.index for e in evaluations]
    return None


def _following(count: float, counts: list[float]) -> float:
    """Work from ``count`` to the next of ``counts``; NaN after the last."""
    return min((other for other in counts if other > count), default=math.nan) - count


def work_of(
    intervals: list[Interval],
    init_s: tuple[float, float] | None,
    run_s: tuple[float, float] | None,
    batch_size: int | None,
    train_samples: int | None,
) -> Work:
    """Phases and work of one run.

    Args:
        intervals: sorted by start.
        init_s: start and stop of the initialisation, where the log has both.
        run_s: start and stop of the run, where the log has both.
        batch_size: the global batch size, if known.
        train_samples: samples of the data set, if known; used only with evaluations that count its
            shares (for SSD this field holds steps).
    """
    # Jobs run on after the target is reached, and Stable Diffusion evaluates only then.
    inside = [i for i in intervals if run_s is None or i.start_s < run_s[1]]
    epochs = [i for i in inside if i.phase == "epoch"]
    blocks = [i for i in inside if i.phase == "block"]
    evaluations = [i for i in inside if i.phase == "evaluation"]
    all_evaluations = [i for i in intervals if i.phase == "evaluation"]
    counts = _samples_so_far(all_evaluations, batch_size, train_samples)
    unit: WorkUnit = "epochs" if len(epochs) > 1 or counts is None else "samples"
    rows: list[tuple[str, float, float, float, float]] = []
    total = 0.0
    if unit == "epochs":
        usual_s = median(e.stop_s - e.start_s for e in epochs) if epochs else 0.0
        finished = [e for e in epochs if e.closed]
        if finished and finished[-1] is epochs[-1]:
            last_s = finished[-1].stop_s - finished[-1].start_s
            finished = finished[: -1 if last_s < _CUT_SHORT * usual_s else None]
        total = len(finished) if epochs else max(e.index or 0 for e in all_evaluations)
        rows += [_row(e, float(e in finished)) for e in epochs]
        rows += [_row(b) for b in blocks] + [_row(e) for e in evaluations]
    else:
        assert counts is not None
        known = [count for count in counts if count is not None]
        stated = {i.index for i in blocks if i.counts_samples and i.index is not None}
        milestones = sorted(set(known) | stated)
        total = known[-1] if known else max(stated, default=0.0)
        rows += [_row(e, total if len(epochs) == 1 and total else math.nan) for e in epochs]
        for block in blocks:
            # The tables do not say what a block's index counts; one that evaluations share is it.
            begun = block.index if block.index in {0.0, *milestones} else None
            rows.append(_row(block, math.nan if begun is None else _following(begun, milestones)))
        so_far = dict(zip(map(id, all_evaluations), counts, strict=True))
        for evaluation in evaluations:
            rows.append(_row(replace(evaluation, index=so_far[id(evaluation)])))
    if run_s is not None:
        rows.insert(0, ("run", 0.0, *run_s, float(total) if total else math.nan))
    if init_s is not None:
        rows.insert(0, ("init", 0.0, *init_s, math.nan))
    phases = pd.DataFrame(rows, columns=list(PHASE_COLUMNS)).astype(
        {"phase": "object", **dict.fromkeys(PHASE_COLUMNS[1:], "float64")}
    )
    return Work(phases, unit, int(total))


def _row(interval: Interval, samples: float = math.nan) -> tuple[str, float, float, float, float]:
    index = math.nan if interval.index is None else float(interval.index)
    return (interval.phase, index, interval.start_s, interval.stop_s, samples)
