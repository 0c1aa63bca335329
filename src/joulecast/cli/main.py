"""Measure, record and import training runs, judge energy models on them, forecast others."""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from joulecast.campaign import config as configuration
from joulecast.campaign.check import dry_run, project_here, remarks, require_campaign, require_host
from joulecast.cli.energy import evaluate, forecast
from joulecast.cli.errors import Commands
from joulecast.cli.export import export_app
from joulecast.cli.importing import import_app
from joulecast.cli.measure import measure
from joulecast.cli.meters import meters
from joulecast.cli.options import Platforms
from joulecast.cli.pages import overview
from joulecast.cli.partition import partition, profile
from joulecast.cli.planning import advise
from joulecast.cli.progress import remeasure, status
from joulecast.cli.records import recover
from joulecast.cli.simulator import capture, search, simulate
from joulecast.cli.tuning import advise_recurring, tune
from joulecast.errors import JoulecastError
from joulecast.files.shipped import PLATFORMS, recorded_folder
from joulecast.records.recorded import (
    MAX_BYTES,
    plain_note,
    read_campaign,
    unpack_all,
)
from joulecast.report.tables.failed_runs import write_failed_runs
from joulecast.training.recorder import record_campaign

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, help=__doc__)
config_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="The configuration, generated from its model."
)
app.add_typer(config_app, name="config")
app.add_typer(import_app, name="import")
app.add_typer(export_app, name="export")
records_app = typer.Typer(cls=Commands, no_args_is_help=True, help="Look after run records.")
app.add_typer(records_app, name="records")
records_app.callback()(lambda: None)
records_app.command("recover")(recover)
app.command()(measure)
app.command()(meters)
app.command()(simulate)
app.command()(search)
app.command()(capture)
app.command()(partition)
app.command()(profile)
app.command()(tune)
app.command("advise-recurring")(advise_recurring)
app.command()(evaluate)
app.command()(forecast)
app.command()(advise)
app.command()(status)
app.command()(remeasure)
app.command()(overview)


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
    """Print the documented defaults (config/config.yaml)."""
    typer.echo(configuration.documented_defaults(), nl=False)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema (config/schema.json)."""
    typer.echo(configuration.json_schema(), nl=False)


@config_app.command("check")
def config_check(file: Path) -> None:
    """Check a configuration, all that it names, and its dry run.

    Looks at platforms, data folders, networks, meters, submissions and kept measurements.
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


@app.command()
def record(
    out: Annotated[Path, typer.Argument(help="Folder of the recorded campaign, as recorded/NAME.")],
    configurations: Annotated[
        list[Path], typer.Option("--config", help="Configuration; may be given several times.")
    ],
    work: Annotated[
        Path | None, typer.Option(help="Folder of the single records (default: OUT.work).")
    ] = None,
    launcher: Annotated[str, typer.Option(help="Starts runs of several ranks.")] = "mpiexec",
    note: Annotated[str, typer.Option(help="What a reader of the figures should know.")] = "",
    max_mb: Annotated[
        float, typer.Option(help="Largest size of the recorded campaign, in MB.")
    ] = MAX_BYTES / 1e6,
    platforms: Platforms = PLATFORMS,
) -> None:
    """Measure all runs of a campaign that are missing, and keep them as data."""
    campaign = record_campaign(
        [configuration.read_config(file) for file in configurations],
        platforms,
        out,
        work=work or out.with_name(f"{out.name}.work"),
        launcher=launcher,
        note=note,
        max_bytes=int(max_mb * 1e6),
        tell=typer.echo,
    )
    size = sum(file.bytes for file in campaign.files.values())
    marked = f"{len(campaign.left_out)} of them disturbed or polluted"
    typer.echo(f"{out}: {campaign.runs} runs, {marked}, {size / 1e6:.2f} MB")


@app.command()
def replay(
    recorded: Annotated[
        Path, typer.Argument(help="Folder of a recorded campaign, or the name of a shipped one.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder that gets a run record for each run.")],
) -> None:
    """Unpack a recorded campaign into run records."""
    folder = recorded_folder(recorded)
    typer.echo(f"{out}: {len(unpack_all(folder, out))} run records")
    if note := plain_note(read_campaign(folder).info.note):
        typer.echo(f"note: {note}")


@app.command("failed-runs")
def failed_runs(
    results: Annotated[Path, typer.Argument(help="Folder of a campaign's results.")] = Path(
        "results"
    ),
) -> None:
    """Write the table of failed runs again (tables/failed_runs), and print it; all records are read."""
    table = write_failed_runs(results, check_records=True)
    for row in table.itertuples():
        typer.echo(f"{row.run} ({row.now}): {row.reason}")
    typer.echo(f"{len(table)} failed attempts: {results / 'tables/failed_runs.md'}")


if __name__ == "__main__":
    app()
