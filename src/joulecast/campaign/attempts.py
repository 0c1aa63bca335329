"""The journal of a campaign's runs: every attempt at one, and how it ended.

``attempts/RUN.jsonl`` beside the records has a line when an attempt begins and a line when it ends, so
that a run that was killed from outside (a signal, a time limit, a node that went down) is told from one
that still goes on. What killed it, nobody wrote down: SLURM is asked, as long as it remembers.
"""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import psutil
from pydantic import AfterValidator, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.files.reading import json_of, read_bytes, validated
from joulecast.files.writing import directory_written_aside, explained_disk_errors
from joulecast.records.provenance import physical_host

ASKED_S = "JOULECAST_ASKED_S"
"""Environment variable: when the campaign was started, in seconds of the epoch."""

_LOG_LINES_KEPT = 40
_POLL_S = 2.0
_CLOCKS_DIFFER_S = 30.0  # that of a file server from ours
_SLURM_ENDS_JOBS_S = 35.0  # KillWait is 30 s unless configured

_SLURM_GOES_ON = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
_SLURM_REASONS = {
    "TIMEOUT": "killed by its time limit; give it longer: `runtime` in the profile",
    "NODE_FAIL": "a node of its job went down",
    "CANCELLED": "its job was cancelled",
    "OUT_OF_MEMORY": "its job used more memory than it had; give it more: `mem_mb` in the profile",
    "PREEMPTED": "its job was preempted",
    "DEADLINE": "its job ran into its deadline",
    "BOOT_FAIL": "a node of its job did not boot",
}
UNEXPLAINED_END = "ended without a word: killed, or its machine went down"
"""Reason of an attempt that left no reason."""


def _checked_moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


Moment = Annotated[str, AfterValidator(_checked_moment)]
"""A time in ISO 8601 with its time zone."""


@dataclass
class Attempt:
    """One attempt at a run. ``ended_utc`` is ``None`` as long as nobody wrote an end;
    ``reason`` is ``None`` unless it failed."""

    run: str
    id: str
    started_utc: Moment
    host: str
    pid: int
    process_started_s: float
    slurm_job: str | None = None
    ended_utc: Moment | None = None
    reason: str | None = None
    log: list[str] = field(default_factory=list)


@dataclass
class _End:
    """The line of the journal that ends an attempt; ``settled`` where another process wrote it."""

    id: str
    ended_utc: Moment
    reason: str | None = None
    log: list[str] = field(default_factory=list)
    settled: bool = False


_BEGUN, _ENDED = TypeAdapter(Attempt), TypeAdapter(_End)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _journal(folder: Path, run: str) -> Path:
    return folder / f"{run}.jsonl"


def _append(folder: Path, run: str, line: dict[str, Any]) -> None:
    journal = _journal(folder, run)
    with explained_disk_errors(journal):
        folder.mkdir(parents=True, exist_ok=True)
        with open(journal, "ab", buffering=0) as file:
            # Clients of a file server append where they believe the end to be; not every one can lock.
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX)
            # The first end of line parts it from one that a full disk cut short.
            file.write(f"\n{json.dumps(line)}\n".encode())
            os.fsync(file)


def attempts_at(folder: Path, run: str) -> list[Attempt]:
    """All attempts at a run in their order; a line that a full disk cut short is passed over.

    Raises:
        JoulecastError: the journal is no regular file, or has more than any journal.
    """
    journal = _journal(folder, run)
    if not journal.exists():
        return []
    attempts: dict[str, Attempt] = {}
    for line in read_bytes(journal, "journal of a run").splitlines():
        with suppress(JoulecastError, TypeError, KeyError):
            content = json_of(line, str(journal))
            if "started_utc" in content:
                begun = validated(_BEGUN, {"run": run, **content}, str(journal))
                attempts[begun.id] = begun
                continue
            end = validated(_ENDED, content, str(journal))
            attempt = attempts[end.id]
            # What another process took for its end does not count beside what it wrote itself.
            if end.settled and attempt.ended_utc is not None:
                continue
            attempt.ended_utc, attempt.reason, attempt.log = end.ended_utc, end.reason, end.log
    return list(attempts.values())


