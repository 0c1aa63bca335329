"""The file with the readings of a sampler: an Arrow IPC stream that is compressed by gzip.

Each block of a few seconds is flushed. So the file can be read up to the last whole block, both while it
grows and after its writer was killed. A row is one reading of one series. A series is a meter, the activity
of a node, or the host's work. A small file next to it (``.facts``, JSON, replaced as a whole) says what the
series are, and which faults the meters had. The writer uses nanoarrow, because pyarrow would double the
memory of a sampler's process.
"""

import gzip
import json
import os
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, TypeAdapter, model_validator

from joulecast.errors import JoulecastError
from joulecast.measure.power.host_activity import ACTIVITY, WORK, Columns
from joulecast.measure.power.meters import READING
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.meter_choice import EnergySource
from joulecast.runs.meter_covers import Covers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Count = Annotated[int, Field(ge=0, le=10**18)]


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class AboutMeter(_Facts):
    """What a meter says about its figures, as :class:`~joulecast.measure.power.meters.About`."""

    covers: Covers | None
    remark: str | None
    renewed_s: NonNegativeFloat | None


class SampledMeter(_Facts):
    """A description of a meter."""

    node: str
    meter: str
    source: EnergySource
    counter: bool
    identity: str | None
    about: AboutMeter


class AbsentMeter(_Facts):
    """A meter that could not be opened, with reason and remedy."""

    meter: str
    reason: str
    remedy: str


class SamplerFacts(_Facts):
    """The facts that a sampler writes next to its file: its meters, their faults, and what the series are."""

    meters: list[SampledMeter] = []
    absent: list[AbsentMeter] = []
    nodes: list[str] = []
    series: list[str] = []
    failed: list[Count] = []
    faults: list[str | None] = []
    missed_deadlines: Count = 0
    programs: list[str] = []
    ended: bool = False

    @model_validator(mode="after")
    def _of_each_meter(self) -> "SamplerFacts":
        if not len(self.meters) == len(self.failed) == len(self.faults):
            raise ValueError("meters, failed and faults differ in length")
        return self


SAMPLES = ".samples"
"""End of the names of files of samples."""
_VALUES = ("t_s", "a", "b", "c", "d")
"""Columns of a row; a series has names of its own for them."""
_LATEST_S, _LARGEST = 1e10, 1e18
"""Beyond, a value is no time and no figure."""
_NAN = float("nan")
_LATE_S = 15.0
"""Time in which what another host wrote is seen on a shared file system."""


def _facts_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.facts")


class SampleWriter:
    """Appends blocks to a sampler's file.

    Args:
        file: the file to write. If it exists, it is replaced.
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
        """Append the rows of some series, and write the facts.

        Args:
            facts: all facts, as plain data. The key ``series`` has the list of the series' names.
            tables: the new rows of each series, as columns of equal lengths. The time is the first column.
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
        facts: the last facts about the meters and the sampler.
        readings: readings of each meter, :data:`~joulecast.measure.power.meters.READING` by (readings,). NaN
            stands for no figure.
        activity: activity of each node, :data:`~joulecast.measure.power.host_activity.ACTIVITY` by (rows,).
        work: :data:`~joulecast.measure.power.host_activity.WORK` by (rows,).
        died: reason why the sampler did not end in order.
    """

    facts: SamplerFacts
    readings: "list[Floats]"
    activity: "dict[str, Floats]"
    work: "Floats"
    died: str | None = None

    @property
    def meters(self) -> list[dict[str, Any]]:
        """A row for each meter: what it is, how many reads ``failed``, and ``fault``, the reason if it
        failed for good."""
        facts = self.facts
        rows = zip(facts.meters, facts.failed, facts.faults, strict=True)
        return [
            meter.model_dump() | {"failed": failed, "fault": fault} for meter, failed, fault in rows
        ]

    @property
    def absent(self) -> list[dict[str, str]]:
        """Meters that could not be opened, with reason and remedy."""
        return [meter.model_dump() for meter in self.facts.absent]

    @property
    def missed_deadlines(self) -> int:
        """Number of readings that were skipped, because an earlier reading took too long."""
        return self.facts.missed_deadlines

    @property
    def programs(self) -> list[str]:
        """Names of the busiest other programs."""
        return self.facts.programs

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Times of the first and the last look at the host; ``None`` if there was none."""
        return (float(self.work[0, 0]), float(self.work[0, -1])) if self.work.size else None


def read_samples(file: Path, died: str | None = None) -> Samples:
    """The content of a sampler's file so far, up to the last whole block.

    Raises:
        JoulecastError: the file has another content.
    """
    import numpy as np
    import pyarrow as pa

    facts = SamplerFacts()
    blocks: list[Any] = []
    facts_file = _facts_of(file)
    if facts_file.is_file():
        content = read_json_object(facts_file, "facts of a sampler")
        facts = validated(TypeAdapter(SamplerFacts), content, str(facts_file))
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
    if not (np.abs(rows[1]) <= _LATEST_S).all() or (np.abs(rows[2:]) > _LARGEST).any():
        raise JoulecastError(f"{file}: holds a time or a figure that no sampler reads")

    def table(name: str, columns: tuple[str, ...]) -> "Floats":
        own = rows[0] == (facts.series.index(name) if name in facts.series else -1)
        found: Floats = rows[1 : 1 + len(columns), own]
        return found

    return Samples(
        facts,
        [table(f"power.{index}", READING) for index in range(len(facts.meters))],
        {node: table(f"activity.{index}", ACTIVITY) for index, node in enumerate(facts.nodes)},
        table("work", WORK),
        died,
    )


@dataclass(frozen=True)
class Left:
    """What is left of a sampler: its file, the kinds of meters that it had to read, and the reason if it
    died.

    ``is_whole`` means that the sampler has been stopped. If it was killed with the run, its file is read
    as it is.
    """

    path: Path
    meters: tuple[str, ...] = field(default=())
    died: str | None = None
    is_whole: bool = True

    def samples(self) -> Samples:
        """The samples. If the sampler read nothing, each kind of meter is absent, with the reason."""
        until_s = time.monotonic() + (_LATE_S if self.is_whole and self.died is None else 0.0)
        found = read_samples(self.path, self.died)
        while not found.facts.ended and time.monotonic() < until_s:
            time.sleep(0.1)
            found = read_samples(self.path, self.died)
        if self.is_whole and found.died is None and not found.facts.ended:
            found.died = f"the power sampler's file {self.path} has no end"
        if found.died is not None and not found.meters:
            remedy = "see what it printed in the log of the run"
            found.facts.absent = [
                AbsentMeter(meter=name, reason=found.died, remedy=remedy) for name in self.meters
            ]
        return found
