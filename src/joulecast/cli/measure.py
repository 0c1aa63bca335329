"""The command that measures any training: it runs the user's command and leaves a run record."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from joulecast.errors import JoulecastError
from joulecast.quantities import duration_s
from joulecast.records.record import MEASURED

_STEPS = re.compile(r"(\d+):(\d+)")


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _STEPS.fullmatch(text)
    if found is None:
        raise JoulecastError(f"--steps {text}: give the first and the last one, as 10:200")
    return int(found[1]), int(found[2])


def measure(
    command: Annotated[
        list[str],
        typer.Argument(help="Behind `--`: the training as you start it.", metavar="-- COMMAND"),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="Of the training, for `forecast NAME`; else that of its script."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the records; all hosts must see it.")
    ] = MEASURED,
    samples_per_step: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples that all ranks train on in a step; else as its loaders show."
        ),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(help="First and last step that count, as 10:200; all but the first one."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--for", help="Measure so long, as 10min; the training runs on."),
    ] = None,
    meters: Annotated[str, typer.Option(help="Meters, best first.")] = "nvml,rapl,estimated",
    period: Annotated[float, typer.Option(help="Seconds between two readings.")] = 0.1,
    platform: Annotated[
        str, typer.Option(help="What it runs on: a name, or a FILE.yaml.")
    ] = "this-machine",
) -> None:
    """Run a training and measure its power, its time, and the stages of its steps."""
    from joulecast.observer.asked import asked_of
    from joulecast.observer.command import end_as
    from joulecast.observer.measure import measure_command
    from joulecast.report.measured_training import result_lines

    asked = asked_of(
        name or _name_of(command),
        tuple(command),
        platform=platform,
        samples_per_step=samples_per_step,
        steps=_steps(steps),
        meters=tuple(filter(None, meters.split(","))),
        period_s=period,
    )
    window_s = None if window is None else duration_s(window)
    ending, result = measure_command(asked, out, window_s=window_s)
    # Standard output belongs to the command.
    if lines := result_lines(result):
        typer.echo("\n".join(lines), err=True)
    sys.stderr.flush()
    end_as(ending, _leave)


def _leave(code: int) -> None:
    raise typer.Exit(code)


def _name_of(command: list[str]) -> str:
    """Name of the script that a command runs; of the program, where there is none."""
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    name = scripts[0] if scripts else Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("._-") or "training"
