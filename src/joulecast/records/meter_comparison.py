"""The record of a comparison of a host's meters, which `joulecast meters --compare` leaves behind.

``comparison.json`` says when the load ran, what each meter showed, and how the meters agree;
``power.parquet`` and ``activity.parquet`` are the readings, as in a run record. A comparison belongs to all
runs below the folder that holds its folder ``meters``: ``results/meters`` to all of ``results``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.files.columns import checked_table, parquet_file, parquet_table
from joulecast.files.reading import read_json_object, validated
from joulecast.files.writing import directory_written_aside, sha256_of
from joulecast.records.frames import FRAMES
from joulecast.records.meter_settings import AS_USUAL, MeterSettings
from joulecast.records.metering import MeterInfo

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
MOST_APART_PERCENT = 5.0
"""Meters of the same parts that are further apart disagree."""
COMPARED = Path("results/meters")
"""Folder of the comparisons, below the working directory."""
_FILE = "comparison.json"
_KEPT = ("power", "activity")
_ABOVE = 3
"""Folders above a record in which comparisons are looked for: of records, of a campaign, of all results."""

_Time = Annotated[float, Field(ge=-1e10, le=1e10)]
_Watts = Annotated[float, Field(ge=0, le=1e12)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Span(_Part):
    """A time, in seconds of the comparison's clock, in which the load ran all the time or not at all."""

    start_s: _Time
    """On the comparison's clock."""
    stop_s: _Time
    """On the comparison's clock."""
    load: bool
    """Whether the load ran all the time, or not at all."""


class MeterFigures(_Part):
    """What one meter showed. A figure that cannot be known is ``None``; ``why_not`` says why, by its name."""

    idle_w: _Watts | None = None
    """Mean where the meter had settled."""
    load_w: _Watts | None = None
    """The same under load."""
    noise_w: _Watts | None = None
    """Standard deviation of single readings under the steady load."""
    renewed_s: NonNegativeFloat | None = None
    """From one new value to the next."""
    renewed_within_s: NonNegativeFloat | None = None
    """Each reading brought a new value, so that it comes within this time."""
    lag_s: NonNegativeFloat | None = None
    """Until half of a change of the load is seen. Where renewals are not seen, the wait for them is in
    it."""
    lag_uncertainty_s: NonNegativeFloat | None = None
    """How far the lag may be off."""
    averages_over_s: NonNegativeFloat | None = None
    """Time that the meter averages over, where that is seen."""
    fault: str | None = None
    """Why the meter cannot be believed."""
    why_not: dict[str, str] = {}
    """By figure, or for ``all``: why it is missing."""


class ComparedMeter(_Part):
    """One meter: what it is and how well it was read, the device that it reads, and its figures."""

    info: MeterInfo
    """As in ``meters`` of ``run.json``."""
    identity: str | None = None
    """The device that it reads."""
    figures: MeterFigures = MeterFigures()
    """What it showed."""


class MeterAgreement(_Part):
    """How two groups of meters agree that cover the same, or of which the first one covers the second."""

    node: str
    """Node of the meters."""
    relation: Literal["same", "contains"]
    """``same``: both groups cover the same. ``contains``: the first covers the second."""
    meters: list[str] = Field(min_length=1)
    """The first group: meters of one kind and coverage, whose watts are added."""
    others: list[str] = Field(min_length=1)
    """The second group. For ``contains``, the parts, of which none counts what another counts."""
    covers: str
    """What the first group covers."""
    others_cover: str
    """What the second group covers."""
    idle_percent: float | None = None
    """How far the second group is above the first when idle, relative to the first."""
    load_percent: float | None = None
    """The same under load."""
    agrees: bool | None = None
    """Whether they are at most 5 % apart (``contains``: the parts at most 5 % above the whole). Missing
    where that cannot be judged, also where two standard errors of noise may explain a larger
    difference."""
    why: str | None = None
    """Why it cannot be judged, or what is wrong."""


class MeterComparison(_Part):
    """``comparison.json``. Times are seconds of the host's monotonic clock since the begin."""

    format: int = FORMAT
    """Format of the comparison."""
    host: str
    """Name of the node, as in run records."""
    started_utc: str
    """When the comparison began."""
    seconds: float = Field(gt=0, le=1e6)
    """How long it was to last."""
    sample_period_s: float = Field(gt=0, le=60)
    """Time between two readings."""
    metering: MeterSettings = AS_USUAL
    """Where meters looked, and what they called."""
    spans: list[Span]
    """In turn idle and under load."""
    loaded: list[str]
    """What the load worked on: ``cpu``, ``gpu``."""
    meters: list[ComparedMeter]
    """Each meter."""
    agreements: list[MeterAgreement]
    """Each pair of meters, or of groups of them, that was compared."""
    disturbed: list[str] = []
    """What other programs did meanwhile."""
    remarks: list[str] = []
    """What a reader should know."""
    versions: dict[str, str | None] = {}
    """Of Python and the libraries."""
    frames_sha256: dict[str, str] = {}
    """Checksum of each Parquet file."""


_COMPARISON = TypeAdapter(MeterComparison)


@dataclass(frozen=True)
class ComparisonRecord:
    """A comparison with its frames, whose columns are those of a run record."""

    info: MeterComparison
    power: "pd.DataFrame"
    activity: "pd.DataFrame"


