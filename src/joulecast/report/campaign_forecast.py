"""The forecast of a campaign's networks for the work that all costs are given for, on every scale."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from joulecast.energy.fitting import KnownRuns
from joulecast.energy.forecast import Asked, forecast_table
from joulecast.energy.plain import plain_rows
from joulecast.energy.prices import Prices, cost_keys
from joulecast.energy.scale import is_observed, unit_of
from joulecast.errors import JoulecastError
from joulecast.planning.from_records import LONG_TRAINING
from joulecast.report.results_folder import NothingToShow, Results
from joulecast.report.tables.priced import work_in_words, work_of

_BEYOND = 4
"""Times the largest scale that was run, up to which is forecast where no table says how far."""
_MOST_READ = 500
_AMOUNTS = (
    *("work", "measured_time_s", "measured_energy_j"),
    *(
        f"{name}{end}{unit}"
        for name, unit in (("time", "_s"), ("energy", "_j"))
        for end in ("", "_low", "_high")
    ),
    *cost_keys(),
)


@dataclass(frozen=True)
class CampaignForecast:
    """Rows of :func:`joulecast.energy.forecast.forecast`, for the work ``work_is`` in words.

    Money and CO2 of what was run (``measured_cost``, ``measured_co2_kg``) are by the same prices. ``notes``
    say what is not forecast, and why.
    """

    rows: list[dict[str, Any]]
    work_is: str
    notes: list[str]


def campaign_forecast(results: Results) -> CampaignForecast:
    """Forecasts from the fewest nodes that were run up to the end of the table ``scaling_forecast``, or to
    four times the most that were run.

    Runs that count the same are forecast together, as one chart shows them; the kind with most runs counts.

    Raises:
        NothingToShow: there are no records, or too many to fit while a page is made.
        JoulecastError: nothing can be forecast.
    """
    folders = results.record_folders
    if not folders:
        raise NothingToShow("the records that a forecast rests on are not here", "measure")
    if len(folders) > _MOST_READ:
        raise NothingToShow(
            f"{len(folders):,} records take too long to fit here; `joulecast forecast` does it"
        )
    # Says in a word where none is left.
    _ = results.clean
    runs = KnownRuns.of_records(folders)
    trained = runs.trained
    counted_in = trained["nodes_are"].map(unit_of)
    trained = trained[counted_in == counted_in.mode().iloc[0]]
    rows, notes, works = [], [], []
    for unit, of_unit in trained.groupby(_work_units(trained), sort=False):
        for is_imported, of_kind in of_unit.groupby(of_unit["kind"] == "imported"):
            times = 1.0 if is_imported or unit == "steps" else LONG_TRAINING
            asked = _asked(results, of_kind, str(unit), times)
            try:
                table, refused = forecast_table(runs, asked, results.prices)
            except JoulecastError as error:
                notes.append(str(error))
                continue
            names = set(of_kind["workload"])
            kept = table[table["workload"].isin(names)]
            rows += [
                _for_work(row, times, results.prices) for row in _in_range(kept, of_kind, results)
            ]
            notes += [
                note for note in refused if note.split(" is not forecast")[0].split(":")[0] in names
            ]
            works.append(work_in_words(str(unit)) if unit != "steps" else "the steps that were run")
    if not rows:
        raise NothingToShow("; ".join(notes) or "no training can be forecast", "measure")
    return CampaignForecast(rows, " or ".join(dict.fromkeys(works)), notes)


def _work_units(trained: pd.DataFrame) -> pd.Series:
    units = trained.get("work_unit", pd.Series(index=trained.index, dtype=object))
    return units.where(units.map(lambda unit: isinstance(unit, str)), "samples")


def _last(results: Results, most: int) -> int:
    table = results.tables.get("scaling_forecast")
    if table is None or not {"nodes", "rests_on"} <= set(table.columns):
        return _BEYOND * most
    fitted = table.loc[table["rests_on"] == "fitted", "nodes"]
    return max(most, int(fitted.max())) if len(fitted) else _BEYOND * most


def _scales(ran: Iterable[int], last: int) -> list[int]:
    found = sorted(set(ran))
    doubled = [2**k for k in range(last.bit_length()) if found[0] < 2**k <= last]
    return sorted({*found, *doubled})


def _asked(results: Results, runs: pd.DataFrame, unit: str, times: float) -> Asked:
    ran = [int(count) for count in runs["nodes"]]
    scales = _scales(ran, _last(results, max(ran)))
    scale: dict[str, Any] = (
        {"gpus": scales, "nodes": ()} if is_observed(runs) else {"nodes": scales}
    )
    work: dict[str, Any] = {} if unit == "steps" else {unit: times * work_of(unit)}
    return Asked(**scale, **work)


def _in_range(table: pd.DataFrame, runs: pd.DataFrame, results: Results) -> list[dict[str, Any]]:
    """Rows of each workload from the fewest nodes that it was run on, as far as it is forecast."""
    count = "gpus" if is_observed(runs) else "nodes"
    ran = runs.groupby("workload")["nodes"]
    fewest, most = ran.min().to_dict(), ran.max().to_dict()
    return [
        row
        for row in plain_rows(table)
        if fewest[row["workload"]] <= row[count] <= _last(results, int(most[row["workload"]]))
    ]


def _for_work(row: Mapping[str, Any], times: float, prices: Prices) -> dict[str, Any]:
    """The row for a share of the work that was asked for."""
    share = {name: None if row[name] is None else row[name] / times for name in _AMOUNTS}
    seconds, joules = share["measured_time_s"], share["measured_energy_j"]
    ran = seconds is not None
    return {
        **row,
        **share,
        "measured_cost": prices.money(seconds, joules, row["nodes"], row["gpus"]) if ran else None,
        "measured_co2_kg": prices.co2_kg(joules),
    }
