"""The front of energy and time of all settings: the settings that were run, and the settings that were
forecast."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from joulecast.quantities import consumptions, is_number, seconds
from joulecast.report.campaign import COSTS, Advised, work_in_words
from joulecast.report.figures.forecast import ENERGIES, TIMES
from joulecast.report.figures.style import (
    INK,
    KNOWN,
    SHAPES,
    Chart,
    Figure,
    colours,
    titled,
    tooltips,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.forecast_lines import basis_in_words, energy_is, in_words
from joulecast.report.results_folder import NothingToShow

_MOST_FRONTS = 6
ON_FRONT = "on the front"
_ENERGIES = ("energy_j", "energy_low_j", "energy_high_j")


def energy_time_front(advised: Sequence[Advised], finding: str) -> Figure:
    """All candidates of the advice, by time and energy for the same work. A line joins the candidates that no
    other candidate beats in both.

    Charts of the same work have the same axes. Energies of different sources have separate charts.

    Args:
        finding: a sentence that says which setting costs least.

    Raises:
        NothingToShow: no candidate has an energy.
    """
    points = pd.DataFrame([point for one in advised for point in _points(one)])
    if points.empty:
        known = [row for one in advised if one.answer for row in one.answer["candidates"]]
        whys = [*(one.why_none for one in advised), *(row["why_no_energy"] for row in known)]
        reason = next((why for why in whys if why), "there is no advice")
        raise NothingToShow(f"no setting has an energy ({reason})")
    fronts = list(points.groupby(["workload", "energy_source"], sort=True))
    charts = [
        _front(of_front, points[points["unit"] == of_front["unit"].iloc[0]], *map(str, names))
        for names, of_front in fronts[:_MOST_FRONTS]
    ]
    more = len(fronts) - len(charts)
    return Figure(
        "front",
        "Which setting to take",
        charts,
        finding,
        "Lower left is better. The dashed line joins settings that no other setting beats in both time and "
        "energy. Vertical lines are 90 % intervals of the energy. The label names the setting to take."
        + (f" {more} more fronts are not drawn." if more else ""),
        files=(COSTS,),
    )


def _points(one: Advised) -> Iterator[dict[str, Any]]:
    """All candidates with an energy."""
    if one.answer is None:
        return
    best = one.answer["best"]
    for row in one.answer["candidates"]:
        if is_number(row["energy_j"]):
            yield {
                "workload": one.name,
                "setting": row["setting"],
                "unit": one.answer["work"]["unit"],
                "time_s": float(row["time_s"]),
                **{name: row[name] for name in _ENERGIES},
                "energy_source": str(row["energy_source"]),
                "time": seconds(row["time_s"]),
                "energy": f"{in_words(row, 'energy', consumptions)}, {energy_is(row)}",
                "basis": "; ".join([basis_in_words(row), *row["extrapolation"]]),
                "kind": "was run" if row["basis"] == "measured" else "forecast",
                "front": ON_FRONT if row["on_front"] else "beaten",
                "chosen": best is not None and row["setting"] == best["setting"],
            }


def _front(points: pd.DataFrame, alike: pd.DataFrame, workload: str, source: str) -> Chart:
    """A chart of one workload. Its axes hold all points with the same work (``alike``)."""
    work = work_in_words(points["unit"].iloc[0])
    second, of_time = TIMES.unit_for(alike["time_s"])
    joule, of_energy = ENERGIES.unit_for(alike["energy_j"])
    in_units = {"time_s": second} | dict.fromkeys(_ENERGIES, joule)
    points, alike = (
        frame.assign(**{name: frame[name].astype(float) / size for name, size in in_units.items()})
        for frame in (points, alike)
    )
    x = alt.X(
        "time_s:Q",
        title=f"time for {work}, {of_time}",
        scale=(times := value_scale(alike["time_s"], pad=0.12)),
        axis=value_axis(times),
    )
    y = alt.Y(
        "energy_j:Q",
        title=f"energy for {work}, {of_energy}",
        scale=(energies := value_scale(*(alike[name] for name in _ENERGIES), pad=0.12)),
        axis=value_axis(energies),
    )
    spans = (
        alt.Chart(values(points))
        .mark_rule(color=INK, opacity=0.5)
        .encode(x=x, y=alt.Y("energy_low_j:Q", scale=energies), y2="energy_high_j:Q")
    )
    kinds = {kind: KNOWN[kind] for kind in KNOWN if kind in set(points["kind"])}
    hover = ("setting", "time", "energy", "basis")
    drawn = spans + front_marks(points, x, y, kinds, hover, "setting:N")
    return titled(drawn, workload, below=f"{source} energy, and forecasts from it")


def front_marks(
    points: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    kinds: Mapping[str, str],
    hover: Sequence[str],
    label: Any,
) -> alt.LayerChart:
    """Settings as dots in the colours of their ``kind``. Dots whose ``front`` is :data:`ON_FRONT` are large,
    and a line joins them. The ``chosen`` one has a label.

    Args:
        hover: columns that a dot shows on hovering.
    """
    on_front = points[points["front"] == ON_FRONT].sort_values(str(x["shorthand"]).split(":")[0])
    dash: dict[str, Any] = {"strokeDash": [4, 3], "interpolate": "step-after"}
    line = alt.Chart(values(on_front)).mark_line(color=INK, strokeWidth=1.2, **dash)
    dots = alt.Chart(values(points)).mark_point(
        filled=True, stroke=INK, strokeWidth=0.6, opacity=0.95
    )
    drawn: alt.LayerChart = line.encode(x=x, y=y) + dots.encode(
        x=x,
        y=y,
        color=alt.Color("kind:N", title=None, scale=colours([*kinds], [*kinds.values()])),
        shape=alt.Shape("kind:N", title=None, scale=colours([*kinds], SHAPES)),
        size=alt.condition(f"datum.front == '{ON_FRONT}'", alt.value(150), alt.value(60)),
        tooltip=tooltips(*hover),
    )
    chosen = points[points["chosen"]]
    if len(chosen):
        words = alt.Chart(values(chosen)).mark_text(dy=-14, color=INK, fontWeight="bold")
        drawn += words.encode(x=x, y=y, text=label)
    return drawn
