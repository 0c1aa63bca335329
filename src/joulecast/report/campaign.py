"""The answers that every campaign contains: forecasts, advice, and the costs of its settings.

The page shows these answers. Tables and JSON next to the page have them, too.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.forecast import forecast_table, texts_of, whole_steps, work_of
from joulecast.energy.prices import Prices, cost_columns
from joulecast.energy.request import Scales
from joulecast.errors import JoulecastError
from joulecast.quantities import counted, seconds, span
from joulecast.report.advice.advise import advise
from joulecast.report.advice.request import AdviceRequest
from joulecast.report.results_folder import NothingToShow, Part, Results, names_of
from joulecast.report.tables.errors import judged_energies, judged_times
from joulecast.report.tables.output import write_table
from joulecast.runs.files.writing import written_aside
from joulecast.runs.json_values import json_rows
from joulecast.runs.judging import OURS
from joulecast.runs.scale import scale_in_words, unit_of, usual_counts

ADVICE = "tables/advice"
"""Folder of the answers, below the results."""
COSTS = f"{ADVICE}/costs"
"""The table of the settings that were run, and their cost."""
_AS_RUN = "the work that was run"
_SCALE = ("ranks_per_host", "accelerators_per_node")


@dataclass(frozen=True)
class CampaignForecast:
    """The forecast of a campaign: rows of :func:`joulecast.energy.forecast.forecast`. ``work_is`` names the
    amount of work for which they hold.

    ``notes`` say what is not forecast, and why. ``most_run`` of a row is the largest scale on which its
    training was run. ``has_steps`` says whether its work is a number of whole steps. ``runs_were`` says how
    long the runs lasted, and on how many nodes.
    """

    rows: list[dict[str, Any]]
    work_is: str
    notes: list[str]
    runs_were: str


@dataclass(frozen=True)
class Advised:
    """Advice on one network: the request and its answer, or why there is none.

    ``label`` is the network's name in charts. ``has_steps`` says whether the work is a number of whole steps.
    """

    name: str
    label: str
    has_steps: bool
    request: AdviceRequest
    answer: dict[str, Any] | None = None
    why_none: str | None = None


@dataclass(frozen=True)
class CampaignAnswers:
    """The forecast (:class:`CampaignForecast`), the advice (a list of :class:`Advised`) and the costs (of
    :func:`costs`), or why there are none."""

    forecast: Part
    advice: Part
    costs: Part


def campaign_answers(results: Results, configfile: str | None = None) -> CampaignAnswers:
    """The answers of a campaign.

    Args:
        configfile: the campaign's configuration file. The command in the advice names it, because it has the
            prices.
    """
    runs = KnownRuns.of_fit(results.fit)
    # The command takes one file of prices.
    one_file = configfile if results.prices.given and " " not in (configfile or " ") else None
    return CampaignAnswers(
        Part.of(lambda: campaign_forecast(results, runs)),
        Part.of(lambda: advise_campaign(results, runs, one_file)),
        Part.of(lambda: costs(results)),
    )


def write_answers(answers: CampaignAnswers, out: Path, prices: Prices) -> None:
    """Write ``forecast.json`` and ``advice.json`` (unrounded), and the table ``costs``. An answer that does
    not exist is not written."""
    out.mkdir(parents=True, exist_ok=True)
    advice = answers.advice.content or []
    found: dict[str, Any] = {
        "advice": [asdict(one) | {"request": one.request.asked()} for one in advice]
    }
    if answers.forecast.content is not None:
        found["forecast"] = asdict(answers.forecast.content)
    for name, content in found.items():
        with written_aside(out / f"{name}.json") as partial:
            partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if answers.costs.content is None:
        return
    notes = [
        "Means over the runs of a setting. `time_s` and `energy_j` are for 1,000,000 samples, or one of "
        "another `unit`. `off_percent` columns: MC2, where it had not seen that setting.",
    ]
    if prices.given:
        notes.append(
            f"Prices: {prices.in_words()}. `energy_kwh` is at the building's meter. `cost_rests_on` says "
            "what the energy in the cost is: where that is `estimated`, the money is estimated too."
        )
    title = "Cost of the settings that were run"
    write_table(out / Path(COSTS).name, title, notes, answers.costs.content)


def work_in_words(unit: str) -> str:
    """The work for which costs are given: ``1,000,000 samples`` or ``1 epoch``."""
    return counted(int(work_of(unit)), unit.removesuffix("s"))


def advise_campaign(
    results: Results, runs: KnownRuns, priced_by: str | None = None
) -> list[Advised]:
    """Advice for every network of the campaign. The objective is energy, as by default in ``joulecast
    advise``.

    Args:
        runs: the campaign's runs.
        priced_by: path of the configuration with the prices, for the command in the advice.

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
        answer, why = None, None
        try:
            answer = advise(folders, request, results.prices, runs)
        except JoulecastError as error:
            why = str(error)
        has_steps = row.kind == "training"
        advised.append(Advised(str(row.workload), label, has_steps, request, answer, why))
    return advised


