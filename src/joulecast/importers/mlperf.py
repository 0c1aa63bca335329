"""MLPerf Training power submissions to run records.

A source is a folder of submissions, a git repository that holds them, or flat tables of runs. It is
worked through one run at a time: read, judged, written aside. Of each run only a few numbers are kept, with
which the repeats of a setting are compared at the end; a run that reads unlike the others is marked
in the record that lies there already.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_added_to
from joulecast.importers.imported import ImportSummary, Note, require_outside, summarised, written
from joulecast.importers.mlperf_tables import are_tables, read_tables
from joulecast.importers.repository import git_tree, is_repository
from joulecast.importers.run_files import runs_of
from joulecast.importers.sources import FolderTree, Tree
from joulecast.importers.submission import read_run
from joulecast.importers.times_table import is_times_table, read_times


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
    require_outside(out, source)
    with directory_added_to(out) as partial:
        if revision is None and are_tables(source):
            notes = written(read_tables(source), partial)
        elif revision is None and is_times_table(source):
            notes = written(read_times(source), partial)
        elif workers > 1:
            notes = _in_processes(source, partial, revision, workers)
        else:
            notes = _part(source, partial, revision, 0, 1)
        if not notes:
            raise _no_runs(source)
        summary = summarised(notes, partial)
        summary.out = out
    if not are_tables(source) and source.is_dir():
        summary.passed_by = [
            f.parent for f in sorted(source.rglob("runs.csv*")) if are_tables(f.parent)
        ]
    summary.require_clean(source)
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


def _part(source: Path, out: Path, revision: str | None, first: int, step: int) -> list[Note]:
    """Import every ``step``-th run from number ``first`` on."""
    with _opened(source, revision) as tree:
        return written((read_run(tree, files) for files in runs_of(tree)[first::step]), out)


def _in_processes(source: Path, out: Path, revision: str | None, workers: int) -> list[Note]:
    # Started afresh: the threads of pyarrow do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        parts = [pool.submit(_part, source, out, revision, i, workers) for i in range(workers)]
        return [note for part in parts for note in part.result()]
