"""A tuning from beginning to end: a policy tunes replayed traces, or trainings on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from joulecast.tune.live import LiveJob, LiveTraining, tune_live
from joulecast.tune.policy_registry import make_policy
from joulecast.tune.policy_report import read_setting, replay_report
from joulecast.tune.recurrences import Recurrence
from joulecast.tune.request import TuneRequest
from joulecast.tune.trial import Trial

_SEEDS = 20


def tune_on_traces(traces: Path, request: TuneRequest) -> dict[str, Any]:
    """The report of a replay: how much the policy saves.

    Raises:
        JoulecastError: there are no such traces, workload, GPU or policy.
    """
    workload, gpu = str(request.workload), str(request.gpu)
    setting = read_setting(traces, workload, gpu, request.target, request.policy)
    return replay_report(setting, request, request.seeds or _SEEDS)


def tune_on_this_machine(
    job: LiveJob,
    policy: str,
    options: dict[str, Any],
    recurrences: int,
    history: Path | None,
    say: Callable[[str], None],
    *,
    quiet_wait_s: float = 0.0,
) -> tuple[LiveTraining, list[Recurrence], list[Trial]]:
    """Tune a training on this machine.

    Args:
        policy, options: the policy, by name, and its options.
        recurrences: number of all recurrences. Recurrences in the history count.
        history: file of the trials. The tuning continues after the last one in it.
        say: function that gets notes while the tuning runs.
        quiet_wait_s: longest wait for other programs to end before the first trial.

    Returns:
        The environment; all recurrences, also the ones in the history; and the trials of this call.

    Raises:
        JoulecastError: an option is wrong, or there is no GPU although one is requested.
    """
    environment = LiveTraining(job)
    trials: list[Trial] = []
    done = tune_live(
        environment,
        make_policy(policy, environment.space, **options),
        recurrences,
        seed=job.seed,
        history_file=history,
        header={"policy": policy, **options},
        ended=trials.append,
        say=say,
        quiet_wait_s=quiet_wait_s,
    )
    return environment, done, trials
