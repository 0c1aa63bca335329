"""The file with the readings of a sampler: an Arrow IPC stream that is compressed by gzip.

Each block of a few seconds is flushed. So the file can be read up to the last whole block, both while it
grows and after its writer was killed. A row is one reading of one series. A series is a meter, the activity
of a node, or the host's work. A small file next to it (``.facts``, JSON, replaced as a whole) says what the
series are, and which faults the meters had. The writer uses nanoarrow, because pyarrow would double the
memory of a sampler's process.
"""

import gzip
import os
import queue
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.power.host_activity import ACTIVITY, WORK, Row
from joulecast.measure.power.meters import READING, SampledMeter
from joulecast.runs.files.reading import read_json_object, validated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class SamplerFacts(BaseModel):
    """The facts that a sampler writes next to its file.

    Meters that could not be opened are in ``meters``, too. The file has a series for each meter, then one
    for the activity of each of the ``nodes``, then one for the work of the host.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    meters: list[SampledMeter] = []
    nodes: list[str] = []
    programs: list[str] = []
    """The busiest other programs."""
    ended: bool = False


Rows = Sequence[tuple[int, Row]]
"""Rows of several series. With each row: the number of the series that it belongs to. A row begins with its
time."""
SAMPLES = ".samples"
"""The name of each file with samples ends in this."""
_VALUES = ("t_s", "a", "b", "c", "d")
"""Columns of a row in the file. Before them is the number of the series. What ``a`` to ``d`` mean depends on
the series."""
_LATEST_S, _LARGEST = 1e10, 1e18
"""Largest time (s), and largest other value. Larger values are errors."""
_NAN = float("nan")
_LATE_S = 15.0
"""On a shared file system: seconds after which a host can read all that another host has written."""


def _facts_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.facts")


class SampleWriter:
    """Appends blocks to a sampler's file, in a thread: a file system that stands still must not delay a
    reading."""

    def __init__(self, file: Path) -> None:
        import nanoarrow
        from nanoarrow.ipc import StreamWriter

        self._arrow = nanoarrow
        self._facts_file = _facts_of(file)
        self._file = open(file, "wb")  # noqa: SIM115 (closed by close)
        self._gzip = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=1)
        self._stream = StreamWriter.from_writable(self._gzip)
        kinds = {name: nanoarrow.float64() for name in _VALUES}
        self._schema = nanoarrow.struct({"series": nanoarrow.uint16(), **kinds})
        self._blocks: queue.SimpleQueue[tuple[str, Rows] | None] = queue.SimpleQueue()
        self._fault: OSError | None = None
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        self._thread.start()

    def append(self, facts: SamplerFacts, rows: Rows) -> None:
        """Hand rows and the current facts to the thread that writes them."""
        self._blocks.put((facts.model_dump_json(), rows))

    def _write_all(self) -> None:
        while (block := self._blocks.get()) is not None:
            try:
                # What follows a block that was cut short could not be read.
                if self._fault is None:
                    self._write(*block)
            except OSError as error:
                self._fault = error

    def _write(self, facts: str, rows: Rows) -> None:
        aside = self._facts_file.with_name(f".{self._facts_file.name}")
        aside.write_text(facts)
        os.replace(aside, self._facts_file)
        if not rows:
            return
        numbers = array("H", [series for series, _ in rows])
        columns = [array("d") for _ in _VALUES]
        for _, row in rows:
            for column, value in zip_longest(columns, row):
                column.append(_NAN if value is None else value)
        children = [self._arrow.c_array(column) for column in (numbers, *columns)]
        self._stream.write_array(
            self._arrow.c_array_from_buffers(
                self._schema, length=len(rows), buffers=[None], children=children
            )
        )
        self._gzip.flush()
        self._file.flush()

    def close(self) -> None:
        """Write the rest, and end the stream.

        Raises:
            OSError: it could not be written.
        """
        self._blocks.put(None)
        self._thread.join()
        if self._fault is not None:
            raise self._fault
        self._stream.close()
        self._gzip.close()
        self._file.close()


@dataclass
class Samples:
    """Readings and activity of one host, times in s of its monotonic clock.

    Attributes:
        facts: the last facts about the meters and the sampler.
        readings: readings of each meter, :data:`~joulecast.measure.power.meters.READING` by (readings,). NaN
            stands for a missing value. A meter that could not be opened has none.
        activity: activity of each node, :data:`~joulecast.measure.power.host_activity.ACTIVITY` by (rows,).
        work: :data:`~joulecast.measure.power.host_activity.WORK` by (rows,).
        died: reason why the sampler did not end normally; ``None`` if it did.
    """

    facts: SamplerFacts
    readings: "list[Floats]"
    activity: "dict[str, Floats]"
    work: "Floats"
    died: str | None = None

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Times of the first and the last row of :attr:`work`; ``None`` if there is no row."""
        return (float(self.work[0, 0]), float(self.work[0, -1])) if self.work.size else None


