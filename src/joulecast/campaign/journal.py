"""The journal of a campaign's runs: every attempt at a run, and how it ended.

``attempts/RUN.jsonl`` has a line for the beginning of an attempt and one for its end. An attempt without an
end is either running or was killed from outside (a signal, a time limit, a node that went down). Why it was
killed is written by the next process that looks, which asks SLURM.
"""

import fcntl
import itertools
import json
import os
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

from joulecast.campaign.slurm_jobs import may_run, why_job_ended
from joulecast.errors import JoulecastError
from joulecast.files.reading import json_of, read_bytes, validated
from joulecast.files.writing import explained_disk_errors
from joulecast.records.provenance import physical_host

UNEXPLAINED_END = "ended without a word: killed, or its machine went down"
"""Reason of an attempt that left no reason."""

_LOG_LINES_KEPT = 40
_POLL_S = 2.0


def _checked_moment(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


Moment = Annotated[str, AfterValidator(_checked_moment)]
"""A time in ISO 8601 with its time zone."""


@dataclass
class Attempt:
    """One attempt at a run. ``ended_utc`` is ``None`` until an end is in the journal; ``reason`` is
    ``None`` unless the attempt failed."""

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
    """The line of the journal that ends an attempt; ``settled`` when another process has written it."""

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
            # Clients of a file server may disagree on where the end of a file is; not all can lock.
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX)
            # The leading newline separates it from a line that a full disk cut short.
            file.write(f"\n{json.dumps(line)}\n".encode())
            os.fsync(file)


def attempts_at(folder: Path, run: str) -> list[Attempt]:
    """All attempts at a run in their order; a line that a full disk cut short is skipped.

    Raises:
        JoulecastError: the journal is no regular file, or too large.
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
            # An end that the attempt wrote itself overrides what another process has concluded.
            if end.settled and attempt.ended_utc is not None:
                continue
            attempt.ended_utc, attempt.reason, attempt.log = end.ended_utc, end.reason, end.log
    return list(attempts.values())


def _process_lives(attempt: Attempt) -> bool:
    with suppress(psutil.Error):
        started: float = psutil.Process(attempt.pid).create_time()
        return abs(started - attempt.process_started_s) < 1.0
    return False


def is_running(attempt: Attempt) -> bool:
    """Whether an attempt without an end still works: its process on this host, or its SLURM job anywhere.

    Counts as running while SLURM cannot be asked, so that no run is measured twice at a time.
    """
    if attempt.ended_utc is not None:
        return False
    if attempt.host == physical_host():
        return _process_lives(attempt)
    # Inside the same job this process is its restart: the attempt it left on another host is over.
    if attempt.slurm_job in (None, os.environ.get("SLURM_JOB_ID")):
        return False
    return may_run(str(attempt.slurm_job))


def settle(folder: Path, run: str) -> list[Attempt]:
    """The attempts at a run, after writing the end of those that were killed into the journal."""
    attempts = attempts_at(folder, run)
    over = [a for a in attempts if a.ended_utc is None and not is_running(a)]
    for attempt in over:
        reason = UNEXPLAINED_END
        if attempt.slurm_job is not None:
            reason = why_job_ended(attempt.slurm_job, UNEXPLAINED_END)
        ended = {"id": attempt.id, "ended_utc": _now(), "reason": reason}
        _append(folder, run, ended | {"settled": True})
    # Read again, as an attempt may have written its own end in the meantime.
    return attempts_at(folder, run) if over else attempts


def wait_for_earlier(folder: Path, own: Attempt, log: TextIO, longest_s: float) -> None:
    """Wait for earlier attempts at a run that are still running, as they may yet succeed.

    Raises:
        JoulecastError: one still runs after ``longest_s``; names its host.
    """
    is_noted = False
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
        if not is_noted:
            print(f"an earlier attempt still runs on {where}; waiting for it", file=log, flush=True)
            is_noted = True
        time.sleep(_POLL_S)


def _attempt_of_this_process(run: str) -> Attempt:
    process = psutil.Process()
    return Attempt(
        run=run,
        id=uuid.uuid4().hex[:8],
        started_utc=_now(),
        host=physical_host(),
        pid=process.pid,
        process_started_s=process.create_time(),
        slurm_job=os.environ.get("SLURM_JOB_ID"),
    )


def _lines_from(log_file: Path, begin: int) -> list[str]:
    with open(log_file, "rb") as log:
        log.seek(begin)
        return log.read().decode(errors="replace").splitlines()


@contextmanager
def attempt_noted(folder: Path, run: str, log_file: Path) -> Iterator[Attempt]:
    """Note an attempt at a run in the journal: its beginning now, its end when the block ends.

    Args:
        log_file: the last lines that the block adds to it are noted if the attempt fails.
    """
    begin_of_log = log_file.stat().st_size if log_file.exists() else 0
    attempt = _attempt_of_this_process(run)
    facts = {key: value for key, value in asdict(attempt).items() if value is not None}
    _append(folder, run, {key: facts[key] for key in facts if key not in ("run", "log")})
    ended: dict[str, Any] = {"id": attempt.id}
    try:
        yield attempt
    except KeyboardInterrupt:
        # In a SLURM job only SLURM knows why: `settle` asks it later.
        if attempt.slurm_job is None:
            with suppress(OSError, JoulecastError):
                _append(folder, run, ended | {"ended_utc": _now(), "reason": "interrupted"})
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, JoulecastError) else repr(error)
        ended |= {"ended_utc": _now(), "reason": reason}
        # An error here must not hide the first one. A full disk often still has space for one line, so
        # the reason is written before the log.
        with suppress(OSError, JoulecastError):
            _append(folder, run, ended)
            lines = _lines_from(log_file, begin_of_log)
            _append(folder, run, ended | {"log": lines[-_LOG_LINES_KEPT:]})
        raise
    _append(folder, run, ended | {"ended_utc": _now()})
