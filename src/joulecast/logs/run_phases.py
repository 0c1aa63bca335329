"""The phases of a run, and the work that it did in each of them.

MLPerf logs say when epochs, blocks and evaluations begin and end, each with an index. What the index counts
depends on the benchmark. It counts epochs (ResNet, SSD, Mask R-CNN, RNN-T), fractions of epochs (DLRM, GNN),
steps so far (the first Stable Diffusion), or samples so far (LLMs, later Stable Diffusion). BERT, U-Net and
GPT-3 also count samples, but call them epochs. If a log counts nothing finer than whole epochs, work is
counted in epochs, otherwise in samples.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from statistics import median
from typing import Literal

import pandas as pd

from joulecast.logs.mllog import LARGEST, Event, number
from joulecast.runs.frames import PHASE_COLUMNS

WorkUnit = Literal["samples", "epochs"]
Counted = Literal["samples", "steps", "epochs"]

_STARTS = {"epoch_start": "epoch", "block_start": "block", "eval_start": "evaluation"}
_STOPS = {"epoch_stop": "epoch", "block_stop": "block", "eval_stop": "evaluation"}
_INDICES: dict[str, Counted | None] = {
    "samples_count": "samples",
    "epoch_num": None,
    "first_epoch_num": None,
    "step": "steps",
    "step_num": "steps",
}
"""The names of an index, and what it counts under this name. ``None``: not known, because logs also call
samples epochs."""

_CUT_SHORT = 0.5
"""A last epoch shorter than this share of the median epoch was not finished."""


@dataclass(frozen=True)
class Interval:
    """One epoch, block or evaluation, in seconds of the run clock.

    ``index`` is its number in the log, and ``counts`` the unit of this number, if the log has it.
    ``closed`` is false if the log does not show the end of the interval. ``reached`` is the count at its end.
    ``lasts`` is by how much the index will grow, if the log announces it.
    """

    phase: str
    index: float | None
    start_s: float
    stop_s: float
    counts: Counted | None = None
    closed: bool = True
    reached: float | None = None
    lasts: float | None = None


def _index(event: Event) -> tuple[float | None, Counted | None]:
    """The index of an event, and what it counts."""
    for name, counts in _INDICES.items():
        value = number(event.metadata.get(name))
        if value is not None and value >= 0:
            return value, counts
    return None, None


class _Pairs:
    """The starts and stops of one phase, paired as they come in the order of time."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.running: list[Interval] = []
        self.done: list[Interval] = []
        self.starts: Counter[float | None] = Counter()
        self.stops: Counter[float | None] = Counter()
        self.missing = 0

    def start(self, event: Event, at_s: float) -> None:
        """Open an interval, unless another rank has opened it already."""
        index, counts = _index(event)
        if any(other.index == index for other in self.running):
            return
        self.starts[index] += 1
        lasts = number(event.metadata.get("epoch_count"))
        interval = Interval(self.phase, index, at_s, math.nan, counts, closed=False, lasts=lasts)
        self.running.append(interval)

    def stop(self, event: Event, at_s: float) -> None:
        """Close the open interval with the same index, or else the one that was opened last. (BERT's
        only epoch starts as number 0 and stops as number 2.5 million.)"""
        index, _ = _index(event)
        if index is not None and self.stops[index] >= max(1, self.starts[index]):
            return  # another rank has closed it already
        self.stops[index] += 1
        if self.running:
            same = [i for i, other in enumerate(self.running) if other.index == index]
            begun = self.running.pop(same[0] if same else -1)
            self.done.append(replace(begun, stop_s=at_s, closed=True, reached=index))
        elif index is not None:
            self.missing += 1

    def count(self, event: Event) -> None:
        """Note the index that an event states. It belongs to the open interval or, if none is open, to the
        last closed one. An interval that has an index keeps its index."""
        index, counts = _index(event)
        place = self.running or self.done
        if index is not None and place and place[-1].index is None:
            place[-1] = replace(place[-1], index=index, counts=counts)

    def ended(self, run_stop_s: float) -> list[Interval]:
        """All intervals; one that lacks its stop lasts to the next start of its phase, else to the end of the
        run."""
        self.missing += len(self.running)
        starts = sorted(i.start_s for i in (*self.running, *self.done))
        for begun in self.running:
            after = bisect_right(starts, begun.start_s)
            closed = after < len(starts)
            stop_s = starts[after] if closed else max(run_stop_s, begun.start_s)
            self.done.append(replace(begun, stop_s=stop_s, closed=closed))
        return self.done


