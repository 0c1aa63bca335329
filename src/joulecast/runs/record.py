"""The run record: the folder of one run. It is the same for all kinds of runs.

``run.json`` says what was run, where, and how it went. ``stages.parquet`` says which rank did what, and
when. ``power.parquet`` and ``activity.parquet`` have the readings of meters and of the kernel.
``phases.parquet`` has the phases that the run's own log names (``init``, ``run``, ``epoch``, ``block``,
``evaluation``), with the work done in each. All times are in seconds on one run clock, the same for all
ranks. A record is written under a temporary name, validated, and then renamed. So a folder that exists is
complete.
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import checked_table, read_parquet
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.files.writing import directory_written_aside, sha256_of
from joulecast.runs.frames import FRAMES
from joulecast.runs.meter_choice import EnergySource, MeterInfo, Metering, metered, too_slow
from joulecast.runs.spec import NodesAre, RunSpec

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3

_BESIDE_S, _BESIDE_SHARE = 10.0, 0.1
"""The time by which a stage may be outside of the run, because the clocks of several hosts differ."""

Count = Annotated[int, Field(ge=0, le=10**18)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Checks(_Part):
    """What was verified about the run itself."""

    ranks: int
    """Number of ranks that took part."""
    distinct_hosts: int
    """Number of hosts on which the ranks ran."""
    replicas_equal: bool | None = None
    """Whether all ranks ended with the same weights."""
    weights_sha256: str | None = None
    """Hash of the weights at the end."""
    overrun_fraction: float | None = None
    """For an emulated run: share of the steps that took longer than their padded time."""


class Outcome(_Part):
    """What the run did."""

    start_s: float = Field(ge=-1e10, le=1e10)
    """Start of the measurement, on the run clock."""
    stop_s: float = Field(ge=-1e10, le=1e10)
    """End of the measurement, on the run clock."""
    steps: int = Field(0, ge=0, le=10**18)
    """Training steps between start and end."""
    samples: int = Field(0, ge=0, le=10**18)
    """Work done between start and end."""
    work_unit: Literal["samples", "steps"] = "samples"
    """What ``samples`` counts. (Imported runs may count epochs; their specification says it.)"""
    device: str | None = None
    """Type of device on which an observed training ran, as torch names it: ``cpu``, ``cuda``, ..."""
    final_loss: float | None = None
    """Loss of the last step."""
    accuracy: float | None = Field(None, ge=0, le=1)
    """Accuracy as a share of 1, if the run evaluates."""
    reached_target: bool | None = None
    """Whether the target was reached, if there is one."""
    peak_rss_bytes: Count | None = None
    """Largest resident memory of a rank."""


NETWORK = "network.json"
"""File in the folder of a record. It has the captured network of an observed training, as an op graph."""


class ObservedStep(_Part):
    """What a step of an observed training consists of."""

    optimizer: str | None = None
    """Class of the optimizer, as torch names it."""
    precision: str | None = None
    """Type of the operands, as torch names it. If autocast is on, it is the type of autocast. It is ``tf32``
    if most products of fp32 tensors are computed at TF32."""
    weights: str | None = None
    """Type of the weights, as torch names it."""
    wrapper: str | None = None
    """The class that exchanges gradients, as ``DistributedDataParallel``; ``None`` if none was seen."""
    micro_batches: int = Field(1, ge=1)
    """Number of backward passes of a rank in one step."""
    recomputes: bool = False
    """Whether ``torch.utils.checkpoint`` recomputes activations."""
    compiled: bool = False
    """Whether ``torch.compile`` compiled any part of the step."""


class RunInfo(_Part):
    """``run.json``: what was run, where, and how it went."""

    format: int = FORMAT
    """Format of the record."""
    spec: RunSpec
    """The specification of the run."""
    spec_sha256: str
    """Hash of the specification, without the names in it."""
    started_utc: str
    """When the run began."""
    nodes: list[str]
    """Names of the nodes."""
    node_of_rank: list[str] = []
    """Node of each rank."""
    scheduler_job: str | None = None
    """Job of the scheduler that started the run."""
    scheduler_node_of_rank: list[str] = []
    """For each rank, the scheduler's name of its node."""
    nodes_are: NodesAre
    """What counts as a node in this run."""
    algorithm_used: str | None = None
    """Algorithm of the all-reduce that was used."""
    parameters: Count | None = None
    """Number of parameters of the network."""
    outcome: Outcome
    """What the run did."""
    checks: Checks
    """What was verified."""
    meters: list[MeterInfo]
    """Each meter of each node."""
    clock: dict[str, dict[str, float]] = {}
    """For each host: how its clock was mapped to the run clock."""
    hosts: list[dict[str, Any]] = []
    """For each host: processor, cores, memory, kernel, and the names of its NVIDIA GPUs."""
    versions: dict[str, str | None] = {}
    """Versions of Python and the libraries."""
    mpi_library: str | None = None
    """What MPI reports about itself."""
    oversubscribed: bool = False
    """Whether there were more ranks than cores."""
    source: dict[str, Any] = {}
    """Where an imported or replayed run comes from."""
    load_before: dict[str, float] = {}
    """Load of the host before the run."""
    load_during: dict[str, float] = {}
    """``busy_cores``: cores that other programs kept busy during the run, on the busiest host."""
    disturbed: list[str] = []
    """What disturbed the run: other programs, or a standstill of all its processes. Fits use a disturbed run
    only if its setting has no undisturbed run."""
    left_out: list[str] = []
    """Reasons why fits leave the run out. If empty, fits use it."""
    remarks: list[str] = []
    """Notes for readers, about a run that fits use."""
    step_bytes: list[Count] | None = None
    """Bytes of each all-reduce of a calibration."""
    reference_step_s: dict[str, NonNegativeFloat] | None = None
    """For an emulated run: time of a step on a free core."""
    unseen: dict[str, str] = {}
    """For an observed training: stages that could not be seen, each with the reason."""
    observed_step: ObservedStep | None = None
    """For an observed training: its optimizer, precision, exchange, micro-batches and recomputation."""
    frames_sha256: dict[str, str] = {}
    """Checksum of each Parquet file of the record."""

    @property
    def global_batch_size(self) -> int | None:
        """Batch of all ranks in a training: from its specification, or the rounded mean that was observed."""
        asked = self.spec.global_batch_size
        if asked is not None or self.spec.observed is None or not self.outcome.steps:
            return asked
        return round(self.outcome.samples / self.outcome.steps)

    @property
    def metering(self) -> Metering:
        """The meters that make the energy. For an imported run, all of its meters are taken."""
        if self.spec.kind == "imported":
            return metered((), self.meters)
        return metered(self.nodes, self.meters, self.unusable_meters)

    @property
    def unusable_meters(self) -> dict[tuple[str, str], str]:
        """Meters that cannot say what this run drew, by node and name, with the reasons."""
        lasts_s = self.outcome.stop_s - self.outcome.start_s
        unusable = too_slow(self.meters, lasts_s, self.spec.sample_period_s)
        training = self.spec.training
        device = self.outcome.device or (training and training.device) or "cpu"
        if device != "cpu":
            for meter in self.meters:
                if meter.meter == "estimated":
                    why = f"knows only the processor's load, and the training ran on {device}"
                    unusable[meter.node, meter.meter] = why
        return unusable

    @property
    def energy_source(self) -> EnergySource | None:
        """Source of the energy: a measurement, if there is one, else the estimate. ``None`` if the meters of
        this source do not cover all nodes."""
        return self.metering.source


