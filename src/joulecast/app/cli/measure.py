"""The command that measures any training: it runs the user's command and leaves a run record."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.app.cli.meters import power_section
from joulecast.app.cli.options import MeteredPlatform, PowerConfig
from joulecast.errors import JoulecastError
from joulecast.measure.power.meter_registry import ALL_METERS
from joulecast.quantities import duration_s
from joulecast.runs.folders import MEASURED
from joulecast.runs.spec import THIS_MACHINE

if TYPE_CHECKING:
    from joulecast.measure.observer.observation import Result

_STEPS = re.compile(r"(\d+):(\d+)")


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _STEPS.fullmatch(text)
    if found is None:
        raise JoulecastError(f"--steps {text}: give the first and the last one, as 10:200")
    return int(found[1]), int(found[2])


def _window_s(text: str | None) -> float | None:
    if text is None:
        return None
    if (seconds := duration_s(text)) <= 0:
        raise JoulecastError(f"--for {text}: give more than 0 s")
    return seconds


def measure(
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Behind `--`: the training as you start it.", metavar="-- COMMAND"),
    ] = None,
    attach: Annotated[
        int | None,
        typer.Option(
            help="PID of a process that runs already, in place of a COMMAND. Its steps are not seen."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the training, for `forecast NAME`; by default the name of its script."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the records; all hosts must see it.")
    ] = MEASURED,
    samples_per_step: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples of a step on all ranks; by default the batches of the loaders."
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="First and last step that count, as 10:200; all but the first one."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--for", help="Time to measure, as 10min; the training runs on."),
    ] = None,
    meters: Annotated[
        str, typer.Option(help="Meters, best first; all of them by default.")
    ] = ",".join(ALL_METERS),
    period: Annotated[float, typer.Option(help="Seconds between two readings.")] = 0.1,
    platform: MeteredPlatform = THIS_MACHINE,
    config: PowerConfig = None,
) -> None:
    """Run a training and measure its power, its time, and the stages of its steps."""
    from joulecast.measure.observer.command import end_as
    from joulecast.measure.observer.observation import command_of, measure_command, measure_running
    from joulecast.measure.observer.request import measure_request

    if (not command) == (attach is None):
        raise JoulecastError("give the training as a COMMAND behind `--`, or by --attach PID")
    words = list(command or ()) if attach is None else list(command_of(attach))
    power = power_section(config)
    asked = measure_request(
        _name_of(words) if name is None else name,
        tuple(words),
        platform=platform,
        samples_per_step=samples_per_step,
        steps=_steps(steps),
        meters=tuple(filter(None, meters.split(","))),
        period_s=period,
        sysfs_root=power.sysfs_root,
        power_command=tuple(power.command),
    )
    window_s = _window_s(window)
    if attach is not None:
        _show(measure_running(asked, attach, out, window_s))
        return
    ending, result = measure_command(asked, out, window_s=window_s)
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


def _name_of(command: list[str]) -> str:
    """Name of the script that a command runs; of the program, where there is none."""
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    name = scripts[0] if scripts else Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("._-") or "training"