def intervals_of(
    events: Iterable[Event], zero_ms: float, run_stop_s: float
) -> tuple[list[Interval], int]:
    """Pair the starts and stops in a log. Its lines may be out of order, and several ranks may have written
    them.

    Returns:
        The intervals. An interval without a stop ends with the run. Also the number of events whose other end
        is missing.
    """
    pairs = {phase: _Pairs(phase) for phase in _STARTS.values()}
    for event in sorted(events, key=lambda event: event.time_ms):
        at_s = (event.time_ms - zero_ms) / 1000
        if phase := _STARTS.get(event.key):
            pairs[phase].start(event, at_s)
        elif phase := _STOPS.get(event.key):
            pairs[phase].stop(event, at_s)
        elif event.key == "eval_accuracy":
            pairs["evaluation"].count(event)
    found = [interval for pair in pairs.values() for interval in pair.ended(run_stop_s)]
    found.sort(key=lambda interval: (interval.start_s, interval.stop_s))
    return found, sum(pair.missing for pair in pairs.values())


def _samples_so_far(
    evaluations: list[Interval], batch_size: int | None, train_samples: int | None
) -> list[float | None] | None:
    """Samples trained at each evaluation; ``None`` if the evaluations count epochs."""
    known = [e.index for e in evaluations if e.index is not None]
    if not known:
        return [None] * len(evaluations)
    counted = {e.counts for e in evaluations}
    if "epochs" in counted:
        return None
    if "samples" in counted:
        return [e.index if e.counts == "samples" else None for e in evaluations]
    if batch_size and "steps" in counted:
        return [_samples_of_steps(e, batch_size) for e in evaluations]
    # Shares of the data set: DLRM and GNN evaluate every twentieth of an epoch.
    if train_samples and _fractions(known):
        return [_times(e.index, train_samples) for e in evaluations]
    # No evaluation comes before the first batch, so what is below a batch cannot count samples.
    if max(known) < (batch_size or 1):
        return None
    # Nor do two evaluations come within a batch: U-Net may count epochs of a small data set.
    apart = [after - before for before, after in pairwise(sorted(set(known)))]
    if apart and min(apart) < (batch_size or 1):
        return [_times(e.index, train_samples) for e in evaluations] if train_samples else None
    return [e.index for e in evaluations]


def _fractions(counts: list[float]) -> bool:
    return any(count != int(count) for count in counts)


def _samples_of_steps(interval: Interval, batch_size: int | None) -> float | None:
    return _times(interval.index if interval.counts == "steps" else None, batch_size)


def _times(count: float | None, each: int | None) -> float | None:
    """Samples in ``count`` steps or data sets with ``each`` samples; ``None`` if it is not known, or more
    than any training has."""
    samples = None if count is None or not each else round(count * each)
    return None if samples is None or samples > LARGEST else float(samples)


def _begun(blocks: list[Interval], known: set[float], batch_size: int | None) -> list[float | None]:
    """Samples trained when each block began, ``None`` where that is not known.

    A log may not state what an index counts (tables never do). If evaluations have the same index, it counts
    the same as theirs.
    """
    if _are_lengths(blocks):
        lengths = [block.index or 0.0 for block in blocks]
        return [0.0, *accumulate(lengths[:-1])]
    shared = any(block.index in known for block in blocks)
    begun: list[float | None] = []
    for block in blocks:
        if block.counts == "steps":
            begun.append(_samples_of_steps(block, batch_size))
        else:
            counts = block.counts == "samples" or shared or block.index == 0
            begun.append(block.index if counts else None)
    return begun


