"""Figures of a forecast: energy, money, CO2 and time against the scale, with intervals."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import altair as alt
import pandas as pd

from joulecast.quantities import consumptions, digits, masses, money, times, with_range
from joulecast.report.figures.style import (
    CONFIG,
    GREY,
    INK,
    Chart,
    colours,
    label_places,
    titled,
    tooltips,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.forecast_lines import basis_in_words
from joulecast.report.results_folder import names_of
from joulecast.runs.scale import scale_in_words, unit_of

Row = Mapping[str, Any]
_HEIGHT, _WIDTH = 240, 320
_MOST_LABELS = 14
"""The most lines with names at their ends. If there are more lines, the chart has a legend."""
_NUMBERS = ("forecast", "low", "high")
_DOUBLING = alt.Scale(type="log", base=2, nice=False)
"""A logarithmic scale: from 4 to 8 nodes it has as many pixels as from 8 to 16."""
_RUN, _FORECAST = "run", "forecast"
_SHAPES = alt.Scale(domain=[_RUN, _FORECAST], range=["cross", "circle"])
ENERGY, TIME, COST, CO2 = "energy", "time", "cost", "CO2e"


@dataclass(frozen=True)
class Quantity:
    """A quantity that a chart draws: its columns in a forecast, and its words.

    ``units`` describes each unit by three values: the least quantity for which it is used, its size in base
    units, and its name.
    """

    name: str
    column: str
    unit: str
    units: tuple[tuple[float, float, str], ...]
    in_words: Callable[..., list[str]]

    def of(self, row: Row, end: str = "") -> float | None:
        """The value of this quantity in a row of a forecast; or an ``end`` of its interval, ``_low`` or
        ``_high``."""
        value: float | None = row.get(f"{self.column}{end}{self.unit}")
        return value

    def unit_for(self, values: Iterable[float]) -> tuple[float, str]:
        """Size and name of the unit in which people can best read the median of the values."""
        middle = median(values)
        _, size, name = max((u for u in self.units if u[0] <= middle), default=self.units[0])
        return size, name


ENERGIES = Quantity(
    ENERGY,
    "energy",
    "_j",
    (
        *((0, 1.0, "J"), (1e3, 1e3, "kJ"), (3.6e3, 3.6e3, "Wh")),
        *((3.6e6, 3.6e6, "kWh"), (3.6e9, 3.6e9, "MWh")),
    ),
    consumptions,
)
TIMES = Quantity(
    TIME,
    "time",
    "_s",
    ((0, 1.0, "s"), (120.0, 60.0, "min"), (7200.0, 3600.0, "h"), (1.728e5, 86400.0, "d")),
    times,
)
_CO2 = Quantity(CO2, "co2", "_kg", ((0, 1e-3, "g"), (1.0, 1.0, "kg"), (1e3, 1e3, "t")), masses)


def paid_in(currency: str) -> Quantity:
    """The quantity of a chart that shows costs in a currency."""
    return Quantity(COST, "cost", "", ((0, 1.0, currency),), partial(money, currency))


def training_names(rows: Sequence[Row]) -> list[str]:
    """Names of the trainings in charts, for each row."""
    return names_of([row["workload"] for row in rows], [row["platform"] for row in rows])


def _frame(rows: Sequence[Row], quantity: Quantity, factor: float) -> pd.DataFrame:
    """A line for each forecast, with :data:`_NUMBERS` in the shown unit."""
    lines: list[dict[str, Any]] = []
    for row, name in zip(rows, training_names(rows), strict=True):
        numbers = [quantity.of(row, end) for end in ("", "_low", "_high")]
        batch, basis = "not known", basis_in_words(row)
        if row.get("batch_size") is not None:
            each = digits(row["batch_size"] / row["nodes"])
            batch = f"{digits(row['batch_size'])} ({each} a {unit_of(row['nodes_are'])})"
        was_run = row["runs"]
        # All quantities except the time rest on an energy.
        if quantity is not TIMES:
            was_run = row["runs_with_energy"]
            basis += f" ({row['energy_source']})" if row["energy_source"] is not None else ""
        lines.append(
            {
                "scale": row["nodes"],
                "training": name,
                "on": scale_in_words(row["nodes"], row["nodes_are"]),
                "batch": batch,
                **{
                    name: math.nan if value is None else value / factor
                    for name, value in zip(_NUMBERS, numbers, strict=True)
                },
                quantity.name: with_range(*quantity.in_words(*numbers)),
                "point": _RUN if was_run else _FORECAST,
                "basis": basis,
            }
        )
    return pd.DataFrame(lines)


def batch_in_words(rows: Sequence[Row]) -> str:
    """The batch of some forecasts, ``batch 4 a node``; empty if none is known."""
    known = [row for row in rows if row.get("batch_size") is not None]
    each = sorted({row["batch_size"] / row["nodes"] for row in known})
    if len(each) == 1:
        return f"batch {digits(each[0])} a {unit_of(rows[0]['nodes_are'])}"
    whole = sorted({row["batch_size"] for row in known})
    if not whole:
        return ""
    span = digits(whole[0]) if len(whole) == 1 else f"{digits(whole[0])} to {digits(whole[-1])}"
    return f"batch {span} of all {unit_of(rows[0]['nodes_are'])}s"


def _beyond(quantity: Quantity, most_run: int, last: float, title: str) -> Chart:
    """The part of a chart in which nothing was run. It is shaded, and labelled if the lines leave room."""
    room = alt.InlineData(values=[{"from": most_run, "scale": last}])
    shade = alt.Chart(room).mark_rect(color=GREY, opacity=0.1)
    drawn = shade.encode(x=alt.X("from:Q", title=title, scale=_DOUBLING), x2="scale:Q")
    falls = quantity is TIMES
    words = alt.Chart(room).mark_text(
        align="right" if falls else "left", baseline="top", dx=-4 if falls else 4, color=INK
    )
    label: Chart = drawn + words.encode(
        x=alt.X("scale:Q" if falls else "from:Q", title=title, scale=_DOUBLING),
        y=alt.value(4),
        text=alt.value("beyond what was run"),
    )
    return label


def _drawn(rows: Sequence[Row], quantity: Quantity, names: Sequence[str]) -> Chart:
    """One quantity against the scale: a line and its 90 % interval for each training."""
    factor, unit = quantity.unit_for(quantity.of(row) or 0.0 for row in rows)
    frame = _frame(rows, quantity, factor)
    title = f"{unit_of(rows[0]['nodes_are'])}s"
    x = alt.X(
        "scale:Q",
        title=title,
        scale=_DOUBLING,
        axis=alt.Axis(values=sorted(set(frame["scale"])), format="d", labelFlush=False),
    )
    room = value_scale(*(frame[name] for name in _NUMBERS))
    labelled = len(names) <= _MOST_LABELS
    legend = None if labelled else alt.Legend(columns=1, symbolOpacity=1)
    colour = alt.Color("training:N", title=None, scale=colours(names), legend=legend)
    hover = tooltips("training", "on", "batch", quantity.name, "basis")
    base = alt.Chart(values(frame)).encode(x=x, color=colour, tooltip=hover)
    y = alt.Y("forecast:Q", title=f"{quantity.name}, {unit}", scale=room, axis=value_axis(room))
    ran = pd.Series([row.get("most_run") or float("inf") for row in rows], index=frame.index)
    parts = [(frame[frame["scale"] <= ran], [1, 0]), (frame[frame["scale"] >= ran], [5, 3])]
    shape = alt.Shape("point:N", legend=None, scale=_SHAPES)
    lines = base.mark_point(size=60, filled=True, opacity=1).encode(y=y, shape=shape)
    for part, dash in parts:
        if len(part):
            line = alt.Chart(values(part)).mark_line(strokeWidth=2, strokeDash=dash)
            lines += line.encode(x=x, y=y, color=colour, tooltip=hover)
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", scale=room), y2="high:Q")
    drawn = band + lines
    last = float(frame["scale"].max())
    if ran.max() < last:
        drawn = _beyond(quantity, int(ran.max()), last, title) + drawn
    if labelled:
        # The name of each line is at its right end. No name covers another one.
        known = frame[frame["forecast"].notna()].sort_values("scale", kind="stable")
        ends = known.groupby("training", sort=False).tail(1)[["scale", "training", "forecast"]]
        ends = ends.assign(at=label_places(ends["forecast"], room, _HEIGHT))
        drawn += (
            alt.Chart(values(ends))
            .mark_text(align="left", dx=7, color=INK)
            .encode(
                x=x, y=alt.Y("at:Q", scale=room), text="training:N", tooltip=tooltips("training")
            )
        )
    facts = ["band: 90 % interval; cross: mean of runs; dot: MC2"]
    if len(work := {(row["work"], row["work_unit"]) for row in rows}) == 1:
        facts.insert(0, " ".join([digits(min(work)[0]), min(work)[1]]))
    if batch := batch_in_words(rows):
        facts.insert(0, batch)
    below = "; ".join(facts)
    if quantity is not TIMES and {row["energy_source"] for row in rows} == {"estimated"}:
        below = f"power is estimated; {below}"
    return titled(drawn, f"Forecast {quantity.name}", _HEIGHT, below)


def forecast_charts(rows: Sequence[Row], currency: str = "EUR") -> dict[str, Chart]:
    """Charts of forecasts against their scale, by quantity: :data:`ENERGY`, :data:`COST`, :data:`CO2` and
    :data:`TIME`. A quantity that is not known has no chart.

    Args:
        rows: ``forecasts`` of :func:`joulecast.energy.forecast.forecast`. ``most_run`` in a row is the
            largest scale on which the training was run. Beyond it, lines are dashed. The part of the chart
            beyond the ``most_run`` of all trainings is shaded.
    """
    charts, names = {}, list(dict.fromkeys(training_names(rows)))
    for quantity in (ENERGIES, paid_in(currency), _CO2, TIMES):
        known = [row for row in rows if quantity.of(row) is not None]
        if known:
            charts[quantity.name] = _drawn(known, quantity, names)
    return charts


def forecast_chart(rows: Sequence[Row]) -> alt.HConcatChart:
    """Energy and time of forecasts against their scale, side by side. If no energy is known, only the time is
    shown.

    Args:
        rows: ``forecasts`` of :func:`joulecast.energy.forecast.forecast`.
    """
    charts = forecast_charts(rows)
    sized = [charts[name].properties(width=_WIDTH) for name in (ENERGY, TIME) if name in charts]
    # Altair checks charts against Vega-Lite's schema, which does not have the layout of legends.
    legend = {name: value for name, value in CONFIG["legend"].items() if name != "layout"}
    # The reader's font may be wider than the font in which names are measured.
    room = {"left": 5, "top": 5, "right": 30, "bottom": 5}
    drawn: alt.HConcatChart = alt.hconcat(*sized, padding=room).configure(
        **CONFIG | {"legend": legend}
    )
    return drawn
