"""Reads the stages of a record in parts of some hundred thousand rows. A run of days has millions of rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.runs.files.columns import parquet_table
from joulecast.runs.frames import FRAMES
from joulecast.runs.record import (
    RunInfo,
    name_record_in_errors,
    open_frame,
    validate_seen,
    validate_stages,
)

_STEP = ["rank", "step"]


def _parts(file: Any, path: Path) -> list[list[int]]:
    """The row groups of stages that are read at once. If they are in the order of their steps, they are
    read one by one."""
    every = list(range(file.metadata.num_row_groups))
    if len(every) < 2:
        return [every]
    wanted = {name: FRAMES["stages"][name] for name in _STEP}
    before = (-1.0, -1.0)
    for group in every:
        ranks, steps = parquet_table(file, path, wanted, [group]).to_numpy(float).T
        ranks, steps = np.append(before[0], ranks), np.append(before[1], steps)
        if (np.diff(ranks) < 0).any() or ((np.diff(steps) < 0) & (np.diff(ranks) == 0)).any():
            return [every]
        before = float(ranks[-1]), float(steps[-1])
    return [[group] for group in every]


def _whole_steps(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The rows of some parts, cut where a step of a rank begins."""
    held: list[pd.DataFrame] = []
    for part in parts:
        rows = pd.concat([*held, part], ignore_index=True)
        if rows.empty:
            continue
        # The next part may contain more rows of the last step.
        differs = (rows[_STEP] != rows[_STEP].iloc[-1]).any(axis=1).to_numpy()
        begin = len(rows) - int(np.argmax(differs[::-1])) if differs.any() else 0
        if begin:
            yield rows[:begin]
        held = [rows[begin:]]
    yield from held


def _checked(parts: Iterator[pd.DataFrame], info: RunInfo) -> Iterator[pd.DataFrame]:
    ranks: set[int] = set()
    last_step = float("nan")
    for part in parts:
        validate_stages(info, part)
        ranks.update(part["rank"].unique().tolist())
        last_step = float(np.fmax(last_step, part["step"].max()))
        yield part
    if info.spec.kind != "imported":
        validate_seen(info, ranks, last_step)


def stages_in_parts(folder: Path, info: RunInfo) -> Iterator[pd.DataFrame]:
    """The validated stages of a record, in parts. All stages of a rank's step are in the same part."""
    with name_record_in_errors(folder):
        file, path = open_frame(folder, info, "stages")
        groups = _parts(file, path)
        tables = (parquet_table(file, path, FRAMES["stages"], part) for part in groups)
        read = _checked(tables, info)
        yield from read if len(groups) == 1 else _whole_steps(read)
