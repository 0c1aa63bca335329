"""The specification of a run: what it should do. A campaign writes it for the program that measures.

A :class:`RunSpec` has everything that decides the result of a run. How the run is launched is not in it. So
its digest shows whether a record on disk belongs to a specification.
"""

import hashlib
import json
from dataclasses import field
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from joulecast.errors import JoulecastError
from joulecast.runs.files.names import simple_name
from joulecast.runs.files.reading import FrozenContent
from joulecast.runs.platforms import Platform


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MeterSettings:
    """Where meters look for the kernel's files, and which command they call."""

    sysfs_root: str = "/sys"
    """Folder of the kernel's files."""
    command: tuple[Annotated[str, Field(max_length=4000)], ...] = field(default=())
    """The site's command, as a list of words. It prints watts or joules of a node."""


AS_USUAL = MeterSettings()
"""The settings on a machine whose meters need no settings."""

Kind = Literal["training", "idle", "allreduce", "sleeping_rank", "imported"]
Algorithm = Literal["mpi", "shared", "two_level"]
NodesAre = Literal["hosts", "ranks of one host", "emulated"]
Precision = Literal["fp32", "bf16", "fp64"]
THIS_MACHINE = "this-machine"
"""Platform of runs if none was named."""


class Emulation(FrozenContent):
    """Nodes that are slower than a core, so that several of them fit on one core."""

    nodes_per_core: int = Field(
        ge=2,
        description="The compute time of every rank is padded to this multiple of its time on a free core.",
    )


class Workload(FrozenContent):
    """Network and data of a training."""

    network: str
    """Name of the network."""
    dataset: str = "digits"
    """Name of the data set."""
    data_root: str | None = None
    """Folder with the files of the data set."""
    image_size: int = Field(64, ge=8)
    """Side of the images in pixels."""
    patch_size: int = Field(16, ge=1)
    """Side of a patch in pixels, for vision transformers."""
    classes: int = Field(10, ge=2)
    """Number of classes of the last layer."""


class Training(FrozenContent):
    """Parameters of a training."""

    global_batch_size: int = Field(ge=1, le=10**18)
    """Samples in one step, of all ranks together."""
    steps: int = Field(10, ge=1, le=10**18)
    """Number of measured steps."""
    warmup_steps: int = Field(1, ge=0)
    """Number of steps before the measured ones."""
    target_accuracy: float | None = Field(None, gt=0, le=1)
    """Accuracy (a share of 1) at which the training ends."""
    evaluate_every: int = Field(50, ge=1)
    """Steps between two evaluations."""
    learning_rate: float = Field(0.01, gt=0)
    """Learning rate of the optimizer SGD."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of the optimizer SGD."""
    precision: Precision = "fp32"
    """Precision of the training. ``bf16`` means autocast to bf16."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Type of device on which the training runs."""
    algorithm: Algorithm = "two_level"
    """Algorithm of the all-reduce of the gradients."""
    bucket_mb: float = Field(64, gt=0)
    """Size of a bucket in MB. All gradients of a bucket are summed by one all-reduce."""
    overlap: bool = False
    """Whether the all-reduce of a bucket may run during the backward pass."""
    loader_workers: int = Field(0, ge=0)
    """Number of processes that prepare batches."""
    prefetch_batches: int = Field(2, ge=0)
    """Number of batches that the processes of the loader prepare ahead."""


class Calibration(FrozenContent):
    """What a calibration run needs."""

    seconds: float = Field(60, gt=0)
    """How long a run of kind ``idle`` or ``sleeping_rank`` lasts."""
    sizes_bytes: tuple[int, ...] = ()
    """Sizes of the all-reduces in a run of kind ``allreduce``."""
    repeats: int = Field(5, ge=1)
    """Number of all-reduces of each size."""
    algorithm: Algorithm = "two_level"
    """Algorithm of the measured all-reduces."""


class Imported(FrozenContent):
    """Facts about a run that others did. An importer reads them from its log."""

    benchmark: str
    """What was trained."""
    submission: str
    """The submission that contains the run. For a log of a tool, it is the name of the run."""
    global_batch_size: int | None = Field(None, ge=1, le=10**18)
    """Samples in one step, if the log has it."""
    accelerators_per_node: int | None = Field(None, ge=1)
    """Number of devices in each node."""
    accelerator: str | None = None
    """Name of the devices."""
    work_unit: Literal["samples", "epochs"] = "samples"
    """What ``samples`` counts in the phases and in the outcome of the run."""


