"""The run record: the folder that one run leaves behind, whoever produced it.

``run.json`` says what was run, where, and how it went; ``stages.parquet`` which rank did what when;
``power.parquet`` and ``activity.parquet`` what the meters and the kernel said meanwhile. All times
are seconds of one run clock, the same for all ranks. ``phases.parquet`` holds what the run's own log
says of it (``init``, ``run``, ``epoch``, ``block``, ``evaluation``), with the work done in each. A
record is written aside, validated and then
renamed, so a folder that is there is complete.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from joulecast.errors import JoulecastError
from joulecast.files import directory_written_aside
from joulecast.metering import EnergySource, MeterInfo, Metering, metered
from joulecast.spec import NodesAre, RunSpec

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2

STAGES = (
    "materials",
    "computing",
    "communicating_wait",
    "communicating_copy",
    "update",
    "other",
)
"""Stages of a rank. MC2's third stage is both ``communicating_*`` and ``update``."""

STAGE_COLUMNS = ("rank", "step", "stage", "start_s", "stop_s")
POWER_COLUMNS = ("node", "meter", "t_s", "watts", "joules")
PHASES = ("init", "run", "epoch", "block", "evaluation")
PHASE_COLUMNS = ("phase", "index", "start_s", "stop_s", "samples")
ACTIVITY_COLUMNS = (
    "node",
    "t_s",
    "cpu_utilisation",
    "gpu_utilisation",
    "memory_bytes",
    "network_bytes_per_s",
)


