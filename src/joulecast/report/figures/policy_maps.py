"""Figures of what tuning policies tried: maps of batch sizes and power limits, and paths over them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import altair as alt
import pandas as pd

from joulecast.report.figures.look import END, INK, Chart, save, titled, values
from joulecast.tuning.expectation import configurations, expected, expected_default
from joulecast.tuning.policy_experiment import Setting

_HIGHEST_SHOWN = 2.0
_ROW_HEIGHT, _WIDTH = 22, 380


def configuration_maps(
    by_policy: Mapping[str, pd.DataFrame],
    settings: Sequence[Setting],
    eta: float,
    stem: Path,
    policies: Sequence[str] = ("zeus", "curve"),
) -> None:
    """Write the expected cost of batch sizes and power limits, and paths of policies over it (first seed)."""
    costs = {setting.name: _expected_costs(setting, eta) for setting in settings}
    lowest = min(cost["ratio"].min() for cost in costs.values())
    charts = [
        _map(
            costs[setting.name],
            _path(by_policy[policy], setting),
            lowest,
            f"{setting.trace.workload}, {setting.trace.gpu}: {policy}",
        )
        for setting in settings
        for policy in policies
    ]
    save(
        charts,
        *(stem, "What policies tried, and what it costs relative to the default (replayed)"),
        "White: does not reach the target. Square: first recurrence; triangle: last.",
        columns=len(policies),
        width=_WIDTH,
        one_legend=True,
    )


def _expected_costs(setting: Setting, eta: float) -> pd.DataFrame:
    """``ratio`` of the cost to the default's by ``batch`` and ``watts``; infinite where no run ends."""
    trace = setting.trace
    default = expected_default(trace, eta).cost
    rows = [
        (batch, watts, expected(trace, batch, watts, eta).cost / default)
        for batch, watts in configurations(trace)
    ]
    return pd.DataFrame(rows, columns=["batch", "watts", "ratio"])


def _path(table: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """What a policy tried in its first seed, in order; ``end`` marks its first and its last trial."""
    workload, gpu = setting.name
    rows = table[(table["workload"] == workload) & (table["gpu"] == gpu) & (table["seed"] == 0)]
    path = pd.DataFrame(
        {"batch": rows["batch_size"].to_numpy(), "watts": rows["power_limit_w"].to_numpy()}
    )
    return path.assign(n=range(len(path)))


def _map(costs: pd.DataFrame, path: pd.DataFrame, lowest: float, title: str) -> Chart:
    limits = sorted(set(costs["watts"]), reverse=True)
    batches = alt.Scale(domain=sorted(set(costs["batch"])))
    x = alt.X("batch:O", title="batch size", scale=batches, axis=alt.Axis(labelAngle=-45))
    y = alt.Y("watts:O", title="power limit, W", scale=alt.Scale(domain=limits))
    scale = alt.Scale(domain=[lowest, _HIGHEST_SHOWN], scheme="viridis", reverse=True, clamp=True)
    legend = alt.Legend(direction="horizontal", gradientLength=200)
    ratio = alt.Color("ratio:Q", title="cost / default", scale=scale, legend=legend)
    reached = alt.Chart(values(costs[costs["ratio"] < float("inf")]))
    layers = [reached.mark_rect().encode(color=ratio), *_path_marks(path)]
    drawn = alt.LayerChart(layer=[layer.encode(x=x, y=y) for layer in layers])
    return titled(drawn, title, _ROW_HEIGHT * len(limits))


def _path_marks(path: pd.DataFrame) -> list[alt.Chart]:
    """A line, dots that grow lighter in time, and marks of its ends."""
    steps = alt.Chart(values(path)).encode(order="n:Q")
    by_order = alt.Fill("n:Q", scale=alt.Scale(scheme="greys", reverse=True), legend=None)
    first, last = (alt.Chart(values(end)) for end in (path.head(1), path.tail(1)))
    return [
        steps.mark_line(color=INK, strokeWidth=0.8, opacity=0.6),
        steps.mark_point(size=30, stroke=INK, strokeWidth=0.5, opacity=1).encode(fill=by_order),
        first.mark_point(shape="square", size=170, stroke=END, strokeWidth=2, opacity=1),
        last.mark_point(shape="triangle-up", size=110, stroke="white", fill=END, opacity=1),
    ]
