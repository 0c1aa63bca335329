"""MLPerf runs as flat tables, plain or packed (``.csv.gz``).

Metered runs are in three tables: ``runs.csv`` has a row for each run, ``events.csv`` for each event, and
``power.csv`` for each reading. Their times are already seconds of the run clock. ``power.csv`` is read once,
one run after the other, so it may be larger than the memory.

A table of times is ``runs.csv.gz`` alone. It has the work of a run in the unit of its log.
:mod:`joulecast.logs.run_phases` turns this into samples, or into epochs for benchmarks that count whole ones.
Runs without a known unit are left out. If a run is there twice in one round, the second copy is left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.imported_run import ImportedRun
from joulecast.logs.log import LoggedMeter, sanitised
from joulecast.logs.log_times import Floats
from joulecast.logs.mllog import LARGEST, number, whole_number
from joulecast.logs.run_phases import Interval, WorkUnit, work_done
from joulecast.runs.files.columns import Column, as_numbers, checked_table, csv_in_parts
from joulecast.runs.meter_choice import Supply

_TEXT, _NUMBER = Column("text", optional=True), Column("number", optional=True)
# An unreadable number is missing, as in a log, and the run gets a remark. A row without a name is no run.
_COLUMNS = {
    "runs": {
        "run": Column("text"),
        **dict.fromkeys(("system", "benchmark", "status"), _TEXT),
        **dict.fromkeys(("nodes", "run_start_s", "run_stop_s"), _NUMBER),
    },
    "events": {
        **dict.fromkeys(("run", "kind"), _TEXT),
        **dict.fromkeys(("index", "start_s", "stop_s"), _NUMBER),
    },
    "power": {**dict.fromkeys(("run", "meter"), _TEXT), **dict.fromkeys(("t_s", "watts"), _NUMBER)},
}
_OF_TIMES = {
    **dict.fromkeys(("version", "org", "system", "benchmark", "run"), Column("text")),
    **dict.fromkeys(("status", "work_unit", "accelerator"), _TEXT),
    **dict.fromkeys(("seconds", "work"), Column("number", least=0)),
    **dict.fromkeys(
        ("global_batch", "train_samples", "nodes", "accelerators_per_node"),
        Column("number", least=0, optional=True),
    ),
}
_TIMES = "runs.csv.gz"
_PHASES = {"eval": "evaluation", "epoch": "epoch", "block": "block"}
ROWS_AT_ONCE = 200_000
_SAMPLES, _STEPS = ("samples", "tokens"), ("steps", "iterations")


def are_tables(folder: Path) -> bool:
    """Whether ``folder`` holds the three tables."""
    return all(_file(folder, name).is_file() for name in _COLUMNS)


def is_times_table(folder: Path) -> bool:
    """Whether ``folder`` holds a table of times, and none of power."""
    return (folder / _TIMES).is_file() and not any(folder.glob("power.csv*"))


def _file(folder: Path, name: str) -> Path:
    """The file of a table: the plain one, else the packed one."""
    plain, packed = folder / f"{name}.csv", folder / f"{name}.csv.gz"
    return packed if packed.is_file() and not plain.is_file() else plain


def _parts(folder: Path, name: str, rows: int | None = None) -> Iterator[pd.DataFrame]:
    return csv_in_parts(_file(folder, name), f"table of {name}", _COLUMNS[name], rows)


def _power_by_run(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of ``power.csv`` run by run.

    Raises:
        JoulecastError: the rows of a run do not lie together, or are no table.
    """
    seen: set[str] = set()
    name, waiting = "", pd.DataFrame()
    for part in _parts(folder, "power", ROWS_AT_ONCE):
        for run, of_run in part.dropna(subset="run").groupby("run", sort=False):
            if run == name:
                waiting = pd.concat([waiting, of_run])
                continue
            if len(waiting):
                yield name, waiting
            if run in seen:
                path = _file(folder, "power")
                raise JoulecastError(
                    f"{path}: the rows of run {run} do not lie together; sort it by run"
                )
            seen.add(str(run))
            name, waiting = str(run), of_run
    if len(waiting):
        yield name, waiting


def read_tables(folder: Path) -> Iterator[ImportedRun]:
    """The runs of the tables. Runs without readings come last.

    Raises:
        JoulecastError: a table lacks columns, or cannot be read. The error names the table.
    """
    file = _file(folder, "runs")
    runs = checked_table(next(_parts(folder, "runs")), {"run": Column("text")}, str(file))
    twice = runs["run"].map(sanitised).duplicated()
    if twice.any():
        raise JoulecastError(f"{file}: run {runs['run'][twice].iloc[0]} is there twice")
    runs["repeat"] = runs.groupby(["system", "benchmark", "nodes"], dropna=False).cumcount() + 1
    rows = {str(row["run"]): row for row in runs.to_dict("records")}
    events = {str(run): of_run for run, of_run in next(_parts(folder, "events")).groupby("run")}
    for name, power in _power_by_run(folder):
        if name in rows:
            yield _run(folder, rows.pop(name), events.get(name), power)
    for name, row in rows.items():
        yield _run(folder, row, events.get(name), None)


