"""Measure or import training runs, judge energy models on them, and forecast other runs."""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from joulecast.app.campaign import config as configuration
from joulecast.app.campaign.check import (
    dry_run,
    project_here,
    remarks,
    require_campaign,
    require_host,
)
from joulecast.app.cli.energy import evaluate, forecast
from joulecast.app.cli.errors import Commands
from joulecast.app.cli.export import export_app
from joulecast.app.cli.importing import import_app
from joulecast.app.cli.measure import measure
from joulecast.app.cli.meters import meters
from joulecast.app.cli.partition import partition, profile
from joulecast.app.cli.planning import advise, plan, tune, when
from joulecast.app.cli.progress import status
from joulecast.app.cli.simulator import capture, search, simulate
from joulecast.errors import JoulecastError

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, help=__doc__)
config_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Print or check the configuration of a campaign."
)
app.add_typer(config_app, name="config")
app.add_typer(import_app, name="import")
app.add_typer(export_app, name="export")
for _command in (
    *(measure, meters, plan, when, simulate, search, capture, partition, profile, tune),
    *(evaluate, forecast, advise, status),
):
    app.command()(_command)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"joulecast {metadata.version('joulecast')}")
        raise typer.Exit


@app.callback()
def _joulecast(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@config_app.command("default")
def config_default() -> None:
    """Print the default configuration, with the meaning of every key (config/config.yaml)."""
    typer.echo(configuration.documented_defaults(), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the configuration (config/schema.json)."""
    typer.echo(configuration.json_schema(), nl=False)


@config_app.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(help="Configuration of the campaign.")],
) -> None:
    """Check a configuration and all that it names, and make a dry run.

    Checks platforms, data folders, networks, meters, submissions and recorded measurements.
    """
    try:
        project = project_here()
        config = configuration.read_config(file)
        runs = require_campaign(config, project=project)
        lines = remarks(config, runs)
        jobs = None if project is None else dry_run(project, file)
    except JoulecastError as error:
        named = str(error) if str(file) in str(error) else f"{file}: {error}"
        raise JoulecastError(named) from None
    try:
        require_host(config, runs)
        typer.echo(f"{file}: all right")
    except JoulecastError as error:
        typer.echo(f"{file}: sound, but this host cannot run it: {error}")
    lines.append(
        "no dry run: there is no Snakefile here"
        if jobs is None
        else f"dry run: {jobs:,} jobs to do"
    )
    for line in lines:
        typer.echo(f"  {line}")


if __name__ == "__main__":
    app()
