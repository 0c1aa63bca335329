"""The run record of an observed training, made from what its hosts and processes left behind."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.measure.observer.steps import Facts, Process, Steps, main_optimizers
from joulecast.measure.run_record import SampledHost, run_record
from joulecast.quantities import counted, percent, step_times
from joulecast.runs.frames import STAGE_COLUMNS, STAGES
from joulecast.runs.observations import most_frequent
from joulecast.runs.record import Checks, ObservedStep, Outcome, RunRecord
from joulecast.runs.spec import RunSpec, StepsThatCount

_PART_ROWS = 200_000
_NO_STAGES = pd.DataFrame(columns=list(STAGE_COLUMNS)).astype({"rank": int, "step": int})

_FEWEST_STEPS = 3
"""Steps that a process must make before its first one is left out as a warm-up."""

_WARM_UP, _WARM_UP_S = 5.0, 0.2
"""Factor, and seconds. The steps directly after the first one are a warm-up, too, as long as each is slow:
longer than the factor times the median step, and longer than the median step plus the seconds. (torch.compile
may compile again in the second step.) A difference of fewer seconds is noise of short steps."""
_LONGEST = 0.2
"""A remark names a step if it is longer than the median by at least this share of the time of all steps, and
by at least ``_WARM_UP_S`` seconds."""


@dataclass(frozen=True)
class Rank:
    """One process that trained, the host on which it ran, and its steps."""

    process: Process
    host: SampledHost
    steps: Steps

    @property
    def facts(self) -> Facts:
        """Facts that the process noted about itself."""
        return self.process.facts

    @property
    def parameters(self) -> int | None:
        """Number of parameters that all optimizers train together; ``None`` if it is not known. If optimizers
        follow each other, such as one for each fold, only the one with the most parameters counts."""
        if self.facts.whole is not None:
            return self.facts.whole
        known = dict(self.facts.__pydantic_extra__ or {})
        mains = main_optimizers(self.steps.marks)
        largest = max(known.pop(f"parameters_{number}", 0) for number in mains)
        return largest + sum(known.values()) or None


def _ranks(processes: Sequence[tuple[Process, SampledHost]], remarks: list[str]) -> list[Rank]:
    """The processes that trained, one for each rank. If a rank has several, the one with the most
    updates counts."""
    chosen: dict[int, tuple[Process, SampledHost]] = {}
    for process, host in processes:
        if process.updates == 0:
            continue
        known = chosen.get(process.rank)
        if known is None or process.updates > known[0].updates:
            chosen[process.rank] = (process, host)
    others = sum(process.updates > 0 for process, _ in processes) - len(chosen)
    if others > 0:
        remarks.append(
            f"{counted(others, 'other process', 'other processes')} of the command trained too, with no more "
            "updates; their steps are not counted, but the energy contains theirs if they ran at the same "
            "time"
        )
    ranks = []
    for _, (process, host) in sorted(chosen.items()):
        # MPI then exchanges gradients between backward pass and update, which torch does not see.
        by_mpi = len(chosen) > 1 and process.facts.mpi_ranks > 1 and not process.facts.wrapper
        ranks.append(Rank(process, host, Steps.of(process.marks, by_mpi)))
    return ranks


def steps_made(ranks: Sequence[Rank], until_s: float) -> int:
    """Number of steps that every rank ended by ``until_s`` on the run's clock. If this is 0, the number of
    steps that every rank ended at any time."""
    by_then = [rank.host.clock(rank.steps.ends) <= until_s for rank in ranks]
    return min(int(ended.sum()) for ended in by_then) or min(len(ended) for ended in by_then)


def _step_lengths(ranks: Sequence[Rank], first: int, last: int) -> npt.NDArray[np.float64]:
    """Seconds of each of the steps ``first + 1`` to ``last``. A step ends when the last rank has ended it."""
    ends = [rank.host.clock(rank.steps.ends[first : last + 1]) for rank in ranks]
    return np.diff(np.max(ends, axis=0))


def _warm_up(ranks: Sequence[Rank], made: int) -> int:
    """Number of steps at the beginning that do not count: the first step, and the steps directly after it
    that last much longer than the median. At least half of all steps count."""
    if made < _FEWEST_STEPS:
        return 0
    lasting = _step_lengths(ranks, 0, made - 1)
    usual_s, first = float(np.median(lasting)), 1
    longest_s = max(_WARM_UP * usual_s, usual_s + _WARM_UP_S)
    while first < made // 2 and lasting[first - 1] > longest_s:
        first += 1
    return first


def _window(
    ranks: Sequence[Rank],
    asked: StepsThatCount | None,
    until_s: float,
    left_out: list[str],
    remarks: list[str],
) -> tuple[int, int]:
    """Numbers of the first and the last step that count. If the user requested steps that the run does not
    have, ``left_out`` gets the reason. Fits then leave the run out."""
    made = steps_made(ranks, until_s)
    usual = _warm_up(ranks, made), made - 1
    if usual[0] > 1 and asked is None:
        remarks.append(
            f"the first {usual[0]} steps do not count: those behind the very first last more than "
            f"{_WARM_UP:g} times as long as usual, as when torch compiles"
        )
    if asked is None or asked[1] < made:
        return asked or usual
    left_out.append(
        f"other steps: {asked[0]} to {asked[1]} were requested, the training made {made}, "
        "numbered from 0"
    )
    return usual


def longest_step(ranks: Sequence[Rank], first: int, last: int) -> list[str]:
    """A remark about the longest step, if it makes the mean step much longer than the median. Otherwise
    empty."""
    lasting = _step_lengths(ranks, first, last)
    if len(lasting) < _FEWEST_STEPS:
        return []
    total_s, longest_s = float(lasting.sum()), float(lasting.max())
    # Of few equal steps, each takes a large part of the time.
    if longest_s - float(np.median(lasting)) < max(_WARM_UP_S, _LONGEST * total_s):
        return []
    return [
        f"step {first + 1 + int(lasting.argmax())} took {step_times(longest_s)[0]}, "
        f"{percent(100 * longest_s / total_s)} of the time of all steps (an evaluation, or torch compiled "
        "again?): a forecast repeats it as often. Measure more steps, or name those that count (--steps)"
    ]


def _stages(ranks: Sequence[Rank], first: int, last: int) -> pd.DataFrame:
    """The stages of all ranks, on the run's clock. Each exchange is divided into two stages: waiting for
    other ranks, and the exchange itself."""
    names = list(STAGES)
    tables = []
    for number, rank in enumerate(ranks):
        at, seen = rank.host.clock, rank.steps.of_window(first, last)
        while rows := list(islice(seen, _PART_ROWS)):
            steps, stages, starts, stops = zip(*rows, strict=True)
            codes = [names.index(stage) for stage in stages]
            values = (
                np.full(len(rows), number),
                np.array(steps),
                pd.Categorical.from_codes(codes, names),
                at(np.array(starts)),
                at(np.array(stops)),
            )
            tables.append(pd.DataFrame(dict(zip(STAGE_COLUMNS, values, strict=True))))
    stages = pd.concat(tables, ignore_index=True) if tables else _NO_STAGES
    return _with_wait(stages.astype({"stage": str}))


def _with_wait(stages: pd.DataFrame) -> pd.DataFrame:
    """Split each exchange into a wait and a copy. The wait ends when the last rank has begun this
    exchange."""
    copies = stages["stage"] == "communicating_copy"
    if not copies.any():
        return stages
    exchange = stages[copies]
    # All ranks exchange in the same order, so the n-th exchange of a step is the same one on all of them.
    turn = exchange.groupby(["rank", "step"]).cumcount()
    together = exchange.groupby([exchange["step"], turn])["start_s"].transform("max")
    begins = np.clip(together, exchange["start_s"], exchange["stop_s"])
    wait = exchange.assign(stage="communicating_wait", stop_s=begins)
    copy = exchange.assign(start_s=begins)
    parts = [stages[~copies], wait[wait["stop_s"] > wait["start_s"]], copy]
    return pd.concat(parts).sort_values(["rank", "step", "start_s"], ignore_index=True)


def _unseen(ranks: Sequence[Rank]) -> dict[str, str]:
    """Stages that the marks do not show, each with the reason."""
    reasons = {}
    if not any(rank.steps.fetches for rank in ranks):
        reasons["materials"] = (
            "no torch DataLoader was iterated in the thread that trains; waiting for data is part of "
            "computing"
        )
    if len(ranks) > 1 and not any(rank.steps.shows_exchange for rank in ranks):
        why = [rank.facts.not_profiled for rank in ranks if rank.facts.not_profiled]
        profiler = (
            why[0] if why else "no step that torch's profiler recorded has a collective in it"
        )
        reasons["communicating_copy"] = (
            "the ranks exchange gradients neither by DistributedDataParallel nor by synchronous "
            f"collectives, and {profiler}; the exchange is part of computing"
        )
    return reasons


_EARLY_END = (
    "no steps: the measurement ended before the first update of an optimizer; measure for longer"
)
_NO_UPDATES = (
    "no steps: no optimizer of torch made an update, or the command kept the observer out (it replaced "
    "PYTHONPATH, or ran `python -I` or `python -E`)"
)
_REPLAYED = (
    "no steps: a CUDA graph makes the updates, and its replays are not seen; measure the training without "
    "graphs"
)
_BATCHES_VARY = 0.02
"""If the mean batch size differs from the most frequent batch size by at least this share, the mean counts as
the batch size of the run. A smaller difference comes from the short batch at the end of an epoch. Then the
most frequent batch size counts, so that repeated runs have the same batch size."""


def batch_of_all(
    ranks: Sequence[Rank], window: tuple[int, int], asked: int | None, remarks: list[str]
) -> tuple[float, Literal["samples", "steps"]]:
    """Amount of work of all ranks together in a step, and its unit.

    Args:
        window: first and last step that count.
        asked: samples in a step, if the user gives them. They take precedence over the samples that were
            seen, because several ranks may load the same samples, as with tensor parallelism.
        remarks: gets a remark if the loaders gave another number, or if the number varies.
    """
    # One rank may load for all, and give each of the others its part.
    sizes = [rank.steps.samples(*window) for rank in ranks if rank.steps.loads]
    seen = None
    if sizes and all(map(len, sizes)):
        commonest = sum(float(most_frequent(pd.Series(size))) for size in sizes)
        mean = sum(float(size.mean()) for size in sizes)
        seen = commonest if abs(mean / commonest - 1) < _BATCHES_VARY else mean
    if asked is not None:
        if seen not in (None, asked):
            remarks.append(
                f"a step counts as {asked:g} samples, as requested; the loaders of all ranks gave "
                f"{seen:g}"
            )
        return asked, "samples"
    if seen is None:
        return 1, "steps"
    fetches = sum(rank.steps.fetches for rank in ranks)
    if 0 < sum(rank.steps.micro_batches for rank in ranks) < fetches:
        remarks.append(
            f"a step counts the samples of {fetches} batches and has fewer backward passes. If an evaluation "
            "follows each step, or the program makes other batches of them, give --samples-per-step"
        )
    first = [rank.facts.first_batch for rank in ranks if rank.facts.first_batch is not None]
    if len(set(first)) < len(first):
        remarks.append(
            "some ranks loaded the same first batch, and a step counts it for each of them: if ranks share "
            "their samples (tensor or pipeline parallelism), give --samples-per-step"
        )
    if seen == mean != commonest:
        low, high = sum(size.min() for size in sizes), sum(size.max() for size in sizes)
        remarks.append(
            f"batches vary from {low:g} to {high:g} samples of all ranks: a step counts as their mean, "
            f"{mean:.4g}"
        )
    return seen, "samples"


def _uneven(hosts: Sequence[SampledHost], ranks: Sequence[Rank]) -> str | None:
    """Why no model describes the run, if its hosts trained with different numbers of ranks."""
    each = {host.host: 0 for host in hosts} | Counter(rank.host.host for rank in ranks)
    if len(set(each.values())) == 1:
        return None
    found = ", ".join(f"{host.partition(':')[0]} {count}" for host, count in each.items())
    return f"uneven: its hosts trained with different numbers of ranks ({found})"


def _parameters(ranks: Sequence[Rank]) -> int | None:
    """Number of parameters of the whole network. If each rank has only a part, the parts are added up.
    Several groups of ranks may each have all parts (hybrid sharding). ``None`` if the ranks train different
    networks, such as the stages of a pipeline."""
    known, parts = [rank.parameters for rank in ranks], ranks[0].facts.parts
    if parts > 1 and None not in known:
        return sum(filter(None, known)) * parts // len(ranks)
    return known[0] if len(set(known)) == 1 else None


def _observed_step(ranks: Sequence[Rank]) -> ObservedStep:
    facts = ranks[0].facts
    return ObservedStep(
        optimizer=facts.optimizer,
        precision=facts.autocast or facts.copies_of or ("tf32" if facts.tf32 else facts.precision),
        weights=facts.precision if facts.copies_of in (None, facts.precision) else None,
        wrapper=facts.wrapper,
        micro_batches=max(1, ranks[0].steps.micro_batches),
        recomputes=facts.recomputes,
        compiled=facts.compiled,
    )


def _differ(ranks: Sequence[Rank]) -> str:
    """Why a rank's network is not the whole network that is trained; empty if it is."""
    facts = [rank.facts for rank in ranks]
    sizes = sorted({each.captured_parameters for each in facts if each.captured_parameters})
    if len(sizes) <= 1 or facts[0].parts > 1:
        return ""
    return (
        f"the ranks train different networks, of {sizes[0]:,} to {sizes[-1]:,} parameters, such as "
        "the stages of a pipeline. `joulecast capture` takes a function that builds the whole network"
    )


