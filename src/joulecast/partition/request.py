"""Requests to the partitioner, from a command or the configuration."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from joulecast.errors import JoulecastError
from joulecast.measure.workloads.networks import check_size, known_networks
from joulecast.runs.files.names import plain_path
from joulecast.runs.request import Name, Request, Section, Shell


class PipelineRun(Section):
    """A pipeline that is run, with one rank for each stage."""

    network: str = Field("resnet18", description="Network, by name.")
    stages: int = Field(
        2,
        ge=1,
        description="Number of stages. Each is a rank.",
    )
    planner: Literal["exact", "uniform", "parameters", "cudasize", "hashrate"] = Field(
        "exact", description="Planner that cuts the network."
    )
    schedule: Literal["gpipe", "1f1b"] = Field("1f1b", description="Order of the micro-batches.")
    micro_batches: int = Field(4, ge=1, description="Number of parts of a batch.")
    batch_size: int = Field(16, ge=1, description="Samples in one step.")
    image_size: int = Field(
        32, ge=8, description="Side of the images in pixels. The images are synthetic."
    )

    @model_validator(mode="after")
    def _fits(self) -> "PipelineRun":
        try:
            check_size(self.network, self.image_size, 16)
        except JoulecastError as error:
            raise ValueError(str(error)) from None
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"batch_size {self.batch_size} does not divide into {self.micro_batches} micro-batches"
            )
        return self

    @property
    def name(self) -> str:
        """Name of the files of this run."""
        return (
            f"{self.network}-s{self.stages}-{self.planner}-{self.schedule}-m{self.micro_batches}"
            f"-b{self.batch_size}-i{self.image_size}"
        )


class PartitionSection(Section):
    """Networks that are cut into pipeline stages, and pipelines that are run."""

    graphs: str | None = Field(
        "recorded/task-graphs",
        description="Folder with measured task graphs (NETWORK.json) or PipeDream profiles "
        "(NETWORK.txt). null: measure the networks here.",
    )
    networks: list[str] = Field(
        [
            *("vgg16", "resnet18", "resnet50", "resnet101", "alexnet", "resnext50", "resnext101"),
            *("inception_v3", "densenet121", "squeezenet1_0", "vit_s"),
        ],
        min_length=1,
        description="Networks to cut.",
    )
    devices: list[int] = Field([4, 8], min_length=1, description="Numbers of stages to cut into.")
    micro_batches: int = Field(16, ge=1, description="Micro-batches of the predicted pipelines.")
    batch_size: int = Field(4, ge=1, description="Samples in one step, if graphs are measured.")
    image_size: int | None = Field(
        None,
        description="Height and width of the images in pixels, if graphs are measured. null: 224 "
        "(Inception 299).",
    )
    pipelines: list[PipelineRun] = Field(
        [PipelineRun(), PipelineRun(planner="parameters")],
        description="Pipelines to run on this machine.",
    )

    @field_validator("graphs")
    @classmethod
    def _plain(cls, path: str | None) -> str | None:
        return path if path is None else plain_path(path)

    @field_validator("networks")
    @classmethod
    def _known(cls, networks: list[str]) -> list[str]:
        return known_networks(networks)

    @field_validator("devices")
    @classmethod
    def _stage_counts(cls, counts: list[int]) -> list[int]:
        if min(counts) < 1:
            raise ValueError(f"{min(counts)} devices are below 1")
        return sorted(set(counts))


class PartitionRequest(Request):
    """Cut a network into pipeline stages."""

    command: ClassVar[str] = "partition"

    graph: Annotated[Name, Shell("graph")] = Field(
        description="What to cut: a network by name, such as resnet50; a file (a task graph of `profile`, or "
        "a graph.txt of PipeDream); or MODULE:FUNCTION, as for `capture` (it is measured first)."
    )
    devices: int = Field(ge=1, description="Devices.")
    cost: Literal["compute", "max", "sum"] | None = Field(
        default=None,
        description="Time of a stage: its work (compute, the default), the longest of work, "
        "transfers in and transfers out (max), or work plus transfers (sum).",
    )
    bandwidth_bytes_per_s: Annotated[float | None, Shell("--bandwidth")] = Field(
        default=None, description="Rate of a device's link in bytes per second, in each direction."
    )
    replicate: bool = Field(default=False, description="Allow a stage to be on several devices.")
    memory_bytes: Annotated[float | None, Shell("--memory")] = Field(
        default=None, description="Memory of a device, in bytes."
    )
    mode: Literal["exact", "compat"] = Field(
        default="exact",
        description="exact: with a proof. compat: answer as PipeDream's optimizer does.",
    )
    ideals: int | None = Field(
        default=None,
        ge=1,
        description="Largest number of ideals (sets of finished tasks) in the search, by default 60,000.",
    )
    export: Path | None = Field(
        default=None,
        description="Python file to write. It trains the network in these stages.",
    )
