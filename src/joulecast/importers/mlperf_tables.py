"""MLPerf power campaigns as flat tables: ``runs.csv``, ``events.csv``, ``power.csv``, or packed, ``.csv.gz``.

One row a run, an event and a reading; times are seconds of the run clock already. ``power.csv`` is
read once, run by run as its rows come, so that its size does not matter. ``train_samples`` is what the
log has, which for SSD is steps; it is not used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.files.columns import Column, as_numbers, checked_table, csv_in_parts
from joulecast.importers.foreign import ForeignRun
from joulecast.importers.mllog import LARGEST, number, whole_number
from joulecast.importers.run_files import sanitised
from joulecast.importers.traps import Floats, MeterLog, switch_remark
from joulecast.importers.work import Interval

_TEXT, _NUMBER = Column("text", optional=True), Column("number", optional=True)
# A garbled number is no number, as in a log, and the run says so; without a name there is no run.
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
    "power": {
        **dict.fromkeys(("run", "meter"), _TEXT),
        **dict.fromkeys(("t_s", "watts"), _NUMBER),
    },
}
_PHASES = {"eval": "evaluation", "epoch": "epoch", "block": "block"}
_ROWS = 200_000


def are_tables(folder: Path) -> bool:
    """Whether ``folder`` holds the three tables."""
    return all(_file(folder, name).is_file() for name in _COLUMNS)


def _file(folder: Path, name: str) -> Path:
    """The file of a table: the plain one, else the packed one."""
    plain = folder / f"{name}.csv"
    packed = folder / f"{name}.csv.gz"
    return packed if packed.is_file() and not plain.is_file() else plain


def _parts(folder: Path, name: str, rows: int | None = None) -> Iterator[pd.DataFrame]:
    return csv_in_parts(_file(folder, name), f"table of {name}", _COLUMNS[name], rows=rows)


def _power_by_run(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of ``power.csv`` run by run.

    Raises:
        JoulecastError: the rows of a run do not lie together, or are no table.
    """
    seen: set[str] = set()
    waiting = pd.DataFrame(columns=list(_COLUMNS["power"]))
    path = _file(folder, "power")
    for rows in _parts(folder, "power", _ROWS):
        rows = rows.dropna(subset="run")
        waiting = pd.concat([waiting, rows]) if len(waiting) else rows
        if waiting.empty:
            continue
        last = waiting["run"].iloc[-1]
        for run, of_run in waiting[waiting["run"] != last].groupby("run", sort=False):
            yield _once(str(run), seen, path), of_run
        waiting = waiting[waiting["run"] == last]
    if len(waiting):
        yield _once(str(waiting["run"].iloc[0]), seen, path), waiting


def _once(run: str, seen: set[str], path: Path) -> str:
    if run in seen:
        raise JoulecastError(f"{path}: the rows of run {run} do not lie together; sort it by run")
    seen.add(run)
    return run


def read_tables(folder: Path) -> Iterator[ForeignRun]:
    """The runs of the tables, those without readings last.

    Raises:
        JoulecastError: naming the table that is missing columns or cannot be read.
    """
    of_runs = {"run": _COLUMNS["runs"]["run"]}
    file = _file(folder, "runs")
    runs = checked_table(next(_parts(folder, "runs")), of_runs, str(file))
    twice = runs["run"].map(lambda run: sanitised(str(run))).duplicated()
    if twice.any():
        raise JoulecastError(f"{file}: run {runs['run'][twice].iloc[0]} is there twice")
    rows = {str(row["run"]): row for row in runs.to_dict("records")}
    repeats = runs.groupby(["system", "benchmark", "nodes"], dropna=False).cumcount() + 1
    repeat_of = dict(zip(runs["run"], repeats, strict=True))
    events = next(_parts(folder, "events"))
    events_of = {str(run): of_run for run, of_run in events.groupby("run")}

    def made(name: str, power: pd.DataFrame | None) -> ForeignRun:
        return _run(folder, rows.pop(name), int(repeat_of[name]), events_of.get(name), power)

    for name, power in _power_by_run(folder):
        if name in rows:
            yield made(name, power)
    for name in list(rows):
        yield made(name, None)


def _run(
    folder: Path,
    row: dict[str, Any],
    repeat: int,
    events: pd.DataFrame | None,
    power: pd.DataFrame | None,
) -> ForeignRun:
    init_stop_s = number(row.get("init_stop_s"))
    run = ForeignRun(
        run=sanitised(str(row["run"])),
        campaign="mlperf",
        system=_named(row["system"]),
        benchmark=_named(row["benchmark"]),
        submission=str(row.get("submission_run", row["run"])),
        source={"format": "mlperf tables", "path": str(folder.resolve())},
        repeat=repeat,
        nodes=whole_number(row["nodes"]),
        global_batch_size=whole_number(row.get("global_batch_size")),
        init_s=None if init_stop_s is None else (0.0, init_stop_s),
        start_s=number(row["run_start_s"]),
        stop_s=number(row["run_stop_s"]),
        status=row["status"] if isinstance(row["status"], str) else None,
    )
    if events is not None:
        run.intervals = _intervals(events)
    _add_power(run, power)
    return run


def _named(value: Any) -> str:
    return value if isinstance(value, str) else "unknown"


def _numbers(values: pd.Series) -> Floats:
    """Numbers that a log can mean; NaN for all else."""
    read = as_numbers(values).to_numpy()
    return np.where(np.abs(read) <= LARGEST, read, np.nan)


def _intervals(events: pd.DataFrame) -> list[Interval]:
    found = [
        Interval(_PHASES[kind], number(index), start_s, stop_s)
        for kind, index, start_s, stop_s in zip(
            events["kind"],
            events["index"],
            _numbers(events["start_s"]).tolist(),
            _numbers(events["stop_s"]).tolist(),
            strict=True,
        )
        if kind in _PHASES and np.isfinite([start_s, stop_s]).all()
    ]
    return sorted(found, key=lambda interval: (interval.start_s, interval.stop_s))


def _add_power(run: ForeignRun, power: pd.DataFrame | None) -> None:
    nodes = 0
    if power is not None:
        for meter, readings in power.groupby("meter", sort=False):
            watts, t_s = _numbers(readings["watts"]), _numbers(readings["t_s"])
            name = str(meter)
            if name.startswith("sw_"):
                if np.isfinite(t_s).sum() > 1:
                    known = np.isfinite(t_s)
                    file = f"power.csv, {name}"
                    run.switches.append(MeterLog(name, file, t_s[known], watts[known]))
                elif watts[0] >= 0:
                    switch_remark(f"power.csv, {name}", watts[0], None, None, run.findings)
                    run.estimates.append((name, float(t_s[0]), float(watts[0])))
                continue
            nodes += 1
            known = np.isfinite(t_s)
            run.meters.append(MeterLog(name, f"power.csv, {name}", t_s[known], watts[known]))
    if not nodes:
        run.findings.remark("no power", "power.csv has no node's reading of it; its times are used")
    elif run.nodes and nodes < run.nodes:
        run.findings.pollute(
            "node without readings", f"power.csv has {nodes} of its {run.nodes} nodes"
        )
