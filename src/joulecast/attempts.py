"""The journal of a campaign's runs: every attempt at one, and how it ended.

``attempts/RUN.jsonl`` beside the records has a line when an attempt begins and a line when it ends, so
that a run that was killed from outside (a signal, a time limit, a node that went down) is told from one
that still goes on. What killed it, nobody wrote down: SLURM is asked, as long as it remembers.
"""

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
from typing import Any, TextIO

import psutil

from joulecast.errors import JoulecastError
from joulecast.files import explained_disk_errors
from joulecast.provenance import physical_host

_LOG_LINES_KEPT = 40
_POLL_S = 2.0
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
_WITHOUT_A_WORD = "ended without a word: killed, or its machine went down"


@dataclass
class Attempt:
    """One attempt at a run. ``ended_utc`` is ``None`` as long as nobody wrote an end;
    ``reason`` is ``None`` unless it failed."""

    run: str
    id: str
    started_utc: str
    host: str
    pid: int
    process_started_s: float
    slurm_job: str | None = None
    ended_utc: str | None = None
    reason: str | None = None
    log: list[str] = field(default_factory=list)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _journal(folder: Path, run: str) -> Path:
    return folder / f"{run}.jsonl"


def _append(folder: Path, run: str, line: dict[str, Any]) -> None:
    journal = _journal(folder, run)
    with explained_disk_errors(journal):
        folder.mkdir(parents=True, exist_ok=True)
        # One write: of two processes that append, neither cuts the other's line. The first end of line
        # parts it from one that a full disk cut short.
        with open(journal, "ab", buffering=0) as file:
            file.write(f"\n{json.dumps(line)}\n".encode())


def attempts_at(folder: Path, run: str) -> list[Attempt]:
    """All attempts at a run in their order; a line that a full disk cut short is passed over."""
    try:
        lines = _journal(folder, run).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    attempts: dict[str, Attempt] = {}
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            content = json.loads(line)
            if "started_utc" in content:
                attempts[content["id"]] = Attempt(run=run, **content)
                continue
            ended = attempts[content["id"]]
            ended.ended_utc, ended.reason = content["ended_utc"], content.get("reason")
            ended.log = content.get("log", [])
    return list(attempts.values())


def _final_slurm_state(job: str) -> str | None:
    """The state of a job that is over; one that SLURM is still ending is waited for, half a minute."""
    deadline = time.monotonic() + _SLURM_ENDS_JOBS_S
    while (state := _slurm_state(job)) == "COMPLETING" and time.monotonic() < deadline:
        time.sleep(_POLL_S / 4)
    return state


def _slurm_state(job: str) -> str | None:
    """What SLURM calls the state of a job; ``None`` when it cannot be asked or has forgotten it."""
    for program, *arguments in (
        ("scontrol", "show", "job", "-o", job),
        ("sacct", "-X", "-n", "-P", "-o", "State", "-j", job),
    ):
        if shutil.which(program) is None:
            continue
        try:
            answer = subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=30
            )
        except subprocess.TimeoutExpired:
            continue
        said = answer.stdout.split() if answer.returncode == 0 else []
        states = [word.removeprefix("JobState=") for word in said if "JobState=" in word]
        if states or (program == "sacct" and said):
            return (states or said)[0]
    return None


def _process_lives(attempt: Attempt) -> bool:
    with suppress(psutil.Error):
        started: float = psutil.Process(attempt.pid).create_time()
        return abs(started - attempt.process_started_s) < 1.0
    return False


def goes_on(attempt: Attempt) -> bool:
    """Whether an attempt without an end still works: its process here, or its SLURM job anywhere."""
    if attempt.ended_utc is not None:
        return False
    if attempt.host == physical_host():
        return _process_lives(attempt)
    # What asks from inside the same job was started by it anew.
    of_another_job = attempt.slurm_job not in (None, os.environ.get("SLURM_JOB_ID"))
    return of_another_job and _slurm_state(str(attempt.slurm_job)) in _SLURM_GOES_ON


def _why_it_ended(attempt: Attempt) -> str:
    job = attempt.slurm_job
    if job is None:
        return _WITHOUT_A_WORD
    if job == os.environ.get("SLURM_JOB_ID"):
        return f"{_WITHOUT_A_WORD}; SLURM has started its job {job} again"
    state = _final_slurm_state(job)
    if state in _SLURM_REASONS:
        return f"{_SLURM_REASONS[state]} (SLURM job {job}: {state})"
    said = "has forgotten it" if state is None else f"says {state}"
    return f"{_WITHOUT_A_WORD} (SLURM job {job}: SLURM {said})"


def settle(folder: Path, run: str) -> list[Attempt]:
    """The attempts at a run, after writing down how those ended that could not do it themselves."""
    attempts = attempts_at(folder, run)
    for attempt in attempts:
        if attempt.ended_utc is None and not goes_on(attempt):
            attempt.ended_utc, attempt.reason = _now(), _why_it_ended(attempt)
            ended = {"id": attempt.id, "ended_utc": attempt.ended_utc, "reason": attempt.reason}
            _append(folder, run, ended)
    return attempts


def wait_for_others(folder: Path, run: str, log: TextIO) -> None:
    """Wait until no other attempt at a run goes on: one that outlived who started it may yet end well."""
    told = False
    while others := [attempt for attempt in settle(folder, run) if attempt.ended_utc is None]:
        if not told:
            where = ", ".join(f"{a.host.split(':')[0]} (process {a.pid})" for a in others)
            print(f"an earlier attempt goes on on {where}; waiting for it", file=log, flush=True)
            told = True
        time.sleep(_POLL_S)


@contextmanager
def attempt_noted(folder: Path, run: str, log_file: Path) -> Iterator[None]:
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
        yield
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
