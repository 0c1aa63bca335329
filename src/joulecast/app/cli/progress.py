"""The command that says how far a campaign is, and what a running measurement draws."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.app.api.arguments import prices_of
from joulecast.app.cli.options import AsJson, Platforms, echo_json
from joulecast.energy.prices import Prices
from joulecast.errors import JoulecastError
from joulecast.quantities import digits, duration_in_words, joules
from joulecast.runs.files.shipped import MEASURED, PLATFORMS
from joulecast.runs.progress import progress_of, progress_of_training, progress_text
from joulecast.runs.request import Priced


def status(
    results: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with the results of a campaign (by default the one in the configuration), or the "
            "NAME of a training that `measure` ran."
        ),
    ] = None,
    configuration: Annotated[
        Path | None, typer.Option("--config", "--configfile", help="Configuration of the campaign.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Show the power of trainings that `joulecast measure` measures now. RESULTS is "
            "the folder that `measure --out` names.",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --live: number of steps of the whole training, to forecast its end."
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(help="With --live: configuration file with a section `prices`."),
    ] = None,
    platforms: Platforms = PLATFORMS,
    as_json: AsJson = False,
) -> None:
    """Show how far a campaign is: which runs are done, unfinished, failed or waiting, and why.

    Reads the records and logs, and writes nothing. The exit code is 0 if all is done, otherwise 1.
    """
    if live:
        _show_live(results or MEASURED, steps, prices_of(Priced(prices=prices)), as_json)
        return
    folder, specs, is_replay = results or Path("results"), None, False
    if configuration is not None:
        # This loads pandas. A command with a folder does not need it.
        from joulecast.app.campaign.config import read_config
        from joulecast.app.campaign.runs import campaign_runs
        from joulecast.runs.platforms import recorded_for

        config = read_config(configuration)
        folder, specs = results or Path(config.results), campaign_runs(config, platforms)
        is_replay = recorded_for(config.platform, platforms) is not None
    named = None if folder.exists() or specs is not None else progress_of_training(str(folder))
    progress = named or progress_of(folder, specs)
    if as_json:
        echo_json(progress.as_json())
    else:
        typer.echo(progress_text(progress, is_replay))
    raise typer.Exit(0 if progress.finished else 1)


def _show_live(out: Path, steps: int | None, prices: Prices, as_json: bool) -> None:
    from joulecast.measure.observer.live import running_measurements

    if not out.is_dir():
        raise JoulecastError(
            f"{out}: no such folder; give the folder of the records, as in `measure --out`"
        )
    rows: list[dict[str, Any]] = []
    for run in running_measurements(out, steps):
        whole_s = None if run.left_s is None else run.lasted_s + run.left_s
        money = None if whole_s is None else prices.money(whole_s, run.whole_j, run.hosts, None)
        rows.append(asdict(run) | {"whole_money": money, "currency": prices.currency})
        if as_json:
            continue
        if run.joules is None or run.watts is None:
            drawn = f"no energy: {run.why_no_energy}"
        else:
            drawn = f"{digits(run.watts)} W now, {joules(run.joules)} so far ({run.source})"
        parts = [f"{run.name}: {drawn} in {duration_in_words(run.lasted_s)}"]
        if run.steps is not None:
            parts.append(f"step {run.steps:,}" + ("" if steps is None else f" of {steps:,}"))
        if run.left_s is not None:
            whole = "" if run.whole_j is None else f"{joules(run.whole_j)} for the whole, "
            paid = "" if money is None else f"{prices.currency} {digits(money)}, "
            parts.append(f"{whole}{paid}about {duration_in_words(run.left_s)} left")
        elif steps is None:
            parts.append("how long it lasts is not known (give --steps)")
        typer.echo("; ".join(parts))
    if as_json:
        echo_json({"runs": rows})
    elif not rows:
        typer.echo(f"{out}: no measurement runs")