def _run(
    folder: Path, row: dict[str, Any], events: pd.DataFrame | None, power: pd.DataFrame | None
) -> ImportedRun:
    system, benchmark = (
        row[name] if isinstance(row[name], str) else "unknown" for name in ("system", "benchmark")
    )
    init_stop_s = number(row.get("init_stop_s"))
    run = ImportedRun(
        run=sanitised(row["run"]),
        campaign="mlperf",
        system=system,
        benchmark=benchmark,
        submission=str(row.get("submission_run", row["run"])),
        source={"format": "mlperf tables", "path": str(folder.resolve())},
        repeat=row["repeat"],
        nodes=whole_number(row["nodes"]),
        global_batch_size=whole_number(row.get("global_batch_size")),
        init_s=None if init_stop_s is None else (0.0, init_stop_s),
        start_s=number(row["run_start_s"]),
        stop_s=number(row["run_stop_s"]),
        status=row["status"] if isinstance(row["status"], str) else None,
    )
    if events is not None:
        run.intervals = _intervals(events)
    supply = row.get("supply") if row.get("supply") in get_args(Supply) else None
    for name, readings in power.groupby("meter", sort=False) if power is not None else ():
        # Switches are no part of the nodes.
        if not str(name).startswith("sw_"):
            t_s, watts = _numbers(readings["t_s"]), _numbers(readings["watts"])
            known, file = np.isfinite(t_s), f"power.csv, {name}"
            meter = LoggedMeter(
                str(name), None, None, file, t_s[known], watts[known], supply=supply
            )
            run.meters.append(meter)
    nodes = len(run.meters)
    if not nodes:
        run.findings.remark("no power", "power.csv has no node's reading of it; its times are used")
    elif run.nodes and nodes < run.nodes:
        run.findings.leave_out(
            "node without readings", f"power.csv has {nodes} of its {run.nodes} nodes"
        )
    return run


def _numbers(values: pd.Series) -> Floats:
    """The values as numbers. A text, or a number that is too large for a log, becomes NaN."""
    read = as_numbers(values).to_numpy()
    return np.where(np.abs(read) <= LARGEST, read, np.nan)


def _intervals(events: pd.DataFrame) -> list[Interval]:
    ends = zip(
        _numbers(events["start_s"]).tolist(), _numbers(events["stop_s"]).tolist(), strict=True
    )
    found = [
        Interval(_PHASES[kind], number(index), *span)
        for kind, index, span in zip(events["kind"], events["index"], ends, strict=True)
        if kind in _PHASES and np.isfinite(span).all()
    ]
    return sorted(found, key=lambda interval: (interval.start_s, interval.stop_s))


def times_table(folder: Path) -> pd.DataFrame:
    """A row for each run that reached its target: ``run, submission, submitter, system, network, accelerator,
    nodes, accelerators_per_node, batch, samples, work_unit, total_s``.

    Raises:
        JoulecastError: the table cannot be read. The error names the row.
    """
    table = next(csv_in_parts(folder / _TIMES, "table of times", _OF_TIMES))
    names = ["version", "org", "benchmark", "system", "run"]
    work, unit = _in_samples(table)
    rows = pd.DataFrame(
        {
            "run": table[names].astype(str).agg("-".join, axis=1),
            "submission": table["version"].astype(str) + "/" + table["org"].astype(str),
            "submitter": table["org"],
            "system": table["system"],
            "network": table["benchmark"],
            "accelerator": table["accelerator"],
            "nodes": table["nodes"],
            "accelerators_per_node": table["accelerators_per_node"],
            "batch": table["global_batch"],
            "samples": work,
            "work_unit": unit,
            "total_s": table["seconds"],
        }
    )
    good = (table["status"] == "success") & (table["nodes"] >= 1) & (table["seconds"] > 0)
    rows = rows.assign(version=table["version"])[good & (work > 0)]
    same = ["version", "network", "total_s", "samples", "batch", "nodes"]
    return rows.drop_duplicates(same).drop(columns="version").reset_index(drop=True)


def _in_samples(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Work and its unit; NaN if the unit is not known. Almost all runs of a benchmark in a round count in the
    same way. So they show what a single run does not (is 1.0 an epoch, or a share of the data set?)."""
    work, batch, of_log = table["work"], table["global_batch"], table["work_unit"].fillna("epochs")
    benchmark = [table["version"], table["benchmark"], of_log]
    whole = (work % 1 == 0).groupby(benchmark).transform("all")
    # No evaluation comes before the first batch: what is below a batch cannot count samples.
    larger = (work >= batch).where(batch.notna() & (batch > 1)).astype(float)
    counts_samples = larger.groupby(benchmark).transform("mean") >= 0.5
    in_epochs = of_log == "epochs"
    samples = work.where(of_log.isin(_SAMPLES) | (in_epochs & whole))
    samples = samples.where(~of_log.isin(_STEPS), work * batch)
    in_data_sets = (work * table["train_samples"]).round()
    samples = samples.where(whole | ~in_epochs, in_data_sets)
    # Some submitters count epochs where the others count samples (U-Net in v3.1).
    usual = samples.groupby(benchmark).transform("median")
    data_sets = counts_samples & in_epochs & (work * np.sqrt(table["train_samples"]) < usual)
    samples = samples.where(~data_sets, in_data_sets)
    epochs = in_epochs & whole & ~counts_samples
    return samples, pd.Series(np.where(epochs, "epochs", "samples"), index=table.index)


def read_times(folder: Path) -> Iterator[ImportedRun]:
    """The runs of the table, one by one.

    Raises:
        JoulecastError: the table cannot be read. The error names the row.
    """
    for row in times_table(folder).itertuples():
        yield ImportedRun(
            run=sanitised(str(row.run)),
            campaign=str(row.submission),
            system=str(row.system),
            benchmark=str(row.network),
            submission=f"{row.submission}/{row.run}",
            source={"format": "table of times", "path": str(folder.resolve())},
            nodes=int(row.nodes),
            accelerators_per_node=whole_number(row.accelerators_per_node),
            accelerator=row.accelerator if isinstance(row.accelerator, str) else None,
            global_batch_size=whole_number(row.batch),
            start_s=0.0,
            stop_s=float(row.total_s),
            status="success",
            intervals=work_done(
                cast(WorkUnit, row.work_unit), float(row.samples), float(row.total_s)
            ),
        )
