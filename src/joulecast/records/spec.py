"""What one run is to do: the contract between a campaign and the program that measures.

A :class:`RunSpec` holds the science of a run and nothing of how it is launched, so that its digest
tells whether a record on disk answers the question that is asked now.
"""

import hashlib
import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from joulecast.errors import JoulecastError
from joulecast.platforms import Platform
from joulecast.records.meter_settings import AS_USUAL, MeterSettings

Kind = Literal["training", "idle", "allreduce", "sleeping_rank", "imported"]
Algorithm = Literal["mpi", "shared", "two_level"]
NodesAre = Literal["hosts", "ranks of one host", "emulated"]
Precision = Literal["fp32", "bf16", "fp64"]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Emulation(_Frozen):
    """Nodes that are slower than a core, so that several of them fit on one."""

    nodes_per_core: int = Field(
        ge=2,
        description="Compute of every rank is padded to this multiple of its time on a free core.",
    )


class Workload(_Frozen):
    """Network and data of a training."""

    network: str
    dataset: str = "digits"
    data_root: str | None = None
    image_size: int = Field(64, ge=8)
    patch_size: int = Field(16, ge=1)
    classes: int = Field(10, ge=2)


class Training(_Frozen):
    """Parameters of a training."""

    global_batch_size: int = Field(ge=1, le=10**18)
    steps: int = Field(10, ge=1, le=10**18)
    warmup_steps: int = Field(1, ge=0)
    target_accuracy: float | None = Field(None, gt=0, le=1)
    evaluate_every: int = Field(50, ge=1)
    learning_rate: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    precision: Precision = "fp32"
    device: Literal["cpu", "cuda"] = "cpu"
    algorithm: Algorithm = "two_level"
    bucket_mb: float = Field(64, gt=0)
    overlap: bool = False
    cuda_aware_mpi: bool = False
    loader_workers: int = Field(0, ge=0)
    prefetch_batches: int = Field(2, ge=0)


class Calibration(_Frozen):
    """What the calibration kinds need: ``idle`` and ``sleeping_rank`` last ``seconds``,
    ``allreduce`` repeats every size."""

    seconds: float = Field(60, gt=0)
    sizes_bytes: tuple[int, ...] = ()
    repeats: int = Field(5, ge=1)
    algorithm: Algorithm = "two_level"


class Foreign(_Frozen):
    """Identity of a run that others did and an importer reads: facts of its log, nothing else.

    ``work_unit`` is what ``samples`` of its phases and outcome count: samples or epochs.
    """

    benchmark: str
    submission: str
    global_batch_size: int | None = Field(None, ge=1, le=10**18)
    accelerators_per_node: int | None = Field(None, ge=1)
    accelerator: str | None = None
    work_unit: Literal["samples", "epochs"] = "samples"


class Observed(_Frozen):
    """A training that runs as a command of its own and is observed from outside.

    ``samples_per_step`` is what a step of all ranks trains on, if the user says it; ``steps`` are the first
    and the last one that count, from 0.
    """

    name: str
    command: tuple[str, ...]
    samples_per_step: int | None = Field(None, ge=1, le=10**18)
    steps: tuple[int, int] | None = None


class RunSpec(_Frozen):
    """One run of a campaign."""

    run: str
    campaign: str
    kind: Kind = "training"
    platform: Platform
    nodes: int = Field(ge=1, le=10**7)
    ranks_per_node: int = Field(1, ge=1, le=10**5)
    threads_per_rank: int = Field(1, ge=1)
    repeat: int = 1
    seed: int = 1
    emulation: Emulation | None = None
    workload: Workload | None = None
    training: Training | None = None
    calibration: Calibration | None = None
    foreign: Foreign | None = None
    observed: Observed | None = None
    meters: tuple[str, ...] = ("nvml", "rapl")
    sample_period_s: float = Field(0.1, gt=0)
    metering: MeterSettings = AS_USUAL

    @model_validator(mode="after")
    def _kind_has_its_parts(self) -> "RunSpec":
        needed = {"training": ("workload", "training"), "imported": ("foreign",)}
        if self.kind == "training" and self.observed is not None:
            return self
        for part in needed.get(self.kind, ("calibration",)):
            if getattr(self, part) is None:
                raise ValueError(f"a run of kind {self.kind} needs the part `{part}`")
        if self.training is not None and self.training.global_batch_size < self.ranks:
            raise ValueError(
                f"batch size {self.training.global_batch_size} is smaller than the "
                f"{self.ranks} ranks ({self.nodes} nodes x {self.ranks_per_node})"
            )
        return self

    @property
    def network(self) -> str | None:
        """Name of what was trained, if anything was: a network, or what an observed training is called."""
        if self.observed is not None:
            return self.observed.name
        return None if self.workload is None else self.workload.network

    @property
    def global_batch_size(self) -> int | None:
        """Batch of all ranks that is asked for; ``None`` where the training decides it."""
        if self.observed is not None:
            return self.observed.samples_per_step
        return None if self.training is None else self.training.global_batch_size

    @property
    def ranks(self) -> int:
        """MPI ranks of the run."""
        return self.nodes * self.ranks_per_node

    @property
    def hosts(self) -> int:
        """Physical hosts that the ranks must be found on."""
        return self.nodes if self.platform.hosts is None else min(self.nodes, self.platform.hosts)

    @property
    def nodes_are(self) -> NodesAre:
        """What a node of this run is in reality."""
        if self.emulation is not None:
            return "emulated"
        return "hosts" if self.hosts == self.nodes else "ranks of one host"

    def digest(self) -> str:
        """SHA-256 over everything that decides what is measured; the names are left out."""
        # Runs that were not observed, or with meters as usual, keep the digest of the time before there were
        # such.
        unused = set() if self.observed is not None else {"observed"}
        unused |= {"metering"} if self.metering.are_defaults else set()
        science = self.model_dump(mode="json", exclude={"run", "campaign", *unused})
        return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()


def check_cores(spec: RunSpec, ranks_here: int, cores: int) -> bool:
    """Check that the ranks of this host have cores enough; return whether they share cores.

    Args:
        cores: that the ranks of this host may use together.

    Raises:
        JoulecastError: more ranks than cores without emulation, or more than the emulation holds.
    """
    if ranks_here <= cores:
        return False
    if spec.emulation is None:
        raise JoulecastError(
            f"run {spec.run}: {ranks_here} ranks on a host with {cores} usable cores would measure "
            "time sharing, not training; ask for fewer nodes, or emulate slower ones with the "
            f"configuration key `emulation: {{nodes_per_core: {-(-ranks_here // cores)}}}` or more"
        )
    holds = cores * spec.emulation.nodes_per_core
    if ranks_here > holds:
        raise JoulecastError(
            f"run {spec.run}: {ranks_here} emulated nodes do not fit on {cores} cores with "
            f"nodes_per_core {spec.emulation.nodes_per_core} (at most {holds})"
        )
    return True
