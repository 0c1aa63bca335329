"""The first screen of the page: what the training costs, how long it takes, and how sure that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecast.energy.prices import Prices
from joulecast.quantities import NONE, counted, listed
from joulecast.report.campaign import CampaignForecast
from joulecast.report.figures.forecast import (
    TIME,
    batch_in_words,
    forecast_charts,
    training_names,
)
from joulecast.report.figures.style import Chart
from joulecast.report.forecast_lines import forecast_cells
from joulecast.report.measured_runs import NODES_ARE, source_in_words
from joulecast.report.page_table import Amounts, Table
from joulecast.report.results_folder import NothingToShow, Results
from joulecast.runs.observations import is_training
from joulecast.runs.scale import scale_in_words

_MOST_SPOKEN = 4


@dataclass(frozen=True)
class Badge:
    """A warning for the reader: a few words, a CSS class for their colour, and a longer text."""

    text: str
    kind: str
    more: str


@dataclass(frozen=True)
class CostAndTime:
    """Forecasts as ``charts`` (by quantity), and as a table. Each chart has a text for readers who cannot see
    it."""

    charts: dict[str, Chart]
    spoken: dict[str, str]
    how_to_read: str
    table: Table
    trainings: list[str]
    work_is: str

    @property
    def costs(self) -> list[str]:
        """The costs that are shown: energy, money and CO2, if they are known."""
        return [name for name in self.charts if name != TIME]


def cost_and_time(found: CampaignForecast, prices: Prices) -> CostAndTime:
    """The forecast of the campaign as charts of cost and of time.

    Raises:
        NothingToShow: no forecast has a time.
    """
    charts = forecast_charts(found.rows, prices.currency)
    if TIME not in charts:
        raise NothingToShow("no forecast has a time", "measure")
    cells = forecast_cells({"forecasts": found.rows, "prices": prices.as_json()})
    batch = batch_in_words(found.rows)
    drawn = f" Drawn for {batch}." if batch else ""
    return CostAndTime(
        charts,
        {name: _spoken(found, cells, name) for name in charts},
        f"Forecast by MC2, fitted to {found.runs_were}. Dashed lines are beyond what was run.{drawn}",
        _table(cells, found),
        list(dict.fromkeys(training_names(found.rows))),
        found.work_is,
    )


def _table(cells: Sequence[Mapping[str, str]], found: CampaignForecast) -> Table:
    # If a value is the same in all rows, only the caption has it.
    words = ("platform", "work is", "energy is", "nodes are")
    same = {name: cells[0][name] for name in words if len({row[name] for row in cells}) == 1}
    columns = dict.fromkeys(["workload", *(name for row in cells for name in row)])
    kept = [name for name in columns if name != "work" and name not in same]
    facts = "; ".join(f"{name}: {value}" for name, value in same.items() if name != "work is")
    rows = [tuple(row.get(name, "") for name in kept) for row in cells]
    caption = f"Forecasts for {found.work_is}, with 90 % intervals{facts and f' ({facts})'}"
    numeric = frozenset(kept) - {"workload", "basis", *words}
    amounts = [
        Amounts.of(
            row,
            work=row["work"],
            unit=row["work_unit"],
            batch=row["batch_size"] if row["has_steps"] else None,
            nodes=row["hosts"],
            gpus=row["gpus"],
        )
        for row in found.rows
    ]
    return Table(caption, tuple(kept), rows, numeric, None, amounts)


def _spoken(found: CampaignForecast, cells: Sequence[Mapping[str, str]], quantity: str) -> str:
    """What a chart shows, for readers who cannot see it: the ends of its lines."""
    ends: dict[str, list[str]] = {}
    for row, cell, name in zip(found.rows, cells, training_names(found.rows), strict=True):
        if cell[quantity] != NONE:
            text = f"{cell[quantity]} on {scale_in_words(row['nodes'], row['nodes_are'])}"
            ends.setdefault(name, []).append(text)
    lines = [
        f"{name} {texts[0]}" + (f", {texts[-1]}" if len(texts) > 1 else "")
        for name, texts in list(ends.items())[:_MOST_SPOKEN]
    ]
    return f"Forecast {quantity} for {found.work_is} by scale: {'; '.join(lines)}."


_NODE_BADGES = {
    "emulated": "nodes are emulated",
    "ranks of one host": "nodes share one machine",
}


def badges(results: Results, nodes_are: Sequence[str], replayed: Sequence[str]) -> list[Badge]:
    """Badges that say what nodes and energies are. Empty if there are no runs.

    Args:
        replayed: names of the recorded campaigns that are shown.
    """
    found = [
        Badge(_NODE_BADGES[are], "estimated", NODES_ARE[are])
        for are in nodes_are
        if are in _NODE_BADGES
    ]
    trained = results.observations[is_training(results.observations)]
    metered = trained[trained["energy_j"].notna()]
    for source, number in metered["energy_source"].value_counts().items():
        more = f"{source_in_words(str(source), metered)} ({counted(int(number), 'run')})"
        found.append(Badge(f"energy is {source}", str(source), more))
    if len(trained) and metered.empty:
        found.append(
            Badge("no energy is known", "simulated", "no run has an energy; the page says why")
        )
    if replayed:
        found.append(Badge("recorded campaign", "recorded", f"replayed from {listed(replayed, 3)}"))
    return found
