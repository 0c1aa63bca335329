"""The commands of the partitioner: cut a graph into stages, measure a graph that can be cut."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from joulecast.app.cli.options import AsJson, echo_json
from joulecast.errors import JoulecastError


class Cost(StrEnum):
    """How a stage's work and transfers make its time."""

    compute = "compute"
    max = "max"
    sum = "sum"


class Mode(StrEnum):
    """Whose arithmetic."""

    exact = "exact"
    compat = "compat"


def partition(
    graph: Annotated[
        str,
        typer.Argument(
            help="A network, as resnet50; MODULE:FUNCTION of your own, as capture takes it; or a file: task "
            "graph, PipeDream graph.txt or device-placement JSON."
        ),
    ],
    devices: Annotated[
        int | None,
        typer.Option(help="Number of devices; a device-placement file has it itself, as maxFPGAs."),
    ] = None,
    cost: Annotated[
        Cost | None,
        typer.Option(
            help="A stage's time: its work (compute), the larger of work and transfer (max), or both (sum)."
        ),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="Bytes per second of a device's link, each way.")
    ] = None,
    replicate: Annotated[
        bool, typer.Option("--replicate", help="A stage may be on several devices.")
    ] = False,
    memory: Annotated[float | None, typer.Option(help="Memory of a device, in bytes.")] = None,
    mode: Annotated[
        Mode, typer.Option(help="exact; or compat: answer as PipeDream's optimizer does.")
    ] = Mode.exact,
    ideals: Annotated[
        int | None,
        typer.Option(
            min=1, help="Limit of the ideals to list; a graph with more gets no certificate."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(help="Python file to write: it trains the network in these stages."),
    ] = None,
    as_json: AsJson = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print a table of stages.")] = False,
) -> None:
    """Cut a network into pipeline stages whose slowest one is fast, and prove how fast it can be."""
    from joulecast.app.api.plans import partition as partition_into
    from joulecast.partition.plan_report import explained, summary
    from joulecast.partition.problem import CostModel

    model: CostModel | None = cost.value if cost else None
    if as_json and explain:
        raise JoulecastError("--json and --explain: give one of them")
    report = partition_into(
        graph,
        devices,
        cost=model,
        bandwidth_bytes_per_s=bandwidth,
        replicate=replicate,
        memory_bytes=memory,
        mode=mode.value,
        ideals=ideals,
        export=export,
    )
    if as_json:
        echo_json(report)
    else:
        typer.echo(explained(report) if explain else summary(report))
        if export is not None:
            stages = len(report["stages"])
            typer.echo(f"run it: torchrun --nproc-per-node {stages} {export}")


def profile(
    network: Annotated[
        str | None, typer.Argument(help="Of the campaign's networks, as resnet50.")
    ] = None,
    out: Annotated[Path | None, typer.Argument(help="File to write.")] = None,
    device: Annotated[
        bool,
        typer.Option(
            "--device",
            help="Measure the GPU instead: a platform file for the simulator, in a minute.",
        ),
    ] = False,
    batch: Annotated[int, typer.Option(help="Samples of a step.")] = 4,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels of a side; by default as trained.")
    ] = None,
    classes: Annotated[int, typer.Option(help="Number of classes of the data set.")] = 1000,
    passes: Annotated[int, typer.Option(help="Timed passes; one before them is dropped.")] = 5,
) -> None:
    """Measure every task of a network on one core: a graph that can be partitioned. Or measure a GPU."""
    if device:
        if network is None or out is not None:
            raise JoulecastError("profile --device: give the file to write, as my-gpu.yaml")
        _profile_device(Path(network))
        return
    if network is None or out is None:
        raise JoulecastError(
            "profile: give a network and the file to write, as resnet50 resnet50.json; or --device and a file"
        )
    from joulecast.graphs.measure_tasks import measure_tasks

    measured = measure_tasks(network, batch, image_size, classes, passes)
    measured.write(out)
    typer.echo(f"{out}: {len(measured.tasks)} tasks, {measured.work_us / 1e6:.3f} s a step")


def _profile_device(out: Path) -> None:
    from joulecast.graphs.measure_device import measure_device, write_device

    measured = measure_device()
    write_device(measured, out)
    rates = ", ".join(f"{p} {rate / 1e12:.1f} TFLOP/s" for p, rate in measured.flops.items())
    typer.echo(
        f"{out}: {measured.name}: {rates}, memory {measured.bytes_per_s / 1e9:.0f} GB/s (measured)"
    )
