"""The text of an advice: first the choice, then the next candidates, then the data behind it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecast.energy.prices import Prices, co2_text, cost_text
from joulecast.quantities import (
    NONE,
    amount,
    consumptions_of,
    counted,
    digits,
    listed,
    times,
    with_range,
)
from joulecast.report.advice.choice import within_words
from joulecast.report.advice.request import Limit
from joulecast.report.forecast_lines import basis_in_words, energy_is
from joulecast.runs.scale import unit_of

_TOP = 8


InWords = Callable[..., list[str]]


def _range(row: Mapping[str, Any], quantity: str, unit: str, together: InWords = times) -> str:
    value = row[f"{quantity}_{unit}"]
    if value is None:
        return "-"
    return with_range(
        *together(value, row[f"{quantity}_low_{unit}"], row[f"{quantity}_high_{unit}"])
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[k]) for line in [header, *rows]) for k in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *rows]
    ]


def _limit_in_words(request: Mapping[str, Any], currency: str) -> str:
    given = Limit(**{name: request[name] for name in Limit.model_fields if name in request})
    return within_words(given, currency) or "no limit given"


def _paid(row: Mapping[str, Any], prices: Prices) -> list[tuple[str, str]]:
    """Money and CO2, if they are asked for."""
    cost = [("cost", cost_text(row, prices.currency))] if prices.known else []
    return [*cost, *([("CO2e", co2_text(row))] if prices.co2 is not None else [])]


def _choice(advice: Mapping[str, Any], in_joules: InWords) -> list[str]:
    best = advice["best"]
    if best is None:
        return [f"choose nothing: {advice['why_none']}"]
    lines = [f"choose {best['setting']}"]
    verdict = advice["verdict"]["in_words"]
    lines += [f"  {verdict}"] if verdict else []
    lines += [f"  extrapolated: {outside}" for outside in best["extrapolation"]]
    lines.append(f"  time    {_range(best, 'time', 's')}")
    joules = f"  energy  {_range(best, 'energy', 'j', in_joules)}, {energy_is(best)}"
    lines.append(
        joules if best["energy_j"] is not None else f"  energy  not known: {best['why_no_energy']}"
    )
    missing = {"cost": best["why_no_cost"], "CO2e": best["why_no_energy"]}
    lines += [
        f"  {name}    {f'not known: {missing[name]}' if text == NONE else text}"
        for name, text in _paid(best, Prices(**advice["prices"]))
    ]
    return lines


def advice_text(advice: Mapping[str, Any]) -> str:
    """The advice of :func:`joulecast.report.advice.advise.advise` as text, without a newline at the end."""
    work, best, prices = advice["work"], advice["best"], Prices(**advice["prices"])
    paid = [name for name, _ in _paid({}, prices)]
    unit = unit_of(advice["candidates"][0]["nodes_are"])
    in_joules = consumptions_of(row["energy_j"] for row in advice["candidates"])
    lines = [
        f"{advice['network']} on {advice['platform']} (nodes are {advice['nodes_are']}), "
        f"{amount(work['samples'], work['unit'])} ({work['why']}); "
        f"{_limit_in_words(advice['request'], prices.currency)}",
        "",
        *_choice(advice, in_joules),
    ]
    if any(row["time_low_s"] is not None for row in advice["candidates"]):
        lines.append("  in brackets: 90 % intervals of one run")
    counts = advice["weighed"]["counts"]
    units = unit if counts == [1] else f"{unit}s"
    weighed = listed([digits(count) for count in counts])
    lines.append(f"  compared: {weighed} {units} ({advice['weighed']['why']})")
    lines.append(f"  chosen by: {advice['limit']['judged_by']}")
    lines.append(f"  rests on: {advice['rests_on']}")
    if prices.given:
        lines.append(f"  prices: {prices.in_words()}")
    shown = advice["candidates"][:_TOP]
    header = (
        "",
        f"{unit}s",
        "batch",
        "strategy",
        "time",
        "energy",
        "energy is",
        *paid,
        "basis",
        "",
    )
    rows = [
        (
            "*" if row is best else " " if row["within_limit"] else "x",
            str(row["nodes"]),
            "-" if row["batch_size"] is None else digits(row["batch_size"]),
            row["strategy"],
            _range(row, "time", "s"),
            _range(row, "energy", "j", in_joules),
            "-" if row["energy_j"] is None else energy_is(row),
            *(text for _, text in _paid(row, prices)),
            basis_in_words(row),
            "extrapolated" if row["extrapolation"] else "",
        )
        for row in shown
    ]
    hidden = len(advice["candidates"]) - len(shown)
    lines += ["", *_table(header, rows)]
    all_within = all(row["within_limit"] for row in advice["candidates"])
    legend = "* the choice" + ("" if all_within else "; x not within the limit")
    lines.append(f"{legend}; {hidden} more with --json" if hidden else legend)
    lines += [f"not a candidate: {r['setting']}: {r['why']}" for r in advice["refused"][:_TOP]]
    if advice["measure_next"]:
        lines += ["", "to be surer, measure:"]
        lines += [f"  {step['what']}: {step['why']}" for step in advice["measure_next"]]
    if advice["warnings"]:
        lines += ["", *(f"note: {warning}" for warning in advice["warnings"])]
    lines += [f"left out: {run['run']}: {run['kind']}" for run in advice["left_out"]]
    return "\n".join(lines)


_FRONT = 16
"""Rows of the front that are shown."""


def plan_text(planned: Mapping[str, Any]) -> str:
    """The plan of :func:`joulecast.report.advice.plan.plan` as text, without a newline at the end."""
    prices, work, best = Prices(**planned["prices"]), planned["work"], planned["best"]
    rows = planned["candidates"]
    in_joules = consumptions_of(row["energy_j"] for row in rows)
    lines = [
        f"{planned['network']}, {amount(work['samples'], work['unit'])} ({work['why']}); "
        f"{_limit_in_words(planned['request'], prices.currency)}",
        "",
        *_choice(planned, in_joules),
        "  in brackets: 90 % intervals of one run",
        f"  chosen by: {planned['limit']['judged_by']}",
        f"  rests on: {planned['rests_on']}",
    ]
    hours = planned["request"].get("price_gpu_hour", {}) if prices.price_gpu_hour is None else {}
    paid_by = [f"{prices.currency} {hours[name]:,.10g} an hour of {name}" for name in hours]
    if paid_by or prices.given:
        lines.append(f"  prices: {', '.join([*paid_by, *[prices.in_words()] * prices.given])}")
    front = [row for row in rows if row["on_front"] or row is best]
    paid = any(row["cost"] is not None for row in rows)
    emits = prices.co2 is not None
    header = (
        "",
        "devices",
        "platform",
        "batch",
        "precision",
        "W a GPU",
        "strategy",
        "time",
        "energy",
    )
    titles = [*header, *["cost"] * paid, *["CO2e"] * emits]
    cells = [
        [
            "*" if row is best else " " if row["within_limit"] else "x",
            f"{row['gpus']:.0f}",
            row["platform"],
            digits(row["batch_size"]),
            row["precision"],
            "highest" if row["power_limit_w"] is None else f"{row['power_limit_w']:.0f}",
            row["strategy"] + " (memory)" * row["near_memory_limit"],
            _range(row, "time", "s"),
            _range(row, "energy", "j", in_joules),
            *[cost_text(row, prices.currency)] * paid,
            *[co2_text(row)] * emits,
        ]
        for row in sorted(front, key=lambda row: row["time_s"])[:_FRONT]
    ]
    lines += [
        "",
        "the front, the fastest first: no other setting takes less of all",
        *_table(titles, cells),
    ]
    legend = "* the choice" + (
        "" if all(r["within_limit"] for r in front) else "; x not within the limit"
    )
    legend += "; (memory): near a device's memory, it may not fit" * any(
        row["near_memory_limit"] for row in front
    )
    hidden = len(rows) - len(cells)
    lines.append(f"{legend}; {counted(hidden, 'more setting')} with --json" if hidden else legend)
    lines += [f"not a candidate: {r['setting']}: {r['why']}" for r in planned["refused"][:_FRONT]]
    lines += ["", "to be surer, measure:"]
    lines += [f"  {step['what']}: {step['why']}" for step in planned["measure_next"]]
    lines += ["", *(f"note: {warning}" for warning in planned["warnings"])]
    return "\n".join(lines)
