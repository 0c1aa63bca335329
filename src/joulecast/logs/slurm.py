"""Jobs of SLURM's accounting with the joules that it counted: ``sacct --parsable2`` or ``sacct --json``.

The energy is a total over all nodes of a job. It is divided evenly over them, and has no trace. The energy of
the job itself counts. If it is missing, the sum over its numbered steps counts if they took most of the job
one after the other, or else the energy of its batch step if the job has one node.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.logs.log import MOST_HOSTS, Log, LoggedMeter, LoggedRun, LogOptions, expanded
from joulecast.logs.log_table import LogTable
from joulecast.logs.log_times import TimeForm
from joulecast.quantities import counted
from joulecast.runs.files.reading import read_json_object

_WHAT = "output of sacct"
_NONE_J = 1e18
_LEAST_SHARE, _MOST_SHARE = 0.8, 1.02
"""Least and largest share of the node-seconds of a job that its steps may take together."""
_WAY_OUT = (
    "ask sacct for --parsable2 -o JobID,JobName,State,Start,End,NNodes,NodeList,ConsumedEnergyRaw"
)
_NEEDED = ("JobID", "Start", "End")
_OPTIONAL = ("JobName", "State", "NNodes", "AllocNodes", "NodeList")
_ENERGY = ("ConsumedEnergyRaw", "ConsumedEnergy")
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MAX_BYTES = 300_000_000


@dataclass(frozen=True)
class _Row:
    """A job of SLURM, or a step of a job."""

    job: str
    step: str | None
    name: str
    state: str
    start_s: float
    stop_s: float
    nodes: int | None
    hosts: tuple[str, ...]
    joules: float | None

    @property
    def node_s(self) -> float:
        """Node-seconds: the duration, multiplied by the number of nodes."""
        return (self.stop_s - self.start_s) * (self.nodes or len(self.hosts) or 1)


def read(file: Path, options: LogOptions) -> Log:
    """The jobs of a file, each with its energy.

    Raises:
        JoulecastError: the file is no output of sacct, or lacks a column. The error names the line.
    """
    form: TimeForm
    if file.suffix == ".json":
        rows, form = _of_json(file), "placed"
    else:
        rows, form = _of_table(file, options)
    by_job: dict[tuple[str, int], list[_Row]] = defaultdict(list)
    begins: Counter[str] = Counter()
    for row in rows:
        # If a job was requeued, `sacct --duplicates` has it twice, each time with its steps below it.
        begins[row.job] += row.step is None
        by_job[row.job, begins[row.job]].append(row)
    log = Log(form=form)
    for (job, _), own in by_job.items():
        whole = next((row for row in own if row.step is None), own[0])
        if not whole.stop_s > whole.start_s:
            log.remarks.append(f"job without an end: {job} is still running, or never ran")
            continue
        if "+" in job:
            log.remarks.append(
                f"part of a job: {job} is a part of a heterogeneous job, and no training of its own"
            )
            continue
        log.runs.append(_run(file, job, whole, own))
    if not log.runs:
        raise JoulecastError(f"{file}: has no job that has ended")
    return log


def _run(file: Path, job: str, whole: _Row, own: list[_Row]) -> LoggedRun:
    joules, remark = _energy(whole, own)
    nodes = whole.nodes or len(whole.hosts) or 1
    if nodes > MOST_HOSTS:
        raise JoulecastError(f"{file}: job {job} has {nodes:,} nodes, more than a cluster")
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
        hosts=whole.hosts,
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
        share = sum(r.node_s for r in numbered) / whole.node_s
        said = f"of {counted(len(numbered), 'step')}, which took {100 * share:.0f} % of the job"
        if share > _MOST_SHARE:
            return (
                None,
                f"not used: {said}, so that they ran at the same time and counted nodes twice",
            )
        if share < _LEAST_SHARE:
            return None, f"not used: {said}"
        return joules, said
    batch = next((r for r in own if r.step == "batch" and r.joules), None)
    if batch is not None and (whole.nodes or 1) > 1:
        return None, "not used: of the batch step, which counts the first node alone"
    if batch is not None:
        return batch.joules, "of the batch step"
    return None, "none was counted (acct_gather_energy is not set up, or the job was too short)"


def _of_table(file: Path, options: LogOptions) -> tuple[list[_Row], TimeForm]:
    table = LogTable(file, _WHAT, options, options.columns)
    table.require(_NEEDED, _WAY_OUT)
    energy = next((c for c in _ENERGY if c in table.columns), _ENERGY[0])
    table.require([energy], _WAY_OUT)
    asked = [*_NEEDED, energy, *(c for c in _OPTIONAL if c in table.columns)]
    rows = table.rows(asked).fillna("")
    unknown = rows[["Start", "End"]].isin(("Unknown", "None", ""))
    rows["End"] = rows["End"].mask(unknown["End"], rows["Start"])  # of a job that still runs
    rows = rows[~unknown["Start"] & rows["JobID"].str.match(r"\d")]
    if not len(rows):
        raise JoulecastError(f"{file}: has no job that has begun; {_WAY_OUT}")
    clock = options.clock
    start, end = (
        clock.place(clock.seconds(rows[name], f"{file}, column {name}"), str(file), in_order=False)
        for name in ("Start", "End")
    )
    found = []
    for place, (line, row) in enumerate(rows.iterrows()):
        job, _, step = row["JobID"].partition(".")
        hosts, count = row.get("NodeList", ""), row.get("NNodes") or row.get("AllocNodes") or ""
        joules = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", row[energy] or "0")
        if joules is None:
            raise table.at(energy, line, f"`{row[energy][:40]}` is no number of joules")
        found.append(
            _Row(
                job,
                step or None,
                row.get("JobName", ""),
                row.get("State", ""),
                float(start.t_s[place]),
                float(end.t_s[place]),
                int(count) if count.isdecimal() and int(count) else None,
                _hosts(hosts),
                _counted(float(joules[1]) * _SUFFIXES[joules[2]]),
            )
        )
    return found, start.form


def _hosts(text: str) -> tuple[str, ...]:
    return () if "assigned" in text.lower() else expanded(text)


def _counted(joules: float | None) -> float | None:
    """Joules; ``None`` if there is no figure. SLURM then writes 0 or 2^64 - 2."""
    return joules if joules and 0 < joules < _NONE_J else None


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
    if _number(job.get("het", {}).get("job_id")):
        identity += "+"  # a part of a heterogeneous job
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
        _hosts(str(job.get("nodes", ""))),
        _counted(energy),
    )
    rows = [whole]
    for step in job.get("steps", []):
        identified = step["step"]["id"]
        text = str(identified["step_id"] if isinstance(identified, dict) else identified)
        joules = _number(step.get("statistics", {}).get("energy", {}).get("consumed"))
        rows.append(
            replace(
                whole,
                step=text.rpartition(".")[2] or text,
                start_s=_number(step["time"]["start"]) or 0.0,
                stop_s=_number(step["time"]["end"]) or 0.0,
                nodes=int(_number(step["nodes"]["count"]) or 0) or None,
                joules=_counted(joules),
            )
        )
    return rows


def _state(state: Any) -> str:
    """The state of a job as text. SLURM writes it as a text, as a list of texts, or as either of them under
    the key ``current``."""
    if isinstance(state, dict):
        state = state.get("current", "")
    return " ".join(map(str, state)) if isinstance(state, list) else str(state)


def _number(value: Any) -> float | None:
    """The value of a number, as SLURM 22 writes it, or as later versions do (with ``set``, ``infinite``,
    ``number``). ``None`` if there is none."""
    if isinstance(value, dict):
        return float(value["number"]) if value.get("set") and not value.get("infinite") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