def _remarks(ranks: Sequence[Rank]) -> list[str]:
    facts, step = ranks[0].facts, _observed_step(ranks)
    said = [f"observed: {step.optimizer or 'an optimizer'}, {step.precision or 'unknown'}"]
    if step.micro_batches > 1:
        said.append(f"{step.micro_batches} backward passes a step")
    if step.compiled:
        said.append("compiled")
    if step.recomputes:
        said.append("activations are recomputed")
    if step.wrapper:
        said.append(step.wrapper)
    if facts.exchange_by:
        said.append("exchange as in the steps that torch's profiler recorded")
    remarks = [", ".join(said)]
    why_not = facts.not_captured or _differ(ranks)
    if why_not:
        remarks.append(f"the network was not captured: {why_not}")
    captured, trained = facts.captured_parameters, ranks[0].parameters
    if captured and trained and captured < trained:
        remarks.append(
            f"the captured network has {captured:,} of the {trained:,} trained parameters: the training "
            "calls several modules, or has several optimizers. `joulecast capture` takes a function that "
            "builds all of them as one module"
        )
    given, loaded = facts.captured_samples, ranks[0].steps.samples(0, ranks[0].process.updates)
    if given and len(loaded) and given not in loaded:
        remarks.append(
            f"a step calls the captured network with {given:,} samples, the loader gives "
            f"{most_frequent(pd.Series(loaded)):g}: `simulate --batch` and `plan --samples` take "
            "those of the calls"
        )
    return remarks


