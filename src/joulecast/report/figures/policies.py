"""Figures of tuning: what policies cost by recurrence, replayed ones and the one tuned live."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.quantities import digits, percent
from joulecast.report.figures.live import tuned_live
from joulecast.report.figures.look import (
    HEIGHT,
    INK,
    Chart,
    Figure,
    colours,
    label_places,
    save,
    shapes,
    titled,
    tooltips,
    value_scale,
    values,
)
from joulecast.report.figures.tuning_pays import pays_replayed
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, having
from joulecast.tuning.comparison import by_setting, cumulative_ratios
from joulecast.tuning.policy_experiment import Setting

_DEFAULT = "default"
_FILE = "tables/tuning_savings"
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


def cumulative_cost(
    by_policy: Mapping[str, pd.DataFrame], settings: Sequence[Setting], eta: float, stem: Path
) -> None:
    """Write mean costs so far relative to the default, with a band that holds 80 % of the seeds.

    There is a chart for each setting, a row for each workload.
    """
    drawn = [policy for policy in _SHOWN if policy in by_policy]
    parts = []
    for policy in drawn:
        ratios = cumulative_ratios(by_setting(by_policy[policy], "cost"), settings, eta)
        parts += [_curve(name, policy, curve) for name, curve in ratios.items()]
    cells = dict(list(pd.concat(parts).groupby(["workload", "gpu"])))
    charts = [
        _cost_lines(cells[setting.name], drawn, ", ".join(setting.name), banded=True)
        for setting in settings
    ]
    save(
        charts,
        *(stem, "Cost of tuning policies so far, relative to the default's (replayed)"),
        "Lines: means over seeds; bands: 80 % of them. Below the dashed line a search has paid for itself.",
        columns=len({setting.name[1] for setting in settings}),
        width=220,
        one_legend=True,
    )


def _curve(name: tuple[str, str], policy: str, by_seed: NDArray[np.float64]) -> pd.DataFrame:
    """Rows as :func:`relative_costs` has them, of one setting."""
    low, high = np.quantile(by_seed, _BAND, axis=0)
    numbers = np.arange(1, by_seed.shape[1] + 1)
    table = pd.DataFrame(
        {"recurrence": numbers, "ratio": by_seed.mean(0), "low": low, "high": high}
    )
    return table.assign(policy=policy, workload=name[0], gpu=name[1])


def _cost_lines(
    shown: pd.DataFrame, drawn: Sequence[str], title: str, *, banded: bool = False
) -> Chart:
    """Cost over the default's by recurrence, a line a policy.

    Args:
        banded: draw a band from ``low`` to ``high``, in a small chart.
    """
    scale = value_scale(shown["ratio"], pd.Series([1.0]))
    if banded:
        highest = min(1.02 * shown["high"].max(), _HIGHEST_SHOWN)
        scale = alt.Scale(domain=[min(shown["low"].min(), 0.98), highest], nice=False)
    ticks = alt.Axis(tickMinStep=1, tickCount=5 if banded else 8, labelFlush=False)
    y_title = "cost so far / default"
    # Else the legend is as pale as the bands; without bands there is room for names at the lines.
    legend = alt.Legend(symbolOpacity=1) if banded else None
    base = alt.Chart(values(shown)).encode(
        x=alt.X("recurrence:Q", title="trainings so far", axis=ticks),
        y=alt.Y("ratio:Q", title=y_title, scale=scale),
        color=alt.Color("policy:N", title=None, scale=colours(drawn), legend=legend),
    )
    every = max(1, int(shown["recurrence"].max()) // 8)
    marks = (
        base.transform_filter(f"datum.recurrence % {every} == 1 % {every}")
        .mark_point(filled=True, size=60, clip=banded)
        .encode(
            shape=alt.Shape("policy:N", title=None, scale=shapes(drawn), legend=legend),
            tooltip=tooltips("policy", "recurrence", "cost"),
        )
    )
    rule = alt.Chart(values(pd.DataFrame({"ratio": [1.0]}))).mark_rule(color=INK, strokeDash=[4, 3])
    lines = base.mark_line(strokeWidth=1.6, clip=banded) + marks + rule.encode(y="ratio:Q")
    if not banded:
        ends = shown[shown["recurrence"] == shown["recurrence"].max()]
        ends = ends.assign(at=label_places(ends["ratio"], scale, HEIGHT))
        names = alt.Chart(values(ends)).mark_text(align="left", dx=7, color=INK)
        y = alt.Y("at:Q", scale=scale)
        return titled(lines + names.encode(x="recurrence:Q", y=y, text="policy:N"), title)
    band = base.mark_area(opacity=0.15, clip=True).encode(
        y=alt.Y("low:Q", title=y_title, scale=scale), y2="high:Q"
    )
    return titled(band + lines, title, _LOW)


def relative_costs(replays: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Cost so far of each policy over the default's: ``policy``, ``workload``, ``gpu``, ``recurrence`` (from
    1), ``ratio``.

    Raises:
        NothingToShow: a column is missing.
    """
    needed = ("workload", "gpu", "recurrence", "cost")

    def so_far(policy: str) -> pd.Series:
        table = having(replays[policy], needed, f"tuning/replays/{policy}.parquet", "tuning_tables")
        means = table.groupby(["workload", "gpu", "recurrence"])["cost"].mean()
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
