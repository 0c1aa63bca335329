"""The figure of what was predicted against what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import pandas as pd

from joulecast.quantities import digits, joules, percent, seconds
from joulecast.report import held_out
from joulecast.report.figures.look import (
    INK,
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
from joulecast.report.results_folder import Results
from joulecast.runs.scale import scale_in_words, scales_are

_MOST_NAMES = 7
_OTHERS = "others"


def predicted_against_measured(results: Results) -> Figure:
    """MC2's predictions of settings that its fit had not seen, times and energies each on their own.

    Raises:
        NothingToShow: nothing was fitted.
    """
    time = held_out.unseen_times(results)
    charts = [_against_runs(_Panel("Predicted and measured time", "measured time", "s", time))]
    found = [time]
    for source, cells in held_out.unseen_energies(results):
        found.append(cells.assign(source=source))
        charts.append(
            _against_runs(_Panel(f"Predicted and {source} energy", f"{source} energy", "J", cells))
        )
    rows = [
        (
            str(row.network),
            str(row.nodes),
            digits(row.batch),
            _what(row),
            in_words(row.measured),
            in_words(row.predicted),
            percent(row.difference_percent, signed=True),
        )
        for cells, in_words in zip(found, [seconds, *[joules] * len(found)], strict=False)
        for row in cells.itertuples()
    ]
    scale = scales_are(pd.concat([cells["nodes_are"] for cells in found]))
    columns = ("network", scale, "batch", "quantity", "in the runs", "predicted", "off by")
    numeric = frozenset(columns) - {"network", "quantity"}
    table = Table("Predicted against measured", columns, rows, numeric, "tables/energy/time_error")
    return Figure(
        "predicted",
        "Is the forecast right?",
        charts,
        " ".join([*results.answer("errors"), *results.answer("errors_at_worst")]),
        "Each point is a setting: a network on so many nodes. On the line the forecast was right; above it, "
        f"too high. {held_out.split_sentence(time['split'].iloc[0])}",
        [table],
        files=("tables/energy/time_error", "tables/energy/energy_error"),
    )


def _what(row: Any) -> str:
    source = getattr(row, "source", None)
    return "time" if source is None else f"energy ({source})"


@dataclass(frozen=True)
class _Panel:
    """Settings of one chart, and the quantity that is compared in them."""

    title: str
    what: str
    unit: str
    cells: pd.DataFrame


def _against_runs(panel: _Panel) -> Chart:
    """A chart of settings by network (colour) and node count (shape)."""
    cells, what = panel.cells, panel.what
    names = sorted(set(_few(cells["network"].astype(str))))
    network = cells["network"].astype(str)
    in_words = seconds if panel.unit == "s" else joules
    shown = pd.DataFrame(
        {
            "measured": cells["measured"].astype(float),
            "predicted": cells["predicted"].astype(float),
            "network": network.where(network.isin(names), _OTHERS),
            "nodes": cells["nodes"].astype(int).astype(str),
            "setting": [
                f"{row.network}, {scale_in_words(row.nodes, row.nodes_are)}, batch {digits(row.batch)}"
                for row in cells.itertuples()
            ],
            what: cells["measured"].map(in_words),
            "predicted by MC2": cells["predicted"].map(in_words),
            "off by": [percent(d, signed=True) for d in cells["difference_percent"]],
        }
    )
    counts = [str(count) for count in sorted(set(cells["nodes"].astype(int)))]
    hover = ("setting", what, "predicted by MC2", "off by")
    drawn = replace(panel, cells=shown)
    return _against(drawn, ("network", names), ("nodes", counts), hover)


def _few(names: pd.Series) -> pd.Series:
    """The names that most rows have; the rest are ``others``, so that there are colours for all."""
    most = names.value_counts().index[:_MOST_NAMES]
    if names.nunique() <= len(most):
        return names
    return names.where(names.isin(most[:-1]), _OTHERS)


def _against(
    panel: _Panel,
    colour: tuple[str, Sequence[str]],
    shape: tuple[str, Sequence[str]],
    hover: Sequence[str],
) -> Chart:
    """A point a row of ``measured`` and ``predicted``, around the line on which they are equal.

    Args:
        colour: column that colours tell apart, and its values in order; so ``shape``.
    """
    shown = panel.cells
    scale = value_scale(shown["measured"], shown["predicted"])
    ticks = value_axis(scale)
    x = alt.X("measured:Q", title=f"{panel.what}, {panel.unit}", scale=scale, axis=ticks)
    y = alt.Y("predicted:Q", title=f"predicted, {panel.unit}", scale=scale, axis=ticks)
    ends = pd.DataFrame({"measured": scale.domain, "predicted": scale.domain})
    line = alt.Chart(values(ends)).mark_line(color=INK, strokeWidth=1, clip=True)
    points = (
        alt.Chart(values(shown))
        .mark_point(filled=True, size=90, opacity=0.9, stroke=INK, strokeWidth=0.6)
        .encode(
            x=x,
            y=y,
            color=alt.Color(f"{colour[0]}:N", scale=colours(colour[1])),
            shape=alt.Shape(f"{shape[0]}:N", scale=shapes(shape[1])),
            tooltip=tooltips(*hover),
        )
    )
    return titled(line.encode(x=x, y=y) + points, panel.title)
