"""Figures of a forecast: energy and time against the scale, with intervals and how it was run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from joulecast.energy.scale import unit_of
from joulecast.quantities import consumptions, times, with_range
from joulecast.report.figures.look import (
    CONFIG,
    Chart,
    colours,
    titled,
    tooltips,
    value_axis,
    value_scale,
    values,
)

Row = Mapping[str, Any]
_HEIGHT, _WIDTH = 240, 320
_NUMBERS = ("forecast", "low", "high", "as it was run")


@dataclass(frozen=True)
class _Quantity:
    """What is drawn: its columns in a forecast, its units (with how many base units each has), its words."""

    name: str
    unit: str
    units: tuple[tuple[float, str], ...]
    in_words: Callable[..., list[str]]

    def of(self, row: Row, end: str = "") -> float | None:
        value: float | None = row[f"{self.name}{end}_{self.unit}"]
        return value

    def shown_in(self, rows: Sequence[Row]) -> tuple[float, str]:
        """The largest unit of which the largest forecast has one or more."""
        largest = max(self.of(row) or 0.0 for row in rows)
        return max((unit for unit in self.units if unit[0] <= largest), default=self.units[0])


_ENERGY = _Quantity("energy", "j", ((1.0, "J"), (3.6e6, "kWh"), (3.6e9, "MWh")), consumptions)
_TIME = _Quantity("time", "s", ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d")), times)


def _frame(rows: Sequence[Row], quantity: _Quantity, factor: float) -> pd.DataFrame:
    """A line for each forecast, with :data:`_NUMBERS` in the shown unit."""
    count = "nodes" if unit_of(rows[0]["nodes_are"]) == "node" else "gpus"
    ends = ("", "_low", "_high")
    one_platform = len({row["platform"] for row in rows}) == 1
    frame = pd.DataFrame(
        [
            [
                row[count],
                row["workload"] if one_platform else f"{row['workload']}, {row['platform']}",
                *(quantity.of(row, end) for end in ends),
                row[f"measured_{quantity.name}_{quantity.unit}"],
                with_range(*quantity.in_words(*(quantity.of(row, end) for end in ends))),
            ]
            for row in rows
        ],
        columns=["scale", "training", *_NUMBERS, quantity.name],
    )
    frame[list(_NUMBERS)] = frame[list(_NUMBERS)].astype(float) / factor
    return frame


def _drawn(rows: Sequence[Row], quantity: _Quantity) -> Chart:
    """One quantity against the scale: a line and its 90 % interval for each training."""
    factor, unit = quantity.shown_in(rows)
    frame = _frame(rows, quantity, factor)
    # Scales double: as many pixels from 4 to 8 as from 8 to 16.
    x = alt.X(
        "scale:Q",
        title=f"{unit_of(rows[0]['nodes_are'])}s",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(values=sorted(set(frame["scale"])), format="d"),
    )
    room = value_scale(*(frame[name] for name in _NUMBERS))
    names = colours(list(dict.fromkeys(frame["training"])))
    legend = alt.Legend(columns=1, symbolOpacity=1)
    colour = alt.Color("training:N", title=None, scale=names, legend=legend)
    hover = tooltips("training", quantity.name)
    base = alt.Chart(values(frame)).encode(x=x, color=colour, tooltip=hover)
    lines = base.mark_line(point=alt.OverlayMarkDef(size=40), strokeWidth=2).encode(
        y=alt.Y("forecast:Q", title=f"{quantity.name}, {unit}", scale=room, axis=value_axis(room))
    )
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", scale=room), y2="high:Q")
    runs = base.mark_point(shape="cross", size=90, filled=True).encode(
        y=alt.Y("as it was run:Q", scale=room)
    )
    below = "band: 90 % interval; cross: as it was run"
    if quantity is _ENERGY and {row["fitted_on"] for row in rows} == {"estimated"}:
        below += "; power is estimated"
    return titled(band + lines + runs, f"Forecast {quantity.name}", _HEIGHT, below)


def forecast_chart(rows: Sequence[Row]) -> alt.HConcatChart:
    """Energy and time of forecasts against their scale, side by side; time alone where no energy is known.

    Args:
        rows: ``forecasts`` of :func:`joulecast.energy.forecast.forecast`.
    """
    charts = []
    for quantity in (_ENERGY, _TIME):
        known = [row for row in rows if quantity.of(row) is not None]
        if known:
            charts.append(_drawn(known, quantity).properties(width=_WIDTH))
    # Altair checks against Vega-Lite's schema, which knows no layout of legends.
    legend = {name: value for name, value in CONFIG["legend"].items() if name != "layout"}
    drawn: alt.HConcatChart = alt.hconcat(*charts).configure(**CONFIG | {"legend": legend})
    return drawn
