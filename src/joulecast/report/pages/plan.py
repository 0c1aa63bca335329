"""The page of a plan: the front of its settings as a chart, and everything that the command prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from joulecast.quantities import with_range
from joulecast.report.advice.request import PlanRequest
from joulecast.report.advice.text import advice_text
from joulecast.report.figures.forecast import ENERGIES, TIMES, paid_in
from joulecast.report.figures.front import ON_FRONT, front_marks
from joulecast.report.figures.inline import inline_svg
from joulecast.report.figures.style import (
    INK,
    SERIES,
    Figure,
    titled,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.pages.overview import rendered
from joulecast.report.results_folder import NothingToShow, Part
from joulecast.runs.files.writing import written_aside

_ENDS = ("", "_low", "_high")


def plan_front(planned: Mapping[str, Any]) -> Figure:
    """All settings of a plan by time and money, or by time and energy if there is no price. A line joins the
    settings that no other setting beats. Only these have intervals.

    Args:
        planned: the result of :func:`joulecast.report.advice.plan.plan`.

    Raises:
        NothingToShow: no setting has a cost or an energy.
    """
    cost, time = paid_in(planned["prices"]["currency"]), TIMES
    settings = planned["candidates"]
    paid = next((each for each in (cost, ENERGIES) if any(map(each.of, settings))), None)
    if paid is None:
        why = settings[0]["why_no_energy"]
        raise NothingToShow(f"no setting has a cost or an energy ({why})")
    known = [row for row in settings if paid.of(row) is not None]
    rows = sorted(known, key=lambda row: (float(row["time_s"]), paid.of(row)))
    points = pd.DataFrame({"setting": [row["setting"] for row in rows]})
    points["kind"] = [row["platform"] for row in rows]
    channels: dict[str, dict[str, Any]] = {}
    for name, of in (("x", time), ("y", paid)):
        factor, unit = of.unit_for(of.of(row) or 0.0 for row in rows)
        ends = [[of.of(row, end) for end in _ENDS] for row in rows]
        points[[name + end for end in _ENDS]] = np.array(ends, float) / factor
        points[of.name] = [with_range(*of.in_words(*each)) for each in ends]
        scale = value_scale(*(points[name + end] for end in _ENDS))
        title = f"{of.name}, {unit}"
        channels[name] = {"title": title, "scale": scale, "axis": value_axis(scale)}
    points["chosen"] = points["setting"] == (planned["best"] or {}).get("setting")
    beaten = points["y"] >= points["y"].cummin().shift()
    points["front"] = beaten.map({True: "beaten", False: ON_FRONT})
    front, x, y = points[~beaten], alt.X("x:Q", **channels["x"]), alt.Y("y:Q", **channels["y"])
    hover = ("setting", time.name, paid.name)
    span = alt.Chart(values(front)).mark_rule(color=INK, opacity=0.5)
    kinds = {name: SERIES[at % len(SERIES)] for at, name in enumerate(points["kind"].unique())}
    drawn = (
        span.encode(x=alt.X("x_low:Q", scale=x["scale"]), x2="x_high:Q", y=y)
        + span.encode(x=x, y=alt.Y("y_low:Q", scale=y["scale"]), y2="y_high:Q")
        + front_marks(points, x, y, kinds, hover, alt.value("the choice"))
    )

    def said(some: pd.DataFrame) -> str:
        shown = zip(some["setting"], some[time.name], some[paid.name], strict=True)
        return "; ".join(f"{setting}: {lasts}, {takes}" for setting, lasts, takes in shown)

    unbeaten = f"settings that no other setting beats in both time and {paid.name}"
    return Figure(
        "plan",
        f"Time and {paid.name}",
        [titled(drawn, f"Time and {paid.name}", below="simulated; lines: 90 % intervals")],
        f"The choice: {said(points[points['chosen']]) or 'none'}. The {unbeaten}: {said(front)}.",
        f"Lower left is better. The dashed line joins {unbeaten}. Their vertical and horizontal lines are "
        "90 % intervals.",
        files=(),
    )


def write_plan_page(planned: Mapping[str, Any], page: Path) -> None:
    """Write the page of a plan. It needs no network and no JavaScript.

    Args:
        planned: the result of :func:`joulecast.report.advice.plan.plan`.

    Raises:
        JoulecastError: the page cannot be written.
    """
    context = {
        "network": planned["network"],
        "front": Part.of(lambda: plan_front(planned)),
        "text": advice_text(planned),
        "command": PlanRequest(**planned["request"]).in_shell(),
        "svg": inline_svg,
    }
    with written_aside(page) as partial:
        partial.write_text(rendered(context, "plan.html.j2"), encoding="utf-8")