_INFO = TypeAdapter(RunInfo)


@dataclass(frozen=True)
class RunRecord:
    """One record in memory. Its frames have the columns of the record's files, one row for each interval or
    reading."""

    info: RunInfo
    stages: "pd.DataFrame"
    power: "pd.DataFrame"
    activity: "pd.DataFrame"
    phases: "pd.DataFrame"
    network: Path | None = None
    """The file with the captured network of an observed training, as an op graph. A written record contains a
    copy of this file."""


def validate(record: RunRecord) -> None:
    """Check that a record answers its specification, and that its figures are possible.

    Raises:
        JoulecastError: the record is wrong. The error names the run, the frame and the row, and says what is
            wrong.
    """
    run = record.info.spec.run
    for name, columns in FRAMES.items():
        frame = getattr(record, name)
        checked_table(frame, columns, f"run {run}: {name}.parquet")
        if more := [column for column in frame.columns if column not in columns]:
            raise JoulecastError(
                f"run {run}: {name}.parquet has the columns {', '.join(more)}, which no record keeps"
            )
    _validate_run(record, FRAMES)


def _validate_run(record: RunRecord, frames: Collection[str]) -> None:
    """The further checks of :func:`validate`, also for a record with only some of its frames. The columns of
    each frame have been checked before."""
    info, spec = record.info, record.info.spec
    run = spec.run
    if info.spec_sha256 != spec.digest():
        raise JoulecastError(f"run {run}: spec_sha256 does not belong to the spec in run.json")
    if info.outcome.stop_s < info.outcome.start_s:
        raise JoulecastError(f"run {run}: stops before it starts")
    _validate_joules(run, record.power)
    _validate_stages(info, record.stages)
    # Imported runs did not use our launcher, so its rules do not hold for them. Their faults are in
    # `left_out`.
    if spec.kind != "imported":
        _validate_execution(record)
        if "stages" in frames:
            _validate_seen(info, record.stages)


