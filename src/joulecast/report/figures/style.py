"""The style of all figures: their colours, fonts and sizes."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from joulecast.runs.json_values import json_rows

SHADES = {
    "ink": ("#1b1f24", "#e6e9ed"),
    "soft": ("#59616b", "#a8b1bb"),
    "grid": ("#e6e8eb", "#2c343c"),
    "line": ("#d5dae0", "#3a424b"),
    "paper": ("#ffffff", "#14181c"),
    "tint": ("#f5f7f9", "#1e242a"),
    "link": ("#0b5cad", "#8cc2ff"),
    "warn": ("#7a4b00", "#ffd28a"),
    "warn-tint": ("#fff6e5", "#382a0c"),
    "good": ("#00563b", "#9fe0c3"),
    "good-tint": ("#e6f5ef", "#10362a"),
    "from": ("#084b83", "#a9d0f5"),
    "from-tint": ("#e8f1fa", "#14304a"),
    "never": ("#6b2a55", "#efb8dc"),
    "never-tint": ("#faeef6", "#3c1c31"),
}
"""Colours of pages by name, for light and for dark screens. Charts are drawn in the light colours."""
INK, GREY, GRID = (SHADES[name][0] for name in ("ink", "soft", "grid"))
WHITE, BLACK = "white", "black"
"""Colours of text on bars. White is also the colour of the lines that separate neighbouring marks."""

# These are Okabe and Ito's colours, which colour-blind people can distinguish. In every chart, a shape, a
# label or a place says the same as the colour.
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
PARTS = {
    "loading": "#E69F00",
    "computing": "#0072B2",
    "waiting": "#F0E442",
    "exchanging": "#D55E00",
    "updating": "#009E73",
    "other": "#D9D9D9",
}
PHASES = {"training": "#0072B2", "evaluating": "#E69F00", "stalled": "#D9D9D9"}
KNOWN = {"was run": "#0072B2", "forecast": "#E69F00"}
PALETTES = {
    "series": SERIES,
    "parts": tuple(PARTS.values()),
    "phases": tuple(PHASES.values()),
    "known": tuple(KNOWN.values()),
}
"""The colours of each chart, by what they distinguish."""

_FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
HEIGHT, _TITLE = 300, 330
_BELOW = 54
"""Most letters in a line below a title."""
_WIDE, _LARGE, _FEW_DECADES = 8.0, 1e5, 3.3
"""If values differ by more than the first number, their scale is logarithmic. From the second number on,
ticks are abbreviated. Below the third number of decades, a logarithmic axis has more ticks."""

_ROW_LABEL, _LETTER, _WIDER = 170, 7.3, 1.15
"""Most pixels of a row's name; pixels of a letter in a wide font; and the factor by which this font is
wider."""
_LABEL_PIXELS = 15
"""Least distance between two names at the ends of lines."""

CONFIG: dict[str, Any] = {
    "aria": False,
    "background": "transparent",
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {
        **{"labelColor": INK, "titleColor": INK, "gridColor": GRID, "domainColor": GREY},
        **{"tickColor": GREY, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500},
    },
    # The reader's font may be wider than the font in which labels are measured. So labels get more room.
    "axisY": {"minExtent": 38},
    "legend": {
        **{"orient": "bottom", "labelColor": INK, "titleColor": INK, "labelFontSize": 12},
        **{"titleFontSize": 12, "titleFontWeight": 500, "columns": 3, "labelLimit": 150},
        # Put legends below each other. Vega can do this, but Vega-Lite's schema does not have it.
        "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
    },
    "title": {
        **{"anchor": "start", "color": INK, "fontSize": 13, "fontWeight": 600, "limit": _TITLE},
        **{"subtitleColor": GREY, "subtitleFontSize": 12},
    },
}
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
"""The version of Vega-Lite in which the charts are written."""
Chart = alt.Chart | alt.LayerChart


@dataclass(frozen=True)
class Figure:
    """A figure of the page: charts side by side, and what they show in words.

    ``finding`` is what a reader should remember. ``how_to_read`` explains points and lines. ``files`` names
    the tables in the results from which the numbers come, without suffix.
    """

    name: str
    title: str
    charts: list[Chart]
    finding: str
    how_to_read: str
    files: tuple[str, ...]


def values(frame: pd.DataFrame) -> alt.InlineData:
    """A frame as a chart's data."""
    return alt.InlineData(values=json_rows(frame))


