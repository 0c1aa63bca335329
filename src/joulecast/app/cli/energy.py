"""The commands of the energy models: judge them on run records, forecast node counts from these."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.app.cli.options import (
    RECORDS_HELP,
    AsJson,
    Co2,
    Currency,
    Named,
    Price,
    PriceGpuHour,
    PriceNodeHour,
    PricesFile,
    Pue,
    echo_json,
    whole_numbers,
)
from joulecast.errors import JoulecastError
from joulecast.quantities import (
    NONE,
    digits,
    energies,
    percent,
    times,
)


class Split(StrEnum):
    """What a fit may not see."""

    IN_SAMPLE = "in-sample"
    LEAVE_ONE_NODE_COUNT_OUT = "leave-one-node-count-out"
    EXTRAPOLATION = "extrapolation"
    LEAVE_ONE_WORKLOAD_OUT = "leave-one-workload-out"
    NEXT_SCALE = "next-scale"


class Time(StrEnum):
    """Whether the models get the measured time of the runs that they are judged on."""

    GIVEN = "given"
    PREDICTED = "predicted"


class Scaling(StrEnum):
    """Whether the batch of all nodes grows with them."""

    RECORDED = "recorded"
    WEAK = "weak"
    STRONG = "strong"


Records = Annotated[Path | None, typer.Option("--records", help=RECORDS_HELP)]


def _records(name: str | None, records: Path | None) -> str | Path:
    """The records by the name of a training or by their folder."""
    if (name is None) == (records is None):
        raise JoulecastError("give the NAME of a measured training, or --records FOLDER")
    return name if name is not None else records  # type: ignore[return-value]


def _print_table(rows: list[dict[str, str]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [{name: name for name in columns}, *rows]
    widths = {name: max(len(row.get(name, NONE)) for row in cells) for name in columns}
    for row in cells:
        typer.echo("  ".join(row.get(name, NONE).ljust(widths[name]) for name in columns).rstrip())


def _print_notes(result: dict[str, Any]) -> None:
    for run in result["left_out"]:
        typer.echo(f"left out: {run['run']}: {run['kind']} (its run.json says more)")
    for note in result["notes"]:
        typer.echo(f"note: {note}")


def _as_judged(row: dict[str, Any], time: str) -> dict[str, str]:
    """One setting and model as a line."""
    from joulecast.runs.scale import unit_of

    line = {name: str(row[name] or "—") for name in ("source", "platform", "workload")}
    line |= {f"{unit_of(row['nodes_are'])}s": digits(row["nodes"]), "model": str(row["model"])}
    reference, predicted = energies(row["reference_j"], row["predicted_j"])
    line |= {
        "reference": reference,
        "predicted": predicted,
        "off by": percent(row["difference_percent"], signed=True),
    }
    if time == "predicted":
        took, foretold = times(row["measured_s"], row["predicted_s"])
        line |= {
            "took": took,
            "predicted time": foretold,
            "time off by": percent(row["time_error_percent"], signed=True),
        }
    return line


def evaluate(
    name: Named = None,
    records: Records = None,
    split: Annotated[
        Split | None,
        typer.Option(
            help="What the fit does not see: by default a workload, or a node count if there is one workload."
        ),
    ] = None,
    time: Annotated[
        Time | None,
        typer.Option(
            help="Time that the models get of the judged runs; given by default, but not for the next scale."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge MC2 and its rivals on run records, imported or measured."""
    from joulecast.app.api.forecasts import evaluate as evaluate_on

    verdict = evaluate_on(
        _records(name, records),
        split=None if split is None else split.value,
        time=None if time is None else time.value,
    )
    if as_json:
        echo_json(verdict)
        return
    _print_table([_as_judged(row, verdict["time"]) for row in verdict["settings"]])
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
    best = verdict["against_best_rival"]
    if best:
        low, high = best["lower_points"], best["upper_points"]
        ahead = best["better_by_points"]
        typer.echo(
            f"\nMC2 is {abs(ahead):.2f} points {'better' if ahead >= 0 else 'worse'} than the best rival, "
            f"{best['rival']} "
            f"(90 % interval of the gain {low:.2f} to {high:.2f}, {best['settings']} settings)"
        )
    noise = verdict["run_to_run_cv_percent"]
    varies = "were not repeated" if noise is None else f"vary by {noise:.2f} % between repeats"
    typer.echo(f"\nsplit {verdict['split']}, time {verdict['time']}; settings {varies}")
    for row in verdict["refused"]:
        typer.echo(
            f"not predicted: {row['workload']} on {digits(row['nodes'])} nodes of {row['platform']}: "
            f"{row['reason']}"
        )
    _print_notes(verdict)


def forecast(
    name: Named = None,
    records: Records = None,
    nodes: Annotated[str | None, typer.Option(help="Node counts, as 16,32,64.")] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Counts of GPUs (ranks without GPUs), as 8,16,64.")
    ] = None,
    scaling: Annotated[
        Scaling, typer.Option(help="The batch: as in the records, of a node, or of all nodes.")
    ] = Scaling.RECORDED,
    batch: Annotated[
        int | None, typer.Option(help="Batch of all nodes, in place of --scaling.")
    ] = None,
    samples: Annotated[
        float | None, typer.Option(help="Samples to train on; else as recorded.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Epochs, where the records count these; else as recorded.")
    ] = None,
    target: Annotated[
        bool,
        typer.Option("--target", help="Train to the recorded quality: the work follows the batch."),
    ] = False,
    price: Price = None,
    price_node_hour: PriceNodeHour = None,
    price_gpu_hour: PriceGpuHour = None,
    co2: Co2 = None,
    pue: Pue = None,
    currency: Currency = None,
    prices: PricesFile = None,
    as_json: AsJson = False,
) -> None:
    """Forecast time, energy, money and CO2 of node counts not yet run, with 90 % intervals."""
    from joulecast.app.api.forecasts import forecast as forecast_from

    result = forecast_from(
        _records(name, records),
        () if nodes is None else whole_numbers("--nodes", nodes),
        gpus=() if gpus is None else whole_numbers("--gpus", gpus),
        scaling=scaling.value,
        batch=batch,
        samples=samples,
        epochs=epochs,
        to_target=target,
        price=price,
        price_node_hour=price_node_hour,
        price_gpu_hour=price_gpu_hour,
        co2=co2,
        pue=pue,
        currency=currency,
        prices=prices,
    )
    if as_json:
        echo_json(result)
        return
    from joulecast.report.forecast_lines import forecast_cells, forecast_notes

    _print_table(forecast_cells(result))
    typer.echo()
    for line in forecast_notes(result):
        typer.echo(line)
