"""The file of a sampler: what it has read, as an Arrow IPC stream that is compressed by gzip.

Each block of a few seconds is flushed, so that the file can be read up to the last whole one while it grows,
and after its writer was killed. A row is one look at one series: a meter, a node's activity, the host's work.
What the series are, and how the meters fared, lies next to it in a small file (``.facts``, JSON) that is
replaced as a whole. The writer takes nanoarrow, as pyarrow would double the memory of a sampler's process.
"""

import gzip
import json
import os
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import JoulecastError
from joulecast.measure.power.host_activity import ACTIVITY, WORK, Columns
from joulecast.measure.power.meters import READING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SAMPLES = ".samples"
"""End of the names of files of samples."""
_VALUES = ("t_s", "a", "b", "c", "d")
"""Columns of a row; a series has names of its own for them."""
_NAN = float("nan")
_LATE_S = 15.0
"""Time in which what another host wrote is seen on a shared file system."""


def _facts_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.facts")


class SampleWriter:
    """Appends blocks to a sampler's file.

    Args:
        file: that is made, or written anew.
    """

    def __init__(self, file: Path) -> None:
        import nanoarrow
        from nanoarrow.ipc import StreamWriter

        self._arrow = nanoarrow
        self._facts_file = _facts_of(file)
        self._known = ""
        self._file = open(file, "wb")  # noqa: SIM115 (closed by close)
        self._gzip = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=1)
        self._stream = StreamWriter.from_writable(self._gzip)
        kinds = {name: nanoarrow.float64() for name in _VALUES}
        self._schema = nanoarrow.struct({"series": nanoarrow.uint16(), **kinds})

    def append(self, facts: Mapping[str, Any], tables: Mapping[str, Columns]) -> None:
        """Append the rows of some series, and keep the facts.

        Args:
            facts: plain data, all of it each time; ``series`` is the list of the series' names.
            tables: new columns of each series, of equal lengths, the time first.
        """
        text = json.dumps(facts)
        if text != self._known:
            aside = self._facts_file.with_name(f".{self._facts_file.name}")
            aside.write_text(text)
            os.replace(aside, self._facts_file)
            self._known = text
        series, columns = array("H"), [array("d") for _ in _VALUES]
        for number, name in enumerate(facts["series"]):
            values = list(tables.get(name, {}).values())
            rows = len(values[0]) if values else 0
            series.extend([number] * rows)
            for place, column in enumerate(columns):
                known = values[place] if place < len(values) else [None] * rows
                column.extend(_NAN if value is None else value for value in known)
        if not series:
            return
        children = [self._arrow.c_array(column) for column in (series, *columns)]
        self._stream.write_array(
            self._arrow.c_array_from_buffers(
                self._schema, length=len(series), buffers=[None], children=children
            )
        )
        self._gzip.flush()
        self._file.flush()

    def close(self) -> None:
        """End the stream."""
        self._stream.close()
        self._gzip.close()
        self._file.close()


@dataclass
class Samples:
    """Readings and activity of one host, times in s of its monotonic clock.

    Attributes:
        facts: of the meters and of the sampler, as they were written last.
        readings: of each meter, :data:`~joulecast.measure.power.meters.READING` by (readings,), NaN for no
        figure. activity: of each node, :data:`~joulecast.measure.power.host_activity.ACTIVITY` by (rows,).
        work: :data:`~joulecast.measure.power.host_activity.WORK` by (rows,).
        died: reason why the sampler did not end in order.
    """

    facts: dict[str, Any]
    readings: "list[Floats]"
    activity: "dict[str, Floats]"
    work: "Floats"
    died: str | None = None

    @property
    def meters(self) -> list[dict[str, Any]]:
        """A row a meter: what it is, how many reads ``failed``, and ``fault``: why it failed for good."""
        facts = self.facts
        rows = zip(
            facts.get("meters", ()), facts.get("failed", ()), facts.get("faults", ()), strict=True
        )
        return [meter | {"failed": failed, "fault": fault} for meter, failed, fault in rows]

    @property
    def absent(self) -> list[dict[str, str]]:
        """Meters that could not be opened, with reason and remedy."""
        return list(self.facts.get("absent", ()))

    @property
    def missed_deadlines(self) -> int:
        """Readings that were skipped, as the one before took too long."""
        return int(self.facts.get("missed_deadlines", 0))

    @property
    def programs(self) -> list[str]:
        """Names of the busiest other programs."""
        return list(self.facts.get("programs", ()))

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Times of the first and the last look at the host; ``None`` if there was none."""
        return (float(self.work[0, 0]), float(self.work[0, -1])) if self.work.size else None


def read_samples(file: Path, died: str | None = None) -> Samples:
    """What a sampler has written so far, up to the last whole block.

    Raises:
        JoulecastError: the file holds something else.
    """
    import numpy as np
    import pyarrow as pa

    facts: dict[str, Any] = {}
    blocks: list[Any] = []
    facts_file = _facts_of(file)
    if facts_file.is_file():
        facts = json.loads(facts_file.read_text())
    try:
        with pa.CompressedInputStream(pa.OSFile(str(file)), "gzip") as plain:
            for batch in pa.ipc.open_stream(plain):
                blocks.append(np.array([column.to_numpy() for column in batch.columns], float))
    except pa.ArrowInvalid as error:
        if blocks or file.stat().st_size > 1000:
            raise JoulecastError(f"{file}: holds no samples ({error})") from None
    except OSError:
        pass  # The last block is cut short, or nothing was written yet.
    rows = np.concatenate(blocks, axis=1) if blocks else np.empty((1 + len(_VALUES), 0))

    def table(name: str, columns: tuple[str, ...]) -> "Floats":
        names = facts.get("series", [])
        own = rows[0] == (names.index(name) if name in names else -1)
        found: Floats = rows[1 : 1 + len(columns), own]
        return found

    return Samples(
        facts,
        [table(f"power.{index}", READING) for index in range(len(facts.get("meters", ())))],
        {
            node: table(f"activity.{index}", ACTIVITY)
            for index, node in enumerate(facts.get("nodes", ()))
        },
        table("work", WORK),
        died,
    )


@dataclass(frozen=True)
class Left:
    """What a sampler has left: the file, the kinds of meters it was to read, and why it died, if it did.

    ``is_whole``: the sampler has been stopped. The file of one that was killed with the run is read as it is.
    """

    path: Path
    meters: tuple[str, ...] = field(default=())
    died: str | None = None
    is_whole: bool = True

    def samples(self) -> Samples:
        """The samples; a sampler that read nothing gives its reason for each kind of meter."""
        until_s = time.monotonic() + (_LATE_S if self.is_whole and self.died is None else 0.0)
        found = read_samples(self.path, self.died)
        while not found.facts.get("ended", False) and time.monotonic() < until_s:
            time.sleep(0.1)
            found = read_samples(self.path, self.died)
        if self.is_whole and found.died is None and not found.facts.get("ended", False):
            found.died = f"the power sampler's file {self.path} has no end"
        if found.died is not None and not found.meters:
            remedy = "see what it printed in the log of the run"
            found.facts["absent"] = [
                {"meter": name, "reason": found.died, "remedy": remedy} for name in self.meters
            ]
        return found
