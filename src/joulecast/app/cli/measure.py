"""The command that measures any training: it runs the user's command and leaves a run record."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.app.cli.meters import power_section
from joulecast.app.cli.options import asks
from joulecast.errors import JoulecastError
from joulecast.measure.observer.request import MeasureRequest

if TYPE_CHECKING:
    from joulecast.measure.observer.observation import Result

_CAPTURE = "joulecast.graphs.capture:capture_trained"
"""Runs in the training, which may lack what the observer itself does without."""


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
    from joulecast.measure.observer.observation import command_of, measure_command, measure_running
    from joulecast.measure.observer.observed_training import observed
    from joulecast.runs.spec import MeterSettings

    if (not command) == (request.attach is None):
        raise JoulecastError("give the training as a COMMAND behind `--`, or by --attach PID")
    if request.capture and request.attach is not None:
        raise JoulecastError(
            "--capture: of a process that runs already no network can be captured; give its COMMAND"
        )
    words = command_of(request.attach) if request.attach is not None else command or ()
    power = power_section(request.config)
    training = observed(request, words, MeterSettings(power.sysfs_root, tuple(power.command)))
    if request.capture:
        training = replace(training, capture=_CAPTURE)
    if request.attach is not None:
        _show(measure_running(training, request.attach, request.out, request.window_s))
        return
    ending, result = measure_command(training, request.out, window_s=request.window_s)
    _show(result)
    end_as(ending, _leave)


def _show(result: "Result") -> None:
    """Print what was measured to standard error: standard output belongs to the command."""
    from joulecast.report.measured_training import result_lines

    if lines := result_lines(result):
        typer.echo("\n".join(lines), err=True)
    sys.stderr.flush()


def _leave(code: int) -> None:
    raise typer.Exit(code)
