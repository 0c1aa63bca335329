"""Measure, record and import training runs, judge energy models on them, forecast others."""

import json
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast import config as configuration
from joulecast.campaign_check import dry_run, project_here, remarks, require_campaign, require_host
from joulecast.cli_errors import failed
from joulecast.cli_pages import overview
from joulecast.cli_partition import partition, profile
from joulecast.cli_planning import advise
from joulecast.cli_progress import remeasure, status
from joulecast.cli_simulator import search, simulate
from joulecast.cli_tuning import advise_recurring, tune
from joulecast.errors import JoulecastError
from joulecast.external import locate
from joulecast.platforms import find_platform
from joulecast.power.meters import MeteredNodes, MeterUnavailable, ReadFailed, openers
from joulecast.provenance import physical_host, usable_cores
from joulecast.quantities import (
    counted,
    digits,
    energies,
    joules,
    percent,
    seconds,
    times,
    with_range,
)
from joulecast.recorded import MAX_BYTES, campaign_folder, run_records, unpack_all
from joulecast.shipped import PLATFORMS
from joulecast.tables.failed_runs import write_failed_runs
from joulecast.training.recorder import record_campaign

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
config_app = typer.Typer(no_args_is_help=True, help="The configuration, generated from its model.")
app.add_typer(config_app, name="config")
import_app = typer.Typer(no_args_is_help=True, help="Make run records of what others measured.")
app.add_typer(import_app, name="import")
app.command()(simulate)
app.command()(search)
app.command()(partition)
app.command()(profile)
app.command()(tune)
app.command("advise-recurring")(advise_recurring)
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

    Looks at platforms, data folders, networks, meters, external data and kept measurements.
    """
    try:
        project = project_here()
        config = configuration.read_config(file)
        runs = require_campaign(config, project=project)
        told = remarks(config, runs)
        jobs = None if project is None else dry_run(project, file)
    except JoulecastError as error:
        named = str(error) if str(file) in str(error) else f"{file}: {error}"
        raise failed(JoulecastError(named)) from None
    try:
        require_host(config, runs)
        typer.echo(f"{file}: all right")
    except JoulecastError as error:
        typer.echo(f"{file}: sound, but this host cannot run it: {error}")
    told.append(
        "no dry run: there is no Snakefile here"
        if jobs is None
        else f"dry run: {jobs:,} jobs to do"
    )
    for line in told:
        typer.echo(f"  {line}")


@app.command()
def meters(
    platform: Annotated[
        str, typer.Option(help="Whose watts to estimate from: a name, or a FILE.yaml.")
    ] = "this-machine",
) -> None:
    """Show which meters this machine has, what is missing, and how to get it."""
    idle_w = full_w = source = None
    try:
        facts = find_platform(platform)
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
    file: Annotated[
        Path | None, typer.Option("--config", help="Configuration; the defaults without one.")
    ] = None,
) -> None:
    """Print where a piece of external data lies, fetching and checking it if need be."""
    try:
        asked = configuration.Config() if file is None else configuration.read_config(file)
        typer.echo(locate(asked, name))
    except JoulecastError as error:
        raise failed(error) from None


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
    max_mb: Annotated[float, typer.Option(help="What the recorded campaign may weigh.")] = MAX_BYTES
    / 1e6,
    platforms: Annotated[Path, typer.Option(help="Folder of your platform files.")] = PLATFORMS,
) -> None:
    """Measure all runs of a campaign and keep them as data; once more: only what is missing."""
    try:
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
    except JoulecastError as error:
        raise failed(error) from None
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
    """Unpack a recorded campaign into run records; what was measured there is called recorded."""
    try:
        typer.echo(f"{out}: {len(unpack_all(campaign_folder(recorded), out))} run records")
    except JoulecastError as error:
        raise failed(error) from None


@app.command("failed-runs")
def failed_runs(
    results: Annotated[Path, typer.Argument(help="Folder of a campaign's results.")] = Path(
        "results"
    ),
) -> None:
    """Write the table of failed runs anew (tables/failed_runs), and print it; all records are read."""
    try:
        table = write_failed_runs(results, check_records=True)
    except JoulecastError as error:
        raise failed(error) from None
    for row in table.itertuples():
        typer.echo(f"{row.run} ({row.now}): {row.reason}")
    typer.echo(f"{len(table)} failed attempts: {results / 'tables/failed_runs.md'}")


class Split(StrEnum):
    """What a fit may not see."""

    IN_SAMPLE = "in-sample"
    LEAVE_ONE_NODE_COUNT_OUT = "leave-one-node-count-out"
    EXTRAPOLATION = "extrapolation"
    LEAVE_ONE_WORKLOAD_OUT = "leave-one-workload-out"


class Time(StrEnum):
    """Whether the models are told the time of the runs that they are judged on."""

    GIVEN = "given"
    PREDICTED = "predicted"


class Scaling(StrEnum):
    """Whether the batch of all nodes grows with them."""

    RECORDED = "recorded"
    WEAK = "weak"
    STRONG = "strong"


_RECORDS = typer.Option(
    "--records",
    help="Folder of run records, however deep they lie in it; or a recorded campaign.",
)
_JSON = typer.Option("--json", help="Print everything as JSON.")


def _print_table(rows: list[dict[str, str]]) -> None:
    columns = list(rows[0]) if rows else []
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    for row in [{name: name for name in columns}, *rows]:
        typer.echo("  ".join(row[name].ljust(widths[name]) for name in columns).rstrip())


def _print_notes(told: dict[str, Any]) -> None:
    for run in told["left_out"]:
        typer.echo(f"left out: {run['run']}: {run['kind']} (its run.json says more)")
    for note in told["notes"]:
        typer.echo(f"note: {note.replace('**', '')}")


@app.command()
def evaluate(
    records: Annotated[Path, _RECORDS],
    split: Annotated[Split, typer.Option(help="What is held out.")] = Split.LEAVE_ONE_WORKLOAD_OUT,
    time: Annotated[Time, typer.Option(help="Time of the judged runs.")] = Time.GIVEN,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Judge MC2 and its rivals on run records, imported or measured."""
    from joulecast.energy.verdict import evaluate_records

    try:
        with run_records([records]) as folders:
            verdict = evaluate_records(folders, split.value, time.value)
    except JoulecastError as error:
        raise failed(error) from None
    if as_json:
        typer.echo(json.dumps(verdict, indent=1, allow_nan=False))
        return
    rows = []
    for row in verdict["settings"]:
        reference, predicted = energies(row["reference_j"], row["predicted_j"])
        rows.append(
            {
                **{name: str(row[name]) for name in ("source", "platform", "workload")},
                "nodes": digits(row["nodes"]),
                "model": str(row["model"]),
                "reference": reference,
                "predicted": predicted,
                "off by": percent(row["difference_percent"], signed=True),
            }
        )
    _print_table(rows)
    typer.echo("")
    _print_table(
        [
            {
                **{name: str(row[name]) for name in ("source", "model")},
                "settings": digits(row["settings"]),
                "mean error": percent(row["mape_percent"]),
                "worst": percent(row["max_percent"]),
                "bias": percent(row["bias_percent"], signed=True),
                "inside its 90 % interval": percent(row["covered_percent"]),
            }
            for row in verdict["summary"]
        ]
    )
    best = verdict["against_best_rival"]
    if best:
        low, high = best["lower_points"], best["upper_points"]
        typer.echo(
            f"\nMC2 is {best['better_by_points']:.2f} points better than the best rival, {best['rival']} "
            f"(90 % interval {low:.2f} to {high:.2f}, {best['settings']} settings)"
        )
    noise = verdict["run_to_run_cv_percent"]
    varies = "were not repeated" if noise is None else f"vary by {noise:.2f} % between repeats"
    typer.echo(f"\nsettings {varies}")
    _print_notes(verdict)


