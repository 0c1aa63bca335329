"""The four frames of a recorded campaign. Each is a Parquet file, in which the first column is ``run``.

Each run has its own row groups, so it can be read without the others. The statistics in the file's footer
show which row groups belong to which run.
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import Column, parquet_file, parquet_table
from joulecast.runs.frames import FRAMES
from joulecast.runs.record import RunRecord

_TYPES = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
_SCHEMAS = {
    frame: pa.schema(
        [("run", pa.string()), *((name, _TYPES[column.kind]) for name, column in columns.items())]
    )
    for frame, columns in FRAMES.items()
}


def rows_of(record: RunRecord, frame: str) -> pa.Table:
    """One frame of a record, as the campaign keeps it.

    Raises:
        JoulecastError: a column has another type.
    """
    data = getattr(record, frame)
    run = record.info.spec.run
    try:
        return pa.Table.from_pandas(data.assign(run=run), _SCHEMAS[frame], preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise JoulecastError(f"run {run}: {frame}.parquet: {error}") from None


def frame_writer(folder: Path, frame: str) -> pq.ParquetWriter:
    """A writer for the file of one frame, in ``folder``. Each table that it writes gets its own row
    groups."""
    schema = _SCHEMAS[frame]
    numbers = [f.name for f in schema if pa.types.is_floating(f.type)]
    return pq.ParquetWriter(
        folder / f"{frame}.parquet",
        schema,
        compression="zstd",
        compression_level=9,
        use_dictionary=[f.name for f in schema if f.name not in numbers],
        # Bytes of equal weight side by side: times then shrink by a fifth without losing a bit.
        use_byte_stream_split=numbers,
    )


class FrameFile:
    """One frame of all runs: its file, which is opened once, and the row groups of each run."""

    def __init__(self, folder: Path, frame: str, sha256: str) -> None:
        self._path = folder / f"{frame}.parquet"
        self._columns = {"run": Column("text"), **FRAMES[frame]}
        self._file = parquet_file(self._path, "recorded campaign", self._columns, sha256)
        self._groups: dict[str, list[int]] = {}
        self._mixed: list[int] = []
        metadata = self._file.metadata
        column = self._file.schema_arrow.get_field_index("run")
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group).column(column).statistics
            try:
                run = found.min if found is not None and found.has_min_max else None
                is_one = found is not None and run == found.max
            except UnicodeDecodeError:
                raise JoulecastError(
                    f"{self._path}: is no recorded campaign: row group {group + 1} names a run in bytes that "
                    "are not UTF-8"
                ) from None
            if run is not None and is_one:
                self._groups.setdefault(run, []).append(group)
            else:
                self._mixed.append(group)

    def read_run(self, run: str) -> pd.DataFrame:
        """The rows of one run, in the order of the file."""
        groups = sorted((*self._groups.get(run, ()), *self._mixed))
        table = parquet_table(self._file, self._path, self._columns, groups)
        return table[table["run"] == run].drop(columns="run").reset_index(drop=True)
