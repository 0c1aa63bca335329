"""The commands of tuning: let a policy choose batch sizes and power limits, and ask what to use next."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from joulecast.app.cli.options import AsJson, echo_json


class Criterion(StrEnum):
    """How a power limit is chosen among those that were tried."""

    cost = "cost"
    energy = "energy"
    time = "time"
    max_slowdown = "max-slowdown"


class Device(StrEnum):
    """Device that a live tuning trains on."""

    cpu = "cpu"
    cuda = "cuda"


def tune(
    live: Annotated[
        bool, typer.Option("--live", help="Train on this machine instead of replaying traces.")
    ] = False,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="Folder of summary_train.csv and summary_power_GPU.csv; the shipped ones by default."
        ),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Workload of the traces, as cifar100.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of the traces, as v100.")] = None,
    policy: Annotated[str, typer.Option(help="Policy, as zeus; a wrong name lists all.")] = "curve",
    recurrences: Annotated[int, typer.Option(min=1, help="Trainings to the target.")] = 50,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Replays to take the mean of; 20 by default.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Metric to reach in a replay; the paper's by default.")
    ] = None,
    eta: Annotated[float, typer.Option(help="Weight of energy in the cost, 0 to 1.")] = 0.5,
    beta: Annotated[
        float | None, typer.Option(help="Stop a try at this many times the best cost.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Number of last costs of a batch size that count (drift).")
    ] = None,
    criterion: Annotated[
        Criterion, typer.Option(help="How a power limit is chosen.")
    ] = Criterion.cost,
    max_slowdown: Annotated[
        float,
        typer.Option(help="With max-slowdown: most time, relative to the highest limit."),
    ] = 1.1,
    history: Annotated[
        Path | None,
        typer.Option(help="File for the trials; a live loop continues where it ends."),
    ] = None,
    target_accuracy: Annotated[
        float | None,
        typer.Option(help="Accuracy that a live training must reach, 0 to 1; 0.9 by default."),
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="Device of a live training; cpu by default.")
    ] = None,
    allow_power_limit: Annotated[
        bool,
        typer.Option("--allow-power-limit", help="A live loop may set the GPU's power limit."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tune batch size and power limit over recurrences of a training, replayed or live."""
    from joulecast.app.api.plans import tune as tune_on
    from joulecast.tune.policy_report import live_report_text, report_text

    report = tune_on(
        live=live,
        traces=traces,
        workload=workload,
        gpu=gpu,
        policy=policy,
        recurrences=recurrences,
        seeds=seeds,
        target=target,
        eta=eta,
        beta=beta,
        window=window,
        criterion=criterion.value,
        max_slowdown=max_slowdown,
        history=history,
        target_accuracy=target_accuracy,
        device=None if device is None else device.value,
        allow_power_limit=allow_power_limit,
        tell=lambda note: typer.echo(f"note: {note}", err=True),
    )
    in_words = live_report_text if live else report_text
    if as_json:
        echo_json(report)
    else:
        typer.echo(in_words(report))
