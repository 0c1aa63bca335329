"""What a campaign answers by itself: forecasts, advice, what its settings cost, and what was measured.

The rule ``advice`` writes it, and the page shows it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecast.energy.fitting import KnownRuns
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.report import held_out
from joulecast.report.advice.advise import advise
from joulecast.report.advice.request import AdviceRequest
from joulecast.report.answers import costs
from joulecast.report.campaign_forecast import campaign_forecast
from joulecast.report.figures.forecast import names_of
from joulecast.report.measured_runs import facts_of
from joulecast.report.results_folder import COSTS, NothingToShow, Results, read_results
from joulecast.report.tables.output import write_table
from joulecast.report.tables.priced import price_notes
from joulecast.runs.files.writing import written_aside
from joulecast.runs.record import read_info


def advise_campaign(
    results: Results, runs: KnownRuns, priced_by: str | None = None
) -> list[dict[str, Any]]:
    """Advice for every network of the campaign: each asks for the least energy, as ``joulecast advise`` does.

    Args:
        runs: of the campaign.
        priced_by: the configuration that has the prices, as the command names it.

    Returns:
        by network ``name``, ``label`` (its name in charts), ``has_steps`` (whether its work is whole steps)
        and the ``request``; the ``answer`` of :func:`joulecast.report.advice.advise.advise`, or ``why_none``.

    Raises:
        NothingToShow: no training run is left.
    """
    each = results.clean.sort_values("workload", kind="stable").drop_duplicates("workload")
    labels = names_of(list(each["network"].astype(str)), list(each["platform"].astype(str)))
    folders = [Path(folder) for folder in runs.observations["folder"]]
    is_own = (results.folder / "records").is_dir()
    place = results.folder / ("records" if is_own else "imported")
    advised = []
    for row, label in zip(each.itertuples(), labels, strict=True):
        asked: dict[str, Any] = {"network": str(row.network), "platform": str(row.platform)}
        priced: dict[str, Any] = {"prices": priced_by} if priced_by else {}
        request = AdviceRequest(**asked, **priced, records=(place,))
        about = {
            "name": str(row.workload),
            "label": label,
            "has_steps": row.kind == "training",
            "request": request.asked(),
        }
        try:
            answer = advise(folders, request, results.prices, runs)
            advised.append(about | {"answer": answer})
        except JoulecastError as error:
            advised.append(about | {"why_none": str(error)})
    return advised


def write_answers(
    folder: Path, out: Path, prices: Prices = NO_PRICES, configfile: str | None = None
) -> None:
    """Write ``forecast.json``, ``advice.json``, the errors and facts beside them, and the table ``costs``.

    Each JSON file has its ``content``, unrounded; or ``why_none``, and the ``target`` of Snakemake that
    makes what is missing.

    Args:
        folder: results of a campaign that was fitted.
        out: folder of the tables.
        prices: of what things cost.
        configfile: of the campaign.

    Raises:
        JoulecastError: there are no fits, or a record cannot be read.
    """
    results = read_results(folder, prices)
    runs = KnownRuns.of_fit(results.fit)
    infos = [read_info(Path(record)) for record in results.observations["folder"]]
    # The command takes one file of prices.
    one_file = configfile if prices.given and " " not in (configfile or " ") else None
    parts: dict[str, Callable[[], Any]] = {
        "forecast": lambda: asdict(campaign_forecast(results, runs)),
        "advice": lambda: advise_campaign(results, runs, one_file),
        "errors": lambda: held_out.error_sentences(results),
        "errors_beyond": lambda: held_out.error_sentences(results, held_out.BEYOND),
        "errors_at_worst": lambda: held_out.more_on_errors(results),
        "facts": lambda: facts_of(infos, results),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, make in parts.items():
        with written_aside(out / f"{name}.json") as partial:
            partial.write_text(json.dumps(_part(make), indent=1) + "\n", encoding="utf-8")
    try:
        table = costs(results)
    except NothingToShow:
        return
    notes = [
        "Means over the runs of a setting. `time_s` and `energy_j` are for 1,000,000 samples, or one of "
        "another `unit`. `off_percent` columns: MC2, where it had not seen that setting.",
        *price_notes(prices),
    ]
    write_table(out / Path(COSTS).name, "What the settings cost that were run", notes, table)


def _part(make: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"content": make()}
    except JoulecastError as error:
        target = error.target if isinstance(error, NothingToShow) else "all"
        return {"why_none": str(error), "target": target}
