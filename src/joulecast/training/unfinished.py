"""The record of a run that was killed, from what its ranks had written: incomplete, and marked so.

It never takes the place of the run's own record, which the next start measures.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from joulecast.campaign.journal import attempts_at, is_running
from joulecast.errors import JoulecastError
from joulecast.files.reading import read_json, validated
from joulecast.observer.job_folder import PREFIX
from joulecast.observer.job_record import INCOMPLETE, Recovered, recover_job
from joulecast.power.foreign_load import Load, load_before
from joulecast.power.run_clock import ClockOffset, RunClock
from joulecast.power.samples import SAMPLES, Left
from joulecast.records.record import RunRecord, write_record
from joulecast.records.spec import RunSpec
from joulecast.training.assemble import assemble
from joulecast.training.from_ranks import FromRank, Measured
from joulecast.training.left_files import SPEC, UNFINISHED, keep_unfinished, left_of
from joulecast.training.stage_clock import ENDING, Intervals, read_intervals


def _last_attempt(folder: Path) -> Path:
    """The record's name in the last attempt: a disturbed run is repeated as ``record-1``, ..."""
    names = {path.name.rpartition("-rank")[0] for path in folder.glob(f"record*-rank*{ENDING}")}
    if not names:
        raise JoulecastError(f"{folder}: no rank has left its stages; only trainings leave them")
    return folder / max(names, key=lambda name: (len(name), name))


def _from_ranks(spec: RunSpec, record: Path) -> tuple[list[FromRank], dict[str, Any], int]:
    """What the ranks left, the facts of the first, and the steps that all of them have ended."""
    read: list[tuple[dict[str, Any], Intervals]] = []
    for rank in range(spec.ranks):
        facts, intervals = read_intervals(left_of(record, rank, ENDING))
        if not len(intervals["step"]):
            raise JoulecastError(f"{record.parent}: rank {rank} has left no step")
        read.append((facts, intervals))
    # The last step in a file may be cut in two.
    steps = min(int(intervals["step"].max()) for _, intervals in read)
    if not steps:
        raise JoulecastError(f"{record.parent}: the ranks have ended no step")
    ranks = []
    for rank, (facts, intervals) in enumerate(read):
        origin_s, *offset = facts["clock"]
        clock = RunClock(origin_s, ClockOffset(*offset), ClockOffset(*offset))
        ended = intervals["step"] < steps
        kept = {name: values[ended] for name, values in intervals.items()}
        samples = left_of(record, rank, SAMPLES)
        ranks.append(
            FromRank(
                node=facts["node"],
                host=facts["host"],
                host_node=facts["host_node"],
                clock=clock,
                start_s=clock(float(kept["start_s"].min())),
                stop_s=clock(float(kept["stop_s"].max())),
                intervals=kept,
                peak_rss_bytes=0,
                oversubscribed=facts["oversubscribed"],
                sampled=Left(samples, spec.meters, is_whole=False) if facts["sampled"] else None,
                fingerprint=facts["fingerprint"],
                scheduler_node=facts["scheduler_node"],
            )
        )
    return ranks, read[0][0], steps


def _recover(folder: Path, out: Path) -> tuple[Path, RunRecord]:
    content = read_json(folder / SPEC, "specification of a run")
    spec = validated(TypeAdapter(RunSpec), content, str(folder / SPEC))
    target = out / spec.run
    if target.exists():
        raise JoulecastError(
            f"{target}: is there already; remove it, or give another folder by --out"
        )
    for job in folder.glob(f"{PREFIX}*"):
        return recover_job(job, target)
    ranks, facts, steps = _from_ranks(spec, _last_attempt(folder))
    samples = steps * (spec.global_batch_size or 0)
    load = None if facts["load_before"] is None else Load(*facts["load_before"])
    info = {"started_utc": facts["started_utc"], "load_before": load_before(load)}
    did = {"steps": steps, "samples": samples}
    measured = Measured(
        ranks[0].start_s, ranks[0].stop_s, did, {}, {**info, "polluted": [INCOMPLETE]}
    )
    record = assemble(spec, measured, ranks, load)
    write_record(target, record)
    return target, record


def _keep_of_killed(attempts: Path) -> None:
    """Keep what attempts have left that were killed together with the process that started them."""
    for file in attempts.glob(f".*/{SPEC}"):
        run = file.parent.name[1:].rpartition("-")[0]
        if not any(is_running(attempt) for attempt in attempts_at(attempts, run)):
            keep_unfinished(attempts, run, file.parent)
            # Made once: the next start of the run removes the rest.
            file.unlink()


def recovered_runs(attempts: Path, out: Path) -> Iterator[Recovered]:
    """Make records, in ``out``, of the runs of a campaign that were killed.

    Args:
        attempts: folder of the campaign's attempts.
        out: folder of these records, which is not that of the campaign's.
    """
    _keep_of_killed(attempts)
    for folder in sorted(attempts.glob(f"[!.]*{UNFINISHED}")):
        yield Recovered.of(folder, partial(_recover, folder, out))
