"""What both experiments measure with: sessions, the load of other programs, the folder of results.

In a session the answer of every job is kept as soon as it is there.

An interrupted measurement into ``OUT`` leaves its sessions in ``OUT.work``; the next one takes over what they
hold and measures the rest. Answers that were given on another machine or with other versions do not mix.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
from jobs import Answer, Job, Row, is_disturbed
from launching import launch_ranks

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import load_now
from joulecast.measure.training.machine import machine_lock
from joulecast.measure.training.ranks import ended_by_signals, opened_log
from joulecast.runs.files.reading import read_json_object
from joulecast.runs.files.writing import (
    directory_written_aside,
    sha256_of,
    write_csv,
    written_aside,
)
from joulecast.runs.provenance import host_fingerprint, source_state, versions
from joulecast.simulate.judged.results import (
    CONFIGURATIONS_FILE,
    PROVENANCE_FILE,
    Experiment,
    IterationTable,
    StepConfiguration,
)

_KERNEL_THREADS = 2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Tell = Callable[[str], object]


def rank_path(program: str) -> str:
    """Where Python finds what the ranks of an experiment import, for its ``measure.py``."""
    folder = Path(program).resolve().parent
    return os.pathsep.join(map(str, (folder, folder.parent)))


def hand_over(comm: Any, answer: Any, out: Path) -> None:
    """Write the answer of all ranks, which rank 0 has, as JSON; ranks end together."""
    from joulecast.measure.training.mpi import arrive_slowly

    if comm.rank == 0:
        with written_aside(out) as partial:
            partial.write_text(json.dumps(answer))
    arrive_slowly(comm)


def facts_of_now(what: str) -> dict[str, Any]:
    """The facts of a session that begins now: what it measures, where, and with which versions."""
    return {
        "what": what,
        "began_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_fingerprint(),
        "versions": versions(),
        "source": source_state(),
        "load_before": {"busy_cores": load_now().busy_cores},
    }


def fewest_undisturbed(answer: Answer, tables: Mapping[str, IterationTable]) -> int:
    """Number of undisturbed iterations of the part of an answer that has the fewest."""
    clean: Counter[tuple[Any, ...]] = Counter()
    for name, table in tables.items():
        for row in answer.get(name, []) if table.is_timed else []:
            clean[name, *(row[column] for column in table.key)] += not is_disturbed(row)
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
    tables: Mapping[str, IterationTable]
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
            inside: as of :func:`launching.program_command`.

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


def other_cpu_s(ours: Collection[int]) -> float:
    """CPU seconds, up to now, of all processes but ``ours``, those that take only idle time,
    and the kernel's own threads.

    A difference of two calls is what others used in between, to some 10 ms a process. Children that
    ended are counted with their parents. Time that the hypervisor took away counts as well.
    """
    ticks = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ours:
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # After the name: state, parent, ...; user, system and those of ended children are 11 to 14,
        # the scheduling policy is 38.
        is_kernel = _KERNEL_THREADS in (int(fields[1]), int(folder.name))
        if not is_kernel and int(fields[38]) != os.SCHED_IDLE:
            ticks += sum(int(field) for field in fields[11:15])
    stolen = Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]
    return (ticks + int(stolen)) / _TICKS_PER_S


class OtherLoad:
    """Measures the cores that other processes use during an iteration.

    Args:
        ours: processes of the job.
        looks: whether this rank does it; one is enough.
    """

    def __init__(self, ours: Collection[int], looks: bool) -> None:
        self._ours, self._looks = frozenset(ours), looks

    def begin(self) -> None:
        """Begin an iteration."""
        self._begun_s = time.monotonic()
        self._used_s = other_cpu_s(self._ours) if self._looks else 0.0

    def cores(self) -> float:
        """Cores that others have used on average since the beginning; 0 where nothing was looked at."""
        if not self._looks:
            return 0.0
        used_s = other_cpu_s(self._ours) - self._used_s
        return round(max(0.0, used_s / (time.monotonic() - self._begun_s)), 3)


_SPINNER = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    pass
"""


@contextmanager
def awake_cores() -> Iterator[None]:
    """Keep all cores from sleeping while the block runs.

    A virtual core that sleeps is given back late, it seems: the timers of ``tbf`` are then late too,
    and a link loses some of its rate. In three trials in pairs (8 ranks, a step of 0.55 s, 16 KiB
    bursts) the median was 0.1, 0.2 and 2.4 % shorter with spinners. They run only when no other
    process wants the core (``SCHED_IDLE``), and end with this process.
    """
    arguments = ((str(core), str(os.getpid())) for core in sorted(os.sched_getaffinity(0)))
    spinners = [subprocess.Popen([sys.executable, "-c", _SPINNER, *pair]) for pair in arguments]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _frame(table: IterationTable, rows: Iterable[Row]) -> pd.DataFrame:
    """The rows of a session, numbered and judged."""
    frame = pd.DataFrame(rows).reindex(columns=[*table.key, *table.values])
    number = frame.groupby(list(table.key), sort=False).cumcount()
    frame.insert(len(table.key), "iteration", number)
    if table.is_timed:
        frame["disturbed"] = [is_disturbed(row) for row in frame.to_dict("records")]
    return frame


@dataclass(frozen=True)
class Measured:
    """Measurements of a session: the answers of its jobs, and the facts of the session."""

    answers: Sequence[Answer]
    facts: Mapping[str, Any]

    def rows(self, table: str) -> list[Row]:
        """The rows of all answers that are of a table."""
        return [row for answer in self.answers for row in answer.get(table, [])]


def write_results(
    out: Path,
    experiment: Experiment[Any],
    configurations: Sequence[StepConfiguration],
    sessions: Sequence[Measured],
    write_more: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Write what was measured to a new folder.

    Args:
        out: the folder.
        experiment: whose results they are.
        configurations: of the steps in the answers.
        sessions: in the order in which they were measured; tables have their numbers.
        write_more: puts files that are no tables in the folder that it is given.
    """
    with directory_written_aside(out) as folder:
        listed = [each.model_dump(mode="json") for each in configurations]
        (folder / CONFIGURATIONS_FILE).write_text(json.dumps(listed, indent=1) + "\n")
        for name, table in experiment.tables.items():
            numbered = [
                _frame(table, session.rows(name)).assign(session=number)
                for number, session in enumerate(sessions)
            ]
            frame = pd.concat(numbered, ignore_index=True)
            write_csv(frame, folder / f"{name}.csv", float_format="%.6f", lineterminator="\n")
        write_more(folder)
        files = sorted(file.name for file in folder.iterdir())
        provenance = {
            "source_of_seconds": "measured",
            "ended_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "sessions": [dict(session.facts) for session in sessions],
            "sha256": {name: sha256_of(folder / name) for name in files},
        }
        (folder / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=1) + "\n")
