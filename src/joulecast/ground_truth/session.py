"""A session of measurements: the answer of every job is kept as soon as it is there.

An interrupted measurement into ``OUT`` leaves its sessions in ``OUT.work``; the next one takes over what they
hold and measures the rest. Answers that were given on another machine or with other versions do not mix.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_json_object
from joulecast.files.writing import written_aside
from joulecast.ground_truth.disturbance import is_polluted
from joulecast.ground_truth.jobs import Answer, Job
from joulecast.ground_truth.results import Table
from joulecast.power.foreign_load import load_before
from joulecast.records.provenance import host_fingerprint, source_state, versions
from joulecast.training.machine import machine_lock
from joulecast.training.processes import ended_by_signals
from joulecast.training.ranks import launch_ranks, opened_log

Tell = Callable[[str], object]


def facts_of_now(what: str) -> dict[str, Any]:
    """The facts of a session that begins now: what it measures, where, and with which versions."""
    return {
        "what": what,
        "began_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_fingerprint(),
        "versions": versions(),
        "source": source_state(),
        "load_before": load_before(),
    }


def fewest_undisturbed(answer: Answer, tables: Mapping[str, Table]) -> int:
    """Number of undisturbed iterations of the part of an answer that has the fewest."""
    clean: Counter[tuple[Any, ...]] = Counter()
    for name, table in tables.items():
        for row in answer.get(name, []) if table.is_timed else []:
            clean[name, *(row[column] for column in table.key)] += not is_polluted(row)
    return min(clean.values())


@dataclass(frozen=True)
class Program:
    """The program that the ranks of an experiment's jobs run.

    Attributes:
        module: reads a job and leaves its answer.
        tables: that the rows of its answers are in.
        timeout_s: afterwards the ranks of a launch are ended.
        settings: environment variables of the ranks.
        attempts: launches of a job at most.
        enough: undisturbed iterations of everything, after which a job is not launched again.
    """

    module: str
    tables: Mapping[str, Table]
    timeout_s: float
    settings: Mapping[str, str] = field(default_factory=dict)
    attempts: int = 1
    enough: int = 0


@contextmanager
def kept_until_written(out: Path) -> Iterator[Path]:
    """Gives the folder of the sessions; it is removed when the block has written ``out``.

    Raises:
        JoulecastError: ``out`` is there already.
    """
    if out.exists():
        raise JoulecastError(f"{out} is there already; move it away to measure anew")
    work = out.with_name(out.name + ".work")
    yield work
    shutil.rmtree(work)


class Session:
    """A session that holds the machine.

    Attributes:
        folder: of its answers.
        facts: of its beginning, which may have been before an interruption.
        log: gets what ranks print.
        lock: descriptor of the machine lock, which ranks inherit.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], log: TextIO, lock: int) -> None:
        self.folder, self.facts, self.log, self.lock = folder, facts, log, lock

    def _file(self, job: Job) -> Path:
        return self.folder / f"{job.name}.json"

    def kept(self, job: Job) -> Answer | None:
        """The answer that an earlier try has left, or ``None`` if there is none to this very job."""
        if not self._file(job).is_file():
            return None
        kept = json.loads(self._file(job).read_text())
        if kept.get("digest") != job.digest():
            return None
        answer: Answer = kept["answer"]
        return answer

    def answer(
        self, job: Job, program: Program, inside: Sequence[Sequence[str]] = ()
    ) -> tuple[Answer, str]:
        """A job's answer, kept or new, and in words how it was got.

        Args:
            job: what is measured.
            program: of its ranks.
            inside: as of :func:`joulecast.training.ranks.program_command`.

        Raises:
            JoulecastError: a launch failed.
        """
        if (kept := self.kept(job)) is not None:
            return kept, "measured before"
        begin = time.monotonic()
        answer: Answer = {}
        for _ in range(program.attempts):
            for table, rows in self._launched(job, program, inside).items():
                answer.setdefault(table, []).extend(rows)
            if (clean := fewest_undisturbed(answer, program.tables)) >= program.enough:
                break
        with written_aside(self._file(job)) as partial:
            partial.write_text(json.dumps({"digest": job.digest(), "answer": answer}))
        took = f"{time.monotonic() - begin:.0f} s"
        return answer, f"{took}, at least {clean} undisturbed iterations of each"

    def _launched(self, job: Job, program: Program, inside: Sequence[Sequence[str]]) -> Answer:
        """The answer of one launch."""
        answer: Answer = launch_ranks(
            program.module,
            job,
            job.name,
            job.ranks,
            self.log,
            self.lock,
            program.timeout_s,
            inside=inside,
            settings=program.settings,
        )
        return answer


def _resumed(folder: Path, fresh: dict[str, Any], same: Sequence[str]) -> dict[str, Any]:
    """The facts of the session that began a folder, or ``fresh``, which begin it."""
    file = folder / "session.json"
    if not file.is_file():
        with written_aside(file) as partial:
            partial.write_text(json.dumps(fresh, indent=1))
        return fresh
    begun = read_json_object(file, "session of measurements")
    for key in same:
        if begun.get(key) != fresh[key]:
            raise JoulecastError(
                f"{folder} was begun with another `{key}`: {begun.get(key)}, now {fresh[key]}; "
                "measurements do not mix, remove that folder and start again"
            )
    return begun


@contextmanager
def begun_session(
    folder: Path, facts: dict[str, Any], same: Sequence[str], tell: Tell
) -> Iterator[Session]:
    """Begin a session, or take up the one that began the folder.

    Args:
        folder: of the session, made if missing.
        facts: as they are now.
        same: keys of facts that must not have changed since the session began.
        tell: gets a line when the session is over.

    Raises:
        JoulecastError: a fact has changed, or another measurement holds the machine.
    """
    begin = time.monotonic()
    with opened_log(folder / "log.txt") as log, ended_by_signals(), machine_lock(log) as lock:
        yield Session(folder, _resumed(folder, facts, same), log, lock)
    tell(f"{folder.name} measured in {time.monotonic() - begin:.0f} s")
