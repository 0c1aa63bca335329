"""The command of planning: which setting to train a network in."""

from pathlib import Path
from typing import Annotated

import typer

from joulecast.app.cli.options import (
    RECORDS_HELP,
    AsJson,
    Attention,
    Calibrate,
    Co2,
    Currency,
    Gradients,
    Links,
    Named,
    Optimizer,
    Platforms,
    Precision,
    Price,
    PriceGpuHour,
    PriceNodeHour,
    PricesFile,
    Pue,
    echo_json,
    pairs,
    whole_numbers,
)
from joulecast.errors import JoulecastError
from joulecast.quantities import duration_s, energy_j, mass_kg
from joulecast.runs.files.shipped import PLATFORMS


def advise(
    name: Named = None,
    recurring: Annotated[
        Path | None,
        typer.Option(
            help="Of a training that recurs: the file of `tune --history`; names its next batch size and "
            "power limit, and needs no other option."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(help="Network, as the records name it; the one of NAME by default."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help=RECORDS_HELP),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            help="Platform, as the records name it; or one to simulate: a name, or a FILE.yaml."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="time, energy, cost, co2 or edp. By default energy; time where energy is estimated, or "
            "with budgets and no deadline."
        ),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Time that it may take: seconds, or as 30min, 1h, 2d.")
    ] = None,
    energy_budget: Annotated[
        str | None, typer.Option(help="Energy that it may take: joules, or as 5MJ, 2kWh.")
    ] = None,
    cost_budget: Annotated[
        float | None, typer.Option(help="Money that it may cost, by the prices.")
    ] = None,
    co2_budget: Annotated[
        str | None, typer.Option(help="CO2 equivalent that it may emit: kg, or as 500g, 1t.")
    ] = None,
    energy_weight: Annotated[
        float | None,
        typer.Option(help="Weight of energy against time, 0 to 1; in place of an objective."),
    ] = None,
    price: Price = None,
    price_node_hour: PriceNodeHour = None,
    price_gpu_hour: PriceGpuHour = None,
    co2: Co2 = None,
    pue: Pue = None,
    currency: Currency = None,
    prices: PricesFile = None,
    samples: Annotated[
        float | None, typer.Option(help="Samples to train on; a million by default.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Node counts, as 1,2,4,8; by default up to four times the most that were run."
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(help="Counts of GPUs (ranks without GPUs), as 8,16,64.")
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Batches of all nodes, as 4,8.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="History of `tune --history`, for the power limit.")
    ] = None,
    platforms: Platforms = PLATFORMS,
    fits: Annotated[
        Path | None,
        typer.Option(help="Fits of a campaign on a simulated platform, for its joules."),
    ] = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = "momentum",
    attention: Attention = None,
    gradients: Gradients = None,
    link: Links = None,
    calibrate: Calibrate = None,
    as_json: AsJson = False,
) -> None:
    """Choose node count, batch size and strategy of a training within limits."""
    if recurring is not None:
        from joulecast.tune.next_run import advice_text, advise_on_file

        next_run = advise_on_file(recurring)
        if as_json:
            echo_json(next_run)
        else:
            typer.echo(advice_text(next_run))
        return
    from joulecast.app.api.forecasts import advise as advise_on
    from joulecast.report.advice.text import advice_text

    if name is not None and records is not None:
        raise JoulecastError("give the NAME of a measured training, or --records FOLDER")
    asked = network or name
    if asked is None:
        raise JoulecastError("give the NAME of a measured training, or --network")
    known = name or records
    if known is None and platform is None:
        raise JoulecastError(
            "give --records FOLDER of measured or imported runs, or --platform NAME to simulate"
        )
    advice = advise_on(
        asked,
        records=() if known is None else known,
        platform=platform,
        deadline_s=None if deadline is None else duration_s(deadline),
        energy_budget_j=None if energy_budget is None else energy_j(energy_budget),
        energy_weight=energy_weight,
        cost_budget=cost_budget,
        co2_budget_kg=None if co2_budget is None else mass_kg(co2_budget),
        objective=objective,  # type: ignore[arg-type]
        price=price,
        price_node_hour=price_node_hour,
        price_gpu_hour=price_gpu_hour,
        co2=co2,
        pue=pue,
        currency=currency,
        prices=prices,
        samples=samples,
        nodes=None if nodes is None else whole_numbers("--nodes", nodes),
        gpus=() if gpus is None else whole_numbers("--gpus", gpus),
        batch=None if batch is None else whole_numbers("--batch", batch),
        history=history,
        platforms=platforms,
        fits=fits,
        precision=precision,
        optimizer=optimizer,
        attention=attention,  # type: ignore[arg-type]
        gradients=gradients,  # type: ignore[arg-type]
        links=pairs(link, "--link"),
        calibrate=calibrate,
    )
    if as_json:
        echo_json(advice)
    else:
        typer.echo(advice_text(advice))
