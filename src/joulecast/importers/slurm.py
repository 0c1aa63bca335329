"""Jobs of SLURM's accounting with the joules that it counted: ``sacct --parsable2`` or ``sacct --json``.

The energy is a total of all nodes of a job, dealt out evenly; it has no trace. A job's own figure counts;
where it has none, that of its numbered steps, else that of its batch step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_json_object
from joulecast.importers.log_table import LogTable
from joulecast.importers.log_times import TimeForm, Times
from joulecast.importers.logs import Log, LoggedMeter, LoggedRun, LogOptions
from joulecast.importers.runs_table import expanded

_WHAT = "output of sacct"
_NONE_J = 1e18
"""SLURM writes 2^64 - 2 where it has no figure."""
_WAY_OUT = (
    "ask sacct for --parsable2 -o JobID,JobName,State,Start,End,NNodes,NodeList,ConsumedEnergyRaw"
)
_NEEDED = ("JobID", "Start", "End")
_OPTIONAL = (
    "JobName",
    "State",
    "NNodes",
    "AllocNodes",
    "NodeList",
    "ConsumedEnergyRaw",
    "ConsumedEnergy",
)
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MAX_BYTES = 300_000_000


@dataclass(frozen=True)
class _Row:
    """A job, or a step of one."""

    job: str
    step: str | None
    name: str
    state: str
    start_s: float
    stop_s: float
    nodes: int | None
    hosts: tuple[str, ...]
    joules: float | None


def read(file: Path, options: LogOptions) -> Log:
    """The jobs of a file, each with its energy.

    Raises:
        JoulecastError: it is no output of sacct, or lacks a column; names the line.
    """
    form: TimeForm
    if file.suffix == ".json":
        rows, form = _of_json(file), "placed"
    else:
        rows, times = _of_table(file, options)
        form = times.form
    by_job: dict[tuple[str, int], list[_Row]] = defaultdict(list)
    begins: Counter[str] = Counter()
    for row in rows:
        # `sacct --duplicates` has a job that was requeued once more, with its steps below it.
        begins[row.job] += row.step is None
        by_job[row.job, begins[row.job]].append(row)
    log = Log(form=form)
    for (job, _), own in by_job.items():
        whole = next((row for row in own if row.step is None), own[0])
        if not whole.stop_s > whole.start_s:
            log.remarks.append(f"job without an end: {job} is still running, or never ran")
            continue
        log.runs.append(_run(file, job, whole, own))
    if not log.runs:
        raise JoulecastError(f"{file}: has no job that has ended")
    return log


def _run(file: Path, job: str, whole: _Row, own: list[_Row]) -> LoggedRun:
    joules, remark = _energy(whole, own)
    nodes = whole.nodes or len(whole.hosts) or 1
    hosts = whole.hosts if len(whole.hosts) == nodes else tuple(f"node_{n}" for n in range(nodes))
    meters = [
        LoggedMeter(
            host,
            None,
            "node",
            f"{file.name}, job {job}",
            np.array([whole.start_s, whole.stop_s]),
            joules=np.array([0.0, joules / nodes]),
            remark="an equal share of what SLURM counts for the job" if nodes > 1 else None,
            trace=False,
        )
        for host in hosts
        if joules is not None
    ]
    return LoggedRun(
        f"{job}-{whole.name}" if whole.name else job,
        whole.start_s,
        whole.stop_s,
        nodes=nodes,
        succeeded=None if not whole.state else whole.state.split()[0] == "COMPLETED",
        about={"job": job, "state": whole.state},
        meters=tuple(meters),
        remarks=() if remark is None else (f"SLURM's energy: {remark}",),
    )


def _energy(whole: _Row, own: Iterable[_Row]) -> tuple[float | None, str | None]:
    """Joules of a job, and what a reader should know of them."""
    if whole.step is None and whole.joules:
        return whole.joules, None
    numbered = [r for r in own if r.step is not None and r.step.isdigit() and r.joules]
    if numbered:
        joules = sum(r.joules or 0.0 for r in numbered)
        return joules, f"the sum of {len(numbered)} steps; between them nothing was counted"
    batch = next((r for r in own if r.step == "batch" and r.joules), None)
    if batch is not None:
        several = (whole.nodes or 1) > 1
        return batch.joules, "of the batch step" + (", on the first node only" if several else "")
    return None, "none was counted (acct_gather_energy is not set up, or the job was too short)"


def _of_table(file: Path, options: LogOptions) -> tuple[list[_Row], Times]:
    table = LogTable(file, _WHAT, options.columns, options.delimiter, options.decimal)
    table.require(_NEEDED, _WAY_OUT)
    energy = next((c for c in ("ConsumedEnergyRaw", "ConsumedEnergy") if c in table.columns), None)
    if energy is None:
        table.require(["ConsumedEnergyRaw"], _WAY_OUT)
    asked = [*_NEEDED, *(c for c in _OPTIONAL if c in table.columns)]
    rows = pd.concat([*table.parts(asked), pd.DataFrame(columns=asked)])
    known = ~rows["Start"].isin(("Unknown", "None", "")) & ~rows["End"].isin(
        ("Unknown", "None", "")
    )
    rows = rows[known & rows["JobID"].str.match(r"\d", na=False)]
    if not len(rows):
        raise JoulecastError(f"{file}: has no job that has begun and ended; {_WAY_OUT}")
    ends = []
    for name in ("Start", "End"):
        # Jobs come in any order, so that an hour that is there twice is placed job by job.
        ends.append(_placed(options, rows[name], f"{file}, column {name}"))
    found = []
    for place, row in enumerate(rows.to_dict("records")):
        job, _, step = str(row["JobID"]).partition(".")
        hosts = expanded(_text(row, "NodeList")) if "assigned" not in _text(row, "NodeList") else ()
        count = _text(row, "NNodes") or _text(row, "AllocNodes")
        found.append(
            _Row(
                job,
                step or None,
                _text(row, "JobName"),
                _text(row, "State"),
                float(ends[0].t_s[place]),
                float(ends[1].t_s[place]),
                int(count) if count.isdigit() and int(count) else None,
                hosts,
                _joules(table, rows.index[place], str(energy), _text(row, str(energy))),
            )
        )
    return found, ends[0]


def _placed(options: LogOptions, texts: pd.Series, where: str) -> Times:
    clock = options.clock
    times = clock.seconds(texts, where)
    each = [
        clock.place(Times(times.t_s[n : n + 1], times.form), where) for n in range(len(times.t_s))
    ]
    return Times(np.concatenate([one.t_s for one in each]), each[0].form)


def _text(row: dict[Any, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _joules(table: LogTable, line: object, column: str, text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    if not text:
        return None
    if match is None:
        raise table.at(column, line, f"`{text[:40]}` is no number of joules")
    joules = float(match[1]) * _SUFFIXES[match[2]]
    return joules if 0 < joules < _NONE_J else None


def _of_json(file: Path) -> list[_Row]:
    content = read_json_object(file, _WHAT, _MAX_BYTES)
    jobs = content.get("jobs")
    if not isinstance(jobs, list):
        raise JoulecastError(f"{file}: has no list of jobs; expected what `sacct --json` prints")
    rows = []
    for number, job in enumerate(jobs, start=1):
        try:
            rows += _of_job(job)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise JoulecastError(
                f"{file}: job {number} is not as `sacct --json` prints it"
            ) from None
    return rows


def _of_job(job: dict[str, Any]) -> list[_Row]:
    name, identity = str(job.get("name", "")), str(job["job_id"])
    hosts = str(job.get("nodes", ""))
    nodes = _number(job.get("allocation_nodes"))
    tres = job.get("tres", {}).get("allocated", [])
    energy = next((_number(t.get("count")) for t in tres if t.get("type") == "energy"), None)
    whole = _Row(
        identity,
        None,
        name,
        _state(job.get("state", {})),
        _number(job["time"]["start"]) or 0.0,
        _number(job["time"]["end"]) or 0.0,
        None if nodes is None else int(nodes),
        expanded(hosts) if "assigned" not in hosts.lower() else (),
        energy if energy and energy < _NONE_J else None,
    )
    rows = [whole]
    for step in job.get("steps", []):
        identified = step["step"]["id"]
        text = identified if isinstance(identified, str) else str(identified.get("step_id", ""))
        joules = _number(step.get("statistics", {}).get("energy", {}).get("consumed"))
        rows.append(
            _Row(
                identity,
                text.rpartition(".")[2] or text,
                str(step["step"].get("name", "")),
                _state(step.get("state", "")),
                whole.start_s,
                whole.stop_s,
                whole.nodes,
                (),
                joules if joules and joules < _NONE_J else None,
            )
        )
    return rows


def _state(state: Any) -> str:
    """The state of a job: a text, a list of them, or either under ``current``."""
    if isinstance(state, dict):
        state = state.get("current", "")
    return " ".join(map(str, state)) if isinstance(state, list) else str(state)


def _number(value: Any) -> float | None:
    """A number, as SLURM 22 writes it or as later ones do (``set``, ``infinite``, ``number``)."""
    if isinstance(value, dict):
        return float(value["number"]) if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
