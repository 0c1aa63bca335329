"""The commands of tuning: let a policy choose batch sizes and power limits, and ask what to use next."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.cli_errors import failed
from joulecast.errors import JoulecastError


class Criterion(StrEnum):
    """How a power limit is chosen among those that were tried."""

    cost = "cost"
    energy = "energy"
    time = "time"
    max_slowdown = "max-slowdown"


class Device(StrEnum):
    """Where a live loop trains."""

    cpu = "cpu"
    cuda = "cuda"


def tune(
    live: Annotated[
        bool, typer.Option("--live", help="Train on this machine instead of replaying traces.")
    ] = False,
    traces: Annotated[
        Path | None, typer.Option(help="Folder of summary_train.csv and summary_power_GPU.csv.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Of the traces, as cifar100.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Of the traces, as v100.")] = None,
    policy: Annotated[str, typer.Option(help="As zeus; a wrong one lists all.")] = "curve",
    recurrences: Annotated[int, typer.Option(min=1, help="Trainings to the target.")] = 50,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Replays to take the mean of; 20 by default.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Metric to reach in a replay; the paper's by default.")
    ] = None,
    eta: Annotated[float, typer.Option(help="Weight of energy in the cost, 0 to 1.")] = 0.5,
    beta: Annotated[
        float | None, typer.Option(help="Stop a try at so many times the best cost.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Only so many last costs of a batch size count (drift).")
    ] = None,
    criterion: Annotated[
        Criterion, typer.Option(help="How a power limit is chosen.")
    ] = Criterion.cost,
    max_slowdown: Annotated[
        float, typer.Option(help="With that criterion: times the highest limit's time.")
    ] = 1.1,
    history: Annotated[
        Path | None,
        typer.Option(help="File for the trials; a live loop goes on where it ends."),
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Of a live training, 0 to 1; 0.9 by default.")
    ] = None,
    device: Annotated[
        Device | None, typer.Option(help="Of a live training; cpu by default.")
    ] = None,
    allow_power_limit: Annotated[
        bool,
        typer.Option("--allow-power-limit", help="A live loop may set the GPU's power limit."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Tune batch size and power limit over recurrences of a training, replayed or live."""
    from joulecast.tuning.report import Asked, read_setting
    from joulecast.tuning.trial import Goal

    given = {"beta": beta, "window": window}
    options = {name: value for name, value in given.items() if value is not None}
    replayed = {"--traces": traces, "--workload": workload, "--gpu": gpu, "--target": target}
    lived = {
        "--target-accuracy": target_accuracy,
        "--device": device,
        "--allow-power-limit": allow_power_limit or None,
    }
    try:
        if live:
            _refuse(replayed | {"--seeds": seeds}, "is for replays; leave it out with --live")
            job: dict[str, Any] = {"eta": eta, "allow_power_limit": allow_power_limit}
            job |= {"criterion": criterion.value, "max_slowdown": max_slowdown}
            job |= {} if device is None else {"device": device.value}
            job |= {} if target_accuracy is None else {"target_accuracy": target_accuracy}
            text = _tune_live(job, policy, options, recurrences, history, as_json)
        else:
            _refuse(lived, "is for trainings on this machine; give --live too")
            if traces is None or workload is None or gpu is None:
                raise JoulecastError(
                    "a replay needs --traces, --workload and --gpu; --live trains on this machine instead"
                )
            seeds = 20 if seeds is None else seeds
            if history is not None and seeds != 1:
                raise JoulecastError(
                    f"--history keeps the trials of one seed, and there are {seeds}; give --seeds 1 too"
                )
            asked = Asked(target, Goal(eta, criterion.value, max_slowdown), options)
            setting = read_setting(traces, workload, gpu, target, policy)
            text = _replay(setting, policy, recurrences, seeds, asked, history, as_json)
    except JoulecastError as error:
        raise failed(error) from None
    typer.echo(text)


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise JoulecastError(f"{given[0]} {why}")


def _replay(
    setting: Any,
    policy: str,
    recurrences: int,
    seeds: int,
    asked: Any,
    history: Path | None,
    as_json: bool,
) -> str:
    from joulecast.tuning.report import replay_report, report_text, write_replayed_history

    report = replay_report(setting, policy, recurrences, seeds, asked)
    if history is not None:
        write_replayed_history(history, setting, policy, recurrences, asked)
        report["history"] = str(history)
    return _json(report) if as_json else report_text(report)


def _tune_live(
    job: dict[str, Any],
    policy: str,
    options: dict[str, Any],
    recurrences: int,
    history: Path | None,
    as_json: bool,
) -> str:
    from joulecast.spec import Workload
    from joulecast.tuning.live import LiveJob, LiveTraining, tune_live
    from joulecast.tuning.registry import make_policy
    from joulecast.tuning.report import live_report, live_report_text
    from joulecast.tuning.trial import Trial

    environment = LiveTraining(LiveJob(Workload(network="lenet5", image_size=8), **job))
    trials: list[Trial] = []
    done = tune_live(
        environment,
        make_policy(policy, environment.space, **options),
        recurrences,
        seed=1,
        history_file=history,
        whose={"policy": policy, **options},
        ended=trials.append,
        say=lambda note: typer.echo(f"note: {note}", err=True),
    )
    report = live_report(environment.space, policy, done, trials, environment.notes, history)
    return _json(report) if as_json else live_report_text(report)


def advise_recurring(
    history: Annotated[Path, typer.Argument(help="File that `tune --history` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say which batch size and power limit to use next, what that saves, and whether looking paid."""
    from joulecast.tuning.advice import advice_text, advise_on_file

    try:
        advice = advise_on_file(history)
    except JoulecastError as error:
        raise failed(error) from None
    typer.echo(_json(advice) if as_json else advice_text(advice))


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, allow_nan=False)
