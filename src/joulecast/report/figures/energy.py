"""Figures of what was measured: beside what was predicted of it, and the parts of its time."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from joulecast.quantities import counted, digits, joules, listed, percent, seconds
from joulecast.report import answers
from joulecast.report.figures.look import (
    INK,
    PARTS,
    PHASES,
    Chart,
    Figure,
    colours,
    shapes,
    titled,
    tooltips,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.grid import Table
from joulecast.report.results import NothingToShow, Results, having

_MOST_NAMES, _MOST_BARS = 7, 36
_ROW_HEIGHT = 30
_LABELLED_PERCENT = 9.0


def predicted_against_measured(results: Results) -> Figure:
    """MC2's predictions of settings that its fit had not seen, times and energies each on their own.

    Raises:
        NothingToShow: nothing was fitted.
    """
    time = answers.unseen_times(results)
    charts = [_against(time, "measured time", "s", seconds)]
    found = [time]
    for source, cells in answers.unseen_energies(results):
        found.append(cells.assign(source=source))
        charts.append(_against(cells, f"{source} energy", "J", joules))
    rows = [
        (
            str(row.network),
            str(row.nodes),
            digits(row.batch),
            _what(row),
            told(row.measured),
            told(row.predicted),
            percent(row.difference_percent, signed=True),
        )
        for cells, told in zip(found, [seconds, *[joules] * len(found)], strict=False)
        for row in cells.itertuples()
    ]
    columns = ("network", "nodes", "batch", "quantity", "in the runs", "predicted", "off by")
    numeric = frozenset(columns) - {"network", "quantity"}
    table = Table("Predicted against measured", columns, rows, numeric)
    return Figure(
        "predicted",
        "How good is the forecast?",
        charts,
        " ".join(answers.error_sentences(results)[:-1]),
        "Each point is a setting: a network on so many nodes. On the line the forecast was right; above it, "
        f"too high. {answers.split_sentence(time['split'].iloc[0])}",
        [table],
    )


def _what(row: Any) -> str:
    source = getattr(row, "source", None)
    return "time" if source is None else f"energy ({source})"


def _against(cells: pd.DataFrame, what: str, unit: str, told: Any) -> Chart:
    named = _few(cells["network"].astype(str))
    shown = pd.DataFrame(
        {
            "measured": cells["measured"].astype(float),
            "predicted": cells["predicted"].astype(float),
            "network": named,
            "nodes": cells["nodes"].astype(int).astype(str),
            "setting": [
                f"{row.network}, {row.nodes} nodes, batch {digits(row.batch)}"
                for row in cells.itertuples()
            ],
            what: cells["measured"].map(told),
            "predicted by MC2": cells["predicted"].map(told),
            "off by": [percent(d, signed=True) for d in cells["difference_percent"]],
        }
    )
    scale = value_scale(shown["measured"], shown["predicted"])
    ends = pd.DataFrame({"measured": scale.domain, "predicted": scale.domain})
    axes = {
        name: kind(f"{name}:Q", title=title, scale=scale, axis=value_axis(scale))
        for name, kind, title in (
            ("measured", alt.X, f"{what}, {unit}"),
            ("predicted", alt.Y, f"predicted, {unit}"),
        )
    }
    line = (
        alt.Chart(values(ends))
        .mark_line(color=INK, strokeWidth=1, clip=True)
        .encode(x=axes["measured"], y=axes["predicted"])
    )
    counts = sorted(set(shown["nodes"]), key=int)
    points = (
        alt.Chart(values(shown))
        .mark_point(filled=True, size=90, opacity=0.9, stroke=INK, strokeWidth=0.6)
        .encode(
            x=axes["measured"],
            y=axes["predicted"],
            color=alt.Color("network:N", scale=colours(sorted(set(named)))),
            shape=alt.Shape("nodes:N", scale=shapes(counts)),
            tooltip=tooltips("setting", what, "predicted by MC2", "off by"),
        )
    )
    return titled(line + points, f"Predicted and {what}")


def _few(names: pd.Series) -> pd.Series:
    """The names that most rows have; the rest are ``others``, so that there are colours for all."""
    most = names.value_counts().index[:_MOST_NAMES]
    if names.nunique() <= len(most):
        return names
    return names.where(names.isin(most[:-1]), "others")


def stage_shares(results: Results) -> Figure:
    """Parts of the time of a run by network and node count, each bar 100 %.

    Raises:
        NothingToShow: no training was measured, or its parts are not known.
    """
    clean = answers.usual_batch(results.clean)
    imported = clean["kind"] == "imported"
    charts, tables = [], []
    for of_kind, parts in ((clean[~imported], _STAGES), (clean[imported], _PHASES)):
        if len(of_kind):
            shares = _shares(of_kind, parts)
            charts.append(_bars(shares.head(_MOST_BARS)))
            tables.append(_share_table(shares))
    shown = sum(len(table.rows) for table in tables)
    cut = f" The first {_MOST_BARS} bars of {shown}; all are in the table."
    return Figure(
        "stages",
        "Where does the time go?",
        charts,
        _share_finding(clean),
        "Each bar is a whole run. Loading is of samples; waiting is for slower nodes; exchanging is of "
        "gradients, over the network after every step; updating is of weights."
        + (cut if shown > _MOST_BARS else ""),
        tables,
    )


_STAGES = dict(
    zip(
        PARTS,
        ("materials", "computing", "communicating_wait", "communicating_copy", "update", "other"),
        strict=True,
    )
)
_PHASES = {name: name for name in PHASES}


def _shares(runs: pd.DataFrame, parts: Mapping[str, str]) -> pd.DataFrame:
    """Percent of the time by workload and node count (the index), a column a part."""
    is_phase = "training" in parts
    columns = [f"{column}_s" if is_phase else f"t_{column}_s" for column in parts.values()]
    having(runs, (*columns, "total_s", "steps"), "fits/observations.parquet", "fits")
    factor = 1 if is_phase else runs["steps"]
    percents = {
        name: 100 * runs[column] * factor / runs["total_s"]
        for name, column in zip(parts, columns, strict=True)
    }
    table = pd.DataFrame(percents).clip(lower=0)
    means = table.groupby([runs["workload"], runs["nodes"]]).mean().dropna(how="all")
    if means.empty:
        raise NothingToShow("the records tell no parts of the time", "measure")
    return means


def _bar_name(workload: str, nodes: int) -> str:
    """Nodes first: the end of a long name is cut off."""
    return f"{counted(nodes, 'node')}, {workload}"


def _bars(shares: pd.DataFrame) -> Chart:
    palette = PARTS if set(shares.columns) == set(PARTS) else PHASES
    order = list(shares.columns)
    tall = shares.reset_index().melt(["workload", "nodes"], var_name="part", value_name="share")
    where = [_bar_name(*place) for place in shares.index]
    tall = tall.assign(
        run=[_bar_name(r.workload, r.nodes) for r in tall.itertuples()],
        place=tall["part"].map(order.index),
        told=tall["share"].map(percent),
    )
    tall = tall.sort_values(["workload", "nodes", "place"])
    stop = tall.groupby(["workload", "nodes"])["share"].cumsum()
    tall = tall.assign(start=stop - tall["share"], stop=stop, middle=stop - tall["share"] / 2)
    tall = tall.rename(columns={"told": "share of the time"})
    y = alt.Y("run:N", sort=where, title=None, axis=alt.Axis(labelLimit=170, ticks=False))
    whole = alt.Scale(domain=[0, 100], nice=False)
    x = alt.X("start:Q", title="percent of the run", scale=whole, axis=alt.Axis(tickCount=5))
    hover = tooltips("run", "part", "share of the time")
    bars = (
        alt.Chart(values(tall))
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=x,
            x2="stop:Q",
            y=y,
            color=alt.Color(
                "part:N",
                sort=order,
                title=None,
                scale=colours(order, list(palette.values())),
                legend=alt.Legend(columns=2),
            ),
            tooltip=hover,
        )
    )
    wide = tall[tall["share"] >= _LABELLED_PERCENT]
    labels = (
        alt.Chart(values(wide.assign(label=wide["share"].map(lambda s: f"{s:.0f}"))))
        .mark_text(fontSize=11)
        .encode(
            x="middle:Q",
            y=y,
            text="label:N",
            tooltip=hover,
            color=alt.condition(
                alt.FieldOneOfPredicate(field="part", oneOf=["computing", "training"]),
                alt.value("white"),
                alt.value(INK),
            ),
        )
    )
    return titled(bars + labels, "Parts of the time, percent", _ROW_HEIGHT * len(shares))


def _share_table(shares: pd.DataFrame) -> Table:
    columns = ("network", "nodes", *(f"{part}, %" for part in shares.columns))
    rows = [
        (str(workload), str(nodes), *(digits(share, 2) for share in row))
        for (workload, nodes), row in zip(shares.index, shares.to_numpy(), strict=True)
    ]
    what = "stages" if set(shares.columns) == set(PARTS) else "phases of imported runs"
    return Table(f"Parts of the time in percent, {what}", columns, rows, frozenset(columns[1:]))


def _share_finding(clean: pd.DataFrame) -> str:
    """What communication takes on the most nodes, beside what it takes on the fewest."""
    own = clean[clean["kind"] != "imported"]
    if own.empty:
        return "All runs are imported: logs tell how long their phases took, not what nodes waited for."
    if own["nodes"].nunique() < 2:
        where = listed([answers.nodes_in_words(n) for n in sorted(set(own["nodes"]))])
        which = "All runs" if len(own) == len(clean) else "All runs measured here"
        return f"{which} are {where}, so nothing can be said about growing."
    shares = _shares(own, _STAGES)
    together = shares["waiting"] + shares["exchanging"]
    parts = []
    for workload, of_workload in together.groupby(level=0):
        few, many = of_workload.index[0][1], of_workload.index[-1][1]
        if few != many:
            growth = f"{percent(of_workload.iloc[0])} on {few}"
            parts.append(f"{workload} {percent(of_workload.iloc[-1])} on {many} nodes ({growth})")
    return f"Share of waiting and exchanging: {listed(parts)}." if parts else ""
