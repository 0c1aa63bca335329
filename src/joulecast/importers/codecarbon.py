"""CodeCarbon's ``emissions.csv`` and its files of tasks: a row a run, with the energies of its parts.

A row is a total without a trace. CodeCarbon writes its rows in the same way whether it read RAPL or took the
CPU's load times its name plate; no column says which. So the CPU's figure counts as an estimate. The memory's
always is one: a formula over its size. The GPU's is read from the GPU's own counter (NVML, AMD SMI), and
counts as imported; on Apple's chips it is a model of the system again.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.importers.log_table import LogTable
from joulecast.importers.logs import Log, LoggedMeter, LoggedRun, LogOptions
from joulecast.importers.traps import Floats
from joulecast.records.covers import Covers
from joulecast.records.metering import EnergySource

_WHAT = "file of CodeCarbon"
_NEEDED = ("timestamp", "duration", "energy_consumed")
_PARTS: tuple[tuple[str, Covers], ...] = (("cpu", "cpu"), ("gpu", "gpu"), ("ram", "memory"))
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
        JoulecastError: a column is missing, or a cell is none; names line and column.
    """
    table = LogTable(file, _WHAT, (), options.delimiter, options.decimal)
    table.require(_NEEDED, f"expected: {_WHAT}")
    numbers = [f"{part}_energy" for part, _ in _PARTS] + [
        "duration",
        "energy_consumed",
        "pue",
        "gpu_count",
    ]
    asked = [c for c in ("timestamp", *numbers, *_NAMES) if c in table.columns]
    rows = pd.concat([*table.parts(asked), pd.DataFrame(columns=asked)])
    if not len(rows):
        raise JoulecastError(f"{file}: has a header and no run")
    times = options.clock.place(
        options.clock.seconds(rows["timestamp"], f"{file}, column timestamp"), str(file)
    )
    values = {name: table.numbers(rows[name], name) for name in numbers if name in rows}
    for name in ("duration", "energy_consumed"):
        if not (values[name] >= 0).all():
            line = rows.index[int((~(values[name] >= 0)).argmax())]
            raise table.at(name, line, "is missing or negative")
    log = Log(form=times.form)
    factor = _KWH_J / _pue(values)
    texts = {name: rows[name].fillna("").tolist() for name in _NAMES if name in rows}
    for places in _runs(texts, values["duration"]):
        last = places[-1]
        about = {name: str(texts[name][last]) for name in texts}
        begin_s = float(times.t_s[places[0]] - values["duration"][places[0]])
        meters = [
            meter
            for part, covers in _PARTS
            if f"{part}_energy" in values
            and (
                meter := _meter(
                    options.node_of(file),
                    part,
                    covers,
                    str(file),
                    np.append(begin_s, times.t_s[places]),
                    np.append(0.0, factor[places] * values[f"{part}_energy"][places]),
                    about,
                )
            )
        ]
        name = about.get("task_name") or about.get("project_name") or "codecarbon"
        log.runs.append(
            LoggedRun(
                name,
                begin_s,
                float(times.t_s[last]),
                nodes=1,
                about={
                    "codecarbon": about.get("codecarbon_version", ""),
                    "run_id": about.get("run_id", ""),
                },
                meters=tuple(meters),
            )
        )
    return log


def _runs(texts: dict[str, list[str]], lasting: Floats) -> list[list[int]]:
    """The rows of each run: one, or several that a run wrote while it went on."""
    found: list[list[int]] = []
    keys = [
        tuple(texts[name][row] for name in ("task_name", "project_name", "run_id") if name in texts)
        for row in range(len(lasting))
    ]
    place: dict[tuple[str, ...], int] = {}
    for row, key in enumerate(keys):
        known = place.get(key) if "run_id" in texts and texts["run_id"][row] else None
        if known is not None and lasting[row] > lasting[found[known][-1]]:
            found[known].append(row)
        else:
            place[key] = len(found)
            found.append([row])
    return found


def _pue(values: dict[str, Floats]) -> Floats:
    """What the parts' energies were multiplied by: the PUE, where the total has no more than they."""
    pue = np.nan_to_num(values.get("pue", np.ones(1)), nan=1.0)
    parts = np.sum([np.nan_to_num(values[n]) for n in values if n.endswith("_energy")], axis=0)
    within = np.abs(values["energy_consumed"] - parts) <= _SAME * np.maximum(parts, 1e-12)
    return np.where(within & (pue >= 1), pue, 1.0) * np.ones(len(values["duration"]))


def _meter(
    node: str,
    part: str,
    covers: Covers,
    file: str,
    t_s: Floats,
    joules: Floats,
    about: dict[str, str],
) -> LoggedMeter | None:
    """The meter of a part; ``None`` for one that the machine lacks."""
    known = np.isfinite(joules)
    if not known.any() or not np.nanmax(joules) > 0:
        return None
    source: EnergySource = "estimated"
    remark: str | None = {"cpu": _CPU, "ram": _MEMORY}.get(part)
    if part == "gpu":
        apple = "apple" in about.get("gpu_model", "").lower()
        source, remark = ("estimated", _APPLE) if apple else ("imported", None)
    if about.get("tracking_mode") == "process" and part != "gpu":
        remark = _PROCESS
    return LoggedMeter(
        node,
        part,
        covers,
        file,
        t_s[known],
        joules=np.maximum.accumulate(joules[known]),
        source=source,
        remark=remark,
        trace=int(known.sum()) > _LEAST_OF_TRACE,
    )
