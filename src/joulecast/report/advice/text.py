"""The text of an advice or a plan: the choice, the settings to compare it with, and the data behind it."""

from collections.abc import Mapping
from typing import Any

from joulecast.energy.prices import Prices
from joulecast.quantities import NONE, amount, consumptions_of, counted, digits, listed
from joulecast.report.advice.choice import within_words
from joulecast.report.advice.request import Limit
from joulecast.report.forecast_lines import (
    InWords,
    basis_in_words,
    energy_is,
    in_words,
    paid_cells,
    text_table,
)
from joulecast.runs.scale import unit_of

_MOST = {"advice": 8, "plan": 16}
"""Number of settings that are shown."""


def _choice(advice: Mapping[str, Any], prices: Prices, in_joules: InWords) -> list[str]:
    best = advice["best"]
    if best is None:
        return [f"choose nothing: {advice['why_none']}"]
    lines = [f"choose {best['setting']}"]
    verdict = advice["verdict"]["in_words"]
    lines += [f"  {verdict}"] if verdict else []
    lines += [f"  extrapolated: {outside}" for outside in best["extrapolation"]]
    energy = f"not known: {best['why_no_energy']}"
    if best["energy_j"] is not None:
        energy = f"{in_words(best, 'energy', in_joules)}, {energy_is(best)}"
    lines += [f"  time    {in_words(best, 'time')}", f"  energy  {energy}"]
    missing = {"cost": best["why_no_cost"], "CO2e": best["why_no_energy"]}
    return lines + [
        f"  {name}    {f'not known: {missing[name]}' if text == NONE else text}"
        for name, text in paid_cells(best, prices).items()
    ]


def _setting(row: Mapping[str, Any], in_joules: InWords) -> dict[str, str]:
    """The cells of a setting that was run, or that MC2 forecasts."""
    return {
        f"{unit_of(row['nodes_are'])}s": str(row["nodes"]),
        "batch": digits(row["batch_size"]),
        "strategy": row["strategy"],
        "time": in_words(row, "time"),
        "energy": in_words(row, "energy", in_joules),
        "energy is": NONE if row["energy_j"] is None else energy_is(row),
    }


def _planned(row: Mapping[str, Any], in_joules: InWords) -> dict[str, str]:
    """The cells of a simulated setting."""
    limit_w = row["power_limit_w"]
    return {
        "devices": f"{row['gpus']:.0f}",
        "platform": row["platform"],
        "batch": digits(row["batch_size"]),
        "precision": row["precision"],
        "W a GPU": "highest" if limit_w is None else f"{limit_w:.0f}",
        "strategy": row["strategy"] + " (memory)" * row["near_memory_limit"],
        "time": in_words(row, "time"),
        "energy": in_words(row, "energy", in_joules),
    }


def advice_text(advice: Mapping[str, Any]) -> str:
    """The answer of :func:`joulecast.report.advice.advise.advise` or
    :func:`joulecast.report.advice.plan.plan` as text, without a newline at the end."""
    work, best, prices = advice["work"], advice["best"], Prices(**advice["prices"])
    candidates, request = advice["candidates"], advice["request"]
    is_plan = candidates[0]["platform"] is not None
    most = _MOST["plan" if is_plan else "advice"]
    in_joules = consumptions_of(row["energy_j"] for row in candidates)
    given = Limit(**{name: request[name] for name in Limit.model_fields if name in request})
    where = "" if is_plan else f" on {advice['platform']} (nodes are {advice['nodes_are']})"
    lines = [
        f"{advice['network']}{where}, {amount(work['samples'], work['unit'])} ({work['why']}); "
        f"{within_words(given, prices.currency) or 'no limit set'}",
        "",
        *_choice(advice, prices, in_joules),
    ]
    if any(row["time_low_s"] is not None for row in candidates):
        lines.append("  in brackets: 90 % intervals of one run")
    if not is_plan:
        counts, unit = advice["weighed"]["counts"], unit_of(candidates[0]["nodes_are"])
        weighed = f"{listed([digits(count) for count in counts])} {unit}{'s' * (counts != [1])}"
        lines.append(f"  compared: {weighed} ({advice['weighed']['why']})")
    lines += [f"  chosen by: {advice['limit']['judged_by']}", f"  rests on: {advice['rests_on']}"]
    paid_by = [prices.in_words()] * prices.given
    if is_plan and prices.price_gpu_hour is None:
        hours = request.get("price_gpu_hour", {}).items()
        paid_by[:0] = [f"{prices.currency} {each:,.10g} an hour of {name}" for name, each in hours]
    lines += [f"  prices: {', '.join(paid_by)}"] if paid_by else []
    shown = candidates[:most]
    lines.append("")
    if is_plan:
        front = [row for row in candidates if row["on_front"] or row is best]
        shown = sorted(front, key=lambda row: float(row["time_s"]))
        lines.append("the front, fastest first: no other setting is better in every quantity")
    rows = []
    for row in shown:
        mark = "*" if row is best else " " if row["within_limit"] else "x"
        cells = {"": mark} | (_planned if is_plan else _setting)(row, in_joules)
        cells |= paid_cells(row, prices)
        if not is_plan:
            cells["basis"] = basis_in_words(row) + ", extrapolated" * bool(row["extrapolation"])
        rows.append(cells)
    lines += text_table(rows)
    legend = [] if best is None else ["* the choice"]
    legend += ["x not within the limit"] * (not all(row["within_limit"] for row in shown))
    if any(row["near_memory_limit"] for row in shown):
        legend.append("(memory): near a device's memory, it may not fit")
    if hidden := len(candidates) - len(shown):
        legend.append(f"{counted(hidden, 'more setting')} with --json")
    if legend:
        lines.append("; ".join(legend))
    lines += [
        f"not a candidate: {row['setting']}: {row['why']}" for row in advice["refused"][:most]
    ]
    if advice["measure_next"]:
        lines += ["", "to be surer, measure:"]
        lines += [f"  {step['what']}: {step['why']}" for step in advice["measure_next"]]
    if advice["warnings"]:
        lines += ["", *(f"note: {warning}" for warning in advice["warnings"])]
    lines += [f"left out: {run['run']}: {run['kind']}" for run in advice["left_out"]]
    return "\n".join(lines)
