"""The energy-time front of all settings: what was run, and what is forecast from it."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from joulecast.quantities import joules, seconds, steady
from joulecast.report import answers
from joulecast.report.figures.look import (
    INK,
    KNOWN,
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
from joulecast.report.results_folder import COSTS, NothingToShow, Results
from joulecast.report.tables.priced import work_in_words

_MOST_FRONTS = 6
_OF_ADVICE = ("energy_low_j", "energy_high_j", "chosen")
_ENERGIES = ("energy_j", "energy_low_j", "energy_high_j")


def energy_time_front(
    results: Results, known: Sequence[Mapping[str, Any]], finding: str = ""
) -> Figure:
    """All settings by time and energy for the same work; those that nothing beats in both are joined.

    Charts of the same work have the same axes.

    Args:
        known: points with the columns of :func:`answers.measured_points`, and ``energy_low_j`` and
            ``energy_high_j`` where they have an interval; they stand in for the measured ones of their
            workloads.
        finding: which setting costs least, in words.

    Raises:
        NothingToShow: no training run has an energy.
    """
    measured = answers.measured_points(results)
    given = pd.DataFrame(known, columns=[*measured.columns, *_OF_ADVICE])
    ran = given.loc[given["how"] == answers.WAS_RUN, "workload"]
    points = pd.concat([measured[~measured["workload"].isin(ran)], given], ignore_index=True)
    points = points[points["energy_j"].notna() & points["time_s"].notna()]
    if points.empty:
        raise NothingToShow(answers.why_no_energy(results), None)
    numbers = ["time_s", "energy_j", "energy_low_j", "energy_high_j"]
    points[numbers] = points[numbers].astype(float)
    fronts = list(points.groupby(["workload", "energy_source"], sort=True))
    charts: list[Chart] = []
    tables = []
    for (workload, source), of_front in fronts:
        marked = of_front.assign(front=on_front(of_front["time_s"], of_front["energy_j"]))
        marked = marked.sort_values(
            ["time_s", "energy_j"], key=lambda column: column.map(steady), kind="stable"
        )
        if len(charts) < _MOST_FRONTS:
            alike = points[points["unit"] == marked["unit"].iloc[0]]
            charts.append(_front(marked, alike, str(workload), str(source)))
        tables.append(_front_table(marked, str(workload), str(source)))
    more = (
        f" {len(fronts) - _MOST_FRONTS} more are in the tables."
        if len(fronts) > _MOST_FRONTS
        else ""
    )
    return Figure(
        "front",
        "Which setting costs least?",
        charts,
        finding or "Every setting that was run or can be forecast, by its time and energy.",
        "Lower left is better. The dashed line joins settings that no other beats in both time and energy; "
        "upright lines are 90 % intervals of the energy. A label names the setting that is advised. "
        "Energies of different sources have charts of their "
        "own." + more,
        tables,
        files=(COSTS,),
    )


def on_front(time_s: pd.Series, energy_j: pd.Series) -> pd.Series:
    """Whether no other setting takes less of one and no more of the other."""
    time, energy = (each.map(steady).to_numpy(float) for each in (time_s, energy_j))
    no_worse = (time[:, None] <= time) & (energy[:, None] <= energy)
    better = (time[:, None] < time) | (energy[:, None] < energy)
    return pd.Series(~np.any(no_worse & better, axis=0), index=time_s.index)


def _front(points: pd.DataFrame, alike: pd.DataFrame, workload: str, source: str) -> Chart:
    """A chart of one workload, with axes that hold all the points that are ``alike``."""
    work = work_in_words(points["unit"].iloc[0])
    was_run = points["how"] == answers.WAS_RUN
    shown = points.assign(
        time=points["time_s"].map(seconds),
        energy=[
            f"{joules(energy)} ({answers.energy_is(source, run)})"
            for energy, run in zip(points["energy_j"], was_run, strict=True)
        ],
        known=points["how"].where(was_run, "forecast"),
        front=points["front"].map({True: "on the front", False: "beaten"}),
    ).rename(columns={"how": "rests on", "known": "kind", "between": "90 % between"})
    x = alt.X(
        "time_s:Q",
        title=f"seconds for {work}",
        scale=(times := value_scale(alike["time_s"], pad=0.12)),
        axis=value_axis(times),
    )
    y = alt.Y(
        "energy_j:Q",
        title=f"joules for {work}",
        scale=(energies := value_scale(*(alike[name] for name in _ENERGIES), pad=0.12)),
        axis=value_axis(energies),
    )
    chart = alt.Chart(values(shown))
    line = (
        alt.Chart(values(shown[shown["front"] == "on the front"]))
        .mark_line(color=INK, strokeWidth=1.2, strokeDash=[4, 3], interpolate="step-after")
        .encode(x=x, y=y)
    )
    spans = chart.mark_rule(color=INK, opacity=0.5).encode(
        x=x, y=alt.Y("energy_low_j:Q", scale=energies), y2="energy_high_j:Q"
    )
    kinds = [kind for kind in KNOWN if kind in set(shown["kind"])]
    dots = chart.mark_point(filled=True, stroke=INK, strokeWidth=0.6, opacity=0.95).encode(
        x=x,
        y=y,
        color=alt.Color("kind:N", title=None, scale=colours(kinds, [KNOWN[k] for k in kinds])),
        shape=alt.Shape("kind:N", title=None, scale=shapes(kinds)),
        size=alt.condition("datum.front == 'on the front'", alt.value(150), alt.value(60)),
        tooltip=tooltips("setting", "time", "energy", "90 % between", "rests on"),
    )
    drawn = line + spans + dots
    chosen = shown[shown["chosen"].eq(True)]
    if len(chosen):
        label = alt.Chart(values(chosen)).mark_text(dy=-14, color=INK, fontWeight="bold")
        drawn += label.encode(x=x, y=y, text="setting:N")
    return titled(drawn, workload, below=f"{source} energy, and forecasts from it")


def _front_table(points: pd.DataFrame, workload: str, source: str) -> Table:
    work = work_in_words(points["unit"].iloc[0])
    columns = ("setting", f"time for {work}", "energy", "energy is", "rests on", "front")
    rows = [
        (
            *(str(row.setting), seconds(row.time_s), joules(row.energy_j)),
            answers.energy_is(source, row.how == answers.WAS_RUN),
            *(str(row.how), "yes" if row.front else ""),
        )
        for row in points.itertuples()
    ]
    return Table(f"{workload}: all settings", columns, rows, frozenset(columns[1:3]), COSTS)
