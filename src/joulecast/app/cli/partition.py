"""The commands of the partitioner: ``partition`` cuts a graph into stages, ``profile`` measures a graph."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from joulecast.app.cli.options import AsJson, asks, echo_json
from joulecast.errors import JoulecastError
from joulecast.partition.request import PartitionRequest


@asks(PartitionRequest)
def partition(
    request: PartitionRequest,
    as_json: AsJson = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print a table of the stages.")
    ] = False,
) -> None:
    """Cut a network into pipeline stages so that the slowest stage is as fast as possible, with a proof."""
    from joulecast.app.api.plans import partition_network
    from joulecast.partition.plan_report import explained, summary

    if as_json and explain:
        raise JoulecastError("--json and --explain: give one of them")
    report = partition_network(request)
    if as_json:
        echo_json(report)
    else:
        text = explained(report) if explain else f"{summary(report)}; --explain shows the stages"
        typer.echo(text)
        if request.export is not None:
            stages, file = len(report["stages"]), shlex.quote(str(request.export))
            typer.echo(f"run it: torchrun --nproc-per-node {stages} {file}")


def profile(
    network: Annotated[
        str | None,
        typer.Argument(
            help="A network by name, such as resnet50. With --device, it is the platform file to write."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Argument(help="Task graph to write, a JSON file.")] = None,
    device: Annotated[
        bool,
        typer.Option(
            "--device",
            help="Measure the GPU instead, and write a platform file for the simulator. It takes a minute.",
        ),
    ] = False,
    batch: Annotated[int, typer.Option(help="Samples in one step.")] = 4,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Height and width of the images, in pixels. By default the size "
            "with which the network is usually trained."
        ),
    ] = None,
    classes: Annotated[int, typer.Option(help="Classes of the data set.")] = 1000,
    passes: Annotated[int, typer.Option(help="Timed passes, after one that does not count.")] = 5,
) -> None:
    """Measure all tasks of a network on one core, for `partition`. Or measure a GPU, for `simulate`."""
    if device:
        if network is None or out is not None:
            raise JoulecastError("profile --device: give the file to write, such as my-gpu.yaml")
        _profile_device(Path(network))
        return
    if network is None or out is None:
        raise JoulecastError(
            "profile: give a network and the file to write, such as resnet50 resnet50.json; "
            "or --device and a file"
        )
    from joulecast.partition.measure_tasks import measure_tasks

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
