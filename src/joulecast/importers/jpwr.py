"""What jpwr sampled, as CARAML and others use it: ``power.*.csv`` or ``power.*.h5``.

A file has the readings of one process of a node. Its name ends with the node and the number of the process,
or is the rank. A file of energies (``energy.*``) has no times and is not read.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.importers.hdf5 import opened_hdf5
from joulecast.importers.log_series import Gathered
from joulecast.importers.log_table import LogTable
from joulecast.importers.log_times import TimeForm
from joulecast.importers.logs import Log, LoggedMeter, LogOptions
from joulecast.importers.traps import Floats
from joulecast.records.covers import Covers

_WHAT = "power file of jpwr"
_TIMES = "timestamps"
_COVERS: tuple[tuple[str, Covers | None], ...] = (
    (r"gh:.*module", "module"),
    (r"gh:.*grace", "socket"),
    (r"gh:.*cpu", "cpu"),
    (r"gh:", None),
    (r"(pynvml|rocm|gc|hbm|nvidia|amd)", "gpu"),
)
_NAME = re.compile(r"power\.?(.*?)(?:\.\d+)?\.(?:csv|h5|hdf5)(?:\.gz)?", re.IGNORECASE)


def read(file: Path, options: LogOptions) -> Log:
    """The power of each device of a node.

    Raises:
        JoulecastError: it is no such file; names line and column.
    """
    columns, form = _of_hdf5(file) if file.suffix in (".h5", ".hdf5") else _of_table(file, options)
    match = _NAME.fullmatch(file.name)
    node = options.node or (match[1] if match and match[1] else options.node_of(file))
    t_s = columns.pop(_TIMES)
    log = Log(form=form)
    if node.isdecimal() and options.node is None:
        log.remarks.append(
            f"named by rank: {file.name}; where ranks of one node have read the same devices, import "
            "one of them"
        )
    for name, watts in columns.items():
        covers = next((c for pattern, c in _COVERS if re.match(pattern, name, re.IGNORECASE)), None)
        if covers is None:
            log.remarks.append(f"not read: {name}, which lies inside another or is not known")
        elif not (watts > 0).any():
            log.remarks.append(f"not read: {name}, which reads 0 W (the second die of a package)")
        else:
            log.meters.append(LoggedMeter(node, name, covers, str(file), t_s, watts))
    if not log.meters:
        raise JoulecastError(f"{file}: holds no device; its columns are {', '.join(columns)[:100]}")
    return log


def _of_table(file: Path, options: LogOptions) -> tuple[dict[str, Floats], TimeForm]:
    table = LogTable(file, _WHAT, options.columns, options.delimiter, options.decimal)
    table.require(
        [_TIMES],
        f"expected: {_WHAT}; files of energies (energy.*) have no times and cannot be imported",
    )
    names = [name for name in table.columns if name and name != _TIMES]
    gathered = {name: Gathered(options.clock, str(file)) for name in names}
    found: dict[str, Floats] = {}
    for part in table.parts([_TIMES, *names]):
        t_s = None
        for name, series in gathered.items():
            t_s = series.times(part[_TIMES], _TIMES) if t_s is None else t_s
            series.same_form_as(next(iter(gathered.values())))
            series.add([], t_s, table.numbers(part[name], name))
    form: TimeForm = "placed"
    for name, series in gathered.items():
        for _, times, watts in series.meters():
            found[_TIMES], form = times.t_s, times.form
            found[name] = watts
    if not found:
        raise JoulecastError(f"{file}: has a header and no reading")
    return found, form


def _of_hdf5(file: Path) -> tuple[dict[str, Floats], TimeForm]:
    """The data frame that pandas has written under ``jpwr``: blocks of columns of one type."""
    found: dict[str, Floats] = {}
    with opened_hdf5(file, _WHAT) as root:
        if "jpwr" not in root:
            raise JoulecastError(f"{file}: is no {_WHAT} (it has no group `jpwr`)")
        frame: Any = root["jpwr"]
        for block in (
            name for name in frame if name.endswith("_values") and name.startswith("block")
        ):
            items = [text.decode() for text in frame[block.replace("_values", "_items")][:]]
            values = np.asarray(frame[block][:], dtype=float)
            found |= {name: values[:, place] for place, name in enumerate(items)}
    if _TIMES not in found:
        raise JoulecastError(f"{file}: has no column {_TIMES}; expected: {_WHAT}")
    return found, "placed"
