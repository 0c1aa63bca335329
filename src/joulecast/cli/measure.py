"""The command that measures any training: it runs the user's command and leaves a run record."""

import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.cli.errors import shown
from joulecast.errors import JoulecastError
from joulecast.files.shipped import PLATFORMS
from joulecast.quantities import counted, digits, duration_s, is_number, joules, percent, seconds
from joulecast.records.record import MEASURED

if TYPE_CHECKING:
    from joulecast.records.record import RunRecord

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
    from joulecast.observer.assemble import Asked
    from joulecast.observer.command import end_as
    from joulecast.observer.measure import check_name, measure_command
    from joulecast.platforms import find_platform

    named = name or _name_of(command)
    check_name(named)
    if not (math.isfinite(period) and 0.01 <= period <= 60):
        raise JoulecastError(f"--period {period:g}: give 0.01 to 60 s")
    asked = Asked(
        named,
        tuple(command),
        find_platform(platform, PLATFORMS),
        samples_per_step,
        _steps(steps),
        _meters(meters),
        period,
    )
    window_s = None if window is None else duration_s(window)
    measured = measure_command(asked, out, window_s=window_s)
    # The command's own standard output is nobody else's.
    if measured.record is not None and measured.folder is not None:
        typer.echo("\n".join(_summary(measured.record, measured.folder)), err=True)
    elif measured.why_not is not None:
        typer.echo(f"joulecast: no record: {shown(JoulecastError(measured.why_not))}", err=True)
    sys.stderr.flush()
    end_as(measured.ending, _leave)


_STAGES = {
    "materials": "t_materials_s",
    "computing": "t_computing_s",
    "waiting for ranks": "t_communicating_wait_s",
    "exchange": "t_communicating_copy_s",
    "update": "t_update_s",
    "other": "t_other_s",
}


def _summary(record: "RunRecord", folder: Path) -> list[str]:
    """What was measured, in some lines."""
    from joulecast.energy.observations import observe

    info, row = record.info, observe(record)
    outcome = info.outcome
    lines = [f"joulecast: {folder}"]
    if outcome.steps:
        step_s = row["total_s"] / outcome.steps
        unit = "" if info.spec.observed is None else info.spec.observed.work_unit
        batch = (
            f"{digits(info.spec.global_batch_size)} samples"
            if unit == "samples"
            else "samples unknown"
        )
        ranks = counted(info.spec.ranks, "rank")
        lines.append(f"  {counted(outcome.steps, 'step')} of {seconds(step_s)} ({batch}), {ranks}")
        shares = [
            f"{name} {percent(100 * row[column] / step_s)}"
            for name, column in _STAGES.items()
            if is_number(row[column]) and row[column] > 0
        ]
        lines.append(f"  a step is {', '.join(shares)}")
    energy = joules(row["energy_j"])
    if is_number(row["energy_j"]):
        watts = row["energy_j"] / row["total_s"]
        each = (
            f", {joules(row['energy_j'] / outcome.samples)} a sample"
            if outcome.samples and unit == "samples"
            else ""
        )
        lines.append(
            f"  {energy} in {seconds(row['total_s'])} ({digits(watts)} W{each}), {row['energy_source']}"
        )
    else:
        lines.append(f"  no energy: {row['why_no_energy']}")
    lines += [f"  {stage} not seen: {why}" for stage, why in info.unseen.items()]
    lines += [f"  left out of forecasts: {why}" for why in info.polluted]
    lines += [f"  disturbed: {why}" for why in info.disturbed]
    return lines


def _leave(code: int) -> None:
    raise typer.Exit(code)


def _name_of(command: list[str]) -> str:
    """Name of the script that a command runs; of the program, where there is none."""
    scripts = [Path(word).stem for word in command if word.endswith(".py")]
    name = scripts[0] if scripts else Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("._-") or "training"


def _meters(text: str) -> tuple[str, ...]:
    from joulecast.power.meter_registry import METERS

    names = tuple(filter(None, text.split(",")))
    unknown = [name for name in names if name not in METERS]
    if unknown or not names:
        raise JoulecastError(
            f"--meters {text}: {', '.join(unknown) or 'nothing'} is no meter; known are {', '.join(METERS)}"
        )
    return names
