"""The forecast of a campaign's networks for the work that all costs are given for, on every scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from joulecast.energy.fitting import KnownRuns
from joulecast.energy.forecast import forecast_table, work_of
from joulecast.energy.plain import plain_rows
from joulecast.energy.prices import Prices
from joulecast.energy.request import Scales
from joulecast.errors import JoulecastError
from joulecast.quantities import seconds, span
from joulecast.report.results_folder import FORECAST, NothingToShow, Results
from joulecast.report.tables.priced import work_in_words
from joulecast.runs.scale import BEYOND, is_observed, scale_in_words, unit_of, usual_counts

_AS_RUN = "the work that was run"


@dataclass(frozen=True)
class CampaignForecast:
    """Rows of :func:`joulecast.energy.forecast.forecast`, for the work ``work_is`` in words.

    Money and CO2 of what was run (``measured_cost``, ``measured_co2_kg``) are by the same prices. ``notes``
    say what is not forecast, and why. ``most_run`` of a row is the largest scale that its training was run
    on; ``runs_were`` says how long runs lasted, and on what.
    """

    rows: list[dict[str, Any]]
    work_is: str
    notes: list[str]
    runs_were: str


def campaign_forecast(results: Results, runs: KnownRuns) -> CampaignForecast:
    """Forecasts from the fewest nodes that were run up to the end of the table ``scaling_forecast``, or to
    four times the most that were run.

    Runs that count the same are forecast together, as one chart shows them; the kind with most runs counts.

    Raises:
        NothingToShow: nothing can be forecast.
    """
    trained = runs.trained
    counted_in = trained["nodes_are"].map(unit_of)
    trained = trained[counted_in == counted_in.mode().iloc[0]]
    rows, notes, works = [], [], []
    for unit, of_unit in trained.groupby(_units(trained), sort=False):
        try:
            table, refused = forecast_table(
                runs, _asked(results, of_unit, str(unit)), results.prices
            )
        except JoulecastError as error:
            notes.append(str(error))
            continue
        names = {*of_unit["workload"], *of_unit["network"]}
        rows += [_with_paid(row, results.prices) for row in _in_range(table, of_unit, results)]
        notes += [
            note
            for note in refused
            if note.startswith(tuple(f"{n}{end}" for n in names for end in " :"))
        ]
        works.append(_AS_RUN if unit == _AS_RUN else work_in_words(str(unit)))
    if not rows:
        raise NothingToShow("; ".join(notes) or "no training can be forecast", "measure")
    return CampaignForecast(
        rows,
        " or ".join(dict.fromkeys(works)),
        notes,
        _in_words(trained),
    )


def _in_words(trained: pd.DataFrame) -> str:
    """How long runs lasted, and on how many nodes: ``runs of 1.10 s to 2.79 s on 1 to 4 nodes``."""
    lasted, scales = trained["total_s"].astype(float), trained["nodes"]
    times_s = span(seconds(lasted.min()), seconds(lasted.max()))
    most = scale_in_words(int(scales.max()), trained["nodes_are"].iloc[0])
    few = int(scales.min())
    return f"runs of {times_s} on {most if few == scales.max() else f'{few} to {most}'}"


def _units(trained: pd.DataFrame) -> pd.Series:
    """What the work of each run is asked for in; runs of others, and those whose samples are not known, are
    forecast for the work that they did."""
    units = trained["work_unit"]
    return units.mask((trained["kind"] == "imported") | (units == "steps"), _AS_RUN)


def _last(results: Results, most: int) -> int:
    table = results.tables.get(FORECAST)
    if table is None or not {"nodes", "rests_on"} <= set(table.columns):
        return BEYOND * most
    fitted = table.loc[table["rests_on"] == "fitted", "nodes"]
    return max(most, int(fitted.max())) if len(fitted) else BEYOND * most


def _asked(results: Results, runs: pd.DataFrame, unit: str) -> Scales:
    ran = [int(count) for count in runs["nodes"]]
    scales = usual_counts(ran, _last(results, max(ran)))
    scale = {"gpus" if is_observed(runs) else "nodes": scales}
    work: dict[str, Any] = {} if unit == _AS_RUN else {unit: work_of(unit)}
    return Scales(**scale, **work)


def _in_range(table: pd.DataFrame, runs: pd.DataFrame, results: Results) -> list[dict[str, Any]]:
    """Rows of each workload from the fewest nodes that it was run on, as far as it is forecast.

    ``has_steps`` of a row says whether its work is whole steps of its batch.
    """
    count = "gpus" if is_observed(runs) else "nodes"
    ran = runs.groupby(["network", "platform"])["nodes"]
    most = {key: int(nodes.max()) for key, nodes in ran}
    own = (runs["kind"] == "training").groupby([runs["network"], runs["platform"]]).all()
    stepped = {key: bool(is_own) for key, is_own in own.items()}
    ends = {key: (int(nodes.min()), _last(results, int(nodes.max()))) for key, nodes in ran}
    kept = []
    for row in plain_rows(table):
        fewest, last = ends.get((row["workload"], row["platform"]), (0, -1))
        if fewest <= row[count] <= last:
            key = (row["workload"], row["platform"])
            kept.append(row | {"most_run": most[key], "has_steps": stepped[key]})
    return kept


def _with_paid(row: Mapping[str, Any], prices: Prices) -> dict[str, Any]:
    """The row with money and CO2 of what was run."""
    seconds, joules = row["measured_time_s"], row["measured_energy_j"]
    ran = seconds is not None
    return {
        **row,
        "measured_cost": prices.money(seconds, joules, row["nodes"], row["gpus"]) if ran else None,
        "measured_co2_kg": prices.co2_kg(joules),
    }
