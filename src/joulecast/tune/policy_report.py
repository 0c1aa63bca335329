"""The report of ``joulecast tune``: the results of a policy in one setting.

For a replay, it says how much the policy saves compared with no tuning, over seeds. Energies are
``recorded``: the authors of the traces measured them. For a live loop, it has the recurrences, and the
cheapest batch size so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.quantities import counted
from joulecast.tune.comparison import (
    QUANTITIES,
    STEADY,
    Estimate,
    break_even,
    recurrences_of,
)
from joulecast.tune.expectation import (
    best_configuration,
    expected,
    expected_default,
)
from joulecast.tune.history import History, read_history_file
from joulecast.tune.policy_experiment import Setting, replayed
from joulecast.tune.recurrences import Recurrence
from joulecast.tune.request import TuneRequest
from joulecast.tune.traces import WORKLOADS, Trace, read_trace
from joulecast.tune.trial import SearchSpace, Trial

_SEEDS = 20
"""Number of replays if none is requested."""


def _configuration(trace: Trace, batch_size: int, power_limit_w: int, eta: float) -> dict[str, Any]:
    found = expected(trace, batch_size, power_limit_w, eta)
    return {
        "batch_size": batch_size,
        "power_limit_w": power_limit_w,
        "energy_j": found.energy_j,
        "time_s": found.time_s,
        "cost_j": found.cost,
    }


def replay_report(traces: Path, request: TuneRequest) -> dict[str, Any]:
    """Replay a policy, and compare it with the default. Ratios below 1 are savings.

    Args:
        traces: folder of the traces.

    Raises:
        JoulecastError: there are no such traces, workload, GPU or policy; ``beta`` is given, but the policy
            has no such option; ``beta`` is not above 1; or the default batch size never reaches the target.
    """
    workload, gpu, target = str(request.workload), str(request.gpu), request.target
    policy, recurrences, options = request.policy, request.recurrences, request.options
    eta, goal, seeds = request.eta, request.goal, request.seeds or _SEEDS
    trace = elsewhere = read_trace(traces, workload, gpu, target=target)
    if policy == "warm-start":
        other = "a40" if gpu == "v100" else "v100"
        elsewhere = read_trace(traces, workload, other, target=target)
    setting = Setting(trace, elsewhere)
    default = expected_default(trace, eta)
    table = replayed([setting], policy, seeds, recurrences, goal=goal, options=options)
    relative = {
        quantity: recurrences_of(policy, table, [setting], column, goal)[setting.name]
        / getattr(default, column)
        for quantity, column in QUANTITIES.items()
    }
    steady = min(STEADY, recurrences)
    numbers = np.arange(1, recurrences + 1)
    cumulative = {what: np.cumsum(ratios, axis=1) / numbers for what, ratios in relative.items()}
    pays_back_at = break_even(cumulative["cost"])
    oracle = _configuration(trace, *best_configuration(trace, eta), eta)
    oracle_ratio = oracle["cost_j"] / default.cost
    return {
        "setting": {
            "workload": workload,
            "gpu": gpu,
            "target": WORKLOADS[workload].target if target is None else target,
            "criterion": request.criterion,
            "options": options,
            "eta": eta,
            "recurrences": recurrences,
            "seeds": seeds,
        },
        "policy": policy,
        "energy_source": "recorded",
        "default": _configuration(trace, trace.default, trace.max_power_w, eta),
        "oracle": oracle,
        "ratio_to_default": {
            "steady_state": {
                what: asdict(Estimate.of(ratios[:, -steady:].mean(axis=1)))
                for what, ratios in relative.items()
            },
            "with_exploration": {
                what: asdict(Estimate.of(r.mean(axis=1))) for what, r in relative.items()
            },
            "oracle_cost": oracle_ratio,
        },
        "steady_recurrences": steady,
        "break_even_recurrence": pays_back_at,
        "break_even": f"pays back at recurrence {pays_back_at}"
        if pays_back_at is not None
        else f"does not pay back within {counted(recurrences, 'recurrence')}",
        "regret": {
            "of_recurrences": recurrences,
            "in_oracle_recurrences": asdict(
                Estimate.of((relative["cost"] - oracle_ratio).sum(axis=1) / oracle_ratio)
            ),
        },
        "tries_per_recurrence": float(table["tries"].mean()),
        "reached_share": float(table["reached"].mean()),
        "cumulative_ratio": [
            {"recurrence": int(n)}
            | {what: float(r[:, n - 1].mean()) for what, r in cumulative.items()}
            for n in numbers
        ],
    }


def _percent(ratio: dict[str, float | None]) -> str:
    mean, low, high = (ratio[key] for key in ("mean", "low", "high"))
    assert mean is not None
    text = f"{100 * (1 - mean):6.1f} %"
    if low is None or high is None:
        return text
    return f"{text}  ({100 * (1 - high):.1f} to {100 * (1 - low):.1f})"


def report_text(report: dict[str, Any]) -> str:
    """The report for people."""
    setting, ratios = report["setting"], report["ratio_to_default"]
    default, oracle, regret = report["default"], report["oracle"], report["regret"]
    lines = [
        f"{report['policy']} on {setting['workload']}, {setting['gpu']}, target {setting['target']:g}: "
        f"{counted(setting['recurrences'], 'recurrence')}, {counted(setting['seeds'], 'seed')}, "
        f"eta {setting['eta']:g}",
        f"default: batch size {default['batch_size']} at {default['power_limit_w']} W: "
        f"{default['energy_j'] / 1e3:.4g} kJ (recorded), {default['time_s']:.4g} s",
        "",
        f"saved against the default ({_intervals(report)}; energies are recorded ones, replayed)",
        f"{'':8}{'last ' + str(report['steady_recurrences']):30}all, exploration included",
    ]
    lines += [
        f"{what:8}{_percent(ratios['steady_state'][what]):30}{_percent(ratios['with_exploration'][what])}"
        for what in QUANTITIES
    ]
    best = 100 * (1 - ratios["oracle_cost"])
    return "\n".join(
        [
            *lines,
            "",
            f"{report['break_even']}; {report['tries_per_recurrence']:.2f} tries a recurrence, "
            f"{100 * report['reached_share']:.1f} % of the recurrences reached the target",
            f"an oracle (batch size {oracle['batch_size']} at {oracle['power_limit_w']} W) saves "
            f"{best:.1f} % of the cost. The cost of all recurrences, less the expected cost with the oracle, "
            f"is that of {regret['in_oracle_recurrences']['mean']:.1f} recurrences of the oracle",
        ]
    )


def _intervals(report: Mapping[str, Any]) -> str:
    if report["ratio_to_default"]["steady_state"]["cost"]["low"] is not None:
        return "95 % intervals over seeds"
    return "one seed: no intervals" if report["setting"]["seeds"] == 1 else "exact expectations"


def live_report(
    space: SearchSpace,
    policy: str,
    recurrences: Sequence[Recurrence],
    trials: Sequence[Trial],
    notes: Sequence[str],
    history_file: Path | None,
) -> dict[str, Any]:
    """The report of a live loop.

    Args:
        trials: the trials of this call. Earlier trials, if any, are in ``history_file``.
        notes: notes of the environment.
    """
    history = History(trials) if history_file is None else read_history_file(history_file)[1]
    return {
        "environment": "live",
        "policy": policy,
        "notes": list(notes),
        "recurrences": len(recurrences),
        "trials_now": len(trials),
        "reached_share": sum(done.reached for done in recurrences) / max(len(recurrences), 1),
        "tries_per_recurrence": sum(done.tries for done in recurrences) / max(len(recurrences), 1),
        "time_s": sum(done.time_s for done in recurrences),
        "by_recurrence": [asdict(done) for done in recurrences],
        "cost_unit": space.cost.unit,
        "cheapest": _cheapest(history),
    }


def _cheapest(history: History) -> dict[str, Any] | None:
    """The batch size that costs least for each time that it reached the target, with its failed tries; its
    newest power limit; and this cost."""
    tried: dict[int, list[Trial]] = {}
    for trial in history.trials:
        if trial.cost is not None:
            tried.setdefault(trial.proposal.batch_size, []).append(trial)
    best: dict[str, Any] | None = None
    for batch_size, trials in tried.items():
        reached = [trial for trial in trials if trial.reached]
        if not reached:
            continue
        cost = sum(trial.cost or 0.0 for trial in trials) / len(reached)
        if best is None or cost < best["cost"]:
            watts = reached[-1].power_limit_w
            best = {"batch_size": batch_size, "power_limit_w": watts, "cost": cost}
            best["reached"] = len(reached)
    return best


def live_report_text(report: Mapping[str, Any]) -> str:
    """The report of a live loop for people."""
    best, found = report["cheapest"], "no batch size has reached the target at a known cost"
    if best is not None:
        limit = "" if best["power_limit_w"] is None else f" at {best['power_limit_w']} W"
        found = (
            f"cheapest so far: batch size {best['batch_size']}{limit}, {best['cost']:.4g} "
            f"{report['cost_unit']} a recurrence ({best['reached']} reached the target)"
        )
    return (
        f"{report['policy']}, live: {report['recurrences']} recurrences, "
        f"{report['trials_now']} tries in this call, {report['time_s']:.1f} s of training in all; "
        f"{report['tries_per_recurrence']:.2f} tries a recurrence, "
        f"{100 * report['reached_share']:.1f} % of the recurrences reached the target\n{found}"
    )
