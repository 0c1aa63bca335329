"""The command that makes records of what killed measurements left."""

from pathlib import Path
from typing import Annotated

import typer

from joulecast.quantities import counted, lasting


def recover(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of records (as of `joulecast measure --out`), or of a campaign's results."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the records that are made (default: FOLDER, of a campaign FOLDER/recovered)."
        ),
    ] = None,
) -> None:
    """Make records of measurements that were killed, from the samples and steps that they had written.

    The records are marked as incomplete, and no model is fitted to them. At most the last five seconds of
    samples are lost. Ends with 1 if something was found of which no record can be made.
    """
    from joulecast.errors import JoulecastError
    from joulecast.observer.job_record import recovered_jobs
    from joulecast.training.unfinished import recovered_runs

    if not folder.is_dir():
        raise JoulecastError(
            f"{folder}: no such folder; give that of the records, or of a campaign's results"
        )
    found = list(recovered_jobs(folder, out or folder))
    found += recovered_runs(folder / "attempts", out or folder / "recovered")
    for left in found:
        if left.record is None:
            typer.echo(f"no record: {left.why_not}", err=True)
        else:
            what = f"{counted(left.steps, 'step')} in {lasting(left.lasted_s)}"
            typer.echo(f"{left.record}: {what}, incomplete")
    if not found:
        typer.echo(f"{folder}: holds no measurement that was killed")
    if any(left.record is None for left in found):
        raise typer.Exit(1)