@dataclass(frozen=True)
class _Job:
    """What SLURM says of a job: its state (``None``: forgotten), how often it was started again."""

    state: str | None
    restarts: int = 0


def _slurm_job(job: str) -> _Job | None:
    """What SLURM says of a job; ``None`` when it cannot be asked now. Where there is no SLURM at all (results
    that were carried elsewhere) its jobs are forgotten."""
    answered = not (shutil.which("scontrol") or shutil.which("sacct"))
    for program, *arguments in (
        ("scontrol", "show", "job", "-o", job),
        ("sacct", "-X", "-n", "-P", "-o", "State", "-j", job),
    ):
        try:
            answer = subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=30
            )
        except (FileNotFoundError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout.strip():
            words = answer.stdout.split()
            facts = dict(word.split("=", 1) for word in words if "=" in word)
            return _Job(facts.get("JobState", words[0]), int(facts.get("Restarts", 0)))
        answered |= "Invalid job id" in answer.stderr
    return _Job(None) if answered else None


def _ended_slurm_job(job: str) -> _Job | None:
    """The same of a job that is over; one that SLURM is still ending is waited for, half a minute."""
    deadline = time.monotonic() + _SLURM_ENDS_JOBS_S
    while (found := _slurm_job(job)) and found.state == "COMPLETING":
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S / 4)
    return found


def _process_lives(attempt: Attempt) -> bool:
    with suppress(psutil.Error):
        started: float = psutil.Process(attempt.pid).create_time()
        return abs(started - attempt.process_started_s) < 1.0
    return False


def goes_on(attempt: Attempt) -> bool:
    """Whether an attempt without an end still works: its process here, or its SLURM job anywhere; also
    when SLURM cannot be asked, so that nothing is measured twice at a time."""
    if attempt.ended_utc is not None:
        return False
    if attempt.host == physical_host():
        return _process_lives(attempt)
    # What asks from inside the same job was started by it anew.
    if attempt.slurm_job in (None, os.environ.get("SLURM_JOB_ID")):
        return False
    job = _slurm_job(str(attempt.slurm_job))
    return job is None or job.state in _SLURM_GOES_ON


def _why_it_ended(attempt: Attempt) -> str:
    if attempt.slurm_job is None:
        return UNEXPLAINED_END
    number = attempt.slurm_job
    job = _ended_slurm_job(number)
    if job is None:
        return f"{UNEXPLAINED_END} (SLURM job {number}: SLURM cannot be asked)"
    if number == os.environ.get("SLURM_JOB_ID") and job.restarts:
        return f"{UNEXPLAINED_END}; SLURM has started its job {number} again"
    if job.state in _SLURM_REASONS:
        return f"{_SLURM_REASONS[job.state]} (SLURM job {number}: {job.state})"
    said = "has forgotten it" if job.state is None else f"says {job.state}"
    return f"{UNEXPLAINED_END} (SLURM job {number}: SLURM {said})"


def settle(folder: Path, run: str) -> list[Attempt]:
    """The attempts at a run, after writing down how those ended that could not do it themselves."""
    attempts = attempts_at(folder, run)
    over = [a for a in attempts if a.ended_utc is None and not goes_on(a)]
    for attempt in over:
        ended = {"id": attempt.id, "ended_utc": _now(), "reason": _why_it_ended(attempt)}
        _append(folder, run, ended | {"settled": True})
    # Read again: it may have written its end meanwhile.
    return attempts_at(folder, run) if over else attempts


