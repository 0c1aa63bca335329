"""The command of the pages: the overview of a results folder, by hand."""

from pathlib import Path
from typing import Annotated

import typer


def overview(
    results: Annotated[Path, typer.Argument(help="Folder of a campaign's results.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; index.html in the folder by default.")
    ] = None,
    configfile: Annotated[
        Path | None,
        typer.Option(
            help="Configuration of the campaign, for its prices and the commands on the page."
        ),
    ] = None,
) -> None:
    """Write the overview page of a results folder, and its figures as SVG and PDF."""
    from joulecast.app.campaign.config import read_config
    from joulecast.energy.prices import NO_PRICES, Prices
    from joulecast.report.pages.overview import write_overview

    page = out or results / "index.html"
    prices, shown = NO_PRICES, None
    if configfile is not None:
        prices, shown = Prices(**read_config(configfile).prices.model_dump()), str(configfile)
    write_overview(results, page, shown, prices)
    typer.echo(f"{page}: open it in a browser; it needs no network")
