"""Readings of jpwr, which CARAML and others use: ``power.*.csv`` or ``power.*.h5``.

A file has the readings of one process of a node. Its name ends with the node and the number of the
process, or with the rank. In front of the node, ``--df-suffix`` may have put the rank. A file of energies
(``energy.*``) has no times, and is not read.
"""

import re
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LogOptions
from joulecast.logs.log_table import LogTable, numbers_of, opened_hdf5
from joulecast.logs.log_times import Floats, Times
from joulecast.runs.meter_choice import Covers

_WHAT = "power file of jpwr"
_TIMES = "timestamps"
_COVERS: tuple[tuple[str, Covers | None], ...] = (
    (r"gh:.*module", "module"),
    (r"gh:.*grace", "socket"),
    (r"gh:.*cpu", "cpu"),
    (r"gh:", None),
    (r"(pynvml|rocm|gc|hbm|nvidia|amd)", "gpu"),
)
_NAME = re.compile(r"power\.?(?:\d+\.)?(.*?)(?:\.\d+)?\.(?:csv|h5|hdf5)(?:\.gz)?", re.IGNORECASE)


def read(file: Path, options: LogOptions) -> Log:
    """The power of each device of a node.

    Raises:
        JoulecastError: the file is not from jpwr; or it is named by rank, and the number of nodes is not
            known. The error names line and column.
    """
    is_hdf5 = file.suffix in (".h5", ".hdf5")
    columns = _of_hdf5(file) if is_hdf5 else _of_table(file, options)
    match = _NAME.fullmatch(file.name)
    node = options.node or (match[1] if match and match[1] else options.node_of(file))
    log = Log()
    if node.isdecimal() and int(node) and options.node is None and options.nodes is None:
        raise JoulecastError(
            f"{file}: is named by rank, and each rank reads all devices of its node; import the file of one "
            "rank of each node, and give --nodes"
        )
    for name, (times, watts) in columns.items():
        covers = next((c for pattern, c in _COVERS if re.match(pattern, name, re.IGNORECASE)), None)
        if covers is None:
            log.remarks.append(f"not read: {name}, which lies inside another or is not known")
        elif not (watts > 0).any():
            log.remarks.append(f"not read: {name}, which reads 0 W (the second die of a package)")
        else:
            log.meters.append(LoggedMeter(node, name, covers, str(file), times.t_s, watts))
            log.form = times.form
    if not log.meters:
        raise JoulecastError(f"{file}: holds no device; its columns are {', '.join(columns)[:100]}")
    return log


def _of_table(file: Path, options: LogOptions) -> dict[str, tuple[Times, Floats]]:
    table = LogTable(file, _WHAT, options, options.columns)
    table.require(
        [_TIMES],
        f"expected: {_WHAT}; files of energies (energy.*) have no times and cannot be imported",
    )
    names = [name for name in table.columns if name and name != _TIMES]
    return {name: (times, watts) for name, _, times, watts in table.series(_TIMES, names)}


def _of_hdf5(file: Path) -> dict[str, tuple[Times, Floats]]:
    """The data frame that pandas has written under ``jpwr``: blocks of columns of one type."""
    found: dict[str, Floats] = {}
    with opened_hdf5(file, _WHAT) as root:
        if "jpwr" not in root:
            raise JoulecastError(f"{file}: is no {_WHAT} (it has no group `jpwr`)")
        frame: Any = root["jpwr"]
        for block in frame:
            if block.startswith("block") and block.endswith("_values"):
                items = [text.decode() for text in frame[block.replace("_values", "_items")][:]]
                found |= dict(zip(items, numbers_of(frame[block]).T, strict=True))
    if _TIMES not in found:
        raise JoulecastError(f"{file}: has no column {_TIMES}; expected: {_WHAT}")
    times = Times(found.pop(_TIMES), "placed")
    return {name: (times, watts) for name, watts in found.items()}
