"""The front of a plan: the time and money of its settings, or time and energy if there is no price."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from joulecast.quantities import with_range
from joulecast.report.figures.forecast import ENERGIES, TIMES, Quantity, paid_in
from joulecast.report.figures.front import ON_FRONT, front_marks
from joulecast.report.figures.style import (
    INK,
    SERIES,
    Figure,
    titled,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.results_folder import NothingToShow

_ENDS = ("", "_low", "_high")


def plan_front(planned: Mapping[str, Any]) -> Figure:
    """All settings of a plan. A line joins the settings that no other setting beats in time and money. Only
    these have intervals.

    Args:
        planned: the result of :func:`joulecast.report.advice.plan.plan`.

    Raises:
        NothingToShow: no setting has a cost or an energy.
    """
    cost, time = paid_in(planned["prices"]["currency"]), TIMES
    settings = sorted(planned["candidates"], key=lambda row: float(row["time_s"]))
    paid = next((each for each in (cost, ENERGIES) if any(map(each.of, settings))), None)
    if paid is None:
        why = settings[0]["why_no_energy"]
        raise NothingToShow(f"no setting has a cost or an energy ({why})")
    rows = [row for row in settings if paid.of(row) is not None]
    points = pd.DataFrame({"setting": [row["setting"] for row in rows]})
    points["kind"] = [row["platform"] for row in rows]
    channels: dict[str, dict[str, Any]] = {}
    for name, of in (("x", time), ("y", paid)):
        factor, unit = of.unit_for(of.of(row) or 0.0 for row in rows)
        for end in _ENDS:
            points[name + end] = pd.Series([of.of(row, end) for row in rows], dtype=float) / factor
        points[of.name] = [_in_words(of, row) for row in rows]
        scale = value_scale(*(points[name + end] for end in _ENDS))
        title = f"{of.name}, {unit}"
        channels[name] = {"title": title, "scale": scale, "axis": value_axis(scale)}
    beaten = points["y"] >= points["y"].cummin().shift()
    points["front"] = beaten.map({True: "beaten", False: ON_FRONT})
    front, x, y = points[~beaten], alt.X("x:Q", **channels["x"]), alt.Y("y:Q", **channels["y"])
    span = alt.Chart(values(front)).mark_rule(color=INK, opacity=0.5)
    kinds = {name: SERIES[at % len(SERIES)] for at, name in enumerate(points["kind"].unique())}
    drawn = (
        span.encode(x=alt.X("x_low:Q", scale=x["scale"]), x2="x_high:Q", y=y)
        + span.encode(x=x, y=alt.Y("y_low:Q", scale=y["scale"]), y2="y_high:Q")
        + front_marks(points, x, y, kinds, ("setting", time.name, paid.name))
    )
    chosen = points[points["setting"] == (planned["best"] or {}).get("setting")]
    if len(chosen):
        label = alt.Chart(values(chosen)).mark_text(dy=-14, color=INK, fontWeight="bold")
        drawn += label.encode(x=x, y=y, text=alt.value("the choice"))

    def said(some: pd.DataFrame) -> str:
        shown = zip(some["setting"], some[time.name], some[paid.name], strict=True)
        return "; ".join(f"{setting}: {lasts}, {takes}" for setting, lasts, takes in shown)

    unbeaten = f"settings that no other beats in time and {paid.name}"
    return Figure(
        "plan",
        f"Time and {paid.name}",
        [titled(drawn, f"Time and {paid.name}", below="simulated; lines: 90 % intervals")],
        f"The choice: {said(chosen) or 'none'}. The {unbeaten}: {said(front)}.",
        f"Lower left is better. The dashed line joins {unbeaten}; their upright and level lines are 90 % "
        "intervals.",
        files=(),
    )


def _in_words(of: Quantity, row: Mapping[str, Any]) -> str:
    """A quantity of a setting with its interval."""
    return with_range(*of.in_words(*(of.of(row, end) for end in _ENDS)))