def _in_order(steps: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= steps[0] <= steps[1]:
        raise ValueError("give the first and the last one, in this order")
    return steps


TrainingName = Annotated[str, AfterValidator(simple_name)]
StepsThatCount = Annotated[tuple[int, int], AfterValidator(_in_order)]


class Observed(FrozenContent):
    """A training that users start with their own command. joulecast observes it from outside."""

    name: TrainingName
    """Name of the training."""
    command: tuple[str, ...]
    """The command that starts the training, as a list of words."""
    samples_per_step: int | None = Field(None, ge=1, le=10**18)
    """Samples in one step of all ranks together, if the user gave it."""
    steps: StepsThatCount | None = None
    """First and last step that count (the first step has the number 0), if the user gave them."""


class RunSpec(FrozenContent):
    """One run of a campaign."""

    run: str
    """Name of the run and of its folder."""
    campaign: str
    """Name of the campaign."""
    kind: Kind = "training"
    """What the run measures."""
    platform: Platform
    """The content of the platform's file when the specification was made."""
    nodes: int = Field(ge=1, le=10**7)
    """Number of nodes."""
    ranks_per_node: int = Field(1, ge=1, le=10**5)
    """Number of MPI ranks of a node."""
    threads_per_rank: int = Field(1, ge=1)
    """Number of compute threads of a rank."""
    repeat: int = 1
    """Number of the repeat, from 1."""
    seed: int = 1
    """Seed of the weights and the order of batches."""
    emulation: Emulation | None = None
    """How nodes that are slower than a core are emulated."""
    workload: Workload | None = None
    """Network and data."""
    training: Training | None = None
    """Parameters of the training."""
    calibration: Calibration | None = None
    """What a calibration run needs."""
    imported: Imported | None = None
    """The facts of an imported run."""
    observed: Observed | None = None
    """Name and command of a training that ran under ``joulecast measure``."""
    meters: tuple[str, ...] = ("gpu", "cpu")
    """Kinds of meters that were requested, in this order."""
    sample_period_s: float = Field(0.1, gt=0)
    """Time between two readings."""
    metering: MeterSettings = AS_USUAL
    """Where meters looked for the kernel's files, and which command of the site they called."""

    @model_validator(mode="after")
    def _kind_has_its_parts(self) -> "RunSpec":
        needed = {"training": ("workload", "training"), "imported": ("imported",)}
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
        """Name of the network, or of the observed training; ``None`` if nothing was trained."""
        if self.observed is not None:
            return self.observed.name
        return None if self.workload is None else self.workload.network

    @property
    def global_batch_size(self) -> int | None:
        """Batch of all ranks together; ``None`` if the specification does not say it."""
        if self.observed is not None:
            return self.observed.samples_per_step
        return None if self.training is None else self.training.global_batch_size

    @property
    def ranks(self) -> int:
        """Number of MPI ranks of the run."""
        return self.nodes * self.ranks_per_node

    @property
    def hosts(self) -> int:
        """Number of physical hosts on which the ranks must be."""
        return self.nodes if self.platform.hosts is None else min(self.nodes, self.platform.hosts)

    @property
    def nodes_are(self) -> NodesAre:
        """What a node of this run really is: a host, a rank of one host, or an emulated node."""
        if self.emulation is not None:
            return "emulated"
        return "hosts" if self.hosts == self.nodes else "ranks of one host"

    def digest(self) -> str:
        """SHA-256 over everything that decides what is measured. Names are left out."""
        science = self.model_dump(mode="json", exclude={"run", "campaign"})
        return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()


def check_cores(spec: RunSpec, ranks_here: int, cores: int) -> bool:
    """Check that this host has enough cores for its ranks. Returns whether the ranks share cores.

    Args:
        cores: number of cores that the ranks of this host may use together.

    Raises:
        JoulecastError: there are more ranks than cores without emulation, or more than the emulation allows.
    """
    if ranks_here <= cores:
        return False
    if spec.emulation is None:
        emulate = (
            ", or emulate slower ones with the configuration key "
            f"`emulation: {{nodes_per_core: {-(-ranks_here // cores)}}}` or more"
        )
        raise JoulecastError(
            f"run {spec.run}: {ranks_here} ranks on a host with {cores} usable cores would measure "
            f"time sharing, not training; ask for fewer nodes{'' if spec.observed else emulate}"
        )
    holds = cores * spec.emulation.nodes_per_core
    if ranks_here > holds:
        raise JoulecastError(
            f"run {spec.run}: {ranks_here} emulated nodes do not fit on {cores} cores with "
            f"nodes_per_core {spec.emulation.nodes_per_core} (at most {holds})"
        )
    return True
