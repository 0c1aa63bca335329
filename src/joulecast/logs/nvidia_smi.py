"""CSV of ``nvidia-smi --query-gpu=... --format=csv``, with any columns in any order; or the table of
``nvidia-smi dmon -o DT``.

The times come from the node's clock, and name no zone. With MIG, nvidia-smi reads the whole GPU, and not a
slice.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LogOptions
from joulecast.logs.log_table import MAX_LOG_BYTES, LogTable
from joulecast.runs.files.reading import read_text

_WHAT = "CSV of nvidia-smi"
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
_MODULE = ("module.power.draw.average", "module.power.draw.instant")
_DEVICE = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_MIG = "mig.mode.current"
_TIME = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d")
_QUERY = "timestamp,index,power.draw"
_DMON = ("date", "time", "gpu", "pwr")
_BURST, _MOST_BURSTS = 0.2, 0.3


def read(file: Path, options: LogOptions) -> Log:
    """The power of each GPU of a node.

    Raises:
        JoulecastError: a column is missing, or a cell is no reading. The error names line and column.
    """
    table = LogTable(file, _WHAT, options, options.columns)
    if table.first[0].startswith("#"):
        return _read_dmon(file, options)
    if not options.columns and any(_TIME.match(cell) for cell in table.first):
        raise JoulecastError(
            f"{file}, line 1: has no header (noheader); give the columns as --columns {_QUERY}, in "
            "the order of --query-gpu="
        )
    # `power.draw` of `power.draw [W]`
    plain = {column.split("[")[0].strip(): column for column in reversed(table.columns)}
    power, module, device = (
        next((plain[name] for name in names if name in plain), None)
        for names in (_POWER, _MODULE, _DEVICE)
    )
    missing = ["timestamp"] * ("timestamp" not in plain) + ["power.draw"] * (power is None)
    table.require(missing, f"ask nvidia-smi for --query-gpu={_QUERY}")
    assert power is not None
    mig = plain.get(_MIG)
    found = [
        (column, names, times, watts)
        for column, names, times, watts in table.series(
            plain["timestamp"],
            [power, *([module] if module else [])],
            [name for name in (device, mig) if name],
            only=_TIME,
        )
        # Only some machines have a figure for the module.
        if column == power or np.isfinite(watts).any()
    ]
    if not found:
        raise JoulecastError(
            f"{file}: has no line with a time as nvidia-smi writes it (2026/05/02 10:00:00.000); `import "
            "csv` reads other times"
        )
    log = Log(form=found[0][2].form)
    for column, names, times, watts in found:
        if device is None:
            steps = np.diff(np.sort(times.t_s))
            # Readings of several GPUs come in bursts.
            if len(steps) > 10 and np.mean(steps < _BURST * steps.mean()) > _MOST_BURSTS:
                raise JoulecastError(
                    f"{file}: has readings of several GPUs and no column that tells them apart; ask "
                    f"nvidia-smi for --query-gpu={_QUERY}"
                )
        name = names[0] if device else "0"
        node, remark = options.node_of(file), None
        if column != power:
            meter = LoggedMeter(node, f"module {name}", "module", str(file), times.t_s, watts)
        else:
            if "Enabled" in names:
                remark = "MIG is on: it reads the whole GPU, not a slice"
            meter = LoggedMeter(node, name, "gpu", str(file), times.t_s, watts, remark=remark)
        log.meters.append(meter)
    if skipped := table.left_out + table.cut_short:
        log.remarks.append(f"lines without a reading: {skipped} in {file.name}")
    return log


def _read_dmon(file: Path, options: LogOptions) -> Log:
    """The table of ``nvidia-smi dmon``. Its columns have spaces between them, and its head is repeated."""
    lines = enumerate(read_text(file, _WHAT, MAX_LOG_BYTES).splitlines(), start=1)
    # With --format csv, there are commas, too.
    cells = [(number, line.replace(",", " ").split()) for number, line in lines if line.strip()]
    head = [name.lstrip("#").lower() for name in cells[0][1] if name != "#"]
    if missing := [name for name in _DMON if name not in head]:
        raise JoulecastError(
            f"{file}: the table of dmon has no column {', '.join(missing)}; ask for "
            "nvidia-smi dmon -s p -o DT"
        )
    # A last line that was cut short lacks columns.
    whole = [(n, row) for n, row in cells if not row[0].startswith("#") and len(row) == len(head)]
    rows = pd.DataFrame(dict(whole).values(), index=[n for n, _ in whole], columns=head, dtype=str)
    if rows.empty:
        raise JoulecastError(f"{file}: holds no reading; expected: {_WHAT}")
    log = Log()
    day = rows["date"].str.replace(r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3", regex=True)
    where = f"{file}, columns Date and Time"
    times = options.clock.place(options.clock.seconds(day + " " + rows["time"], where), where)
    watts = pd.to_numeric(rows["pwr"].replace("-", "nan"), errors="coerce").to_numpy(float)
    for gpu in rows["gpu"].unique():
        own = (rows["gpu"] == gpu).to_numpy()
        log.meters.append(
            LoggedMeter(options.node_of(file), gpu, "gpu", str(file), times.t_s[own], watts[own])
        )
    log.form = times.form
    return log
