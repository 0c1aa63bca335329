"""Figures of the training that was tuned live: what every repeat of it cost, and with what batch size."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import altair as alt
import pandas as pd

from joulecast.quantities import NONE, is_number, joules, seconds
from joulecast.report.figures.look import (
    Figure,
    colours,
    titled,
    tooltips,
    values,
)
from joulecast.report.figures.tuning_pays import costs_of_first, pays_live
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow

_FILE = "tables/tuning_live/tuning_live"
_MOST_TICKS = 10


def tuned_live(record: Mapping[str, Any]) -> Figure:
    """Cost of every training that was tuned live, and their mean so far.

    Raises:
        NothingToShow: none reached its target.
    """
    rows = [row for row in record["recurrences"] if is_number(row.get("cost"))]
    if not rows:
        raise NothingToShow("no training that was tuned live reached its target", "tuning_tables")
    unit, network = record["cost_unit"], record["network"]
    costs = [float(row["cost"]) for row in rows]
    means = [fmean(costs[: k + 1]) for k in range(len(costs))]
    in_words = seconds if unit == "s" else joules
    shown = pd.DataFrame(
        {
            "training": [int(row["number"]) + 1 for row in rows],
            "cost": costs,
            "mean": means,
            "kind": "one training",
            "cost of it": [in_words(cost) for cost in costs],
            "mean so far": [in_words(mean) for mean in means],
            "batch size": [str(row["batch_size"]) for row in rows],
            "phase of the search": [str(row.get("phase") or NONE) for row in rows],
            "energy": [_energy(row) for row in rows],
        }
    )
    hover = tooltips(
        "training", "cost of it", "mean so far", "batch size", "phase of the search", "energy"
    )
    began = f"mean of batch {record['recurrences'][0]['batch_size']}"
    kinds = ["one training", "mean so far", began]
    colour = alt.Color("kind:N", title=None, scale=colours(kinds))
    x = _trainings(record)
    axis = alt.Axis(tickCount=5)
    bars = (
        alt.Chart(values(shown))
        .mark_bar()
        .encode(
            x=x, y=alt.Y("cost:Q", title=f"cost, {unit}", axis=axis), color=colour, tooltip=hover
        )
    )
    line = (
        alt.Chart(values(shown.assign(kind="mean so far")))
        .mark_line(strokeWidth=2.5)
        .encode(x=x, y="mean:Q", color=colour)
    )
    usual = costs_of_first(record)[0]
    first = pd.DataFrame({"mean": [float(usual.mean())] if len(usual) else [], "kind": began})
    rule = alt.Chart(values(first)).mark_rule(strokeWidth=2, strokeDash=[5, 3])
    drawn = bars + line + rule.encode(y="mean:Q", color=colour)
    columns = ("training", "batch size", "cost", "energy", "phase of the search")
    table = [
        (
            str(r["number"] + 1),
            str(r["batch_size"]),
            in_words(c),
            _energy(r),
            str(r.get("phase") or NONE),
        )
        for r, c in zip(rows, costs, strict=True)
    ]
    return Figure(
        "policies",
        "Does tuning pay?",
        [titled(drawn, f"{network}, tuned live by {record['policy']}")],
        pays_live(record),
        "A training is repeated; the policy chooses its batch size each time. "
        f"{_cost_is(record)} {_source(record)}",
        [Table("Every training", columns, table, frozenset(columns[:4]), _FILE)],
        files=(_FILE,),
    )


def _trainings(record: Mapping[str, Any]) -> alt.X:
    """An axis of all trainings: one that did not reach its target leaves its place empty."""
    numbers = [int(row["number"]) + 1 for row in record["recurrences"]]
    axis = alt.Axis(labelAngle=0, values=numbers[:: max(1, len(numbers) // _MOST_TICKS)])
    return alt.X("training:O", title="training", scale=alt.Scale(domain=numbers), axis=axis)


def _cost_is(record: Mapping[str, Any]) -> str:
    if record["cost_unit"] == "s":
        return "Cost is time only, since no energy was measured."
    return "Cost is energy and time, weighed."


def _source(record: Mapping[str, Any]) -> str:
    energy = record.get("energy_source")
    return f"Energy is {energy}." if energy else f"Energy: none ({record.get('why_no_energy')})."


def _energy(row: Mapping[str, Any]) -> str:
    if is_number(row.get("energy_j")):
        return f"{joules(row['energy_j'])} ({row.get('energy_source')})"
    return "none"
