"""Advice on the next run, from a history: the configuration to use, how much it saves, and whether tuning has
paid off.

The advice does not explore. Among the batch sizes that have reached the target, it takes the cheapest
configuration, according to :mod:`joulecast.tune.configurations`. Next to it, the advice says what a policy
would explore next.
"""

import random
from collections.abc import Mapping
from math import ceil, exp, inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from scipy.special import stdtrit

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import validated
from joulecast.tune.configurations import (
    Configuration,
    Size,
    cheapest_configuration,
    default_configuration,
    log_sd_of_ratio,
    sizes_of,
)
from joulecast.tune.curve_policy import Curve
from joulecast.tune.history import History, read_history_file
from joulecast.tune.request import DEFAULT_POLICY
from joulecast.tune.trial import BatchSize, CostModel, SearchSpace, Watts


class _Workload(BaseModel):
    network: str


class _Job(BaseModel):
    batch_sizes: tuple[BatchSize, ...]
    default_batch_size: BatchSize
    workload: _Workload | None = None


class _Live(BaseModel):
    job: _Job
    power_limits_w: tuple[Watts, ...]
    cost: CostModel


class _Replayed(BaseModel):
    environment: str
    batch_sizes: tuple[BatchSize, ...]
    default_batch_size: BatchSize
    power_limits_w: dict[BatchSize, tuple[Watts, ...]]
    cost: CostModel


_EXACT = 1e-9
"""Part of the default's cost that is rounding, where costs are added up and compared."""


def space_of(header: Mapping[str, Any], file: Path) -> SearchSpace:
    """The search space of the trials in a history file.

    Args:
        header: first line of the file.

    Raises:
        JoulecastError: the line does not describe the search space.
    """
    try:
        if header.get("environment") == "live":
            live = validated(TypeAdapter(_Live), header, "line 1")
            limits = dict.fromkeys(live.job.batch_sizes, live.power_limits_w)
            return SearchSpace(live.job.batch_sizes, live.job.default_batch_size, limits, live.cost)
        replayed = validated(TypeAdapter(_Replayed), header, "line 1")
        return SearchSpace(
            replayed.batch_sizes,
            replayed.default_batch_size,
            replayed.power_limits_w,
            replayed.cost,
        )
    except JoulecastError as error:
        raise JoulecastError(
            f"{file}: its first line does not say what could be chosen ({error}); give a file that "
            "`joulecast tune --history` has made"
        ) from None


def _savings(
    use: Configuration, default: Configuration, sizes: Mapping[int, Size]
) -> dict[str, dict[str, float | None] | None]:
    """Savings in percent of the default's cost, time and energy, with 95 % intervals.

    If the batch size is that of the default, there is no interval: the number of epochs cancels out, and
    the error of a profile of power limits is not known.
    """
    factors: tuple[float, float] | None = None
    if use.batch_size != default.batch_size:
        sd, freedom = log_sd_of_ratio(sizes, use.batch_size, default.batch_size)
        half = float(stdtrit(freedom, 0.975)) * sd
        factors = exp(half), exp(-half)

    def percent(ours: float | None, theirs: float | None) -> dict[str, float | None] | None:
        if ours is None or theirs is None:
            return None
        low, high = (
            (None, None)
            if factors is None
            else (100 * (1 - factor * ours / theirs) for factor in factors)
        )
        return {"percent": 100 * (1 - ours / theirs), "low": low, "high": high}

    return {
        "cost": percent(use.cost, default.cost),
        "time": percent(use.time_s, default.time_s),
        "energy": percent(use.energy_j, default.energy_j),
    }


