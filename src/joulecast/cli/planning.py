"""The command of planning: which setting to train a network in."""

from pathlib import Path
from typing import Annotated

import typer

from joulecast.cli.options import (
    RECORDS_HELP,
    AsJson,
    Platforms,
    echo_json,
    whole_numbers,
)
from joulecast.errors import JoulecastError
from joulecast.files.shipped import PLATFORMS
from joulecast.quantities import duration_s


def advise(
    network: Annotated[str, typer.Option(help="As the records name it.")],
    records: Annotated[
        Path | None,
        typer.Option(help=RECORDS_HELP),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(help="As the records name it; or to simulate: a name, or a FILE.yaml."),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Time that it may take: seconds, or as 30min, 1h, 2d.")
    ] = None,
    energy_budget: Annotated[float | None, typer.Option(help="Joules that it may take.")] = None,
    energy_weight: Annotated[
        float | None, typer.Option(help="Weight of energy against time, 0 to 1.")
    ] = None,
    samples: Annotated[
        float | None, typer.Option(help="Samples to train on; 1,000 of a long training by default.")
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Node counts, as 1,2,4,8.")] = None,
    batch: Annotated[str | None, typer.Option(help="Batches of all nodes, as 4,8.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Of `tune --history`, for the power limit.")
    ] = None,
    platforms: Platforms = PLATFORMS,
    fits: Annotated[
        Path | None,
        typer.Option(help="Fits of a campaign on a simulated platform, for its joules."),
    ] = None,
    precision: Annotated[str, typer.Option(help="Peak rate of a simulated platform.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Choose node count, batch size and strategy of a training within a limit, with what that rests on."""
    from joulecast.api.forecasts import advise as advise_on
    from joulecast.planning.text import advice_text

    if records is None and platform is None:
        raise JoulecastError(
            "give --records FOLDER of measured or imported runs, or --platform NAME to simulate"
        )
    advice = advise_on(
        network,
        records=() if records is None else records,
        platform=platform,
        deadline_s=None if deadline is None else duration_s(deadline),
        energy_budget_j=energy_budget,
        energy_weight=energy_weight,
        samples=samples,
        nodes=None if nodes is None else whole_numbers("--nodes", nodes),
        batch=None if batch is None else whole_numbers("--batch", batch),
        history=history,
        platforms=platforms,
        fits=fits,
        precision=precision,
    )
    if as_json:
        echo_json(advice)
    else:
        typer.echo(advice_text(advice))
