"""The command line: ``joulecast meters``, ``joulecast config``, ``joulecast external``."""

from pathlib import Path
from typing import Annotated

import typer

from joulecast import config as configuration
from joulecast.errors import JoulecastError
from joulecast.external import locate
from joulecast.platforms import read_platform
from joulecast.power.meters import MeteredNodes, MeterUnavailable, ReadFailed, openers
from joulecast.provenance import physical_host, usable_cores

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
config_app = typer.Typer(no_args_is_help=True, help="The configuration, generated from its model.")
app.add_typer(config_app, name="config")


def _fail(error: JoulecastError) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(2)


@config_app.command("default")
def config_default() -> None:
    """Print the documented defaults (config/config.yaml)."""
    typer.echo(configuration.documented_defaults(), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema (config/schema.json)."""
    typer.echo(configuration.json_schema(), nl=False)


@config_app.command("check")
def config_check(file: Path) -> None:
    """Check a configuration file."""
    try:
        configuration.read_config(file)
    except JoulecastError as error:
        raise _fail(error) from None
    typer.echo(f"{file}: all right")


@app.command()
def meters(
    platform: Annotated[
        Path, typer.Option(help="Platform file with the watts to estimate from.")
    ] = (Path("config/platforms/this-machine.yaml")),
) -> None:
    """Show which meters this machine has, what is missing, and how to get it."""
    idle_w = full_w = source = None
    try:
        facts = read_platform(platform)
        idle_w, full_w, source = facts.idle_w, facts.full_w, facts.watts_source
    except JoulecastError as error:
        typer.echo(f"note: {error}", err=True)
    host = physical_host().split(":")[0]
    typer.echo(f"host {host}, {usable_cores()} usable cores")
    nodes = MeteredNodes(host, {}, float(usable_cores()), idle_w, full_w)
    for name, opener in openers().items():
        try:
            opened = opener(nodes)
        except MeterUnavailable as missing:
            typer.echo(f"{name:10} missing   {missing.reason}\n{'':21}to get it: {missing.remedy}")
            continue
        for meter in opened:
            what = "energy counter" if meter.counter else "power"
            try:
                meter.read()
                state = "reads"
            except ReadFailed as error:
                state = f"fails: {error}"
            note = f" (watts: {source})" if meter.source == "estimated" else ""
            typer.echo(f"{meter.name:10} {meter.source:9} {what}, {state}{note}")


@app.command()
def external(
    name: Annotated[str, typer.Argument(help="Path of the data below the folder.")],
    file: Annotated[Path, typer.Option("--config", help="Configuration.")] = Path(
        "config/config.yaml"
    ),
) -> None:
    """Print where a piece of external data lies, fetching and checking it if need be."""
    try:
        typer.echo(locate(configuration.read_config(file), name))
    except JoulecastError as error:
        raise _fail(error) from None


if __name__ == "__main__":
    app()