FRAMES = {
    "stages": STAGE_COLUMNS,
    "power": POWER_COLUMNS,
    "activity": ACTIVITY_COLUMNS,
    "phases": PHASE_COLUMNS,
}
"""The frames of a record, each a parquet file, by the columns that it must have."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Checks(_Part):
    """What was verified about the run itself."""

    ranks: int
    distinct_hosts: int
    replicas_equal: bool | None = None
    weights_sha256: str | None = None
    overrun_fraction: float | None = None


class Outcome(_Part):
    """What the run did. Times in seconds of the run clock; warm-up steps lie before ``start_s``."""

    start_s: float
    stop_s: float
    steps: int = 0
    samples: int = 0
    final_loss: float | None = None
    accuracy: float | None = None
    reached_target: bool | None = None
    peak_rss_bytes: int | None = None


class RunInfo(_Part):
    """``run.json``.

    ``polluted`` says why a run is left out of fits, ``remarks`` what a reader should know of one that
    is kept in them. ``disturbed`` says what other programs did meanwhile; such a run is left out of fits
    where an undisturbed one of its setting exists. ``scheduler_node_of_rank`` is what a scheduler calls
    the node of each rank, if one started the run; several of its nodes may be one host.
    """

    format: int = FORMAT
    spec: RunSpec
    spec_sha256: str
    started_utc: str
    nodes: list[str]
    node_of_rank: list[str] = []
    scheduler_job: str | None = None
    scheduler_node_of_rank: list[str] = []
    nodes_are: NodesAre
    algorithm_used: str | None = None
    parameters: int | None = None
    outcome: Outcome
    checks: Checks
    meters: list[MeterInfo]
    clock: dict[str, dict[str, float]] = {}
    hosts: list[dict[str, Any]] = []
    versions: dict[str, str | None] = {}
    mpi_library: str | None = None
    oversubscribed: bool = False
    source: dict[str, Any] = {}
    load_before: dict[str, float] = {}
    load_during: dict[str, float] = {}
    disturbed: list[str] = []
    polluted: list[str] = []
    remarks: list[str] = []
    step_bytes: list[int] | None = None
    reference_step_s: dict[str, float] | None = None

    @property
    def metering(self) -> Metering:
        """Which meters the energy is made of. What others handed in is taken as it is."""
        return metered(() if self.spec.kind == "imported" else self.nodes, self.meters)

    @property
    def energy_source(self) -> EnergySource | None:
        """Source of the energy figures: a measurement, where there is one, else the estimate;
        ``None`` where the meters of that source leave out nodes."""
        return self.metering.source

    @property
    def no_energy_reason(self) -> str | None:
        """Why there is no energy figure, where there is none: names the nodes without a meter."""
        return self.metering.why_not


@dataclass(frozen=True)
class RunRecord:
    """One record in memory; the frames have the columns named above, one row an interval or
    reading."""

    info: RunInfo
    stages: "pd.DataFrame"
    power: "pd.DataFrame"
    activity: "pd.DataFrame"
    phases: "pd.DataFrame"


def _require_columns(frame: "pd.DataFrame", columns: tuple[str, ...], what: str, run: str) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise JoulecastError(f"run {run}: {what} lacks the columns {', '.join(missing)}")


def validate(record: RunRecord) -> None:
    """Prove that a record answers its specification.

    Raises:
        JoulecastError: naming the run and what is wrong with it.
    """
    info, spec = record.info, record.info.spec
    run = spec.run
    if info.spec_sha256 != spec.digest():
        raise JoulecastError(f"run {run}: spec_sha256 does not belong to the spec in run.json")
    for name, columns in FRAMES.items():
        _require_columns(getattr(record, name), columns, f"{name}.parquet", run)
    unknown = set(record.phases["phase"]) - set(PHASES)
    if unknown:
        raise JoulecastError(f"run {run}: unknown phases {', '.join(sorted(unknown))}")
    if record.power["joules"].lt(0).any() or record.power["watts"].lt(0).any():
        raise JoulecastError(f"run {run}: negative power or energy")
    # What others did cannot be held to our launcher; what is wrong with it stands in `polluted`.
    if spec.kind != "imported":
        _validate_execution(record)


def _validate_execution(record: RunRecord) -> None:
    info, spec = record.info, record.info.spec
    run = spec.run
    if info.checks.ranks != spec.ranks:
        raise JoulecastError(
            f"run {run}: {info.checks.ranks} ranks took part, {spec.ranks} were asked for; is the "
            "launcher starting one MPI job or several singletons?"
        )
    if info.checks.distinct_hosts != spec.hosts:
        raise JoulecastError(
            f"run {run}: the ranks ran on {info.checks.distinct_hosts} hosts, {spec.hosts} were "
            "asked for; check the launcher and the key `hosts` of the platform file"
        )
    if info.checks.replicas_equal is False:
        raise JoulecastError(f"run {run}: the replicas' weights differ at the end")
    if info.outcome.stop_s <= info.outcome.start_s:
        raise JoulecastError(f"run {run}: stops before it starts")
    if spec.kind == "training":
        seen = set(record.stages["rank"].unique())
        if seen != set(range(spec.ranks)):
            raise JoulecastError(f"run {run}: stages of ranks {sorted(seen)} only")
        if info.outcome.samples <= 0:
            raise JoulecastError(f"run {run}: no sample was trained")
    if (record.stages["stop_s"] < record.stages["start_s"]).any():
        raise JoulecastError(f"run {run}: a stage stops before it starts")


def _write_frame(path: Path, frame: "pd.DataFrame") -> None:
    # Names repeat, numbers do not: a dictionary of numbers costs more to read than it saves.
    names = [c for c in ("node", "meter", "stage", "phase") if c in frame.columns]
    frame.to_parquet(path, index=False, use_dictionary=names)


def write_record(target: Path, record: RunRecord) -> None:
    """Validate ``record`` and write it to the folder ``target``, whole or not at all."""
    validate(record)
    with directory_written_aside(target) as partial:
        for name in FRAMES:
            _write_frame(partial / f"{name}.parquet", getattr(record, name))
        (partial / "run.json").write_text(record.info.model_dump_json(indent=1) + "\n")


def read_info(folder: Path) -> RunInfo:
    """Read ``run.json`` alone.

    Raises:
        JoulecastError: missing, broken, or of another format.
    """
    path = folder / "run.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise JoulecastError(f"{path}: missing; this folder is no run record") from None
    except json.JSONDecodeError as error:
        raise JoulecastError(
            f"{path}: is not JSON ({error}); delete the folder to repeat the run"
        ) from None
    if content.get("format") != FORMAT:
        raise JoulecastError(
            f"{path}: record format {content.get('format')}, this joulecast reads {FORMAT}"
        )
    try:
        return RunInfo.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise JoulecastError(f"{path}: {key}: {first['msg']}") from None


def read_record(folder: Path, frames: Collection[str] = tuple(FRAMES)) -> RunRecord:
    """Read and validate one record.

    Args:
        frames: the frames to read; the others come back without rows.

    Raises:
        JoulecastError: naming the file that is missing or broken.
    """
    # Loaded here, so that programs that only ask for `run.json` start in half the time.
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = read_info(folder)
    read = {n: pd.DataFrame(columns=list(c)) for n, c in FRAMES.items() if n not in frames}
    for name in frames:
        path = folder / f"{name}.parquet"
        try:
            # Threads cost more than they bring on files of this size.
            read[name] = (
                pq.ParquetFile(path).read(use_threads=False).to_pandas(ignore_metadata=True)
            )
        except (OSError, ValueError, pa.ArrowException) as error:
            raise JoulecastError(
                f"{path}: cannot be read ({error}); delete {folder} to repeat the run"
            ) from None
    record = RunRecord(info, **read)
    validate(record)
    return record


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def record_folders(above: Path) -> list[Path]:
    """All run records in a folder, however deep.

    Raises:
        JoulecastError: there is none.
    """
    found = (path.parent for path in above.rglob("run.json"))
    # Hidden ones are half-written, or held beside the journal of attempts.
    folders = sorted(f for f in found if not _is_hidden(f.relative_to(above)))
    if not folders:
        raise JoulecastError(
            f"{above}: holds no run record (a folder with run.json); import or measure some, or "
            "unpack a recorded campaign with `joulecast replay`"
        )
    return folders


def campaign_records(above: Sequence[Path], runs: int) -> list[Path]:
    """The records of a campaign of so many runs: one folder with all of them, or a folder each.

    Raises:
        JoulecastError: there are fewer or more; says how many.
    """
    folders = [folder for path in above for folder in record_folders(path)]
    if len(folders) != runs:
        raise JoulecastError(
            f"{above[0] if len(above) == 1 else above[0].parent}: has {len(folders)} records, the "
            f"campaign has {runs} runs; a replay was cut short, or records were removed or added: "
            "delete that folder and start again"
        )
    return folders


def largest_record(above: Path) -> RunRecord:
    """The record on the most nodes that fits may see, the first by name; any where none may.

    Raises:
        JoulecastError: there is no record, or it is broken.
    """
    infos = [(folder, read_info(folder)) for folder in record_folders(above)]
    clean = [pair for pair in infos if not pair[1].polluted] or infos
    return read_record(max(clean, key=lambda pair: pair[1].spec.nodes)[0])


def answers(folder: Path, spec: RunSpec) -> bool:
    """Whether ``folder`` holds a valid record of exactly this specification."""
    try:
        # The text of run.json first: reading all of a record is only worth it for the right one.
        if read_info(folder).spec_sha256 != spec.digest():
            return False
        read_record(folder)
    except JoulecastError:
        return False
    return True
