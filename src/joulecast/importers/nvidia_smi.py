"""CSV of ``nvidia-smi --query-gpu=... --format=csv``, with any columns in any order.

Its times are of the node's clock and name no zone. With MIG it reads the whole GPU, whichever slice worked.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.importers.log_series import Gathered
from joulecast.importers.log_table import LogTable
from joulecast.importers.logs import Log, LoggedMeter, LogOptions
from joulecast.importers.traps import Floats
from joulecast.records.covers import Covers

_WHAT = "CSV of nvidia-smi"
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
_MODULE = ("module.power.draw.average", "module.power.draw.instant")
_DEVICE = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
_MIG = "mig.mode.current"
_TIME = re.compile(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d")
_QUERY = "timestamp,index,power.draw"
_BURST, _MOST_BURSTS = 0.2, 0.3


def _plain(column: str) -> str:
    """``power.draw`` of ``power.draw [W]``."""
    return column.split("[")[0].strip()


def read(file: Path, options: LogOptions) -> Log:
    """The power of each GPU of a node.

    Raises:
        JoulecastError: a column is missing, or a cell is no reading; names line and column.
    """
    table = LogTable(file, _WHAT, options.columns, options.delimiter, options.decimal)
    if not options.columns and any(_TIME.match(cell) for cell in table.first):
        raise JoulecastError(
            f"{file}, line 1: has no header (noheader); give the columns as --columns {_QUERY}, in "
            "the order of --query-gpu="
        )
    plain = {_plain(column): column for column in reversed(table.columns)}
    power = next((plain[name] for name in _POWER if name in plain), None)
    if power is None or "timestamp" not in plain:
        missing = ["timestamp"] * ("timestamp" not in plain) + ["power.draw"] * (power is None)
        table.require(missing, f"ask nvidia-smi for --query-gpu={_QUERY}")
    assert power is not None
    device = next((plain[name] for name in _DEVICE if name in plain), None)
    asked = [plain["timestamp"], power, *([device] if device else [])]
    mig = plain.get(_MIG)
    module = next((plain[name] for name in _MODULE if name in plain), None)
    parts: dict[str, tuple[Covers, Gathered]] = {power: ("gpu", Gathered(options.clock, str(file)))}
    if module is not None:
        parts[module] = ("module", Gathered(options.clock, str(file)))
    skipped, sliced = 0, False
    for whole in table.parts([*asked, *([mig] if mig else []), *([module] if module else [])]):
        part = whole[whole[plain["timestamp"]].str.match(_TIME, na=False)]
        skipped += len(whole) - len(part)
        if not len(part):
            continue
        sliced |= mig is not None and bool((part[mig] == "Enabled").any())
        names = [part[device]] if device else []
        for column, (_, gathered) in parts.items():
            t_s = gathered.times(part[plain["timestamp"]], plain["timestamp"])
            watts = table.readings(part[column], column, "watts", options.unit)
            gathered.add(names, t_s, watts)
    found = [
        (covers, *meter)
        for covers, gathered in parts.values()
        for meter in gathered.meters()
        # Only some machines have a figure for the module.
        if covers == "gpu" or np.isfinite(meter[2]).any()
    ]
    if not found:
        raise JoulecastError(f"{file}: holds no reading; expected: {_WHAT}")
    if device is None:
        _require_one_gpu(found[0][2].t_s, file)
    log = Log(form=found[0][2].form)
    if skipped or table.cut_short:
        log.remarks.append(f"lines without a reading: {skipped + table.cut_short} in {file.name}")
    remark = "MIG is on: it reads the whole GPU, not a slice" if sliced else None
    for covers, key, times, watts in found:
        log.meters.append(
            LoggedMeter(
                options.node_of(file),
                _device_name(key) if covers == "gpu" else f"module {_device_name(key)}",
                covers,
                str(file),
                times.t_s,
                watts,
                remark=remark,
            )
        )
    return log


def _device_name(key: Sequence[str]) -> str:
    return key[0] if key else "0"


def _require_one_gpu(t_s: Floats, file: Path) -> None:
    """Refuse readings of several GPUs that nothing tells apart: they come in bursts."""
    steps = np.diff(np.sort(t_s))
    if len(steps) > 10 and np.mean(steps < _BURST * steps.mean()) > _MOST_BURSTS:
        raise JoulecastError(
            f"{file}: has readings of several GPUs and no column that tells them apart; ask nvidia-smi for "
            f"--query-gpu={_QUERY}"
        )