def _validate(info: MeterComparison, origin: str) -> None:
    """Prove that a comparison is possible.

    Raises:
        JoulecastError: naming the file and what is wrong in it.
    """
    for number, span in enumerate(info.spans, 1):
        if span.stop_s < span.start_s:
            raise JoulecastError(f"{origin}: span {number} stops before it starts")
    for number, (one, other) in enumerate(pairwise(info.spans), 2):
        if other.start_s < one.stop_s or other.load == one.load:
            raise JoulecastError(
                f"{origin}: span {number} does not follow the one before it, idle and load in turn"
            )
    known = {(meter.info.node, meter.info.meter) for meter in info.meters}
    for agreement in info.agreements:
        for name in (*agreement.meters, *agreement.others):
            if (agreement.node, name) not in known:
                raise JoulecastError(f"{origin}: an agreement names {name}, which was not compared")


def write_comparison(target: Path, record: ComparisonRecord) -> None:
    """Validate a comparison and write it to the folder ``target``, whole or not at all."""
    origin = str(target / _FILE)
    _validate(record.info, origin)
    frames = {name: getattr(record, name) for name in _KEPT}
    for name, frame in frames.items():
        checked_table(frame, FRAMES[name], f"{target}: {name}.parquet")
    with directory_written_aside(target) as partial:
        for name, frame in frames.items():
            frame.to_parquet(partial / f"{name}.parquet", index=False)
        sums = {name: sha256_of(partial / f"{name}.parquet") for name in _KEPT}
        info = record.info.model_copy(update={"frames_sha256": sums})
        (partial / _FILE).write_text(info.model_dump_json(indent=1) + "\n")


def read_comparison(folder: Path) -> MeterComparison:
    """Read ``comparison.json`` alone.

    Raises:
        JoulecastError: missing, broken, or of another format; names the file and the way out.
    """
    path = folder / _FILE
    try:
        content = read_json_object(path, "comparison of meters")
        if content.get("format") != FORMAT:
            raise JoulecastError(
                f"{path}: format {content.get('format')} of a comparison, this joulecast reads {FORMAT}"
            )
        info = validated(_COMPARISON, content, str(path))
        _validate(info, str(path))
    except JoulecastError as error:
        raise JoulecastError(f"{error}; delete {folder}, and compare the meters again") from None
    return info


def read_compared(folder: Path) -> ComparisonRecord:
    """Read a comparison with its readings.

    Raises:
        JoulecastError: as :func:`read_comparison`; or a frame is missing, broken or was changed.
    """
    info = read_comparison(folder)
    frames = {}
    try:
        for name in _KEPT:
            path = folder / f"{name}.parquet"
            sha256 = info.frames_sha256.get(name)
            file = parquet_file(path, f"frame {name} of a comparison", FRAMES[name], sha256)
            frames[name] = parquet_table(file, path, FRAMES[name])
    except JoulecastError as error:
        raise JoulecastError(f"{error}; delete {folder}, and compare the meters again") from None
    return ComparisonRecord(info, **frames)


def next_folder(above: Path, host: str) -> Path:
    """The folder of the next comparison of a host: ``node01-1``, ``node01-2``, ..."""
    numbers = [0]
    for path in above.glob("*"):
        name, _, number = path.name.rpartition("-")
        if name == host and number.isdigit():
            numbers.append(int(number))
    return above / f"{host}-{max(numbers) + 1}"


@lru_cache(maxsize=256)
def _read_once(file: str, _changed_ns: int) -> MeterComparison:
    return read_comparison(Path(file).parent)


def comparison_files(record: Path) -> list[Path]:
    """The files of the comparisons that belong to a run record.

    Args:
        record: folder of the record. Comparisons lie in a folder ``meters`` of the three above it.
    """
    folders = [above / COMPARED.name for above in list(record.parents)[:_ABOVE]]
    return [file for folder in folders for file in sorted(folder.glob(f"[!.]*/{_FILE}"))]


def comparisons_of(record: Path) -> list[MeterComparison]:
    """The comparisons that belong to a run record, the newest first.

    Args:
        record: folder of the record.

    Raises:
        JoulecastError: one of them is broken.
    """
    files = comparison_files(record)
    found = [_read_once(str(file), file.stat().st_mtime_ns) for file in files]
    return sorted(found, key=lambda one: one.started_utc, reverse=True)


@dataclass(frozen=True)
class MeterWarning:
    """What is wrong with some meters of a node."""

    node: str
    meters: frozenset[str]
    text: str


def meter_warnings(comparisons: list[MeterComparison]) -> list[MeterWarning]:
    """What comparisons found wrong. Of several that judged the same meters, the newest counts.

    Args:
        comparisons: the newest first.
    """
    judged: set[tuple[str, frozenset[str]]] = set()
    warnings = []
    for comparison in comparisons:
        for node, meters, text in _judged(comparison):
            if (node, meters) in judged:
                continue
            judged.add((node, meters))
            if text is not None:
                warnings.append(MeterWarning(node, meters, text))
    return warnings


def _judged(comparison: MeterComparison) -> Iterator[tuple[str, frozenset[str], str | None]]:
    """Node, meters, and what is wrong with them, of all that a comparison could judge."""
    for meter in comparison.meters:
        name, figures = meter.info.meter, meter.figures
        if figures.fault is not None:
            fault = f"{name} of {meter.info.node} {figures.fault}"
            yield meter.info.node, frozenset({name}), fault
        elif figures.load_w is not None:
            yield meter.info.node, frozenset({name}), None
    for agreement in comparison.agreements:
        if agreement.agrees is not None:
            meters = frozenset((*agreement.meters, *agreement.others))
            text = None if agreement.agrees else f"{agreement.node}: {agreement.why}"
            yield agreement.node, meters, text