def _are_lengths(blocks: list[Interval]) -> bool:
    """Whether the index of each block is its own number of samples, as in NeMo since v5.1. Then the first
    block begins and stops with the same index, above 0. If the index counts the samples so far, the first
    block begins with 0."""
    first = blocks[0] if blocks else None
    return (
        first is not None
        and first.counts == "samples"
        and bool(first.index)
        and first.reached == first.index
    )


def _block_work(
    blocks: list[Interval],
    begun: list[float | None],
    evaluated: list[tuple[float, float]],
    batch_size: int | None,
) -> list[float]:
    """Samples trained in each block, NaN where that is not known. ``begun`` is from :func:`_begun`;
    ``evaluated`` has start (s) and samples trained of each evaluation."""
    # The logs of U-Net and GPT-3 have the length of a block in samples. Other logs have it in epochs, or have
    # a number that is no length.
    lasting = {block.lasts for block in blocks}
    says = len(lasting) == 1 and (max(lasting, key=bool) or 0) >= (batch_size or math.inf)
    says = says and any(begun)
    work = []
    for place, (block, count) in enumerate(zip(blocks, begun, strict=True)):
        if count is None or not block.closed:
            work.append(math.nan)
        elif _are_lengths(blocks):
            work.append(block.index or math.nan)
        elif says and block.lasts is not None:
            work.append(block.lasts)
        else:
            work.append(_worked(place, blocks, begun, evaluated, batch_size))
    return work


def _worked(
    place: int,
    blocks: list[Interval],
    begun: list[float | None],
    evaluated: list[tuple[float, float]],
    batch_size: int | None,
) -> float:
    """Samples from the begin of a block to its end. The stop of the block may state the count at its end. If
    not, the count of the next block is taken, or that of an evaluation before it, if this is smaller."""
    block, count = blocks[place], begun[place]
    assert count is not None
    each = batch_size or 0 if block.counts == "steps" else 1
    if block.reached is not None and block.reached * each > count:
        return block.reached * each - count
    next_s = blocks[place + 1].start_s if place + 1 < len(blocks) else math.inf
    since, stopped, until = (
        bisect_left(evaluated, at_s, key=lambda evaluation: evaluation[0])
        for at_s in (block.start_s, block.stop_s, next_s)
    )
    inside = [c for _, c in evaluated[since:stopped] if c > count]
    after = [c for _, c in evaluated[stopped:until] if c > count]
    after += list(islice((b for b in islice(begun, place + 1, None) if b and b > count), 1))
    if not after and not inside:
        return math.nan
    return (min(after) if after else max(inside)) - count


def _epoch_work(
    epochs: list[Interval], total: float, shares: bool, train_samples: int | None
) -> list[float]:
    """Samples trained in each epoch, NaN where that is not known."""
    if len(epochs) == 1:
        return [total or math.nan]
    if epochs and shares and train_samples:
        last = total - train_samples * (len(epochs) - 1)
        return [*([float(train_samples)] * (len(epochs) - 1)), last if last > 0 else math.nan]
    return [
        e.reached - e.index
        if e.counts == "samples"
        and e.index is not None
        and e.reached is not None
        and e.reached > e.index
        else math.nan
        for e in epochs
    ]


