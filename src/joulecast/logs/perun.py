"""Reads measurements of perun: its HDF5 file, or the CSV file that ``perun export ... csv`` makes from it.

With ``--rounds``, perun repeats a run, one round after the other. The times of a round count from the begin
of this round, but all rounds of a call have only one date. So it is assumed that a round begins when the
round before it ends. Values in watts or joules that perun read from a sensor are used. Values that perun
computed by a formula are not used.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LoggedRun, LogOptions
from joulecast.logs.log_table import LogTable, attribute, numbers_of, opened_hdf5
from joulecast.logs.log_times import Floats, TimeForm
from joulecast.runs.meter_choice import Covers

_WHAT = "file of perun"
_COLUMNS = (
    "run id",
    "hostname",
    "device_group",
    "sensor",
    "unit",
    "magnitude",
    "timestep",
    "value",
)
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?")
_COVERS: dict[str, Covers] = {
    "cpu": "cpu",
    "gpu": "gpu",
    "ram": "memory",
    "node": "node",
    "rack": "node",
}
_ROUNDS = (
    "rounds: perun writes one date for all; a round is taken to begin where the one before ended"
)


def read(file: Path, options: LogOptions) -> Log:
    """The runs of a file of perun.

    Raises:
        JoulecastError: the file is not from perun, or has no power sensor.
    """
    if file.suffix in (".hdf5", ".h5"):
        with opened_hdf5(file, _WHAT) as found:
            log = _of_tree(file, found, options)
    else:
        log = _of_table(file, options)
    if not any(run.meters for run in log.runs):
        raise JoulecastError(
            f"{file}: perun had no sensor of watts or joules on this machine (`perun sensors` lists them)"
        )
    return log


def _covers(group: str, sensor: str) -> Covers | None:
    """What a sensor covers; ``None`` if this is a part of what another sensor covers, or is not known."""
    plain = sensor.lower()
    if "module" in plain:
        return "module"
    if "grace power" in plain or group == "socket":
        return "socket"
    return None if "sysio" in plain else _COVERS.get(group)


def _of_tree(file: Path, root: Any, options: LogOptions) -> Log:
    log = Log(form="relative")
    for app in root.values():
        for name, calls in app["nodes"].items():
            begin_s, log.form = _begin(attribute(calls, "execution_dt") or name, file, options)
            rounds = sorted(calls["nodes"].items(), key=lambda pair: _number(pair[0]))
            if len(rounds) > 1 and _ROUNDS not in log.remarks:
                log.remarks.append(_ROUNDS)
            for number, run in rounds:
                lasts_s = float(run["metrics/RUNTIME"].attrs["value"])
                meters = tuple(_sensors(file, run, begin_s))
                app_name = app.name.strip("/").rsplit("/", 1)[-1]
                log.runs.append(_run(app_name, number, len(rounds), begin_s, lasts_s, meters))
                begin_s += lasts_s
    return log


def _run(
    app: str,
    number: str,
    rounds: int,
    begin_s: float,
    lasts_s: float,
    meters: tuple[LoggedMeter, ...],
) -> LoggedRun:
    return LoggedRun(
        f"{app}-{number}" if rounds > 1 else app,
        begin_s,
        begin_s + lasts_s,
        nodes=len({meter.node for meter in meters}) or None,
        meters=meters,
    )


def _number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (10**9, text)


def _begin(text: str, file: Path, options: LogOptions) -> tuple[float, TimeForm]:
    """When a call began, on the clock of the log; 0 if ``text`` has no date."""
    match = _DATE.search(text)
    if match is None:
        return 0.0, "relative"
    times = options.clock.moment(match[0], f"{file}, execution_dt")
    return float(times.t_s[0]), times.form


def _sensors(file: Path, run: Any, begin_s: float) -> list[LoggedMeter]:
    found = []
    for host, node in run["nodes"].items():
        for group, devices in node["nodes"].items():
            for sensor, leaf in devices["nodes"].items():
                if "raw_data" not in leaf:
                    continue
                covers = _covers(attribute(devices, "device_type") or group, sensor)
                meter = (
                    None
                    if covers is None
                    else _sensor(file, host, sensor, covers, leaf["raw_data"])
                )
                if meter is not None:
                    found.append(replace(meter, t_s=meter.t_s + begin_s))
    return found


def _sensor(file: Path, host: str, sensor: str, covers: Covers, raw: Any) -> LoggedMeter | None:
    t_s = numbers_of(raw["timesteps"]) * float(raw["timesteps"].attrs.get("mag", 1.0))
    # perun keeps what was counted as alt_values, next to the watts that it made of it.
    for name in ("alt_values", "values"):
        if name not in raw or attribute(raw[name], "unit") not in ("J", "W"):
            continue
        values = numbers_of(raw[name]) * float(raw[name].attrs.get("mag", 1.0))
        if len(values) != len(t_s):
            raise ValueError(f"{raw[name].name} and its times differ in length")
        meter = LoggedMeter(host, sensor, covers, str(file), t_s)
        if attribute(raw[name], "unit") == "W":
            return replace(meter, watts=values)
        most = float(raw[name].attrs.get("valid_max", 0)) * float(raw[name].attrs.get("mag", 1))
        return replace(meter, joules=_unwrapped(values, most))
    return None


def _unwrapped(joules: Floats, largest: float) -> Floats:
    """Counts as if the counter had not restarted after its ``largest`` value. If this is not known (0), the
    counts stay as they are."""
    if not largest:
        return joules
    falls = np.diff(joules, prepend=joules[:1]) < 0
    found: Floats = joules - joules[0] + np.cumsum(falls) * largest
    return np.maximum.accumulate(found)


def _of_table(file: Path, options: LogOptions) -> Log:
    table = LogTable(file, _WHAT, options)
    table.require(_COLUMNS, "expected the CSV of `perun export FILE csv`, or perun's HDF5 file")
    rows = table.rows(_COLUMNS)
    rows = rows[rows["unit"].isin(("W", "J"))]
    begin_s, form = _begin(file.name, file, options)
    log = Log(form=form)
    numbers = {name: table.numbers(rows[name], name) for name in ("timestep", "magnitude", "value")}
    rows = rows.assign(t=numbers["timestep"], v=numbers["value"] * numbers["magnitude"])
    rounds = sorted(rows["run id"].unique(), key=_number)
    if len(rounds) > 1:
        log.remarks.append(_ROUNDS)
    app = _DATE.sub("", file.name.split(".")[0]).strip("_") or "perun"
    for number in rounds:
        own = rows[rows["run id"] == number]
        meters = []
        for (host, group, sensor), readings in own.groupby(["hostname", "device_group", "sensor"]):
            covers = _covers(str(group), str(sensor))
            if covers is None:
                continue
            t_s, values = readings["t"].to_numpy(float) + begin_s, readings["v"].to_numpy(float)
            meter = LoggedMeter(str(host), str(sensor), covers, str(file), t_s)
            what = "joules" if readings["unit"].iloc[0] == "J" else "watts"
            meters.append(meter.reading(what, values))
        lasts_s = float(own["t"].max())
        log.runs.append(_run(app, str(number), len(rounds), begin_s, lasts_s, tuple(meters)))
        begin_s += lasts_s
    return log