def wait_for_earlier(folder: Path, own: Attempt, log: TextIO, longest_s: float) -> None:
    """Wait for earlier attempts at a run that go on: one that outlived who started it may yet end well.

    Raises:
        JoulecastError: one still runs after ``longest_s``; says where.
    """
    told = False
    until = time.monotonic() + longest_s
    while True:
        earlier = itertools.takewhile(lambda a: a.id != own.id, settle(folder, own.run))
        others = [attempt for attempt in earlier if attempt.ended_utc is None]
        if not others:
            break
        where = ", ".join(f"{a.host.split(':')[0]} (process {a.pid})" for a in others)
        if time.monotonic() > until:
            raise JoulecastError(
                f"run {own.run}: an earlier attempt still runs on {where}, after a wait of "
                f"{longest_s / 3600:.3g} h; end it, then start again"
            )
        if not told:
            print(f"an earlier attempt goes on on {where}; waiting for it", file=log, flush=True)
            told = True
        time.sleep(_POLL_S)


def _link(source: Path, target: Path) -> None:
    with directory_written_aside(target) as aside:
        for file in source.iterdir():
            try:
                os.link(file, aside / file.name)
            except OSError:  # a file system without links
                shutil.copy2(file, aside / file.name)


def keep_record(folder: Path, run: str, record: Path) -> None:
    """Hold a record a second time, by links that take no room: Snakemake removes the output of a job before
    it starts it, although another job that it has lost sight of may have made it meanwhile."""
    with suppress(OSError, JoulecastError):  # the record is there, which is what counts
        _link(record, _kept(folder, run))


def bring_back(folder: Path, run: str, record: Path, since_s: float) -> None:
    """Put back a record that is held and was finished after ``since_s`` (seconds of the epoch). Older ones
    were removed by who wants them measured again."""
    kept = _kept(folder, run)
    with suppress(FileNotFoundError):
        os.listdir(record.parent)  # has a file server's client look again
        newer = (kept / "run.json").stat().st_mtime > since_s - _CLOCKS_DIFFER_S
        if newer and not record.exists():
            _link(kept, record)


def forget_record(folder: Path, run: str, record: Path) -> None:
    """Remove a record and what is held of it, so that the run is measured again."""
    shutil.rmtree(_kept(folder, run), ignore_errors=True)
    with explained_disk_errors(record):
        # A record whose removal is cut short is no record.
        away = record.with_name(f".{run}.removed")
        shutil.rmtree(away, ignore_errors=True)
        os.rename(record, away)
        shutil.rmtree(away)


def _kept(folder: Path, run: str) -> Path:
    return folder / f".{run}.record"


@contextmanager
def attempt_noted(folder: Path, run: str, log_file: Path) -> Iterator[Attempt]:
    """Keep the journal of one attempt at a run: its begin now, its end when the block ends.

    Args:
        log_file: what is new at its end goes into the journal of an attempt that failed.
    """
    begin_of_log = log_file.stat().st_size if log_file.exists() else 0
    own = psutil.Process()
    started = Attempt(
        run=run,
        id=uuid.uuid4().hex[:8],
        started_utc=_now(),
        host=physical_host(),
        pid=own.pid,
        process_started_s=own.create_time(),
        slurm_job=os.environ.get("SLURM_JOB_ID"),
    )
    facts = {key: value for key, value in asdict(started).items() if value is not None}
    _append(folder, run, {key: facts[key] for key in facts if key not in ("run", "log")})
    ended: dict[str, Any] = {"id": started.id}
    try:
        yield started
    except KeyboardInterrupt:
        # Within SLURM only it knows why: whoever settles the journal will ask.
        if started.slurm_job is None:
            with suppress(OSError, JoulecastError):
                _append(folder, run, ended | {"ended_utc": _now(), "reason": "interrupted"})
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, JoulecastError) else repr(error)
        ended |= {"ended_utc": _now(), "reason": reason}
        # The first error is the one to tell; what is left of a full disk often still takes a line.
        with suppress(OSError, JoulecastError):
            _append(folder, run, ended)
            with open(log_file, "rb") as log:
                log.seek(begin_of_log)
                lines = log.read().decode(errors="replace").splitlines()
            _append(folder, run, ended | {"log": lines[-_LOG_LINES_KEPT:]})
        raise
    _append(folder, run, ended | {"ended_utc": _now()})
