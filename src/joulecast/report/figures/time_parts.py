"""The figure that shows which parts of a run's time its stages take."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from joulecast.quantities import counted, listed, percent
from joulecast.report.figures.style import (
    BLACK,
    PARTS,
    PHASES,
    SERIES,
    WHITE,
    Chart,
    Figure,
    colours,
    row_axis,
    titled,
    tooltips,
    values,
)
from joulecast.report.results_folder import SCALING, NothingToShow, Results
from joulecast.runs.observations import of_usual_batch
from joulecast.runs.scale import scale_in_words, unit_of

_MOST_BARS = 36
_ROW_HEIGHT = 30
_LABELLED_PERCENT = 9.0
"""Least share of a bar that is wide enough for a number."""
STAGES = dict(
    zip(
        PARTS,
        ("materials", "computing", "communicating_wait", "communicating_copy", "update", "other"),
        strict=True,
    )
)
"""The names that people read, and the names in records."""
_PHASES = {name: name for name in PHASES}


def stage_shares(results: Results) -> Figure:
    """Parts of the time of a run, by network and node count. Each bar is 100 %.

    Raises:
        NothingToShow: the records do not divide their time.
    """
    table = results.tables[SCALING]
    # There is a row for each run, so the batch of most runs counts.
    rows = of_usual_batch(table.loc[table.index.repeat(table["runs"])]).drop_duplicates()
    charts, shown = [], 0
    for parts, palette in ((STAGES, PARTS), (_PHASES, PHASES)):
        of_kind = _shares(rows, parts)
        if len(of_kind):
            unit = unit_of(of_kind["nodes_are"].iloc[0])
            charts.append(_share_bars(of_kind.head(_MOST_BARS), palette, unit))
            shown += len(of_kind)
    if not charts:
        raise NothingToShow("the records tell no parts of the time", "measure")
    cut = f" The first {_MOST_BARS} bars of {shown}; all are in the table."
    return Figure(
        "stages",
        "Where does the time go?",
        charts,
        _share_finding(_shares(rows, STAGES), len(rows)),
        "Each bar is a whole run. A node loads samples, computes, waits for slower nodes, exchanges "
        "gradients over the network, and updates the weights."
        + (cut if shown > _MOST_BARS else ""),
        files=(SCALING,),
    )


def _shares(rows: pd.DataFrame, parts: Mapping[str, str]) -> pd.DataFrame:
    """Rows of the table ``scaling`` in which some of these ``parts`` of the time are known. Their columns get
    the names that people read."""
    columns = {f"{column}_percent": name for name, column in parts.items()}
    known = rows.reindex(columns=["workload", "nodes", "nodes_are", *columns])
    known = known.dropna(subset=[*columns], how="all").rename(columns=columns)
    return known.sort_values(["workload", "nodes"])


def _share_bars(shares: pd.DataFrame, palette: Mapping[str, str], unit: str) -> Chart:
    """A bar for each row, its parts one after the other from left to right."""
    parts, what = list(palette), "share of the time"
    # The number of nodes comes first, because the end of a long name is cut off.
    names = [f"{counted(row.nodes, unit)}, {row.workload}" for row in shares.itertuples()]
    wide = shares[parts].set_axis(names).rename_axis(index="run", columns="part")
    bars = wide.stack().rename("size").reset_index()
    bars["stop"] = wide.cumsum(axis=1).stack().to_numpy()
    bars["start"] = bars["stop"] - bars["size"]
    bars["middle"] = bars["stop"] - bars["size"] / 2
    bars["label"] = bars["size"].map("{:.0f}".format)
    bars[what] = bars["size"].map(percent)
    scale = alt.Scale(domain=[0, 100], nice=False)
    y = alt.Y("run:N", sort=names, title=None, axis=row_axis(names))
    hover = tooltips("run", "part", what)
    colour = alt.Color(
        "part:N",
        title=None,
        sort=parts,
        scale=colours(parts, list(palette.values())),
        legend=alt.Legend(columns=2),
    )
    x = alt.X("start:Q", title="percent of the run", scale=scale, axis=alt.Axis(tickCount=5))
    blocks = alt.Chart(values(bars)).mark_bar(stroke=WHITE, strokeWidth=1)
    drawn = blocks.encode(x=x, x2="stop:Q", y=y, color=colour, tooltip=hover)
    # This text is on a bar, and not on the page. So it has the same colour on dark pages.
    dark = [name for name in palette if palette[name] == SERIES[0]]
    on_dark = alt.FieldOneOfPredicate(field="part", oneOf=dark)
    ink = alt.condition(on_dark, alt.value(WHITE), alt.value(BLACK))
    labels = alt.Chart(values(bars[bars["size"] >= _LABELLED_PERCENT])).mark_text(fontSize=11)
    drawn += labels.encode(x="middle:Q", y=y, text="label:N", color=ink, tooltip=hover)
    return titled(drawn, "Parts of the time, percent", _ROW_HEIGHT * len(shares))


def _share_finding(own: pd.DataFrame, settings: int) -> str:
    """Time of communication on the most nodes, compared with that on the fewest.

    Args:
        own: rows of runs that were measured here.
        settings: number of all rows, imported ones, too.
    """
    if own.empty:
        return "All runs are imported: logs tell how long their phases took, not what nodes waited for."
    are = own["nodes_are"].iloc[0]
    if own["nodes"].nunique() < 2:
        where = f"on {scale_in_words(own['nodes'].iloc[0], are)}"
        which = "All runs" if len(own) == settings else "All runs measured here"
        return f"{which} are {where}, so growth cannot be judged."
    parts = []
    for workload, of_workload in own.groupby("workload"):
        few, many = of_workload.iloc[0], of_workload.iloc[-1]
        if few["nodes"] != many["nodes"]:
            grew, grown = (percent(row["waiting"] + row["exchanging"]) for row in (few, many))
            parts.append(
                f"{workload} {grown} on {scale_in_words(many['nodes'], are)} ({grew} on {few['nodes']})"
            )
    return f"Share of waiting and exchanging: {listed(parts)}." if parts else ""
