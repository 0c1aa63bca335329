"""Logs of Zeus: the windows of a ``ZeusMonitor``, and the readings of a ``PowerMonitor``.

In a window log, each row is a window, with the joules of each GPU. They are totals without a trace. A power
log has no header (Zeus up to 0.11), or is what ``python -m zeus.monitor power`` prints.
"""

import ast
import re
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LoggedRun, LogOptions
from joulecast.logs.log_table import LogTable
from joulecast.runs.files.reading import read_text

_WHAT = "log of Zeus"
_WINDOWS = ("start_time", "window_name", "elapsed_time")
_OF_GPU = re.compile(r"gpu(\d+)_energy")
_PRINTED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\s*(\{[^{}]*\})")
_MAX_BYTES = 500_000_000


def read(file: Path, options: LogOptions) -> Log:
    """The content of a log of Zeus.

    Raises:
        JoulecastError: the file is no log of Zeus. The error names line and column.
    """
    table = LogTable(file, _WHAT, options)
    if table.first[0] == _WINDOWS[0]:
        return _windows(file, table, options)
    if re.fullmatch(r"\d+(\.\d+)?", table.first[0]) and len(table.first) > 1:
        return _readings(file, len(table.first), options)
    return _printed(file, table, options)


def _windows(file: Path, table: LogTable, options: LogOptions) -> Log:
    gpus = {c: match[1] for c in table.columns if (match := _OF_GPU.fullmatch(c))}
    table.require(_WINDOWS, f"expected: {_WHAT}")
    if not gpus:
        raise JoulecastError(f"{file}: its windows have no energy of a GPU (gpu0_energy)")
    rows = table.rows([*_WINDOWS, *gpus])
    if not len(rows):
        raise JoulecastError(f"{file}: has a header and no window")
    times = options.clock.seconds(rows["start_time"], f"{file}, column start_time")
    lasting = table.numbers(rows["elapsed_time"], "elapsed_time")
    joules = {column: table.numbers(rows[column], column) for column in gpus}
    log = Log(form=times.form)
    for row, name in enumerate(rows["window_name"].fillna("window")):
        ends = times.t_s[row] + np.array([0.0, lasting[row]])
        meters = tuple(
            LoggedMeter(
                options.node_of(file),
                gpu,
                "gpu",
                str(file),
                ends,
                joules=np.array([0.0, joules[column][row]]),
                trace=False,
            )
            for column, gpu in gpus.items()
            if joules[column][row] >= 0
        )
        log.runs.append(
            LoggedRun(str(name), float(ends[0]), float(ends[1]), nodes=1, meters=meters)
        )
    return log


def _readings(file: Path, columns: int, options: LogOptions) -> Log:
    names = options.columns or ("time", *(f"power{n}" for n in range(columns - 1)))
    table = LogTable(file, _WHAT, options, names)
    log = Log()
    for column, _, times, watts in table.series(names[0], names[1:]):
        gpu = str(names.index(column) - 1)
        log.meters.append(
            LoggedMeter(options.node_of(file), gpu, "gpu", str(file), times.t_s, watts)
        )
        log.form = times.form
    return log


def _printed(file: Path, table: LogTable, options: LogOptions) -> Log:
    # Zeus prints a reading on one line if it fits into 80 columns, and on several lines otherwise.
    found = _PRINTED.findall(read_text(file, _WHAT, _MAX_BYTES))
    if not found:
        raise JoulecastError(
            f"{file}, line 1: is neither a window log (it begins with {','.join(_WINDOWS)}), nor numbers of "
            "a power log, nor what `python -m zeus.monitor power` prints; there are: "
            f"{', '.join(cell[:40] for cell in table.first[:10])}"
        )
    texts = pd.Series([text for text, _ in found], index=range(1, len(found) + 1))
    times = options.clock.place(options.clock.seconds(texts, f"{file}, time"), str(file))
    try:
        read = [ast.literal_eval(power) for _, power in found]
        gpus = list(dict.fromkeys(str(gpu) for powers in read for gpu in powers))
        watts = {gpu: np.array([float(p.get(gpu, np.nan)) for p in read]) for gpu in gpus}
    except (ValueError, SyntaxError, TypeError, AttributeError):
        raise JoulecastError(
            f"{file}: a line is not as `python -m zeus.monitor power` prints it"
        ) from None
    node = options.node_of(file)
    meters = [
        LoggedMeter(node, gpu.removeprefix("GPU"), "gpu", str(file), times.t_s, power)
        for gpu, power in watts.items()
    ]
    return Log(meters, form=times.form)