def _as_run(row: dict[str, Any]) -> str:
    """Means of the runs of a forecast setting."""
    if row["measured_time_s"] is None:
        return "not run"
    parts = [seconds(row["measured_time_s"])]
    if row["measured_energy_j"] is not None:
        parts.append(joules(row["measured_energy_j"]))
    return ", ".join(parts)


@app.command()
def forecast(
    records: Annotated[Path, _RECORDS],
    nodes: Annotated[str, typer.Option(help="Node counts, as 16,32,64.")],
    scaling: Annotated[
        Scaling, typer.Option(help="The batch: as in the records, of a node, or of all nodes.")
    ] = Scaling.RECORDED,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Forecast energy and time of node counts not yet run, with 90 % intervals."""
    from joulecast.energy.forecast import forecast as forecast_records

    try:
        counts = [int(count) for count in nodes.split(",")]
    except ValueError:
        raise failed(JoulecastError(f"--nodes {nodes}: give numbers, as 16,32,64")) from None
    try:
        with run_records([records]) as folders:
            told = forecast_records(folders, counts, scaling.value)
    except JoulecastError as error:
        raise failed(error) from None
    if as_json:
        typer.echo(json.dumps(told, indent=1, allow_nan=False))
        return
    rows = []
    for row in told["forecasts"]:
        amounts = {
            name: with_range(
                *together(*(row[f"{name}{end}_{unit}"] for end in ("", "_low", "_high")))
            )
            for name, unit, together in (("time", "s", times), ("energy", "j", energies))
        }
        rows.append(
            {
                **{name: str(row[name]) for name in ("platform", "workload")},
                **{name: digits(row[name]) for name in ("nodes", "batch_size", "work")},
                **amounts,
                "as it was run": _as_run(row),
                "energy is": f"forecast from {row['fitted_on']}"
                if row["fitted_on"]
                else "not known",
                "nodes are": str(row["nodes_are"]),
            }
        )
    _print_table(rows)
    beyond = counted(told["largest_fitted_nodes"], "node")
    typer.echo(
        f"\nfitted to {told['fitted_runs']} runs on up to {beyond}; beyond, the time is an "
        "extrapolation\nin brackets: 90 % intervals; work is samples (or epochs) of a run as recorded; "
        "batch_size is of all nodes"
    )
    _print_notes(told)


@import_app.command("mlperf")
def import_mlperf(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of submissions, git repository (bare too), or flat tables."),
    ],
    out: Annotated[
        Path, typer.Argument(help="Folder for the records; those that are there are replaced.")
    ],
    revision: Annotated[
        str | None, typer.Option(help="Read this revision of the repository, not the files.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that read submissions.")] = 1,
) -> None:
    """Import MLPerf Training power submissions; what cannot be trusted is kept and marked."""
    from joulecast.importers.mlperf import import_mlperf as run_import

    try:
        typer.echo(run_import(source, out, revision, workers).text())
    except JoulecastError as error:
        raise failed(error) from None


if __name__ == "__main__":
    app()