def read_samples(file: Path, died: str | None = None) -> Samples:
    """The content of a sampler's file so far, up to the last whole block.

    Raises:
        JoulecastError: the content of the file is not that of a sampler's file.
    """
    import numpy as np
    import pyarrow as pa

    facts_file = _facts_of(file)
    if not facts_file.is_file():
        return Samples(SamplerFacts(), [], {}, np.empty((len(WORK), 0)), died)
    content = read_json_object(facts_file, "facts of a sampler")
    facts = validated(TypeAdapter(SamplerFacts), content, str(facts_file))
    count, all_series = len(facts.meters), len(facts.meters) + len(facts.nodes) + 1
    blocks: list[Any] = []
    kinds = pa.schema([("series", pa.uint16()), *((name, pa.float64()) for name in _VALUES)])
    try:
        with pa.CompressedInputStream(pa.OSFile(str(file)), "gzip") as plain:
            stream = pa.ipc.open_stream(plain)
            if not stream.schema.equals(kinds):
                raise pa.ArrowInvalid(f"its columns are {stream.schema}".replace("\n", ", "))
            for batch in stream:
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                blocks.append(np.array(columns, float))
    except pa.ArrowInvalid as error:
        if blocks or file.stat().st_size > 1000:
            raise JoulecastError(f"{file}: holds no samples ({error})") from None
    except OSError:
        pass  # The last block is cut short, or nothing was written yet.
    rows = np.concatenate(blocks, axis=1) if blocks else np.empty((1 + len(_VALUES), 0))
    is_time = (np.abs(rows[1]) <= _LATEST_S) & (rows[0] < all_series)
    if not is_time.all() or (np.abs(rows[2:]) > _LARGEST).any():
        raise JoulecastError(f"{file}: holds a time or a figure that no sampler reads")

    def table(series: int, columns: tuple[str, ...]) -> "Floats":
        found: Floats = rows[1 : 1 + len(columns), rows[0] == series]
        return found

    return Samples(
        facts,
        [table(index, READING) for index in range(count)],
        {node: table(index, ACTIVITY) for index, node in enumerate(facts.nodes, count)},
        table(all_series - 1, WORK),
        died,
    )


@dataclass(frozen=True)
class Left:
    """What is left of a sampler: its file, its host, the kinds of meters that it had to read, and the reason
    if it died.

    ``is_whole`` means that the sampler has been stopped. If it was killed with the run, its file is read
    as it is.
    """

    path: Path
    node: str
    meters: tuple[str, ...] = ()
    died: str | None = None
    is_whole: bool = True

    def samples(self) -> Samples:
        """The samples. If the sampler read nothing, each kind of meter is absent, with the reason."""
        import numpy as np

        until_s = time.monotonic() + (_LATE_S if self.is_whole and self.died is None else 0.0)
        found = read_samples(self.path, self.died)
        while not found.facts.ended and time.monotonic() < until_s:
            time.sleep(0.1)
            found = read_samples(self.path, self.died)
        if self.is_whole and found.died is None and not found.facts.ended:
            found.died = f"the power sampler's file {self.path} has no end"
        if found.died is not None:
            found.facts.meters = [
                meter.model_copy(update={"available": False, "reason": meter.reason or found.died})
                for meter in found.facts.meters
            ] or [
                SampledMeter(
                    node=self.node,
                    meter=name,
                    available=False,
                    reason=f"{found.died}; see what it printed in the log of the run",
                )
                for name in self.meters
            ]
            nothing = np.empty((len(READING), 0))
            found.readings = found.readings or [nothing] * len(found.facts.meters)
        return found
