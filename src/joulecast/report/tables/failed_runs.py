"""The table of failed runs: every attempt at a run that failed, why, and what has become of the run."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joulecast.campaign.journal import settle
from joulecast.campaign.progress import run_state
from joulecast.errors import JoulecastError
from joulecast.quantities import counted
from joulecast.records.record import read_record
from joulecast.report.tables.output import write_table


@dataclass(frozen=True)
class FailedRun:
    """An attempt that failed, or a record that cannot be read.

    ``now`` is the run's :data:`~joulecast.campaign.progress.State`: ``done`` by a later attempt, for example.
    """

    run: str
    now: str
    reason: str
    started_utc: str | None = None
    ended_utc: str | None = None
    host: str | None = None
    slurm_job: str | None = None


_COLUMNS = tuple(FailedRun.__dataclass_fields__)


def _failed_attempts(results: Path) -> Iterator[FailedRun]:
    folder = results / "attempts"
    for journal in sorted(folder.glob("*.jsonl")):
        run = journal.stem
        attempts = settle(folder, run)
        failed = [attempt for attempt in attempts if attempt.reason is not None]
        now = run_state(results, run).state if failed else None
        for attempt in failed:
            yield FailedRun(
                run,
                str(now),
                str(attempt.reason),
                attempt.started_utc,
                attempt.ended_utc,
                attempt.host.split(":")[0],
                attempt.slurm_job,
            )


def _broken_records(results: Path) -> Iterator[FailedRun]:
    for folder in sorted((results / "records").glob("[!.]*")):
        try:
            read_record(folder)
        except JoulecastError as error:
            yield FailedRun(folder.name, "damaged", str(error))


def failed_runs(results: Path, check_records: bool = False) -> pd.DataFrame:
    """One row a failed attempt, columns as in :class:`FailedRun`; attempts that were killed are settled.

    Args:
        results: the folder of a campaign's results.
        check_records: read all records too; those that cannot be read are rows.
    """
    rows = list(_failed_attempts(results))
    if check_records:
        rows += _broken_records(results)
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def write_failed_runs(results: Path, check_records: bool = False) -> pd.DataFrame:
    """Write ``tables/failed_runs.csv``, ``.md`` and ``.html`` below ``results``; returns the table."""
    table = failed_runs(results, check_records)
    unmeasured = table.loc[table["now"] != "done", "run"].nunique()
    notes = [
        f"Without a record now: {counted(unmeasured, 'run')}. Logs are in `logs/`, all attempts in "
        "`attempts/`. Starting the campaign again repeats what has no record, and no other run."
    ]
    write_table(results / "tables" / "failed_runs", "Failed runs", notes, table)
    return table
