"""The figure of errors of energy on clusters that others metered: MC2 against its rivals, held out."""

import altair as alt
import pandas as pd

from joulecast.quantities import percent
from joulecast.report.figures.look import INK, WHOSE, Chart, row_axis, titled, tooltips, values
from joulecast.runs.judging import OURS

_ROW, _MOST = 18, 6


def cluster_errors(asked: pd.DataFrame) -> list[Chart]:
    """A chart a question, all with the same axes: the mean error of each model, and its worst.

    Args:
        asked: ``question``, ``model``, ``mape_percent``, ``max_percent``, ``settings``.
    """
    models = list(asked.groupby("model")["mape_percent"].mean().sort_values(kind="stable").index)
    models.sort(key=lambda model: model != OURS)
    longest = float(asked["max_percent"].max()) * 1.03
    return [
        _errors(of_question, str(question), models, longest)
        for question, of_question in list(asked.groupby("question", sort=False))[:_MOST]
    ]


def _errors(rows: pd.DataFrame, question: str, models: list[str], longest: float) -> Chart:
    shown = rows.assign(
        mean=[percent(value) for value in rows["mape_percent"]],
        worst=[percent(value) for value in rows["max_percent"]],
        whose=["ours" if model == OURS else "a rival" for model in rows["model"]],
    )
    scale = alt.Scale(domain=[0, longest], nice=False)
    y = alt.Y("model:N", sort=models, title=None, axis=row_axis(models))
    colour = alt.Color(
        "whose:N",
        legend=None,
        scale=alt.Scale(domain=list(WHOSE), range=list(WHOSE.values())),
    )
    x = alt.X("mape_percent:Q", title="error, percent", scale=scale, axis=alt.Axis(tickCount=5))
    base = alt.Chart(values(shown)).encode(y=y, tooltip=tooltips("model", "mean", "worst"))
    bars = base.mark_bar(size=_ROW - 6).encode(x=x, color=colour)
    until = base.mark_rule(color=INK, strokeWidth=1).encode(
        x=alt.X("mape_percent:Q", scale=scale), x2="max_percent:Q"
    )
    ends = base.mark_tick(color=INK, size=9, thickness=1.5).encode(
        x=alt.X("max_percent:Q", scale=scale)
    )
    settings = int(rows["settings"].max())
    return titled(
        bars + until + ends, question, _ROW * len(models), f"{settings} settings, metered"
    )