def tooltips(*titles: str) -> list[alt.Tooltip]:
    """Text fields to show on hovering, each under its own name."""
    return [alt.Tooltip(field=title, type="nominal", title=title) for title in titles]


def colours(names: Sequence[str], of: Sequence[str] = SERIES) -> alt.Scale:
    """A scale that gives each name a colour, or a shape if ``of`` is a list of shapes. If there are more
    names than colours, the colours start again from the first."""
    return alt.Scale(domain=list(names), range=[of[k % len(of)] for k in range(len(names))])


def value_scale(*columns: pd.Series, pad: float = 0.06) -> alt.Scale:
    """One scale that holds all values. It is logarithmic if they differ much."""
    found = pd.concat(columns).dropna()
    low, high = float(found.min()), float(found.max())
    if low > 0 and high / low > _WIDE:
        return alt.Scale(type="log", domain=[low / 1.25, high * 1.25], nice=False)
    room = pad * (high - low) or abs(high) * pad or 1.0
    start = 0.0 if 0 <= low < 0.3 * high else low - room
    return alt.Scale(domain=[start, high + room], nice=False, zero=False)


def value_axis(scale: alt.Scale) -> alt.Axis:
    """A few ticks for the values of a scale. Large values are given in thousands (k) and millions (M)."""
    low, high = scale.domain
    form = "~s" if high >= _LARGE else "~g"
    if scale.to_dict().get("type") != "log":
        return alt.Axis(tickCount=5, format="~s") if high >= _LARGE else alt.Axis(tickCount=5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < _FEW_DECADES else (1,)
    ticks = [step * 10.0**power for power in decades for step in steps]
    shown = [float(f"{tick:.3g}") for tick in ticks if low <= tick <= high]
    return alt.Axis(values=shown, format=form)


def row_axis(names: Sequence[str]) -> alt.Axis:
    """The axis of rows with names. The reader's font may be wider than the font that was used to measure the
    names. So there is some more room."""
    longest = max(map(len, names), default=0)
    room = min(_ROW_LABEL * _WIDER, _LETTER * longest)
    return alt.Axis(labelLimit=_ROW_LABEL, ticks=False, minExtent=room)


def label_places(ends: pd.Series, scale: alt.Scale, height: float) -> pd.Series:
    """Where the names of lines stand: values as near to the ends of the lines as possible, without overlaps.

    Args:
        ends: values at the ends of the lines, all within the scale.
        height: height of the chart in pixels.
    """
    is_log = scale.to_dict().get("type") == "log"
    low, high = (math.log(end) if is_log else end for end in scale.domain)
    found = ends.map(math.log) if is_log else ends
    pixels = ((found - low) / (high - low) * height).sort_values(kind="stable")
    places: list[float] = []
    for pixel in pixels:
        places.append(max(float(pixel), places[-1] + _LABEL_PIXELS if places else 0.0))
    for k in range(len(places) - 1, -1, -1):
        above = places[k + 1] - _LABEL_PIXELS if k + 1 < len(places) else float(height)
        places[k] = min(places[k], above)
    at = low + pd.Series(places, pixels.index, dtype=float) / height * (high - low)
    return at.map(math.exp) if is_log else at


def titled(chart: Chart, title: str, height: int = HEIGHT, below: str = "") -> Chart:
    """The chart with a title, and with the text ``below`` it. Parts of this text (``a; b``) are on separate
    lines."""
    whole = below.replace(" ", "\xa0").replace(";\xa0", "; ")
    parts = textwrap.wrap(whole, _BELOW, break_long_words=False, break_on_hyphens=False)
    wrapped = [line.replace("\xa0", " ") for line in parts]
    lines = alt.TitleParams(text=title, subtitle=wrapped if wrapped[1:] else below or alt.Undefined)
    made: Chart = chart.properties(title=lines, height=height)
    return made
