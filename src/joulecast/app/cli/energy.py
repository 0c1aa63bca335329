"""The commands of the energy models: ``evaluate`` judges them on run records, ``forecast`` forecasts from
records."""

from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from joulecast.app.cli.options import AsJson, asks, echo_json
from joulecast.energy.request import EvaluateRequest, ForecastRequest
from joulecast.quantities import (
    counted,
    digits,
    energies,
    masses,
    money,
    percent,
    times,
)


def _print_table(rows: list[dict[str, str]]) -> None:
    # This loads pandas, and `--help` does not need it.
    from joulecast.report.forecast_lines import text_table

    typer.echo("\n".join(text_table(rows)))


def _as_judged(row: dict[str, Any], time: str, has_batch: bool) -> dict[str, str]:
    """The cells of a line for one setting and model, by column."""
    from joulecast.runs.scale import unit_of

    line = {name: str(row[name] or "—") for name in ("source", "platform", "workload")}
    line[f"{unit_of(row['nodes_are'])}s"] = digits(row["nodes"])
    if has_batch:
        line["batch"] = digits(row["batch"])
    line["model"] = str(row["model"])
    reference, predicted = energies(row["reference_j"], row["predicted_j"])
    line |= {
        "reference": reference,
        "predicted": predicted,
        "off by": percent(row["error_percent"], signed=True),
    }
    if time == "predicted":
        took, foretold = times(row["measured_s"], row["predicted_s"])
        line |= {
            "took": took,
            "predicted time": foretold,
            "time off by": percent(row["time_error_percent"], signed=True),
        }
    return line


@asks(EvaluateRequest)
def evaluate(request: EvaluateRequest, as_json: AsJson = False) -> None:
    """Judge the energy model MC2 and its rivals on run records, measured or imported."""
    from joulecast.app.api.forecasts import evaluate as evaluate_on

    verdict = evaluate_on(request)
    if as_json:
        echo_json(verdict)
        return
    if request.ledger is not None:
        _print_ledger(verdict)
        return
    rows = verdict["settings"]
    has_batch = any(row["batch"] is not None for row in rows)
    _print_table([_as_judged(row, verdict["time"], has_batch) for row in rows])
    for what in ("summary", "time_summary"):
        if not verdict[what]:
            continue
        typer.echo("\ntime" if what == "time_summary" else "\nenergy")
        _print_table(
            [
                {
                    **{name: str(row[name]) for name in ("source", "model") if name in row},
                    "settings": digits(row["settings"]),
                    "mean error": percent(row["mape_percent"]),
                    "median": percent(row["median_percent"]),
                    "worst": percent(row["max_percent"]),
                    "bias": percent(row["bias_percent"], signed=True),
                    "inside its 90 % interval": percent(row["covered_percent"]),
                }
                for row in verdict[what]
            ]
        )
    if any(row["source"] == "estimated" for row in rows):
        typer.echo("\nno model is judged by estimated energies")
    best = verdict["against_best_rival"]
    if best:
        low, high = best["lower_points"], best["upper_points"]
        ahead = best["better_by_points"]
        interval = "too few settings for an interval of the gain"
        if low is not None:
            interval = f"90 % interval of the gain {low:.2f} to {high:.2f}"
        typer.echo(
            f"\nMC2 is {abs(ahead):.2f} points {'better' if ahead >= 0 else 'worse'} than the best rival, "
            f"{best['rival']}, on the {counted(best['settings'], 'setting')} that both predict ({interval})"
        )
    noise = verdict["run_to_run_cv_percent"]
    varies = "were not repeated" if noise is None else f"vary by {noise:.2f} % between repeats"
    typer.echo(f"\nsplit {verdict['split']}, time {verdict['time']}; settings {varies}")
    for row in verdict["refused"]:
        typer.echo(
            f"not predicted: {row['workload']} on {digits(row['nodes'])} nodes of {row['platform']}: "
            f"{row['reason']}"
        )
    for run in verdict["left_out"]:
        typer.echo(f"left out: {run['run']}: {run['kind']} (its run.json says more)")
    for note in verdict["notes"]:
        typer.echo(f"note: {note}")


def _print_ledger(verdict: dict[str, Any]) -> None:
    """Print forecasts, and the time and energy that the trainings later took."""
    rows = []
    for row in verdict["settings"]:
        foretold, took = times(row["time_s"], row["time_was_s"])
        said_j, was_j = energies(row["energy_j"], row["energy_was_j"])
        rows.append(
            {
                "forecast": row["at"][:10],
                **{name: str(row[name]) for name in ("workload", "platform", "nodes")},
                "time forecast": foretold,
                "took": took,
                "time off by": percent(row["time_error_percent"], signed=True),
                "energy forecast": said_j,
                "energy was": was_j,
                "energy off by": percent(row["energy_error_percent"], signed=True),
            }
        )
    if rows:
        _print_table(rows)
        typer.echo()
    for row in verdict["summary"]:
        in_words: dict[str, Callable[..., list[str]]] = {
            "time": times,
            "energy": energies,
            "cost": partial(money, row["currency"]),
            "co2": masses,
        }
        (missed,) = in_words[row["quantity"]](abs(row["missed"]))
        quantity = " in ".join(filter(None, (row["quantity"], row["currency"])))
        typer.echo(
            f"{quantity}: mean error {percent(row['mape_percent'])}, bias "
            f"{percent(row['bias_percent'], signed=True)}, inside the 90 % interval "
            f"{percent(row['covered_percent'])}, {counted(row['settings'], 'setting')}; "
            f"{missed} {'more' if row['missed'] >= 0 else 'less'} than forecast in all"
        )
    waits = len(verdict["waiting"])
    typer.echo(f"{counted(waits, 'forecast')} of settings that did not run yet")
    if verdict["had_run"]:
        had_run = counted(verdict["had_run"], "row")
        typer.echo(
            f"{had_run} of settings that had already run at that time: these are no forecasts"
        )


@asks(ForecastRequest)
def forecast(request: ForecastRequest, as_json: AsJson = False) -> None:
    """Forecast time, energy, money and CO2 for node counts that were not run, with 90 % intervals."""
    from joulecast.app.api.forecasts import forecast as forecast_from

    result = forecast_from(request)
    if as_json:
        echo_json(result)
        return
    from joulecast.report.forecast_lines import forecast_cells, forecast_notes

    for line in result["first"]:
        typer.echo(line)
    _print_table(forecast_cells(result))
    typer.echo()
    for line in forecast_notes(result):
        typer.echo(line)