def logged_work(
    intervals: list[Interval],
    init_s: tuple[float, float] | None,
    run_s: tuple[float, float] | None,
    batch_size: int | None,
    train_samples: int | None,
) -> tuple[pd.DataFrame, WorkUnit, int]:
    """The phases of a run (with the columns of ``phases.parquet``), the unit of its work, and its work (0 if
    the log does not say it).

    Args:
        intervals: sorted by start.
        init_s: start and stop of the initialisation, if the log has both.
        run_s: start and stop of the run, if the log has both.
        train_samples: number of samples in the data set, if known. It is used only if evaluations count
            shares of the data set. (For SSD, this field has steps.)
    """
    # Jobs run on after the target is reached, and Stable Diffusion evaluates only then.
    inside = [i for i in intervals if run_s is None or i.start_s < run_s[1]]
    epochs = [i for i in inside if i.phase == "epoch"]
    blocks = [i for i in inside if i.phase == "block"]
    evaluations = [i for i in inside if i.phase == "evaluation"]
    all_evaluations = [i for i in intervals if i.phase == "evaluation"]
    counts = _samples_so_far(all_evaluations, batch_size, train_samples)
    counted = {i.counts for i in all_evaluations + blocks}
    counts_samples = "samples" in counted or bool("steps" in counted and batch_size)
    shares = bool(train_samples) and _fractions([e.index or 0.0 for e in all_evaluations])
    unit: WorkUnit = "samples"
    if counts is None or (len(epochs) > 1 and not counts_samples and not shares):
        unit = "epochs"
        total, rows = _in_epochs(epochs, all_evaluations)
        rows += [_row(b) for b in blocks] + [_row(e) for e in evaluations]
    else:
        so_far = dict(zip(map(id, all_evaluations), counts, strict=True))
        evaluated = [(e.start_s, c) for e in all_evaluations if (c := so_far[id(e)]) is not None]
        begun = _begun(blocks, {count for _, count in evaluated}, batch_size)
        of_blocks = _block_work(blocks, begun, evaluated, batch_size)
        reached = [
            b + (0.0 if math.isnan(w) else w)
            for b, w in zip(begun, of_blocks, strict=True)
            if b is not None
        ]
        if not evaluated and blocks and blocks[-1].closed and math.isnan(of_blocks[-1]):
            reached = []  # The log does not say what the last block did.
        known = [c for e in evaluations if (c := so_far[id(e)]) is not None]
        known = known or [c for _, c in evaluated if c <= max(reached, default=math.inf)]
        total = max(known or reached, default=0.0)
        of_epochs = _epoch_work(epochs, total, shares and not counts_samples, train_samples)
        rows = [_row(e, w) for e, w in zip(epochs, of_epochs, strict=True)]
        rows += [_row(b, w) for b, w in zip(blocks, of_blocks, strict=True)]
        rows += [_row(replace(e, index=so_far[id(e)])) for e in evaluations]
    if run_s is not None:
        rows.insert(0, ("run", 0.0, *run_s, float(total) if total else math.nan))
    if init_s is not None:
        rows.insert(0, ("init", 0.0, *init_s, math.nan))
    phases = pd.DataFrame(rows, columns=list(PHASE_COLUMNS)).astype(
        {"phase": "object", **dict.fromkeys(PHASE_COLUMNS[1:], "float64")}
    )
    return phases, unit, int(total)


_Row = tuple[str, float, float, float, float]


def _in_epochs(epochs: list[Interval], evaluations: list[Interval]) -> tuple[float, list[_Row]]:
    """Number of finished epochs, and the rows of all epochs."""
    usual_s = median(e.stop_s - e.start_s for e in epochs) if epochs else 0.0
    finished = [e for e in epochs if e.closed]
    if finished and finished[-1] is epochs[-1]:
        last_s = finished[-1].stop_s - finished[-1].start_s
        finished = finished[: -1 if last_s < _CUT_SHORT * usual_s else None]
    total = len(finished) if epochs else max((e.index or 0 for e in evaluations), default=0)
    return float(total), [_row(e, float(e in finished)) for e in epochs]


def _row(interval: Interval, samples: float = math.nan) -> _Row:
    index = math.nan if interval.index is None else float(interval.index)
    return (interval.phase, index, interval.start_s, interval.stop_s, samples)


def work_done(unit: WorkUnit, work: float, lasts_s: float) -> list[Interval]:
    """An artificial log entry with the total work of a run: an evaluation right before its end (at
    ``lasts_s``). Other logs state their work at each evaluation, so it is read from there."""
    at_s = lasts_s * (1 - 1e-9)
    return [Interval("evaluation", work, at_s, at_s, unit)]
