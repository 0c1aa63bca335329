"""A tuning as people ask for it: a policy on the traces of others, or on trainings here and now.

What the command ``tune`` prints, and :func:`joulecast.tune` returns.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from joulecast.errors import JoulecastError
from joulecast.spec import Workload
from joulecast.tuning.live import LiveJob, LiveTraining, tune_live
from joulecast.tuning.registry import make_policy
from joulecast.tuning.report import (
    Asked,
    live_report,
    read_setting,
    replay_report,
    write_replayed_history,
)
from joulecast.tuning.trial import Criterion, Goal, Trial

Device = Literal["cpu", "cuda"]

_SEEDS = 20


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise JoulecastError(f"{given[0]} {why}")


def tuned(
    *,
    live: bool,
    traces: Path | None,
    workload: str | None,
    gpu: str | None,
    policy: str,
    recurrences: int,
    seeds: int | None,
    target: float | None,
    eta: float,
    beta: float | None,
    window: int | None,
    criterion: Criterion,
    max_slowdown: float,
    history: Path | None,
    target_accuracy: float | None,
    device: Device | None,
    allow_power_limit: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The report of a tuning: of a live one what it did and advises, of a replay what it saves.

    Args:
        say: gets notes of a live tuning while it goes on.

    Raises:
        JoulecastError: an option that is for the other kind, or missing, or wrong.
    """
    given = {"beta": beta, "window": window}
    options = {name: value for name, value in given.items() if value is not None}
    if live:
        replayed = {"--traces": traces, "--workload": workload, "--gpu": gpu, "--target": target}
        _refuse(replayed | {"--seeds": seeds}, "is for replays; leave it out with --live")
        job: dict[str, Any] = {"eta": eta, "allow_power_limit": allow_power_limit}
        job |= {"criterion": criterion, "max_slowdown": max_slowdown}
        job |= {} if device is None else {"device": device}
        job |= {} if target_accuracy is None else {"target_accuracy": target_accuracy}
        return _tuned_here(job, policy, options, recurrences, history, say)
    lived = {
        "--target-accuracy": target_accuracy,
        "--device": device,
        "--allow-power-limit": allow_power_limit or None,
    }
    _refuse(lived, "is for trainings on this machine; give --live too")
    if traces is None or workload is None or gpu is None:
        raise JoulecastError(
            "a replay needs --traces, --workload and --gpu; --live trains on this machine instead"
        )
    seeds = _SEEDS if seeds is None else seeds
    if history is not None and seeds != 1:
        raise JoulecastError(
            f"--history keeps the trials of one seed, and there are {seeds}; give --seeds 1 too"
        )
    asked = Asked(target, Goal(eta, criterion, max_slowdown), options)
    setting = read_setting(traces, workload, gpu, target, policy)
    report = replay_report(setting, policy, recurrences, seeds, asked)
    if history is not None:
        write_replayed_history(history, setting, policy, recurrences, asked)
        report["history"] = str(history)
    return report


def _tuned_here(
    job: dict[str, Any],
    policy: str,
    options: dict[str, Any],
    recurrences: int,
    history: Path | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
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
        say=say,
    )
    return live_report(environment.space, policy, done, trials, environment.notes, history)
