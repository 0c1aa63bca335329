"""Rows of forecasts and advice in words: for the terminal, the page and a notebook."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecast.energy.prices import Prices, co2_text, cost_text
from joulecast.quantities import (
    NONE,
    amount,
    consumptions_of,
    counted,
    digits,
    times,
    with_range,
)
from joulecast.runs.scale import scale_in_words, unit_of

InWords = Callable[..., list[str]]


def basis_in_words(row: Mapping[str, Any]) -> str:
    """The basis of a row of a forecast or an advice: ``mean of 3 runs``, ``one run``, ``MC2``,
    ``simulated``."""
    if row["basis"] != "measured":
        return "MC2" if row["basis"] == "fitted" else "simulated"
    runs = "one run" if row["runs"] == 1 else f"mean of {row['runs']} runs"
    by_mc2 = row["energy_j"] is not None and not row["runs_with_energy"]
    return f"{runs}; energy by MC2" if by_mc2 else runs


def energy_is(row: Mapping[str, Any]) -> str:
    """The label of a row's energy: its source; or for a forecast, the source of the energies behind it; or
    the reason why there is no energy."""
    if row["energy_j"] is None:
        return f"none: {row['why_no_energy']}" if row.get("why_no_energy") else "not known"
    if row["basis"] == "simulated":
        return str(row["energy_source"] or "simulated")
    source = str(row["energy_source"])
    return source if row["runs_with_energy"] else f"forecast from {source} energy"


def in_words(row: Mapping[str, Any], quantity: str, together: InWords = times) -> str:
    """The ``time`` (s) or ``energy`` (J) of a row with its interval, in words."""
    unit = {"time": "s", "energy": "j"}[quantity]
    return with_range(*together(*(row[f"{quantity}{end}_{unit}"] for end in ("", "_low", "_high"))))


def paid_cells(
    row: Mapping[str, Any], prices: Prices, with_interval: bool = True
) -> dict[str, str]:
    """Money and CO2 of a row in words, by the names of their columns, if there are prices for them."""
    cells = {}
    # A plan has prices of its platforms that are not among ``prices``.
    if prices.known or row.get("cost") is not None:
        cells["cost"] = cost_text(row, prices.currency, with_interval)
    if prices.co2 is not None:
        cells["CO2e"] = co2_text(row, with_interval)
    return cells


def text_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Rows as lines of a table for a terminal: the names of the columns, then the cells; a dash where a row
    has none."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([row.get(name, NONE) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def forecast_cells(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """A line for each forecast. A line has a cell for each column.

    Args:
        result: what :func:`joulecast.energy.forecast.forecast` returns.
    """
    prices, lines = Prices(**result["prices"]), []
    in_joules = consumptions_of(row["energy_j"] for row in result["forecasts"])
    for row in result["forecasts"]:
        unit, hosts = unit_of(row["nodes_are"]), row["hosts"]
        on_hosts = f" on {counted(round(hosts), 'host')}" if unit != "node" and hosts else ""
        # A forecast for another platform may use a part of a node.
        is_elsewhere = row["basis"] == "simulated"
        in_use = f" ({counted(row['gpus'], 'GPU')} in use)" if is_elsewhere else ""
        lines.append(
            {
                "platform": str(row["platform"]),
                "workload": str(row["workload"]),
                f"{unit}s": digits(row["nodes"]),
                "batch": digits(row["batch_size"]),
                "work": amount(row["work"], row["work_unit"]),
                "work is": str(row["work_is"]),
                "time": in_words(row, "time"),
                "energy": in_words(row, "energy", in_joules),
                **paid_cells(row, prices),
                "basis": basis_in_words(row),
                "energy is": energy_is(row),
                "nodes are": f"{row['nodes_are']}{on_hosts}{in_use}",
            }
        )
    return lines


def forecast_notes(result: Mapping[str, Any]) -> list[str]:
    """Notes for a reader of a forecast: the data behind it, the prices, and what was left out."""
    rows, paid = result["forecasts"], Prices(**result["prices"])
    beyond = scale_in_words(result["largest_fitted_nodes"], rows[0]["nodes_are"])
    of_one = "in brackets: 90 % intervals of one run; batch is of all nodes"
    lines = [
        f"MC2 is fitted to {counted(result['fitted_runs'], 'run')} on up to {beyond}. On more, the time is "
        "an extrapolation",
        f"{of_one}; basis: runs of exactly this setting, or what MC2 says",
    ]
    if rows[0]["basis"] == "simulated":
        steps = [f"simulated: {row['rests_on']}" for row in rows]
        lines = [*steps, f"power in the last simulation: {rows[-1]['energy_rests_on']}", of_one]
    if paid.given:
        lines.append(f"prices: {paid.in_words()}")
    unpaid = {row["why_no_cost"] for row in rows} - {None} if paid.known else set()
    lines += [f"note: no cost where {why}" for why in sorted(unpaid)]
    for run in result["left_out"]:
        lines.append(f"left out: {run['run']}: {run['kind']} (its run.json says more)")
    return lines + [f"note: {note}" for note in result["notes"]]
