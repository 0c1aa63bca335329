"""Makes the record of a launch from the files in its folder, after it has ended or was killed."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.measure.observer.job_folder import (
    PREFIX,
    Began,
    Came,
    Ended,
    JobFiles,
    P,
    SamplerBegun,
    SamplerEnded,
)
from joulecast.measure.observer.observed_record import observed_record
from joulecast.measure.observer.steps import Process
from joulecast.measure.power.host_clocks import RunClock
from joulecast.measure.power.samples import SAMPLES, Left
from joulecast.measure.run_record import SampledHost
from joulecast.quantities import listed
from joulecast.runs.provenance import physical_host
from joulecast.runs.record import RunRecord, write_record
from joulecast.runs.spec import RunSpec

_LOST_S = 5.0
"""Seconds of readings that a killed sampler may not have written yet."""
INCOMPLETE = "incomplete: the measurement was killed; made of what its processes had written"


def begin(job: JobFiles, asked: RunSpec) -> None:
    """Write the request, and the current time. The run's clock begins at this time."""
    job.write("began", Began(training=asked, utc=datetime.now(UTC), clock_s=time.monotonic()))


def _part(job: JobFiles, name: str, kind: type[P]) -> P:
    part = job.read(name, kind)
    if part is None:
        raise JoulecastError(f"{job.path / name}.json: is missing")
    return part


def _host(job: JobFiles, rank: int, origin_s: float) -> SampledHost:
    begun = _part(job, f"begun-{rank}", SamplerBegun)
    end = job.read(f"host-{rank}", SamplerEnded)
    clocks = [begun.clock, None if end is None else end.clock]
    offsets = [offset for offset in clocks if offset is not None]
    if not offsets:
        raise JoulecastError(
            f"{begun.label}: its clock could not be compared with the clock of the first host"
        )
    clock = RunClock(origin_s, offsets[0], offsets[-1])
    died = None if end is None else end.died
    left = Left(job.samples_of(rank), begun.label, begun.meters, died, is_whole=end is not None)
    facts = begun.fingerprint.model_dump()
    return SampledHost(begun.host, begun.label, clock, left.samples(), facts, begun.load_before)


def write_job(
    job: JobFiles,
    out: Path,
    ended_s: float | None,
    faults: Sequence[str] = (),
    *,
    in_campaign: bool = False,
    runs_on: bool = False,
) -> tuple[Path, RunRecord]:
    """Write the record of a launch. Returns its folder and the record.

    Args:
        out: folder of the records; for a run of a campaign, the folder of its record.
        ended_s: end of the observation on the first process's clock; ``None``: the time at which its sampler
            ended.
        runs_on: whether the training continues. Its steps after the end do not count, because their power
            was not measured.

    Raises:
        JoulecastError: no record can describe the launch. The error says why.
    """
    began = _part(job, "began", Began)
    asked, origin_s = began.training, began.clock_s
    ranks = [rank for rank in job.ranks() if job.read(f"begun-{rank}", SamplerBegun) is not None]
    hosts = {host.host: host for host in (_host(job, r, origin_s) for r in ranks)}
    processes: list[tuple[Process, SampledHost]] = []
    faults, elsewhere = list(faults), set()
    for rank in job.ranks():
        host = hosts.get(_part(job, f"process-{rank}", Came).host)
        end = job.read(f"ended-{rank}", Ended)
        for process in job.marks_of(rank):
            if host is None:
                continue
            if process.facts.boot in (None, host.host.partition(":")[2]):
                processes.append((process, host))
            else:
                elsewhere.add(str(process.facts.node))
        if end is not None and end.code and rank:
            faults.append(f"failed: process {rank} of the launch ended with code {end.code}")
    if elsewhere:
        why = f"other hosts: the command trained on {listed(sorted(elsewhere))}, where nothing was measured"
        if in_campaign:
            raise JoulecastError(
                f"{why}; leave the nodes to the campaign: it starts the command on each"
            )
        faults.append(
            f"{why}; start one measurement on each host (srun -N2 joulecast measure -- COMMAND)"
        )
    # The first process is on the host whose clock is the run's.
    first = _part(job, "process-0", Came).host
    every = sorted(hosts.values(), key=lambda host: host.host != first)
    until_s = ended_s - origin_s if runs_on and ended_s is not None else math.inf
    if ended_s is None:
        spans = [host.samples.span_s for host in every[:1]]
        if not spans or spans[0] is None:
            raise JoulecastError(f"{job.path}: its sampler left nothing")
        ended_s = spans[0][1]
        # The training may continue after its measurement was killed. Its power is then not known.
        until_s = ended_s - origin_s + _LOST_S
    whole = (0.0, ended_s - origin_s)

    place = nullcontext((out, 1)) if in_campaign else _next_folder(out, asked, len(hosts))
    with place as (folder, repeat):
        if not in_campaign:
            asked = asked.model_copy(update={"run": folder.name, "repeat": repeat})
        record = observed_record(
            asked, every, processes, whole, began.utc, faults, until_s, in_campaign=in_campaign
        )
        write_record(folder, record)
        return folder, record


@contextmanager
def _next_folder(out: Path, asked: RunSpec, hosts: int) -> Iterator[tuple[Path, int]]:
    """Folder for the next record of a training on some hosts, and the number of the record. No other
    process takes it."""
    for number in count(1):
        folder = out / f"{asked.network}-n{hosts}-run{number}"
        if folder.exists():
            continue
        taken = out / f".taken-{folder.name}"
        try:
            taken.mkdir()
        except FileExistsError:
            continue
        try:
            if not folder.exists():
                yield folder, number
                return
        finally:
            taken.rmdir()


def assemble_killed(out: Path) -> list[str]:
    """Make records of the killed measurements in a folder, from the files that they had written. Returns a
    line of text for each measurement.

    Such a record is marked as incomplete, and no model is fitted to it. The files of the measurement are
    deleted once the record is written.
    """
    lines = []
    for folder in sorted(out.glob(f"{PREFIX}*")):
        job = JobFiles(folder)
        try:
            # Several processes may start at the same time: only one of them makes the record.
            if not job.lock() or not job.was_killed(physical_host()):
                continue
            if any(folder.glob(f"*{SAMPLES}")):
                record, _ = write_job(job, out, None, [INCOMPLETE])
                lines.append(f"{record}: made of what a killed measurement had written; incomplete")
        except (JoulecastError, OSError) as error:
            lines.append(
                f"{folder}: no record of a killed measurement yet: {error}; the next measurement tries "
                "again, delete the folder to give it up"
            )
        else:
            job.remove()
        finally:
            job.unlock()
    return lines