def campaign_forecast(results: Results, runs: KnownRuns) -> CampaignForecast:
    """Forecasts for node counts from the smallest that was run to four times the largest.

    A chart can show only runs that count in the same unit. So only the runs with the most frequent unit are
    forecast.

    Raises:
        NothingToShow: nothing can be forecast.
    """
    trained = runs.trained
    counted_in = trained["nodes_are"].map(unit_of)
    trained = trained[counted_in == counted_in.mode().iloc[0]]
    rows, notes, works = [], [], []
    for unit, of_unit in trained.groupby(_units(trained), sort=False):
        work: dict[str, Any] = {} if unit == _AS_RUN else {unit: work_of(str(unit))}
        try:
            table, found = forecast_table(runs, Scales(**work), results.prices)
        except JoulecastError as error:
            notes.append(str(error))
            continue
        names = {*of_unit["workload"], None}
        rows += _in_range(table, of_unit)
        notes += texts_of(note for note in found if note.workload in names)
        works.append(_AS_RUN if unit == _AS_RUN else work_in_words(str(unit)))
    if not rows:
        raise NothingToShow("; ".join(notes) or "no training can be forecast", "measure")
    work_is = " or ".join(dict.fromkeys(works))
    return CampaignForecast(rows, work_is, notes, _runs_in_words(trained))


def _runs_in_words(trained: pd.DataFrame) -> str:
    """How long runs lasted, and on how many nodes: ``runs of 1.10 s to 2.79 s on 1 to 4 nodes``."""
    lasted, scales = trained["total_s"].astype(float), trained["nodes"]
    times_s = span(seconds(lasted.min()), seconds(lasted.max()))
    most = scale_in_words(int(scales.max()), trained["nodes_are"].iloc[0])
    few = int(scales.min())
    return f"runs of {times_s} on {most if few == scales.max() else f'{few} to {most}'}"


def _units(trained: pd.DataFrame) -> pd.Series:
    """The unit of the work that is asked for, for each run. Runs of others, and runs whose samples are
    not known, are forecast for the work that they did."""
    units = trained["work_unit"]
    return units.mask((trained["kind"] == "imported") | (units == "steps"), _AS_RUN)


def _in_range(table: pd.DataFrame, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of each workload, from the fewest nodes on which it was run to the usual last count."""
    known = {}
    for key, of_workload in runs.groupby(["network", "platform"]):
        ran = of_workload["nodes"]
        has_steps = bool((of_workload["kind"] == "training").all())
        known[key] = (int(ran.min()), max(usual_counts(map(int, ran))), int(ran.max()), has_steps)
    kept = []
    for row in json_rows(table):
        fewest, last, most, has_steps = known.get(
            (row["workload"], row["platform"]), (0, -1, 0, False)
        )
        if fewest <= row["nodes"] <= last:
            kept.append(row | {"most_run": most, "has_steps": has_steps})
    return kept


def costs(results: Results) -> pd.DataFrame:
    """A row for each setting: ``time_s`` and ``energy_j`` for the work of :func:`work_in_words` (means over
    the setting's runs), and kWh, money and CO2.

    ``time_off_percent`` and ``energy_off_percent`` are MC2's errors for settings that it had not seen.

    Raises:
        NothingToShow: no training run is left.
    """
    clean = results.clean
    unit = clean["work_unit"]
    ours = (clean["kind"] == "training") & clean["batch"].gt(0) & (unit == "samples")
    batches = clean["batch"].where(ours)
    done = [_work_done(*each) for each in zip(unit, batches, strict=True)]
    parts = clean["samples"].where(clean["samples"] > 0) / done
    # Columns that only some kinds of runs have.
    clean = clean.reindex(columns=[*dict.fromkeys([*clean.columns, *_SCALE])])
    priced = clean.assign(
        unit=unit,
        time_s=clean["total_s"] / parts,
        work_j=clean["energy_j"].astype(float) / parts,
        has_steps=ours,
        energy_source=clean["energy_source"].where(clean["energy_j"].notna()),
        why=clean.get("why_no_energy"),
    )
    by = ["platform", "workload", "network", "nodes", "nodes_are", "batch", "energy_source", "unit"]
    table = (
        priced.groupby(by, dropna=False, sort=True)
        .agg(
            ranks_per_host=("ranks_per_host", "first"),
            accelerators_per_node=("accelerators_per_node", "first"),
            runs=("run", "count"),
            time_s=("time_s", "mean"),
            has_steps=("has_steps", "all"),
            energy_j=("work_j", "mean"),
            why=("why", "first"),
        )
        .reset_index()
    )
    table = table.astype({"energy_j": float})
    return table.join(cost_columns(table, results.prices)).assign(**_errors(results, table))


def _work_done(unit: str, batch: float | None) -> float:
    """What a training does for the work of :func:`~joulecast.energy.forecast.work_of`: whole steps of
    its batch."""
    work = work_of(unit)
    if batch is None or pd.isna(batch) or unit != "samples":
        return work
    return whole_steps(work, batch) * batch


def _errors(results: Results, table: pd.DataFrame) -> dict[str, list[float | None]]:
    """Columns with MC2's errors for settings that it had not seen."""
    try:
        times = _by_setting(judged_times(results.fit))
    except NothingToShow:
        times = {}
    energies = {source: _by_setting(cells) for source, cells in judged_energies(results.fit)}
    keys = _keys(table)
    of_source = [energies.get(source, {}) for source in table["energy_source"]]
    return {
        "time_off_percent": [times.get(key) for key in keys],
        "energy_off_percent": [cells.get(key) for cells, key in zip(of_source, keys, strict=True)],
    }


def _keys(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Keys by which settings are looked up. A batch that no log has is NaN, which is not equal to itself."""
    settings = table[["platform", "network", "nodes", "batch"]]
    return list(settings.astype(object).where(settings.notna(), None).itertuples(False, None))


def _by_setting(cells: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Errors of MC2 for settings that no fit had seen."""
    unseen = cells[(cells["split"] != "in-sample") & (cells["model"] == OURS)]
    return dict(zip(_keys(unseen), unseen["difference_percent"].astype(float), strict=True))
