"""The command that says how far a campaign is."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.api.given import given_prices
from joulecast.campaign.progress import (
    Progress,
    Seen,
    State,
    progress_line,
    progress_of,
    progress_text,
    remove_disturbed,
)
from joulecast.cli.options import AsJson, Platforms, PricesFile, echo_json
from joulecast.energy.prices import Prices
from joulecast.errors import JoulecastError
from joulecast.files.shipped import PLATFORMS
from joulecast.quantities import counted
from joulecast.records.spec import RunSpec

_STILL_S = 60.0
"""For so long nothing may run and nothing change until a campaign with failed runs counts as ended: between
two runs, too, nothing runs for a moment."""

Results = Annotated[
    Path | None,
    typer.Argument(help="Folder of a campaign's results (default: the configuration's)."),
]
Configuration = Annotated[
    Path | None, typer.Option("--config", "--configfile", help="Configuration of the campaign.")
]


def status(
    results: Results = None,
    configuration: Configuration = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Continue until all is done, no run was active for a minute after a failure, or Ctrl-C.",
        ),
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Show what the runs in progress draw, have drawn, and will cost; also those of "
            "`joulecast measure`, if RESULTS is its --out.",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="With --live: steps of the whole training, of a command."),
    ] = None,
    prices: PricesFile = None,
    platforms: Platforms = PLATFORMS,
    as_json: AsJson = False,
) -> None:
    """Say how far a campaign is: runs done, running, failed, waiting, and the time left.

    Reads the records and the journal of attempts, and writes nothing. Ends with 0 when all is done, else 1.
    """
    if live:
        folder, specs = _asked(results, configuration, platforms)
        paid = _prices(configuration) if prices is None else given_prices(prices)
        _show_live(folder, specs, steps, paid, interval if watch else None, as_json)
        return
    folder, specs = _asked(results, configuration, platforms)
    seen: Seen = {}

    def look() -> Progress:
        return progress_of(folder, specs, seen)

    progress = look()
    if watch:
        progress = _watch(look, progress, interval, as_json, ends=specs is not None)
    if not watch:
        shown = json.dumps(progress.as_json(), indent=1) if as_json else progress_text(progress)
        typer.echo(shown)
    raise typer.Exit(0 if progress.finished else 1)


def _prices(configuration: Path | None) -> Prices:
    """Those of the campaign's configuration, if it has any."""
    if configuration is None:
        return Prices()
    from joulecast.campaign.config import read_config

    return Prices(**read_config(configuration).prices.model_dump())


def _show_live(
    folder: Path,
    specs: Sequence[RunSpec] | None,
    steps: int | None,
    prices: Prices,
    interval_s: float | None,
    as_json: bool,
) -> None:
    """Show the runs in progress, once, or every so often: of a campaign until its end, else until none is
    left."""
    from joulecast.report.in_progress import CampaignEnergy, Watch

    if not folder.is_dir():
        raise JoulecastError(
            f"{folder}: no such folder; give that of the records, or of a campaign's results"
        )
    seen: Seen = {}
    watch, energy, end = Watch(folder, steps), CampaignEnergy(folder), _End(specs is not None)
    with suppress(KeyboardInterrupt):
        while True:
            runs = watch.look()
            whole, ends = None, not runs
            if (folder / "attempts").is_dir():
                progress = progress_of(folder, specs, seen)
                # Between two runs none is in progress.
                whole, ends = energy.look(progress, runs), end.reached(progress)
            if as_json:
                shown: dict[str, Any] = {"runs": [run.as_json(prices) for run in runs]}
                echo_json(shown | {"campaign": None if whole is None else asdict(whole)})
            else:
                now = "" if interval_s is None else f"{datetime.now():%Y-%m-%d %H:%M:%S}  "
                lines = [run.line(prices) for run in runs] or [f"{folder}: no run is in progress"]
                lines += [] if whole is None else [whole.line(prices)]
                typer.echo("\n".join(now + line for line in lines))
            sys.stdout.flush()
            if interval_s is None or ends:
                return
            time.sleep(interval_s)


def remeasure(
    results: Results = None,
    configuration: Configuration = None,
) -> None:
    """Remove the runs that other programs disturbed.

    The next start of the campaign measures these runs, and no others.
    """
    folder, _ = _asked(results, configuration, PLATFORMS, runs=False)
    removed = remove_disturbed(folder)
    if not removed:
        typer.echo(f"{folder}: no run was disturbed; nothing is to be measured again")
        return
    typer.echo(f"{folder}: removed {counted(len(removed), 'disturbed run')}: {', '.join(removed)}")
    file = "" if folder == Path("results") else " --configfile FILE"
    flags = file if configuration is None else f" --configfile {configuration}"
    typer.echo(f"the next start measures them again: ./run snakemake --cores all{flags}")


def _asked(
    results: Path | None, configuration: Path | None, platforms: Path, *, runs: bool = True
) -> tuple[Path, list[RunSpec] | None]:
    """The folder to look at, and the runs that should be there; ``None`` where no configuration says."""
    if configuration is None:
        return Path("results") if results is None else results, None
    # Loads pandas and torchvision's data sets' names, which a look at a folder does not need.
    from joulecast.campaign.config import read_config
    from joulecast.campaign.runs import campaign_runs

    config = read_config(configuration)
    return results or Path(config.results), campaign_runs(config, platforms) if runs else None


class _End:
    """Tells when there is nothing more to wait for."""

    def __init__(self, asked: bool) -> None:
        """Make a detector; without runs that were ``asked`` for it never sees an end."""
        self._asked = asked
        self._states: list[tuple[str, State]] = []
        self._since_s = 0.0

    def reached(self, progress: Progress) -> bool:
        """Whether all is done, or some runs went wrong and nothing has run for a while."""
        states, now_s = [(run.run, run.state) for run in progress.runs], time.monotonic()
        if states != self._states or progress.of("running"):
            self._states, self._since_s = states, now_s
        if not self._asked:
            return False
        wrong = [*progress.of("failed"), *progress.of("damaged")]
        still = bool(wrong) and now_s - self._since_s >= _STILL_S
        return progress.finished or still


def _watch(
    look: Callable[[], Progress],
    progress: Progress,
    interval_s: float,
    as_json: bool,
    *,
    ends: bool,
) -> Progress:
    """Show the progress every so often; a bar on a terminal, else one line each time."""
    if sys.stdout.isatty() and not as_json:
        return _watch_on_terminal(look, progress, interval_s, ends=ends)
    end = _End(ends)
    with suppress(KeyboardInterrupt):
        while True:
            if as_json:
                typer.echo(json.dumps(progress.as_json()))
            else:
                now = datetime.now().isoformat(" ", timespec="seconds")
                typer.echo(f"{now}  {progress_line(progress)}")
            sys.stdout.flush()
            if end.reached(progress):
                break
            time.sleep(interval_s)
            progress = look()
    return progress


def _watch_on_terminal(
    look: Callable[[], Progress], progress: Progress, interval_s: float, *, ends: bool
) -> Progress:
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    end = _End(ends)
    text = TextColumn("{task.description}", markup=False)
    with Bar(BarColumn(20), text) as bar, suppress(KeyboardInterrupt):
        task = bar.add_task("", total=progress.total)
        while True:
            done = len(progress.of("done"))
            shown = progress_line(progress, brief=True)
            bar.update(task, completed=done, description=shown)
            if end.reached(progress):
                break
            time.sleep(interval_s)
            progress = look()
    typer.echo(progress_text(progress))
    return progress
