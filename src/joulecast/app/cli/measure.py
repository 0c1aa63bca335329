"""The command that measures any training: it runs the user's command and leaves a run record."""

import sys
from typing import Annotated

import typer

from joulecast.app.cli.meters import power_section
from joulecast.app.cli.options import asks
from joulecast.errors import JoulecastError
from joulecast.measure.observer.request import MeasureRequest, observed

_CAPTURE = "joulecast.graphs.capture:capture_trained"
"""Name of the function that captures the network. It runs in the training's process. The training's
environment may lack packages, so the observer itself does not import this function."""


@asks(MeasureRequest)
def measure(
    request: MeasureRequest,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Your training, as you start it, after `--`.", metavar="-- COMMAND"),
    ] = None,
) -> None:
    """Run a training and measure its power, its time, and the stages of its steps."""
    from joulecast.measure.observer.command import end_as
    from joulecast.measure.observer.observation import measure_command
    from joulecast.report.measured_training import result_lines
    from joulecast.runs.spec import MeterSettings

    if not command:
        raise JoulecastError("give the training as a COMMAND behind `--`")
    power = power_section(request.config)
    training = observed(request, command, MeterSettings(power.sysfs_root, tuple(power.command)))
    capture = _CAPTURE if request.capture else None
    code, result = measure_command(
        training, request.out, capture=capture, window_s=request.window_s
    )
    # Standard output belongs to the command.
    if lines := result_lines(result):
        typer.echo("\n".join(lines), err=True)
    sys.stderr.flush()
    end_as(code, _leave)


def _leave(code: int) -> None:
    raise typer.Exit(code)