def observed_record(
    asked: RunSpec,
    hosts: Sequence[SampledHost],
    processes: Sequence[tuple[Process, SampledHost]],
    span: tuple[float, float],
    began: datetime,
    faults: Sequence[str] = (),
    until_s: float = math.inf,
    *,
    in_campaign: bool = False,
) -> RunRecord:
    """The record of an observed run.

    Args:
        hosts: the hosts. The clock of the first one is the run's clock.
        processes: the processes that left marks, each with its host.
        span: begin and end of the observation on the run's clock, in s.
        began: zero of the run's clock.
        until_s: time on the run's clock after which no step counts.
        in_campaign: whether ``asked`` says how many ranks there are.

    Raises:
        JoulecastError: no record can describe the run. The error says why.
    """
    assert asked.observed is not None
    remarks: list[str] = []
    ranks = _ranks(processes, remarks)
    if in_campaign and ranks and len(ranks) != asked.ranks:
        raise JoulecastError(
            f"the command trained with {counted(len(ranks), 'rank')}, {asked.ranks} were requested; "
            "put {gpus} and {nodes} where its launcher counts"
        )
    left_out = list(faults)
    if not ranks and not faults:
        left_out.append(_EARLY_END if until_s < math.inf else _NO_UPDATES)
    elif why := _REPLAYED if any(rank.facts.replayed for rank in ranks) else _uneven(hosts, ranks):
        left_out.append(why)
        ranks = []
    spec = asked
    if not in_campaign:
        per_node = len(ranks) // len(hosts) or 1
        spec = asked.model_copy(update={"nodes": len(hosts), "ranks_per_node": per_node})
    stages = _NO_STAGES
    steps, start_s, stop_s = 0, *span
    first, last = 0, -1
    if ranks:
        first, last = _window(ranks, asked.observed.steps, until_s, left_out, remarks)
        start_s, stop_s = _edges(ranks, first, last)
        stages = _stages(ranks, first, last)
        stages = stages[stages["stop_s"] > start_s].reset_index(drop=True)
        stages["start_s"] = stages["start_s"].clip(lower=start_s)
        steps = last - first + 1
        remarks += [*_remarks(ranks), *longest_step(ranks, first, last)]
    batch, unit = batch_of_all(ranks, (first, last), asked.global_batch_size, remarks)
    outcome = Outcome(
        start_s=start_s,
        stop_s=stop_s,
        steps=steps,
        samples=round(steps * batch),
        work_unit=unit,
        device=ranks[0].facts.device if ranks else None,
        final_loss=ranks[0].facts.loss if ranks else None,
    )
    record = run_record(
        spec,
        hosts,
        outcome,
        stages,
        init_s=span[0],
        started_utc=began.isoformat(timespec="milliseconds"),
        nodes=[host.node for host in hosts],
        node_of_rank=[rank.host.node for rank in ranks] or [hosts[0].node] * spec.ranks,
        parameters=_parameters(ranks) if ranks else None,
        # If the command failed before its first step, the numbers that were requested are kept.
        checks=Checks(ranks=len(ranks) or spec.ranks, distinct_hosts=len(hosts)),
        oversubscribed=_shares_cores(ranks),
        left_out=left_out,
        remarks=remarks,
        unseen=_unseen(ranks) if ranks else {},
        observed_step=_observed_step(ranks) if ranks else None,
    )
    whole = bool(ranks) and not _differ(ranks)
    return replace(record, network=ranks[0].process.graph) if whole else record


def _shares_cores(ranks: Sequence[Rank]) -> bool:
    """Whether a host has fewer cores than ranks that train on its CPU."""
    each = Counter(rank.host.host for rank in ranks if rank.facts.device == "cpu")
    cores = {rank.host.host: int(rank.host.fingerprint["cores"]) for rank in ranks}
    return any(count > cores[host] for host, count in each.items())


def _edges(ranks: Sequence[Rank], first: int, last: int) -> tuple[float, float]:
    """Begin of step ``first`` and end of step ``last`` on the run's clock.

    A step ends when the last rank has ended it. So a warm-up that lasts longer on one rank does not count.
    """
    begins, ends = [], []
    for rank in ranks:
        at, own = rank.host.clock, rank.steps
        begin = own.ends[first - 1] if first else own.begin
        begins.append(at(float(begin)))
        ends.append(at(float(own.ends[last])))
    # Ranks that train independently may have no step at the same time.
    together = first > 0 and max(begins) < min(ends)
    return (max(begins) if together else min(begins)), max(ends)
