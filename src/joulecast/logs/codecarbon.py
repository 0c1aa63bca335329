"""CodeCarbon's ``emissions.csv`` and its files of tasks: a row for each run, with the energies of its
parts.

A row is a total without a trace. CodeCarbon either reads RAPL, or multiplies the CPU's load by the watts of
its name plate. It writes the same rows in both cases. No column says which. So the CPU's figure counts as an
estimate. The memory's figure is always an estimate, from a formula over its size. The GPU's figure is read
from the GPU's own counter (NVML, AMD SMI), and counts as imported. On Apple's chips it comes from a model of
the system.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LoggedRun, LogOptions
from joulecast.logs.log_table import LogTable
from joulecast.logs.log_times import Floats
from joulecast.runs.meter_choice import Covers

_WHAT = "file of CodeCarbon"
_NEEDED = ("timestamp", "duration", "energy_consumed")
_PARTS: dict[str, Covers] = {"cpu": "cpu", "gpu": "gpu", "ram": "memory"}
_NAMES = ("task_name", "project_name", "run_id", "codecarbon_version", "tracking_mode", "gpu_model")
_KWH_J = 3.6e6
_SAME = 0.01
_LEAST_OF_TRACE = 10
_CPU = (
    "estimated: CodeCarbon does not write whether it read the CPU's counter (RAPL) or took its load "
    "times its name plate"
)
_MEMORY = "estimated: CodeCarbon takes a formula over the size of the memory"
_APPLE = "estimated: the system's model of an Apple chip"
_PROCESS = "estimated: the share of one process (tracking_mode process)"


def read(file: Path, options: LogOptions) -> Log:
    """The runs of a file, each with the energies of its parts.

    Raises:
        JoulecastError: a column is missing, or a cell is wrong. The error names line and column.
    """
    table = LogTable(file, _WHAT, options)
    table.require(_NEEDED, f"expected: {_WHAT}")
    energies = [f"{part}_energy" for part in _PARTS if f"{part}_energy" in table.columns]
    numbers = [*_NEEDED[1:], *energies, *(["pue"] if "pue" in table.columns else [])]
    texts = [name for name in _NAMES if name in table.columns]
    rows = table.rows(["timestamp", *numbers, *texts])
    if not len(rows):
        raise JoulecastError(f"{file}: has a header and no run")
    times = options.clock.place(
        options.clock.seconds(rows["timestamp"], f"{file}, column timestamp"), str(file)
    )
    values = {name: table.numbers(rows[name], name) for name in numbers}
    for name in ("duration", "energy_consumed"):
        if not (values[name] >= 0).all():
            line = rows.index[int((~(values[name] >= 0)).argmax())]
            raise table.at(name, line, "is missing or negative")
    factor = _KWH_J / _pue(values, energies)
    about = rows[texts].fillna("").to_dict("records")
    _refuse_tasks(file, about)
    log = Log(form=times.form)
    for places in _runs(about, values["duration"]):
        facts = about[places[-1]]
        begin_s = float(times.t_s[places[0]] - values["duration"][places[0]])
        meters = []
        for name in energies:
            t_s = np.append(begin_s, times.t_s[places])
            joules = np.append(0.0, factor[places] * values[name][places])
            known = np.isfinite(joules)
            # A part that the machine lacks has none.
            if known[1:].any() and np.nanmax(joules) > 0:
                part = name.removesuffix("_energy")
                counts = np.maximum.accumulate(joules[known])
                meters.append(
                    _meter(options.node_of(file), part, str(file), t_s[known], counts, facts)
                )
        name = facts.get("task_name") or facts.get("project_name") or "codecarbon"
        kept = {"codecarbon": "codecarbon_version", "run_id": "run_id"}
        log.runs.append(
            LoggedRun(
                name,
                begin_s,
                float(times.t_s[places[-1]]),
                nodes=1,
                about={key: facts.get(column, "") for key, column in kept.items()},
                meters=tuple(meters),
            )
        )
    return log


def _refuse_tasks(file: Path, about: list[dict[str, str]]) -> None:
    """Refuse a row that has the energy of all tasks of a run, and the duration of the last one. CodeCarbon
    writes the tasks into a file in the same folder, which has the id of the run in its name."""
    ids = {facts.get("run_id") for facts in about if not facts.get("task_name")} - {None, ""}
    of_tasks = [other for other in file.parent.glob("*_*.csv") if other.stem.split("_")[-1] in ids]
    if of_tasks:
        raise JoulecastError(
            f"{file}: has a run of several tasks, with the duration of the last one; import {of_tasks[0]}"
        )


def _runs(about: list[dict[str, str]], lasting: Floats) -> list[list[int]]:
    """The rows of each run. A run has one row, or several that it wrote while it ran."""
    found: dict[tuple[str, ...], list[list[int]]] = defaultdict(list)
    for row, facts in enumerate(about):
        of_run = found[tuple(facts.get(name, "") for name in _NAMES[:3])]
        if facts.get("run_id") and of_run and lasting[row] > lasting[of_run[-1][-1]]:
            of_run[-1].append(row)
        else:
            of_run.append([row])
    return sorted(places for of_run in found.values() for places in of_run)


def _pue(values: dict[str, Floats], energies: list[str]) -> Floats:
    """The factor by which the energies of the parts were multiplied. It is the PUE if the total is about the
    sum of the parts, and otherwise 1."""
    pue = np.nan_to_num(values.get("pue", np.ones(1)), nan=1.0)
    parts = np.sum([np.nan_to_num(values[name]) for name in energies], axis=0)
    within = np.abs(values["energy_consumed"] - parts) <= _SAME * np.maximum(parts, 1e-12)
    return np.where(within & (pue >= 1), pue, 1.0) * np.ones(len(values["duration"]))


def _meter(
    node: str, part: str, file: str, t_s: Floats, joules: Floats, facts: dict[str, str]
) -> LoggedMeter:
    remark: str | None = {"cpu": _CPU, "ram": _MEMORY}.get(part)
    if part == "gpu" and "apple" in facts.get("gpu_model", "").lower():
        remark = _APPLE
    if part != "gpu" and facts.get("tracking_mode") == "process":
        remark = _PROCESS
    return LoggedMeter(
        node,
        # Its GPUs have one figure together.
        None if part == "gpu" else part,
        _PARTS[part],
        file,
        t_s,
        joules=joules,
        source="estimated" if remark else "imported",
        remark=remark,
        trace=len(t_s) > _LEAST_OF_TRACE,
    )
