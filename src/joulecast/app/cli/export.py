"""The commands that hand runs and forecasts to other tools."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.app.cli.errors import Commands
from joulecast.errors import JoulecastError

export_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Export runs and forecasts to other tools."
)
Source = Annotated[
    str,
    typer.Argument(
        help="Training that `measure` ran, folder of run records, recorded campaign, or FILE.json of "
        "`forecast --json`."
    ),
]


@export_app.command("openmetrics")
def export_openmetrics(
    source: Source,
    out: Annotated[
        Path | None, typer.Argument(help="File to write. By default the text is printed.")
    ] = None,
) -> None:
    """Write the figures as OpenMetrics text, for example for the textfile collector of Prometheus."""
    from joulecast.app.exports.openmetrics import openmetrics_text, write_openmetrics

    if out is None:
        typer.echo(openmetrics_text(source), nl=False)
    else:
        write_openmetrics(source, out)
        typer.echo(str(out))


@export_app.command("mlflow")
def export_mlflow(source: Source) -> None:
    """Log the runs to MLflow. MLflow's own variables say where (MLFLOW_TRACKING_URI, ...)."""
    _log("mlflow", source)


@export_app.command("wandb")
def export_wandb(
    source: Source,
    project: Annotated[
        str, typer.Option(help="Project of Weights & Biases to which the runs are logged.")
    ] = "joulecast",
) -> None:
    """Log the runs to Weights & Biases. Its own variables say where (WANDB_MODE, ...)."""
    _log("wandb", source, project=project)


def _logger(tool: str) -> Callable[..., list[str]]:
    """The function that logs into a tool, which its user has installed."""
    try:
        module: Mapping[str, Any] = vars(import_module(f"joulecast.app.exports.{tool}"))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != tool:
            raise
        raise JoulecastError(
            f"{tool} is not installed here; `pip install {tool}` into the environment of joulecast"
        ) from None
    logger: Callable[..., list[str]] = module["log"]
    return logger


def _log(tool: str, source: str, **options: str) -> None:
    """Log into a tool, and print the ids of its runs."""
    log = _logger(tool)
    try:
        made = log(source, **options)
    except JoulecastError:
        raise
    except Exception as error:
        # The message of the tool helps its user: it is about the tool's server, account or folders.
        raise JoulecastError(f"{tool} failed: {' '.join(str(error).split())}") from None
    for run in made:
        typer.echo(run)
