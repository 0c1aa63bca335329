"""What can be asked of the partitioner."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from joulecast.runs.request import Name, Request, Shell


class PartitionRequest(Request):
    """Cut a network into pipeline stages."""

    command: ClassVar[str] = "partition"

    graph: Annotated[Name, Shell("graph")] = Field(
        description="A network, as resnet50; MODULE:FUNCTION of your own, as capture takes it, which is "
        "measured first; or a file: task graph or PipeDream graph.txt."
    )
    devices: int = Field(ge=1, description="Number of devices.")
    cost: Literal["compute", "max", "sum"] | None = Field(
        default=None,
        description="A stage's time: its work (compute), the larger of work and transfer (max), or both.",
    )
    bandwidth_bytes_per_s: Annotated[float | None, Shell("--bandwidth")] = Field(
        default=None, description="Bytes per second of a device's link, each way."
    )
    replicate: bool = Field(default=False, description="A stage may be on several devices.")
    memory_bytes: Annotated[float | None, Shell("--memory")] = Field(
        default=None, description="Memory of a device, in bytes."
    )
    mode: Literal["exact", "compat"] = Field(
        default="exact", description="compat: answer as PipeDream's optimizer does."
    )
    ideals: int | None = Field(
        default=None,
        ge=1,
        description="Limit of the ideals to list; a graph with more gets no certificate.",
    )
    export: Path | None = Field(
        default=None,
        description="Python file to write: it trains the network in these stages, under torchrun.",
    )