def _exploration(history: History, use: Configuration, default: Configuration) -> dict[str, Any]:
    """What was spent above the default's mean cost, and when this has been or will be saved again."""
    assert use.cost is not None and default.cost is not None
    totals: dict[int, float] = {}
    for trial in history.trials:
        cost = inf if trial.cost is None else trial.cost
        totals[trial.recurrence] = totals.get(trial.recurrence, 0.0) + cost
    reached = {trial.recurrence for trial in history.trials if trial.reached}
    spent = sum(totals.values())
    if spent == inf:
        why = "the cost of some trials is not known, so neither is what was spent"
        return {
            "spent_above_default": None,
            "paid_at_recurrence": None,
            "more_runs": None,
            "said": why,
        }
    # One in flight, or one that was given up, has been paid for and has not spared a run of the default.
    above = spent - len(reached) * default.cost
    exact, paid_at, so_far = _EXACT * default.cost, None, 0.0
    for number, (recurrence, total) in enumerate(totals.items(), 1):
        so_far += total - (default.cost if recurrence in reached else 0.0)
        if so_far > exact:
            paid_at = None
        elif paid_at is None:
            paid_at = number
    more, saving = None, default.cost - use.cost
    if above > exact:
        paid_at = None
        if saving > exact:
            more = ceil(above / saving - _EXACT)
            outcome = (
                f"pays after {more} more {'run' if more == 1 else 'runs'} with this configuration"
            )
        else:
            outcome = "does not pay: nothing that was tried is cheaper than the default"
    elif above < -exact:
        outcome = f"has paid since recurrence {paid_at}"
    else:
        outcome = "has cost nothing, and saved nothing"
    return {
        "spent_above_default": above,
        "paid_at_recurrence": paid_at,
        "more_runs": more,
        "said": f"exploration {outcome}",
    }


def _explored_next(history: History, space: SearchSpace, use: Configuration | None) -> Any:
    """What the curve policy would try next; ``None`` if this is the advice itself."""
    proposal = Curve(space).propose(history, random.Random(0))
    limits = proposal.power_limits_w
    advised = use and (use.batch_size, () if use.power_limit_w is None else (use.power_limit_w,))
    if (proposal.batch_size, limits) == advised:
        return None
    return {
        "policy": DEFAULT_POLICY,
        "batch_size": proposal.batch_size,
        "power_limits_w": list(limits),
        "stop_at_cost": None if proposal.cost_bound == inf else proposal.cost_bound,
    }


def _why_no_energy(history: History, batch_size: int) -> str:
    reasons = [
        trial.why_no_energy
        for trial in history.trials
        if trial.proposal.batch_size == batch_size and trial.energy_j is None and trial.epochs
    ]
    return next((why for why in reversed(reasons) if why), "no trial measured it")


def _described(configuration: Configuration, unit: str) -> dict[str, Any]:
    return {
        "batch_size": configuration.batch_size,
        "power_limit_w": configuration.power_limit_w,
        "runs": configuration.runs,
        f"cost_{unit.lower()}": configuration.cost,
        "time_s": configuration.time_s,
        "energy_j": configuration.energy_j,
    }


