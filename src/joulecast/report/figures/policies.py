"""Figures of tuning: what policies cost by recurrence, replayed ones and the one tuned live."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import altair as alt
import pandas as pd

from joulecast.quantities import digits, percent
from joulecast.report.figures.live import tuned_live
from joulecast.report.figures.look import (
    HEIGHT,
    INK,
    Chart,
    Figure,
    colours,
    label_places,
    shapes,
    titled,
    tooltips,
    value_scale,
    values,
)
from joulecast.report.figures.tuning_pays import pays_replayed
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results

_DEFAULT = "default"
_FILE = "tables/tuning/tuning_savings"
_SHOWN = ("power-limit-only", "zeus", "outward-walk", "curve", "warm-start")
"""Policies that are drawn; the others are in the table."""
_HIGHEST_SHOWN, _BAND, _LOW = 2.0, (0.1, 0.9), 140
_KNOWS_MORE = "warm-start"
"""Policy that has seen the runs of another GPU, whose cost is not in its own: none to call the best."""
_CAVEATS = {
    _KNOWS_MORE: "warm-start begins with what was recorded on another GPU; what those runs cost is not "
    "counted, so it is not compared with the others.",
    "curve": "The form and the constants of curve were found on these very traces, so it may do worse on "
    "others.",
}


def policy_costs(results: Results) -> Figure:
    """Whether tuning pays: policies replayed against the default, and the one tuned live.

    Raises:
        NothingToShow: neither is there.
    """
    found = []
    if _DEFAULT in results.replays and set(results.replays) - {_DEFAULT}:
        found.append(_replayed(results.replays))
    if results.live is not None and results.live.get("recurrences"):
        found.append(tuned_live(results.live))
    if not found:
        why = "no policy was replayed, and no training was tuned live"
        raise NothingToShow(why, "tuning_tables")
    return replace(
        found[0],
        charts=[chart for figure in found for chart in figure.charts],
        finding=" ".join(figure.finding for figure in found),
        how_to_read=" ".join(figure.how_to_read for figure in found),
        tables=[table for figure in found for table in figure.tables],
        files=tuple(name for figure in found for name in figure.files),
    )


def _cost_lines(shown: pd.DataFrame, drawn: Sequence[str], title: str) -> Chart:
    """Cost over the default's by recurrence, a line a policy."""
    scale = value_scale(shown["ratio"], pd.Series([1.0]))
    ticks = alt.Axis(tickMinStep=1, tickCount=8, labelFlush=False)
    base = alt.Chart(values(shown)).encode(
        x=alt.X("recurrence:Q", title="trainings so far", axis=ticks),
        y=alt.Y("ratio:Q", title="cost so far / default", scale=scale),
        color=alt.Color("policy:N", title=None, scale=colours(drawn), legend=None),
    )
    every = max(1, int(shown["recurrence"].max()) // 8)
    marks = (
        base.transform_filter(f"datum.recurrence % {every} == 1 % {every}")
        .mark_point(filled=True, size=60)
        .encode(
            shape=alt.Shape("policy:N", title=None, scale=shapes(drawn), legend=None),
            tooltip=tooltips("policy", "recurrence", "cost"),
        )
    )
    rule = alt.Chart(values(pd.DataFrame({"ratio": [1.0]}))).mark_rule(color=INK, strokeDash=[4, 3])
    lines = base.mark_line(strokeWidth=1.6) + marks + rule.encode(y="ratio:Q")
    ends = shown[shown["recurrence"] == shown["recurrence"].max()]
    ends = ends.assign(at=label_places(ends["ratio"], scale, HEIGHT))
    names = alt.Chart(values(ends)).mark_text(align="left", dx=7, color=INK)
    y = alt.Y("at:Q", scale=scale)
    return titled(lines + names.encode(x="recurrence:Q", y=y, text="policy:N"), title)


def relative_costs(replays: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Cost so far of each policy over the default's: ``policy``, ``workload``, ``gpu``, ``recurrence`` (from
    1), ``ratio``."""

    def so_far(policy: str) -> pd.Series:
        means = replays[policy].groupby(["workload", "gpu", "recurrence"])["cost"].mean()
        return means.groupby(level=["workload", "gpu"]).cumsum()

    default = so_far(_DEFAULT)
    parts = []
    for policy in replays:
        table = (so_far(policy) / default).dropna().rename("ratio").reset_index()
        parts.append(table.assign(policy=policy, recurrence=table["recurrence"] + 1))
    return pd.concat(parts, ignore_index=True)


def _replayed(replays: Mapping[str, pd.DataFrame]) -> Figure:
    of_settings = relative_costs(replays)
    table = of_settings.groupby(["policy", "recurrence"], as_index=False)["ratio"].mean()
    drawn = [name for name in _SHOWN if name in replays] or sorted(set(replays) - {_DEFAULT})
    shown = table[table["policy"].isin(drawn)]
    shown = shown.assign(cost=[f"{percent(100 * r)} of the default's" for r in shown["ratio"]])
    last = of_settings[of_settings["recurrence"] == of_settings["recurrence"].max()]
    compared = last[last["policy"].isin(drawn) & (last["policy"] != _KNOWS_MORE)]
    numbers = [r for r in (1, 2, 5, 10, 20, 50) if r <= table["recurrence"].max()]
    wide = table.pivot(index="policy", columns="recurrence", values="ratio")
    rows = [
        (str(policy), *(digits(row.get(n)) for n in numbers)) for policy, row in wide.iterrows()
    ]
    columns = ("policy", *(f"after {n}" for n in numbers))
    return Figure(
        "policies",
        "Does tuning pay?",
        [_cost_lines(shown, drawn, "Cost so far")],
        pays_replayed(compared),
        " ".join(
            [
                "Below the dashed line a policy has paid for its search. Cost weighs energy and time.",
                *(caveat for policy, caveat in _CAVEATS.items() if policy in replays),
            ]
        ),
        [
            Table(
                "Cost so far relative to the default", columns, rows, frozenset(columns[1:]), _FILE
            )
        ],
        files=(_FILE,),
    )
