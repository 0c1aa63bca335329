"""The frames of a recorded campaign: each of the four in one Parquet file, with a leading column ``run``.

A run has row groups of its own, so that it is read without the others; the statistics in the file's
footer say which ones they are.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from joulecast.errors import JoulecastError
from joulecast.records import FRAMES, RunRecord

_TYPES = {
    **dict.fromkeys(("run", "stage", "node", "meter", "phase"), pa.string()),
    **dict.fromkeys(("rank", "step", "index"), pa.int64()),
}
_SCHEMAS = {
    frame: pa.schema([(name, _TYPES.get(name, pa.float64())) for name in ("run", *columns)])
    for frame, columns in FRAMES.items()
}


def rows_of(record: RunRecord, frame: str) -> pa.Table:
    """One frame of a record as the campaign keeps it.

    Raises:
        JoulecastError: it has columns of its own, or of another type.
    """
    data = getattr(record, frame)
    run = record.info.spec.run
    unknown = [name for name in data.columns if name not in FRAMES[frame]]
    if unknown:
        raise JoulecastError(
            f"run {run}: {frame}.parquet has the columns {', '.join(unknown)}, which a recorded "
            "campaign does not keep; take them out, or raise the format in joulecast.recorded"
        )
    try:
        return pa.Table.from_pandas(data.assign(run=run), _SCHEMAS[frame], preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise JoulecastError(f"run {run}: {frame}.parquet: {error}") from None


def frame_writer(folder: Path, frame: str) -> pq.ParquetWriter:
    """A writer of one frame's file in ``folder``; every table written becomes row groups of its own."""
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
    """One frame of all runs: its file, opened once, and which of its row groups hold which run."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self._groups: dict[str, list[int]] = {}
        self._mixed: list[int] = []
        metadata = self._file.metadata
        column = self._file.schema_arrow.get_field_index("run")
        for group in range(metadata.num_row_groups):
            found = metadata.row_group(group).column(column).statistics
            if found is not None and found.has_min_max and found.min == found.max:
                self._groups.setdefault(found.min, []).append(group)
            else:
                self._mixed.append(group)

    def of_run(self, run: str, columns: Sequence[str]) -> pa.Table:
        """The rows of one run, in the order of the file."""
        groups = sorted((*self._groups.get(run, ()), *self._mixed))
        table = self._file.read_row_groups(groups, columns=["run", *columns], use_threads=False)
        if self._mixed:
            table = table.filter(pc.equal(table["run"], run))
        return table.select(list(columns))
