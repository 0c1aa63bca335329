"""Commands that make run records or a platform file from what other tools measured."""

import inspect
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from joulecast.app.cli.errors import Commands
from joulecast.errors import JoulecastError
from joulecast.logs.log_kinds import KINDS
from joulecast.runs.files.shipped import recorded_folder

import_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Make run records, a table of runs or a platform file from what other tools measured.",
)

Text = str | None
_FACTS = (
    *("run", "network", "platform", "nodes", "hosts", "batch", "start", "stop"),
    *("epochs", "samples", "steps", "accelerators", "accelerator"),
)
_SHIFT = "Seconds to add to the times of the readings; negative if the clock of the log is ahead."


def _run_option(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(name, help=text, rich_help_panel="The run")  # type: ignore[no-any-return]


def _log_option(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(name, help=text, rich_help_panel="The log")  # type: ignore[no-any-return]


def _add(kind: str) -> None:
    """Add the command that imports logs of this kind. It has only the options that its reader uses."""

    def import_kind(
        source: Annotated[Path, typer.Argument(help="The log, or a folder of them.")],
        out: Annotated[
            Path,
            typer.Argument(
                help="Folder for the records. Records of the same log in it are replaced."
            ),
        ],
        runs: Annotated[
            Path | None,
            _run_option(
                "--runs",
                "CSV file with a row for each run. Columns: run, network, platform, "
                "start, stop, ...",
            ),
        ] = None,
        records: Annotated[
            Path | None,
            _run_option(
                "--records",
                "Folder of run records. Where the times of a record and the log overlap, the record gets the "
                "log's meter.",
            ),
        ] = None,
        run: Annotated[Text, _run_option("--run", "Name of the run.")] = None,
        network: Annotated[Text, _run_option("--network", "Network that was trained.")] = None,
        platform: Annotated[Text, _run_option("--platform", "Name of the node type.")] = None,
        nodes: Annotated[int | None, _run_option("--nodes", "Nodes of the training.")] = None,
        hosts: Annotated[
            Text,
            _run_option(
                "--hosts",
                "Nodes of the run, by their names in the log, such as n[01-04]. By default all.",
            ),
        ] = None,
        batch: Annotated[int | None, _run_option("--batch-size", "Samples in one step.")] = None,
        start: Annotated[
            Text,
            _run_option("--start", "Start of the training, such as 2026-05-02T10:00:00+02:00."),
        ] = None,
        stop: Annotated[
            Text, _run_option("--stop", "End of the training, in the same form.")
        ] = None,
        epochs: Annotated[
            int | None,
            _run_option("--epochs", "Epochs of the run, a whole number."),
        ] = None,
        samples: Annotated[float | None, _run_option("--samples", "Samples of the run.")] = None,
        steps: Annotated[float | None, _run_option("--steps", "Steps of the run.")] = None,
        accelerators: Annotated[
            int | None, _run_option("--accelerators", "Accelerators of a node.")
        ] = None,
        accelerator: Annotated[
            Text, _run_option("--accelerator", "Name of the accelerators.")
        ] = None,
        timezone: Annotated[
            Text,
            _log_option(
                "--timezone", "Time zone of times that name none: Europe/Berlin, UTC, +02:00."
            ),
        ] = None,
        shift: Annotated[float, _log_option("--shift", _SHIFT)] = 0.0,
        mapped: Annotated[
            Text,
            _log_option(
                "--map",
                "Which column is what, such as time=COLUMN,watts=COLUMN,node=COLUMN (also joules= "
                "and device=).",
            ),
        ] = None,
        unit: Annotated[
            Text, _log_option("--unit", "Unit of the readings: W, mW, kW, J, kJ, Wh, kWh.")
        ] = None,
        covers: Annotated[
            Text,
            _log_option(
                "--covers",
                "Part that the meter covers: node, module, socket, gpu, cpu or memory.",
            ),
        ] = None,
        node: Annotated[
            Text, _log_option("--node", "Name of the node. By default the file's name.")
        ] = None,
        columns: Annotated[
            Text,
            _log_option("--columns", "Names of the columns, if the table has no header: a,b,c."),
        ] = None,
        delimiter: Annotated[
            Text, _log_option("--delimiter", "Character that separates the columns.")
        ] = None,
        decimal: Annotated[str, _log_option("--decimal", "Decimal sign.")] = ".",
        time_unit: Annotated[
            str,
            _log_option(
                "--time-unit",
                "Unit of times that are numbers: s, ms, us, ns, or relative (seconds since the start).",
            ),
        ] = "auto",
        time_format: Annotated[
            Text,
            _log_option(
                "--time-format",
                "Format of times that are texts, in the format codes of Python's strptime.",
            ),
        ] = None,
        metric: Annotated[
            Text,
            _log_option("--metric", "The metric to read, if the file has several."),
        ] = None,
        node_label: Annotated[
            Text, _log_option("--node-label", "The label that names the node.")
        ] = None,
    ) -> None:
        said = {name: value for name, value in locals().items() if name in _FACTS}
        # This is loaded here, because the other commands read no tables.
        from joulecast.logs.add_meters import add_to_records
        from joulecast.logs.csv_map import map_of
        from joulecast.logs.import_log import import_log, read_runs, run_facts
        from joulecast.logs.log import LogOptions
        from joulecast.logs.log_times import TIME_UNITS, Clock, zone_named
        from joulecast.runs.meter_choice import Covers

        if time_unit not in TIME_UNITS:
            raise JoulecastError(f"--time-unit {time_unit}: give one of {', '.join(TIME_UNITS)}")
        if covers is not None and covers not in get_args(Covers):
            raise JoulecastError(f"--covers {covers}: give one of {', '.join(get_args(Covers))}")
        between = delimiter.replace("\\t", "\t") if delimiter else None
        if len(decimal) != 1 or len(between or ",") != 1:
            raise JoulecastError("--decimal and --delimiter are one sign each")
        clock = Clock(zone_named(timezone) if timezone else None, time_unit, time_format)
        options = LogOptions(
            clock=clock,
            shift_s=shift,
            node=node,
            columns=tuple(name.strip() for name in columns.split(",")) if columns else (),
            mapped=map_of(mapped) if mapped else {},
            unit=unit,
            covers=cast("Covers | None", covers),
            delimiter=between,
            decimal=decimal,
            metric=metric,
            node_label=node_label,
            nodes=nodes,
            gpus=accelerators,
        )
        if records is not None:
            if runs is not None or any(value is not None for value in said.values()):
                raise JoulecastError(
                    "--records: its runs are known already; leave out --runs, and the options of a run "
                    "(--network, --start, ...)"
                )
            typer.echo(add_to_records(kind, source, out, records, options).text())
            return
        facts = run_facts(said, clock, "options of the run")
        rows = read_runs(runs, clock) if runs else []
        typer.echo(import_log(kind, source, out, options, facts, rows).text())

    of_some = {name for each in KINDS.values() for name in each.options}
    signature = inspect.signature(import_kind)
    own = [
        parameter
        for name, parameter in signature.parameters.items()
        if name not in of_some or name in KINDS[kind].options
    ]
    import_kind.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    import_app.command(kind, help=KINDS[kind].about)(import_kind)


for _kind in KINDS:
    _add(_kind)


@import_app.command("mlperf")
def import_mlperf(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder of submissions or of flat tables, or `mlperf-power` for the shipped submissions."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(help="Folder for the records. A record that is imported again is replaced."),
    ],
    unit: Annotated[str, typer.Option(help="Unit of the readings: W, mW or kW.")] = "W",
    shift: Annotated[float, typer.Option(help=_SHIFT)] = 0.0,
) -> None:
    """Import MLPerf Training power submissions. Results that cannot be trusted are kept and marked."""
    from joulecast.logs.mlperf import import_mlperf as run_import

    typer.echo(run_import(recorded_folder(source), out, unit, shift).text())


@import_app.command("nccl-tests")
def import_nccl_tests(
    source: Annotated[
        Path,
        typer.Argument(
            help="File with the output of all_reduce_perf, all_gather_perf, ..., or a folder of such files."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Platform file to write, such as our-cluster.yaml.")],
    platform: Annotated[
        Text,
        typer.Option(
            help="Kind of the nodes, such as h100-sxm:gpus=8. By default it follows from the GPU in the logs."
        ),
    ] = None,
) -> None:
    """Make a platform file for the simulator, with links that are fitted to times of nccl-tests."""
    from joulecast.logs.nccl_tests import read_nccl_tests
    from joulecast.runs.platforms import simulated_platform
    from joulecast.simulate.cluster_links import fit_links, platform_of, write_platform

    tests = read_nccl_tests(source)
    node = platform_of(tests) if platform is None else simulated_platform(platform)
    found = fit_links(node, tests)
    write_platform(found, out)
    typer.echo(f"{out}: {found.text()}")


@import_app.command("training-log")
def import_training_log(
    source: Annotated[
        Path,
        typer.Argument(
            help="Log that Megatron-LM or torchtitan printed, an event file of TensorBoard, or an offline "
            "run of W&B (run-ID.wandb)."
        ),
    ],
    out: Annotated[
        Path, typer.Argument(help="Table to write, for the option --runs of the other imports.")
    ],
    name: Annotated[Text, typer.Option(help="Name of the run. By default the file's name.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes of the training.")] = None,
    timezone: Annotated[
        Text, typer.Option(help="Time zone of the log: Europe/Berlin, UTC, +02:00.")
    ] = None,
) -> None:
    """Make a table of runs from a training log: when the training ran, and how much it trained."""
    import pandas as pd

    from joulecast.logs.log_times import Clock, zone_named
    from joulecast.logs.training_log import read_training_log
    from joulecast.runs.files.writing import write_csv

    row = read_training_log(source, Clock(zone_named(timezone) if timezone else None))
    said = {"run": name or source.name.split(".")[0], "nodes": nodes, **row}
    known = {key: value for key, value in said.items() if value is not None}
    write_csv(pd.DataFrame([known]), out)
    typer.echo(f"{out}: " + ", ".join(f"{key} {value}" for key, value in known.items()))
