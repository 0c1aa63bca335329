"""A forecast in lines for people: the terminal's table, and that of a notebook."""

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.energy.prices import Prices, co2_text, cost_text
from joulecast.quantities import (
    NONE,
    amount,
    consumptions_of,
    counted,
    digits,
    seconds,
    times,
    with_range,
)
from joulecast.runs.scale import scale_in_words, unit_of

InWords = Callable[..., list[str]]


def _as_run(row: Mapping[str, Any], in_joules: InWords) -> str:
    """Means of the runs of a forecast setting."""
    if row["as_run_time_s"] is None:
        return "not run"
    parts = [seconds(row["as_run_time_s"])]
    if row["as_run_energy_j"] is not None:
        parts += in_joules(row["as_run_energy_j"])
    return ", ".join(parts)


def _costs(row: Mapping[str, Any], currency: str) -> dict[str, str]:
    """Money and CO2 of a forecast, where they are known; what rests on an estimated power says so."""
    cells = {"cost": cost_text(row, currency), "CO2e": co2_text(row)}
    return {name: text for name, text in cells.items() if text != NONE}


def _cells(row: Mapping[str, Any], currency: str, in_joules: InWords) -> dict[str, str]:
    amounts = {
        name: with_range(*together(*(row[f"{name}{end}_{unit}"] for end in ("", "_low", "_high"))))
        for name, unit, together in (("time", "s", times), ("energy", "j", in_joules))
    }
    unit = unit_of(row["nodes_are"])
    return {
        **{name: str(row[name]) for name in ("platform", "workload")},
        f"{unit}s": digits(row["nodes"]),
        "batch_size": digits(row["batch_size"]),
        "work": amount(row["work"], row["work_unit"]),
        "work is": str(row["work_is"]),
        **amounts,
        **_costs(row, currency),
        "as it was run": _as_run(row, in_joules),
        "energy is": f"forecast from {row['energy_source']}"
        if row["energy_source"]
        else "not known",
        "nodes are": _nodes_are(row, unit),
    }


def _nodes_are(row: Mapping[str, Any], unit: str) -> str:
    on_hosts = (
        f" on {counted(round(row['hosts']), 'host')}" if unit != "node" and row["hosts"] else ""
    )
    return f"{row['nodes_are']}{on_hosts}"


def forecast_cells(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """A line for each forecast, by its columns.

    Args:
        result: what :func:`joulecast.energy.forecast.forecast` returns.
    """
    currency = Prices(**result["prices"]).currency
    in_joules = consumptions_of(row["energy_j"] for row in result["forecasts"])
    return [_cells(row, currency, in_joules) for row in result["forecasts"]]


def forecast_notes(result: Mapping[str, Any]) -> list[str]:
    """What a reader of a forecast should know: what it rests on, the prices, what was left out."""
    rows, paid = result["forecasts"], Prices(**result["prices"])
    beyond = scale_in_words(result["largest_fitted_nodes"], rows[0]["nodes_are"])
    lines = [
        f"fitted to {counted(result['fitted_runs'], 'run')} on up to {beyond}; beyond, the time is an "
        "extrapolation",
        "in brackets: 90 % intervals; batch_size is of all nodes; what was run is for the row's work",
    ]
    if paid.given:
        lines.append(f"prices: {paid.in_words()}")
    unpaid = {row["why_no_cost"] for row in rows} - {None} if paid.known else set()
    lines += [f"note: no cost where {why}" for why in sorted(unpaid)]
    for run in result["left_out"]:
        lines.append(f"left out: {run['run']}: {run['kind']} (its run.json says more)")
    return lines + [f"note: {note}" for note in result["notes"]]