def advise(space: SearchSpace, history: History) -> dict[str, Any]:
    """The configuration to use next, how much it saves, and whether the exploration has paid off.

    Returns:
        ``status`` is ``advice``, ``nothing tried``, ``nothing reached`` or ``cost unknown``. ``use`` is the
        configuration. It is ``None`` for the last two statuses. For ``nothing tried``, it is the default,
        without expected figures. Savings are in percent of the default's figures. Each is ``None`` if it is
        not known; ``why_no_saving`` and ``why_no_energy`` say why.
    """
    sizes = sizes_of(history, space)
    use = cheapest_configuration(space, sizes)
    default, why = default_configuration(space, sizes)
    unit = space.cost.unit
    sources = sorted({t.energy_source for t in history.trials if t.energy_source is not None})
    advice: dict[str, Any] = {
        "status": "advice",
        "trials": len(history.trials),
        "recurrences": len({trial.recurrence for trial in history.trials}),
        "cost_unit": unit,
        "energy_source": ", ".join(sources) or None,
        "use": None,
        "default": default and _described(default, unit),
        "saving_percent": None,
        "why_no_saving": None,
        "why_no_energy": None,
        "exploration": None,
        "explore_next": _explored_next(history, space, use),
    }
    if use is not None:
        advice["use"] = _described(use, unit)
        if use.energy_j is None:
            advice["why_no_energy"] = _why_no_energy(history, use.batch_size)
        elif default is not None and default.energy_j is None:
            advice["why_no_energy"] = _why_no_energy(history, default.batch_size)
        if default is None:
            advice["why_no_saving"] = why
        else:
            advice["saving_percent"] = _savings(use, default, sizes)
            advice["exploration"] = _exploration(history, use, default)
    elif not history.trials:
        watts = next(iter(space.highest_limit(space.default)), None)
        advice["status"] = "nothing tried"
        advice["use"] = {"batch_size": space.default, "power_limit_w": watts, "runs": 0}
        advice["why_no_saving"] = "nothing was tried yet; this is the default"
    elif any(size.epochs for size in sizes.values()):
        advice["status"] = "cost unknown"
        advice["why_no_saving"] = (
            f"energy counts in the cost (eta {space.cost.eta:g}), and no energy was measured"
        )
        advice["why_no_energy"] = _why_no_energy(history, history.trials[-1].proposal.batch_size)
    else:
        advice["status"] = "nothing reached"
        advice["why_no_saving"] = f"none of {len(history.trials)} trials reached the target"
    return advice


def advise_on_file(file: Path) -> dict[str, Any]:
    """The advice on a history file.

    Raises:
        JoulecastError: there is no history file; it has no list of sizes and limits to choose from; or a
            trial has a size or limit that is not in this list.
    """
    header, history = read_history_file(file)
    space = space_of(header, file)
    strange = set(history.arms) - set(space.batch_sizes)
    if strange:
        raise JoulecastError(
            f"{file}: has trials of batch size {min(strange)}, which its first line does not list"
        )
    for size, arm in history.arms.items():
        unknown = set(arm.limits) - set(space.limits(size))
        if unknown:
            raise JoulecastError(
                f"{file}: has trials of batch size {size} at {min(unknown)} W, which its first line does not "
                "list"
            )
    return {"history": str(file), "environment": header["environment"]} | advise(space, history)


def _at(configuration: Mapping[str, Any]) -> str:
    watts = configuration["power_limit_w"]
    return f"batch size {configuration['batch_size']}" + ("" if watts is None else f" at {watts} W")


def advice_text(advice: Mapping[str, Any]) -> str:
    """The advice for people."""
    use, savings = advice["use"], advice["saving_percent"]
    lines = [f"{advice['trials']} trials in {advice['recurrences']} recurrences"]
    runs = "" if use is None else f" ({use['runs']} runs reached the target with this batch size"
    if runs:
        runs += f", {advice['default']['runs']} with the default)" if advice["default"] else ")"
    lines.append("use nothing of what was tried" if use is None else f"use {_at(use)}{runs}")
    if advice["why_no_saving"]:
        lines.append(f"no saving is known: {advice['why_no_saving']}")
    for what, saving in (savings or {}).items():
        if saving is None:
            continue
        source = f" ({advice['energy_source']})" if what == "energy" else ""
        interval = (
            "no interval, for the batch size is the default's"
            if saving["low"] is None
            else f"95 % interval {saving['low']:.1f} to {saving['high']:.1f}"
        )
        lines.append(f"saves {saving['percent']:.1f} % of the default's {what}{source}; {interval}")
    if advice["why_no_energy"]:
        lines.append(f"no saving of energy is known: {advice['why_no_energy']}")
    if advice["exploration"]:
        lines.append(advice["exploration"]["said"])
    following = advice["explore_next"]
    if following:
        limits = ", ".join(f"{watts} W" for watts in following["power_limits_w"])
        lines.append(
            f"to explore: batch size {following['batch_size']}"
            + (f" at {limits}" if limits else "")
        )
    return "\n".join(lines)
