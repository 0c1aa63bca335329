"""Chooses the setting for a training within limits, and says on which data the choice rests.

Candidates are settings that were run, and settings that MC2 forecasts from these. Each candidate says which
of the two it is. For hardware without any run, :mod:`joulecast.report.advice.plan` simulates settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.forecast import recorded_work, why_not_forecast, work_of
from joulecast.energy.intervals import one_count_notes
from joulecast.energy.prices import Prices
from joulecast.errors import JoulecastError
from joulecast.quantities import counted, digits, steady
from joulecast.report.advice import from_records
from joulecast.report.advice.candidate import Candidate, dominates
from joulecast.report.advice.choice import (
    check_prices_of,
    choose,
    nearest,
    overlaps,
    verdict_on,
)
from joulecast.report.advice.request import AdviceRequest, PlanRequest
from joulecast.runs.scale import BEYOND, scale_in_words, unit_of

_MOST = 3
"""Number of settings that an error names, with their reasons."""


@dataclass(frozen=True)
class Weighed:
    """The candidates to choose from, and where they come from."""

    platform: str
    nodes_are: str
    work: dict[str, Any]
    """The work: ``samples``, their ``unit``, and ``why`` this number was taken."""
    candidates: list[Candidate]
    refused: list[dict[str, str]]
    rests_on: list[str]
    warnings: list[str]
    left_out: list[dict[str, str]]
    most_nodes: int | None
    """The most nodes that were run; ``None`` if nothing was run."""


def advise(known_runs: KnownRuns, request: AdviceRequest, prices: Prices) -> dict[str, Any]:
    """Choose the node count and batch size of a training that was run.

    Returns:
        The same as :func:`answer`.

    Raises:
        JoulecastError: the network or platform is unknown, or a price is missing that a limit needs.
    """
    check_prices_of(request, prices)
    network = request.network
    campaign = from_records.campaign_of(known_runs, network, request.platform)
    why_not = why_not_forecast(campaign.runs, request, bool(request.batch))
    if why_not:
        raise JoulecastError(why_not)
    unit = campaign.unit
    if request.work is not None:
        work, why = request.work, "as requested"
    elif campaign.imported:
        work, why = recorded_work(campaign.runs)
    elif unit == "steps":
        work, why = work_of(unit), "to compare by; their samples are not known"
    else:
        work, why = work_of(unit), f"--{unit} sets another amount"
    candidates, refused, differ = from_records.campaign_candidates(campaign, work, request)
    runs, fitted = campaign.runs, campaign.evidence.training
    most = int(runs["nodes"].max())
    are = runs["nodes_are"].iloc[-1]
    # What counts as a node may differ between runs on one node and on several. So the runs on most nodes
    # count.
    several = runs[runs["nodes"] == most]
    rests = [
        f"measured: {counted(len(runs), 'run')} of {network} on {campaign.platform}, on up to "
        f"{scale_in_words(most, are)}",
        f"fitted: MC2 on {counted(len(fitted), 'run')} of "
        f"{counted(fitted['workload'].nunique(), 'workload')}, on up to "
        f"{scale_in_words(fitted['nodes'].max(), fitted['nodes_are'].iloc[-1])}",
    ]
    warnings = [*campaign.notes, *differ]
    warnings += one_count_notes(fitted, campaign.imported)
    if (runs["energy_source"] == "estimated").any():
        warnings.append("energies are estimated from utilisation and assumed watts, not measured")
    weighed = Weighed(
        campaign.platform,
        ", ".join(sorted(several["nodes_are"].unique())),
        {"samples": work, "unit": unit, "why": why},
        [candidate.priced(prices) for candidate in candidates],
        refused,
        rests,
        warnings,
        campaign.left_out,
        most,
    )
    return answer(weighed, request, prices)


def answer(found: Weighed, limit: AdviceRequest | PlanRequest, prices: Prices) -> dict[str, Any]:
    """The advice as plain data.

    Returns:
        ``request``, ``network``, ``platform``, ``nodes_are``, ``limit`` (how it was applied), ``prices``,
        ``work``, ``weighed`` (the ``counts`` of nodes, GPUs or ranks that were compared, and ``why``),
        ``best`` (``None`` with ``why_none``), ``by_energy`` (what energy would choose, if time chooses
        because energy is estimated), ``verdict`` (whether the best is clearly the best), ``candidates`` (the
        best first, with ``within_limit`` and ``on_front``), ``refused``, ``rests_on``, ``warnings``,
        ``measure_next``, ``left_out``. Times are in s, energies in J and kWh, CO2 in kg; all are for the
        whole work.

    Raises:
        JoulecastError: there is nothing to choose from. The error says why.
    """
    if not found.candidates:
        whys = dict.fromkeys(f"{row['setting']}: {row['why']}" for row in found.refused)
        raise JoulecastError(
            f"nothing can be advised: {'; '.join([*whys][:_MOST]) or 'no setting is known'}"
        )
    candidates = found.candidates
    choice = choose(candidates, limit, prices.currency)
    best = None if choice.best is None else candidates[choice.best]
    warnings = [*found.warnings]
    if len({candidate.batch_size for candidate in candidates}) > 1:
        warnings.append(
            "the settings differ in batch size. A larger batch may need more samples to reach the same "
            "accuracy, and these runs do not show how many. `--batch` keeps the batch the same"
        )
    beyond = max(candidate.times_beyond for candidate in candidates)
    if beyond > BEYOND:
        warnings.append(
            f"some settings are up to {digits(beyond)} times larger than the largest run, as requested. No "
            "error of forecasts so far beyond the runs is known"
        )
    if best is not None and best.near_memory_limit:
        warnings.append(
            "the choice comes near a device's memory, and may not fit; `joulecast search` with these devices "
            "and this batch lists slower strategies that leave more room"
        )
    why_counts = "as requested"
    if isinstance(limit, AdviceRequest) and not limit.nodes and not limit.gpus:
        is_beyond = any(candidate.times_beyond > 1 for candidate in candidates)
        counts = f"up to {BEYOND} times the most that were run" if is_beyond else "as they were run"
        why_counts = f"{counts}; --nodes or --gpus sets others"
    rows = [
        candidate.as_json()
        | {
            "within_limit": within,
            "on_front": not any(dominates(other, candidate) for other in candidates),
        }
        for candidate, within in zip(candidates, choice.within, strict=True)
    ]
    return {
        "request": limit.asked(),
        "network": limit.network,
        "platform": found.platform,
        "nodes_are": found.nodes_are,
        "limit": choice.as_json(limit),
        "work": found.work,
        "weighed": {"counts": sorted({each.nodes for each in candidates}), "why": why_counts},
        "by_energy": None if choice.by_energy is None else candidates[choice.by_energy].setting,
        "best": None if choice.best is None else rows[choice.best],
        "why_none": choice.why_none,
        "candidates": [rows[place] for place in choice.order],
        "refused": found.refused,
        "rests_on": "; ".join([_choice_rests_on(best), *found.rests_on]),
        "warnings": warnings,
        "measure_next": measure_next(
            candidates,
            best,
            most_nodes=found.most_nodes,
            others=choice.others(candidates),
            least=choice.least,
        ),
        "left_out": found.left_out,
        "prices": prices.as_json(),
        "verdict": verdict_on(candidates, choice, prices.currency),
    }


def _choice_rests_on(best: Candidate | None) -> str:
    if best is None:
        return "there is no choice"
    if best.basis == "measured":
        runs = f"the mean of {best.runs} runs" if best.runs > 1 else "one run"
        by_mc2 = best.energy_j is not None and not best.runs_with_energy
        return f"for the choice, {runs} of exactly this setting" + "; its energy is MC2's" * by_mc2
    if best.basis == "fitted":
        where = f", outside of what was run ({'; '.join(best.extrapolation)})"
        return f"for the choice, a forecast of MC2{where if best.extrapolation else ''}"
    return "for the choice, a simulation"


def _width(candidate: Candidate, quantity: str) -> float:
    """Relative width of the interval that decides the choice."""
    for each in (quantity, "time"):
        value, low, high = candidate.ends(each)
        if low is not None and high is not None and value:
            return (high - low) / value
    return 0.0


def measure_next(
    candidates: Sequence[Candidate],
    best: Candidate | None,
    *,
    most_nodes: int | None,
    others: Sequence[Candidate] = (),
    least: str = "energy",
) -> list[dict[str, str]]:
    """What to measure, the most useful measurement first, each with ``what`` and ``why``.

    Args:
        best: the choice. If there is none, the measurements are for the fastest candidate.
        most_nodes: the most nodes that were run; ``None`` if nothing was run.
        others: the candidates that could have been chosen in place of the best one.
    """
    leading = best or nearest(candidates, {"time": 1.0}) or candidates[0]
    weighed = "time" if leading.ends(least)[0] is None else least
    name = "the fastest setting" if best is None else "the choice"
    steps: list[tuple[str, str]] = []
    if leading.basis == "simulated" and not leading.is_calibrated:
        why = "nothing was run there, so times are simulated"
        why += " and have no interval" * (leading.time_low_s is None)
        what = f"a few steps of it on two GPUs of {leading.platform} (for --calibrate)"
        steps.append((what, why))
    elif leading.basis == "fitted":
        outside = f"it lies outside of what was run ({'; '.join(leading.extrapolation)})"
        why = (
            outside
            if leading.extrapolation
            else f"{name} was not run, or only with another amount of work; "
            "its numbers are a forecast"
        )
        steps.append((leading.setting, why))
    elif leading.runs == 1:
        why = "it was run once, so the spread of its runs is not known"
        steps.append((f"a repeat of {leading.setting}", why))
    if leading.energy_j is None or "estimated" in (leading.energy_source or ""):
        why = "energy is only estimated from utilisation and assumed watts"
        if leading.energy_j is None:
            why = f"no energy is known: {leading.why_no_energy}"
        what = (
            "the same runs on a machine with a meter (GPU, RAPL, wattmeter; see `joulecast meters`)"
        )
        steps.append((what, why))
    rivals = [other for other in others if overlaps(other, leading, weighed)]
    if rivals:
        # Take the setting with the widest interval. If several intervals are equally wide, as those of all
        # forecasts of the model, take the setting that would be chosen next.
        widest = min(rivals, key=lambda c: (-steady(_width(c, weighed)), c.cost_order))
        again = "again " if widest.basis == "measured" else ""
        why = "its 90 % interval overlaps the choice's"
        if len(rivals) > 1:
            why += f". Of {len(rivals)} such intervals, it is the widest in percent"
        steps.append((f"{again}{widest.setting}", why))
    if most_nodes is not None and leading.nodes == most_nodes:
        unit = unit_of(leading.nodes_are)
        larger = scale_in_words(2 * most_nodes, leading.nodes_are)
        steps.append((larger, f"{name} has as many {unit}s as the largest run; more may be better"))
    return [{"what": what, "why": why} for what, why in steps]
