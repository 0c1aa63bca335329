"""A table of any form, as wattmeters and PDUs write it, read by a map of its columns.

``time=T,watts=P`` is enough. ``joules=E`` in place of ``watts`` is a counter. ``node=N`` names the node of
each row, ``device=D`` a part of it. There may be several columns of watts (or joules). If no node is named,
each column is a node. If a node is named (by ``node=`` or by the user), the columns are parts of this node,
such as its power supplies.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LogOptions
from joulecast.logs.log_table import LogTable
from joulecast.logs.log_times import Floats

_NAMES = ("time", "watts", "joules", "node", "device")
_WHAT = "table of readings"
_MOST_W = 100e3
_LEAST_OF_COUNTER, _MOST_RISES = 20, 0.5
"""Least number of readings, and share of them that rise, from which on readings are a counter and no power,
if none falls."""
_WAY_OUT = "name them with --map, such as time=COLUMN,watts=COLUMN,node=COLUMN"


def map_of(text: str) -> dict[str, tuple[str, ...]]:
    """The columns of ``--map``, as ``time=T,watts=P1,watts=P2``.

    Raises:
        JoulecastError: the text does not have this form, or lacks the times or the readings.
    """
    found: dict[str, tuple[str, ...]] = {}
    for pair in text.split(","):
        name, is_pair, column = pair.partition("=")
        if name.strip() not in _NAMES or not is_pair or not column.strip():
            raise JoulecastError(
                f"--map: `{pair[:40]}` is none of {', '.join(f'{n}=COLUMN' for n in _NAMES)}"
            )
        found[name.strip()] = (*found.get(name.strip(), ()), column.strip())
    if len(found.get("time", ())) != 1 or bool(found.get("watts")) == bool(found.get("joules")):
        raise JoulecastError("--map: needs time=COLUMN, and either watts=COLUMN or joules=COLUMN")
    if any(len(found.get(name, ())) > 1 for name in ("node", "device")):
        raise JoulecastError("--map: node= and device= are one column each")
    return found


def read(file: Path, options: LogOptions) -> Log:
    """The readings of a table.

    Raises:
        JoulecastError: the file is no table that the map can read. The error names line and column.
    """
    mapped = options.mapped
    if not mapped:
        raise JoulecastError(f"{file}: which columns are what? {_WAY_OUT}")
    table = LogTable(file, _WHAT, options, options.columns)
    table.require([column for columns in mapped.values() for column in columns], _WAY_OUT)
    what = "watts" if "watts" in mapped else "joules"
    named = [name for name in ("node", "device") if name in mapped]
    columns = [mapped[name][0] for name in named]
    several = len(mapped[what]) > 1
    log = Log()
    for column, key, times, values in table.series(mapped["time"][0], mapped[what], columns, what):
        names = dict(zip(named, key, strict=True))
        node, device = names.get("node") or options.node, names.get("device")
        if several:
            # If the node is named, the columns are its devices, such as its power supplies. Otherwise each is
            # a node.
            node, device = node or column, column if node else device
        origin = f"{file}, {column}" if several else str(file)
        _require_one_meter(table, mapped, dict(zip(columns, key, strict=True)), times.t_s)
        if what == "watts":
            _require_power(origin, values)
        node, covers = node or options.node_of(file), options.covers or "node"
        # A table that joins several series (Grafana, W&B) has empty cells at the times of the others.
        known = np.isfinite(values)
        meter = LoggedMeter(node, device, covers, origin, times.t_s[known])
        log.meters.append(meter.reading(what, values[known]))
        log.form = times.form
    if table.cut_short:
        log.remarks.append("truncated line: its last line was cut short")
    if not log.meters:
        raise JoulecastError(f"{file}: has a header and no reading")
    return log


def _require_one_meter(
    table: LogTable, mapped: Mapping[str, Sequence[str]], cells: Mapping[str, str], t_s: Floats
) -> None:
    """Refuse a table in which a column that the map does not name tells several meters apart. Without this
    column, the mean of these meters would count as one meter.

    Args:
        cells: the cells that all readings of the meter share, by the names of their columns.
    """
    _, counts = np.unique(t_s, return_counts=True)
    each = int(np.median(counts)) if len(counts) else 1
    time, known = mapped["time"][0], {name for columns in mapped.values() for name in columns}
    for column in table.columns if each > 1 else ():
        if column in known or table.columns.count(column) > 1:
            continue
        rows = table.rows([time, *cells, column])
        rows = rows[(rows[[*cells]].fillna("") == pd.Series(cells, dtype=object)).all(axis=1)]
        # Each value of such a column occurs equally often at each time.
        often = rows.groupby([time, column]).size()
        values = rows[column].nunique()
        if values > 1 and (often * values == each).mean() > 0.5:
            raise JoulecastError(
                f"{table.path}: has {each} readings at each time, as many for each {column}; add "
                f"device={column} to --map for parts of a node, or node={column} for nodes"
            )


def _require_power(origin: str, values: Floats) -> None:
    known = values[np.isfinite(values)]
    steps = np.diff(known)
    rising = float(np.mean(steps > 0)) if len(known) >= _LEAST_OF_COUNTER else 0.0
    if rising > _MOST_RISES and steps.min() >= 0:
        raise JoulecastError(
            f"{origin}: rises in {100 * rising:.0f} % of its readings and never falls, "
            "as a counter of energy; map it as joules="
        )
    if len(known) and float(np.median(known)) > _MOST_W:
        raise JoulecastError(
            f"{origin}: {float(np.median(known)):.4g} W in the middle, which no node draws; if it is in "
            "another unit, say --unit mW"
        )