def _validate_joules(run: str, power: "pd.DataFrame") -> None:
    """Check that counters count up."""
    counted = power[power["joules"].notna()]
    if counted.empty:
        return
    meters = counted.groupby(["node", "meter"], sort=False).ngroup().to_numpy()
    joules = counted["joules"].to_numpy(float)
    order = np.lexsort((counted["t_s"].to_numpy(float), meters))
    falls = (np.diff(joules[order]) < 0) & (np.diff(meters[order]) == 0)
    if falls.any():
        row = counted.iloc[order[int(falls.argmax()) + 1]]
        raise JoulecastError(
            f"run {run}: power.parquet: the joules of {row['meter']} of {row['node']} fall to "
            f"{row['joules']:g}, expected a counter that counts up"
        )


def _validate_stages(info: RunInfo, stages: "pd.DataFrame") -> None:
    """Check that stages lie in the run, and belong to its ranks."""
    outcome, spec = info.outcome, info.spec
    if stages.empty:
        return
    start_s, stop_s = stages["start_s"].to_numpy(float), stages["stop_s"].to_numpy(float)
    beside_s = _BESIDE_S + _BESIDE_SHARE * (outcome.stop_s - outcome.start_s)
    outside = (start_s < outcome.start_s - beside_s) | (stop_s > outcome.stop_s + beside_s)
    for wrong, fault in (
        (stop_s < start_s, "stops before it starts"),
        (outside, "does not lie in the run"),
        (stages["rank"].to_numpy() >= spec.ranks, f"is of a rank of {spec.ranks} ranks"),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            raise JoulecastError(
                f"run {spec.run}: stages.parquet: row {row + 1}: a stage {fault} "
                f"(rank {stages['rank'].iloc[row]}, {start_s[row]:g} to {stop_s[row]:g} s)"
            )


def _validate_execution(record: RunRecord) -> None:
    info, spec = record.info, record.info.spec
    run = spec.run
    if info.checks.ranks != spec.ranks:
        raise JoulecastError(
            f"run {run}: {info.checks.ranks} ranks took part, {spec.ranks} were requested; is the "
            "launcher starting one MPI job or several singletons?"
        )
    if info.checks.distinct_hosts != spec.hosts:
        raise JoulecastError(
            f"run {run}: the ranks ran on {info.checks.distinct_hosts} hosts, {spec.hosts} were "
            "requested; check the launcher and the key `hosts` of the platform file"
        )
    if info.checks.replicas_equal is False:
        raise JoulecastError(f"run {run}: the replicas' weights differ at the end")
    if info.outcome.stop_s <= info.outcome.start_s:
        raise JoulecastError(f"run {run}: stops before it starts")
    if record.power["t_s"].isna().any():
        raise JoulecastError(f"run {run}: power.parquet: a reading has no time")
    if len(info.node_of_rank) != spec.ranks:
        raise JoulecastError(f"run {run}: names the nodes of {len(info.node_of_rank)} ranks only")


def _validate_seen(info: RunInfo, stages: "pd.DataFrame") -> None:
    """Check that all ranks have stages, and that the stages belong to steps of the run."""
    spec, outcome = info.spec, info.outcome
    # A command may fail before its first step. The record of its run says so.
    if spec.kind != "training" or (spec.observed is not None and stages.empty):
        return
    seen = set(stages["rank"])
    if seen != set(range(spec.ranks)):
        raise JoulecastError(f"run {spec.run}: stages of ranks {sorted(seen)} only")
    if outcome.samples <= 0:
        raise JoulecastError(f"run {spec.run}: no sample was trained")
    last_step = stages["step"].max()
    if last_step >= outcome.steps:
        raise JoulecastError(
            f"run {spec.run}: stages.parquet: a stage of step {last_step:g}, in a run of "
            f"{outcome.steps} steps"
        )


def _write_frame(path: Path, frame: "pd.DataFrame") -> None:
    # Names repeat, numbers do not: a dictionary of numbers costs more to read than it saves. The bytes of
    # times and counters that change slowly are stored next to each other.
    names = [c for c in ("node", "meter", "stage", "phase") if c in frame.columns]
    how = {"i": "DELTA_BINARY_PACKED", "f": "BYTE_STREAM_SPLIT"}
    numbers = {c: how[frame[c].dtype.kind] for c in frame.columns if frame[c].dtype.kind in how}
    frame.to_parquet(
        path,
        index=False,
        use_dictionary=names,
        column_encoding=numbers,
        compression="zstd",
    )


def write_record(target: Path, record: RunRecord) -> None:
    """Validate ``record`` and write it to the folder ``target``, whole or not at all."""
    with directory_written_aside(target) as partial:
        fill_record(partial, record)


def fill_record(folder: Path, record: RunRecord) -> None:
    """Validate ``record`` and write its files into a folder, which is made if it is missing."""
    validate(record)
    folder.mkdir(exist_ok=True)
    for name in FRAMES:
        _write_frame(folder / f"{name}.parquet", getattr(record, name))
    if record.network is not None:
        shutil.copyfile(record.network, folder / NETWORK)
    sums = {name: sha256_of(folder / f"{name}.parquet") for name in FRAMES}
    write_info(folder, record.info.model_copy(update={"frames_sha256": sums}))


def write_info(folder: Path, info: RunInfo) -> None:
    """Write only ``run.json``."""
    (folder / "run.json").write_text(info.model_dump_json(indent=1) + "\n")


@contextmanager
def _name_record_in_errors(folder: Path) -> Iterator[None]:
    """Name the folder of a record in errors, and say how to repeat its run."""
    try:
        yield
    except JoulecastError as error:
        named = "" if str(folder) in str(error) else f"{folder}: "
        raise JoulecastError(f"{named}{error}; delete {folder} to repeat the run") from None


def read_info(folder: Path) -> RunInfo:
    """Read only ``run.json``.

    Raises:
        JoulecastError: the file is missing, broken, or has another format.
    """
    path = folder / "run.json"
    with _name_record_in_errors(folder):
        content = read_json_object(path, "run record")
    if content.get("format") != FORMAT:
        raise JoulecastError(
            f"{path}: record format {content.get('format')}, this joulecast reads {FORMAT}; use the one that "
            f"wrote it, or delete {folder} to repeat the run"
        )
    return validated(_INFO, content, str(path))


def read_record(folder: Path, frames: Collection[str] = tuple(FRAMES)) -> RunRecord:
    """Read and validate one record.

    Args:
        frames: the frames to read. Other frames have no rows in the result.

    Raises:
        JoulecastError: a file is missing or broken. The error names it.
    """
    # Loaded here, so that programs that only ask for `run.json` start in half the time.
    import pandas as pd

    info = read_info(folder)
    read = {n: pd.DataFrame(columns=list(c)) for n, c in FRAMES.items() if n not in frames}
    with _name_record_in_errors(folder):
        for name in frames:
            path, sha256 = folder / f"{name}.parquet", info.frames_sha256.get(name)
            read[name] = read_parquet(path, "file of a run record", FRAMES[name], sha256)
        record = RunRecord(info, **read)
        _validate_run(record, frames)
    return record
