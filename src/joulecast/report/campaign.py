"""The answers that every campaign contains: forecasts, advice, and the costs of its settings.

The page shows these answers. Tables and JSON next to the page have them, too.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
from joulecast.runs.judging import OF_ENERGY, OURS, SETTING
from joulecast.runs.scale import scale_in_words, unit_of, usual_counts

ADVICE = "tables/advice"
"""Folder of the answers, below the results."""
COSTS = f"{ADVICE}/costs"
"""Table of the settings that were run, with their costs."""
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
    # The command reads prices from a single file.
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
    found: dict[str, Any] = {"advice": []}
    for one in advice:
        answer = one.answer and {k: v for k, v in one.answer.items() if k != "request"}
        row = asdict(one) | {"request": one.request.asked(), "answer": answer}
        found["advice"].append(row)
    if answers.forecast.content is not None:
        found["forecast"] = asdict(answers.forecast.content)
    for name, content in found.items():
        with written_aside(out / f"{name}.json") as partial:
            partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if answers.costs.content is None:
        return
    notes = [
        "Means over the runs of a setting. `time_s` and `energy_j` are for 1,000,000 samples; if `unit` is "
        "not samples, for one unit. `off_percent`: errors of MC2 if its fit had not seen the setting.",
    ]
    if prices.given:
        notes.append(
            f"Prices: {prices.in_words()}. `energy_kwh` is at the building's meter. `cost_rests_on` is the "
            "source of the energy in the cost. If it is `estimated`, the money is estimated too."
        )
    title = "Cost of the settings that were run"
    write_table(out / Path(COSTS).name, title, notes, answers.costs.content)


def work_in_words(unit: str) -> str:
    """The work for which costs are given: ``1,000,000 samples`` or ``1 epoch``."""
    return counted(int(work_of(unit)), unit.removesuffix("s"))


def advise_campaign(results: Results, runs: KnownRuns, priced_by: str | None) -> list[Advised]:
    """Advice for every network of the campaign. The objective is energy, as by default in ``joulecast
    advise``.

    Args:
        priced_by: path of the configuration with the prices, for the command in the advice.

    Raises:
        NothingToShow: no training run is left.
    """
    each = results.clean.sort_values("workload", kind="stable").drop_duplicates("workload")
    labels = names_of(list(each["network"].astype(str)), list(each["platform"].astype(str)))
    imported = results.folder / "imported"
    advised = []
    for row, label in zip(each.itertuples(), labels, strict=True):
        asked: dict[str, Any] = {"network": str(row.network), "platform": str(row.platform)}
        priced: dict[str, Any] = {"prices": priced_by} if priced_by else {}
        is_imported = row.kind == "imported" and imported.is_dir()
        place = imported if is_imported else results.folder / "records"
        request = AdviceRequest(**asked, **priced, records=(place,))
        answer, why = None, None
        try:
            answer = advise(runs, request, results.prices)
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
    # Imported runs, and runs whose samples are not known, are forecast for the work that they did.
    units = trained["work_unit"]
    units = units.mask((trained["kind"] == "imported") | (units == "steps"), _AS_RUN)
    for unit, of_unit in trained.groupby(units, sort=False):
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
    lasted, scales = trained["total_s"].astype(float), trained["nodes"]
    most = scale_in_words(int(scales.max()), trained["nodes_are"].iloc[0])
    on = most if scales.nunique() == 1 else f"{int(scales.min())} to {most}"
    runs_were = f"runs of {span(seconds(lasted.min()), seconds(lasted.max()))} on {on}"
    return CampaignForecast(rows, " or ".join(dict.fromkeys(works)), notes, runs_were)


def _in_range(table: pd.DataFrame, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of the forecast. Their node counts go from the smallest on which the workload was run to the
    largest of :func:`joulecast.runs.scale.usual_counts`."""
    known = dict(list(runs.groupby(["network", "platform"])))
    kept = []
    for row in json_rows(table):
        ran = known.get((row["workload"], row["platform"]))
        if ran is None:
            continue
        counts = sorted(map(int, ran["nodes"]))
        if counts[0] <= row["nodes"] <= max(usual_counts(counts)):
            has_steps = bool((ran["kind"] == "training").all())
            kept.append(row | {"most_run": counts[-1], "has_steps": has_steps})
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
    # Our own trainings have whole steps of their batch.
    done = [
        whole_steps(work_of(unit), batch) * batch if in_steps else work_of(unit)
        for unit, batch, in_steps in zip(unit, clean["batch"], ours, strict=True)
    ]
    parts = clean["samples"].where(clean["samples"] > 0) / done
    # Only some kinds of runs have these columns.
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
    return _with_errors(results, table.join(cost_columns(table, results.prices)))


def _with_errors(results: Results, table: pd.DataFrame) -> pd.DataFrame:
    """The table with MC2's errors for settings that it had not seen."""
    try:
        times = [judged_times(results.fit)]
    except NothingToShow:
        times = []
    energies = [cells for _, cells in judged_energies(results.fit)]
    for cells, keys, column in (
        (times, SETTING, "time_off_percent"),
        (energies, OF_ENERGY, "energy_off_percent"),
    ):
        if not cells:
            table = table.assign(**{column: np.nan})
            continue
        judged = pd.concat(cells).rename(columns={"difference_percent": column})
        unseen = judged[(judged["split"] != "in-sample") & (judged["model"] == OURS)]
        table = table.merge(unseen[[*keys, column]], on=keys, how="left", validate="many_to_one")
    return table
