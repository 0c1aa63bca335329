"""MLPerf Training power submissions to run records.

A source is a folder of submissions, a git repository that holds them, or flat tables of runs. It is
worked through one run at a time: read, judged, written aside. Of each run only a few numbers are kept, with
which the repeats of a setting are compared at the end; a run that reads unlike the others is marked
in the record that lies there already.
"""

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_added_to, written_aside
from joulecast.importers.foreign import ForeignRun, record_of
from joulecast.importers.mlperf_tables import are_tables, read_tables
from joulecast.importers.readings import NODE_METER
from joulecast.importers.repeats import Repeat, copied, outliers, there_twice, unlike_platform
from joulecast.importers.repository import git_tree, is_repository
from joulecast.importers.run_files import runs_of
from joulecast.importers.sources import FolderTree, Tree
from joulecast.importers.submission import read_run
from joulecast.importers.times_table import is_times_table, read_times
from joulecast.records.record import read_info, write_record


@dataclass
class ImportSummary:
    """What an import did: ``runs`` imported, ``without_power`` of them with their times only; the reasons
    for each
    run that is left out of fits; how many runs each kind of trap was found in; and ``passed_by``, folders of
    tables below the source that were not what was imported."""

    out: Path
    runs: int = 0
    without_power: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    passed_by: list[Path] = field(default_factory=list)
    traps: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> int:
        """Runs that fits may use."""
        return self.runs - len(self.left_out)

    @property
    def reasons(self) -> Counter[str]:
        """Number of runs that each kind of reason leaves out; a run may have several."""
        return Counter(_kind(text) for texts in self.left_out.values() for text in texts)

    def text(self) -> str:
        """The summary as lines for a person."""
        lines = [f"{self.runs} runs imported to {self.out}, {self.clean} of them clean"]
        if self.without_power:
            lines.append(f"  {self.without_power} without power: their times are used")
        lines += [
            f"  left out: {run}: {'; '.join(texts)}" for run, texts in sorted(self.left_out.items())
        ]
        lines += [f"  reason {kind}: {n}" for kind, n in sorted(self.reasons.items())]
        lines += [f"  found {kind}: {n}" for kind, n in sorted(self.traps.items())]
        lines += [
            f"  not read: {folder}, tables of runs; import that folder itself"
            for folder in self.passed_by
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Note:
    """What is remembered of a run once its record is written."""

    run: str
    polluted: list[str]
    remarks: list[str]
    repeat: Repeat | None
    is_metered: bool


def import_mlperf(
    source: Path, out: Path, revision: str | None = None, workers: int = 1
) -> ImportSummary:
    """Write a run record to ``out/RUN`` for every run of ``source``.

    Args:
        source: a folder with ``SYSTEM/BENCHMARK/result_*.txt`` somewhere below it, with
            ``runs.csv``, ``events.csv`` and ``power.csv``, with a table of times (``runs.csv.gz``
            alone), or a git repository. Files on disk are
            preferred to the repository they belong to.
        out: where the records go, all of them or none if it is new; a record that is there already is
            replaced whole.
        revision: read this revision of the repository instead of the files (default: the files,
            else ``HEAD``).
        workers: processes to read submissions with; tables are read by one.

    Raises:
        JoulecastError: the source has no run, or none that is clean; with the list of reasons.
    """
    _require_folder(source)
    if out.resolve().is_relative_to(source.resolve()):
        raise JoulecastError(
            f"{out}: lies inside {source}, which is only read; name a folder outside it"
        )
    with directory_added_to(out) as partial:
        if revision is None and are_tables(source):
            notes = _written(read_tables(source), partial)
        elif revision is None and is_times_table(source):
            notes = _written(read_times(source), partial)
        elif workers > 1:
            notes = _in_processes(source, partial, revision, workers)
        else:
            notes = _part(source, partial, revision, 0, 1)
        if not notes:
            raise _no_runs(source)
        summary = _summary(notes, partial)
        summary.out = out
    if not are_tables(source) and source.is_dir():
        summary.passed_by = [
            f.parent for f in sorted(source.rglob("runs.csv*")) if are_tables(f.parent)
        ]
    if not summary.clean:
        reasons = "".join(f"\n  {run}: {'; '.join(why)}" for run, why in summary.left_out.items())
        raise JoulecastError(
            f"{source}: no run is left for fits; all {summary.runs} are kept in {out} and marked:"
            f"{reasons}"
        )
    return summary


def _require_folder(source: Path) -> None:
    if not source.is_dir():
        raise JoulecastError(f"{source}: no such folder or git repository")


def _no_runs(source: Path) -> JoulecastError:
    return JoulecastError(
        f"{source}: no runs; expected SYSTEM/BENCHMARK/result_*.txt below it, in a git repository "
        "there, the tables runs.csv, events.csv and power.csv, or a table of times runs.csv.gz"
    )


@contextmanager
def _opened(source: Path, revision: str | None) -> Iterator[Tree]:
    """The files of ``source``: those on disk, unless a revision is asked for or they are not runs."""
    folder = FolderTree(source)
    if revision is None and (not is_repository(source) or runs_of(folder)):
        yield folder
        return
    if not is_repository(source):
        raise JoulecastError(f"{source}: is no git repository, so it has no revision {revision}")
    with git_tree(source, revision or "HEAD") as tree:
        yield tree


def _part(source: Path, out: Path, revision: str | None, first: int, step: int) -> list[_Note]:
    """Import every ``step``-th run from number ``first`` on."""
    with _opened(source, revision) as tree:
        return _written((read_run(tree, files) for files in runs_of(tree)[first::step]), out)


def _in_processes(source: Path, out: Path, revision: str | None, workers: int) -> list[_Note]:
    # Started afresh: the threads of pyarrow do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        parts = [pool.submit(_part, source, out, revision, i, workers) for i in range(workers)]
        return [note for part in parts for note in part.result()]


def _written(runs: Iterable[ForeignRun], out: Path) -> list[_Note]:
    notes = []
    for run in runs:
        record, repeat = record_of(run)
        write_record(out / run.run, record)
        info = record.info
        is_metered = any(meter.meter == NODE_METER for meter in info.meters)
        notes.append(_Note(run.run, info.polluted, info.remarks, repeat, is_metered))
    return notes


def _summary(notes: list[_Note], out: Path) -> ImportSummary:
    repeats = [note.repeat for note in notes if note.repeat is not None]
    compared = [f(repeats) for f in (outliers, unlike_platform, there_twice, copied)]
    dark = sum(not note.is_metered for note in notes)
    summary = ImportSummary(out, runs=len(notes), without_power=dark)
    for note in sorted(notes, key=lambda note: note.run):
        polluted = list(note.polluted)
        reasons = [found[note.run] for found in compared if note.run in found]
        if reasons:
            polluted += reasons
            _mark(out / note.run, reasons)
        if polluted:
            summary.left_out[note.run] = polluted
        summary.traps.update({_kind(text) for text in note.remarks})
    return summary


def _mark(folder: Path, reasons: list[str]) -> None:
    info = read_info(folder)
    info.polluted += reasons
    with written_aside(folder / "run.json") as partial:
        partial.write_text(info.model_dump_json(indent=1) + "\n")


def _kind(text: str) -> str:
    return text.split(":", 1)[0]
