"""Figures of what is chosen: costs of tuning policies by recurrence, and pipelines in time."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any, get_args

import altair as alt
import pandas as pd

from joulecast.graphs.schedules import Schedule, Timeline, timeline
from joulecast.quantities import NONE, counted, digits, is_number, joules, percent, seconds, steady
from joulecast.report.figures.look import (
    GREY,
    INK,
    PIPELINE,
    Chart,
    Figure,
    colours,
    shapes,
    titled,
    tooltips,
    values,
)
from joulecast.report.grid import Table
from joulecast.report.results import NothingToShow, Results, having

_DEFAULT = "default"
_SHOWN = ("power-limit-only", "zeus", "outward-walk", "curve", "warm-start")
"""Policies that are drawn; the others are in the table."""
_KNOWS_MORE = "warm-start"
"""Policy that has seen the runs of another GPU, whose cost is not in its own: none to call the best."""
_CAVEATS = {
    _KNOWS_MORE: "warm-start begins with what was recorded on another GPU; what those runs cost is not "
    "counted, so it is not compared with the others.",
    "curve": "The form and the constants of curve were found on these very traces, so it may do worse on "
    "others.",
}
_MOST_PIPELINES, _MOST_EVENTS = 4, 600
_FORWARD_SHARE = 1 / 3
"""Of a stage's time, where only the whole of it is kept: a backward pass multiplies twice as much."""


def policy_costs(results: Results) -> Figure:
    """Cost of tuning policies by recurrence: replayed ones beside the default, else the one tuned live.

    Raises:
        NothingToShow: neither is there.
    """
    others = [name for name in results.replays if name != _DEFAULT]
    if _DEFAULT in results.replays and others:
        return _replayed(results.replays)
    if results.live is not None and results.live.get("recurrences"):
        return _live(results.live)
    raise NothingToShow("no policy was replayed, and no training was tuned live", "tuning_tables")


def relative_costs(replays: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Cost so far of each policy over the default's, mean over settings: ``policy``, ``recurrence`` (from 1),
    ``ratio``, ``settings``.

    Raises:
        NothingToShow: a column is missing.
    """
    needed = ("workload", "gpu", "recurrence", "cost")

    def so_far(policy: str) -> pd.Series:
        table = having(replays[policy], needed, f"tuning/replays/{policy}.parquet", "tuning_tables")
        means = table.groupby(["workload", "gpu", "recurrence"])["cost"].mean()
        return means.groupby(level=["workload", "gpu"]).cumsum()

    default = so_far(_DEFAULT)
    parts = []
    for policy in replays:
        ratio = (so_far(policy) / default).dropna().groupby(level="recurrence")
        table = pd.DataFrame({"ratio": ratio.mean(), "settings": ratio.count()}).reset_index()
        parts.append(table.assign(policy=policy, recurrence=table["recurrence"] + 1))
    return pd.concat(parts, ignore_index=True)


def _replayed(replays: Mapping[str, pd.DataFrame]) -> Figure:
    table = relative_costs(replays)
    drawn = [name for name in _SHOWN if name in replays] or sorted(set(replays) - {_DEFAULT})
    shown = table[table["policy"].isin(drawn)]
    shown = shown.assign(cost=[f"{percent(100 * r)} of the default's" for r in shown["ratio"]])
    x = alt.X("recurrence:Q", title="trainings so far", axis=alt.Axis(tickMinStep=1, tickCount=8))
    y = alt.Y("ratio:Q", title="cost so far / default", scale=alt.Scale(zero=False))
    base = alt.Chart(values(shown)).encode(
        x=x, y=y, color=alt.Color("policy:N", title=None, scale=colours(drawn))
    )
    every = max(1, int(shown["recurrence"].max()) // 8)
    marks = (
        base.transform_filter(f"datum.recurrence % {every} == 1 % {every}")
        .mark_point(filled=True, size=60)
        .encode(
            shape=alt.Shape("policy:N", title=None, scale=shapes(drawn)),
            tooltip=tooltips("policy", "recurrence", "cost"),
        )
    )
    rule = alt.Chart(values(pd.DataFrame({"ratio": [1.0]}))).mark_rule(color=INK, strokeDash=[4, 3])
    last = table[table["recurrence"] == table["recurrence"].max()].sort_values(
        "ratio", key=lambda ratio: ratio.map(steady), kind="stable"
    )
    compared = last[last["policy"].isin(drawn) & (last["policy"] != _KNOWS_MORE)]
    numbers = [r for r in (1, 2, 5, 10, 20, 50) if r <= table["recurrence"].max()]
    wide = table.pivot(index="policy", columns="recurrence", values="ratio")
    rows = [
        (str(policy), *(digits(row.get(n)) for n in numbers)) for policy, row in wide.iterrows()
    ]
    columns = ("policy", *(f"after {n}" for n in numbers))
    return Figure(
        "policies",
        "Does tuning the batch size pay?",
        [titled(base.mark_line(strokeWidth=1.6) + marks + rule.encode(y="ratio:Q"), "Cost so far")],
        _cheapest_policy(compared),
        " ".join(
            [
                "Below the dashed line a policy has paid for its search. Cost weighs energy and time.",
                *(caveat for policy, caveat in _CAVEATS.items() if policy in replays),
            ]
        ),
        [Table("Cost so far relative to the default", columns, rows, frozenset(columns[1:]))],
    )


def _cheapest_policy(compared: pd.DataFrame) -> str:
    """The finding, from the last recurrences in order of their cost."""
    if compared.empty:
        return (
            "No policy was replayed that searches by itself, so none is compared with the default."
        )
    best = compared.iloc[0]
    return (
        f"After {counted(int(best['recurrence']), 'training')} {best['policy']} has cost "
        f"{percent(100 * best['ratio'])} of what the default setting costs (replayed from recorded "
        f"trainings, {counted(int(best['settings']), 'setting')})."
    )


def _live(record: Mapping[str, Any]) -> Figure:
    rows = [row for row in record["recurrences"] if is_number(row.get("cost"))]
    if not rows:
        raise NothingToShow("no training that was tuned live reached its target", "tuning_tables")
    unit, network = record["cost_unit"], record["network"]
    costs = [float(row["cost"]) for row in rows]
    means = [fmean(costs[: k + 1]) for k in range(len(costs))]
    told = seconds if unit == "s" else joules
    shown = pd.DataFrame(
        {
            "training": [int(row["number"]) + 1 for row in rows],
            "cost": costs,
            "mean": means,
            "kind": "one training",
            "cost of it": [told(cost) for cost in costs],
            "mean so far": [told(mean) for mean in means],
            "batch size": [str(row["batch_size"]) for row in rows],
            "phase of the search": [str(row.get("phase") or NONE) for row in rows],
            "energy": [_energy(row) for row in rows],
        }
    )
    hover = tooltips(
        "training", "cost of it", "mean so far", "batch size", "phase of the search", "energy"
    )
    kinds = ["one training", "mean so far"]
    colour = alt.Color("kind:N", title=None, scale=colours(kinds))
    x = alt.X("training:O", title="training", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    axis = alt.Axis(tickCount=5)
    bars = (
        alt.Chart(values(shown))
        .mark_bar()
        .encode(
            x=x, y=alt.Y("cost:Q", title=f"cost, {unit}", axis=axis), color=colour, tooltip=hover
        )
    )
    line = (
        alt.Chart(values(shown.assign(kind="mean so far")))
        .mark_line(point=alt.OverlayMarkDef(size=50, shape="square"), strokeWidth=2)
        .encode(x=x, y="mean:Q", color=colour, tooltip=hover)
    )
    best = rows[costs.index(min(costs))]
    energy = record.get("energy_source")
    source = f"Energy is {energy}." if energy else f"Energy: none ({record.get('why_no_energy')})."
    columns = ("training", "batch size", "cost", "energy", "phase of the search")
    table = [
        (
            str(r["number"] + 1),
            str(r["batch_size"]),
            told(c),
            _energy(r),
            str(r.get("phase") or NONE),
        )
        for r, c in zip(rows, costs, strict=True)
    ]
    return Figure(
        "policies",
        "Does tuning the batch size pay?",
        [titled(bars + line, f"{network}, tuned live by {record['policy']}")],
        f"{counted(len(rows), 'training')} of {network} to a target accuracy, measured here: the first cost "
        f"{told(costs[0])} with batch {rows[0]['batch_size']}, the cheapest {told(min(costs))} with batch "
        f"{best['batch_size']}, all of them {told(means[-1])} on average. {source}",
        "A training is repeated; the policy chooses its batch size each time. Cost is "
        + (
            "time only, since no energy was measured."
            if unit == "s"
            else "energy and time, weighed."
        ),
        [Table("Every training", columns, table, frozenset(columns[:4]))],
    )


def _energy(row: Mapping[str, Any]) -> str:
    if is_number(row.get("energy_j")):
        return f"{joules(row['energy_j'])} ({row.get('energy_source')})"
    return "none"


def pipeline_timelines(results: Results) -> Figure:
    """Who works when in pipelines: those that were run, with their stages' measured times; else those that
    were cut, with the times of their tasks.

    Raises:
        NothingToShow: there is neither, or no file of them is as expected.
    """
    wrong: list[str] = []
    found = [_of_run(record, wrong) for record in results.pipelines[:_MOST_PIPELINES]]
    found = [pipeline for pipeline in found if pipeline]
    if not found:
        plans = results.experiments[:_MOST_PIPELINES]
        found = [pipeline for pipeline in (_of_plan(plan, wrong) for plan in plans) if pipeline]
    drawn = [pipeline for pipeline in found if pipeline is not None]
    if not drawn:
        why = "; ".join(wrong) or "no network was cut into stages"
        raise NothingToShow(why, "partition_tables")
    columns = ("pipeline", "micro-batches", "schedule", "step by schedule", "busy", "measured step")
    rows, charts = [], []
    for pipeline in drawn:
        shapes_of = pipeline.shapes()
        longest_s = max(shape.makespan_s for shape in shapes_of.values())
        for schedule, shape in shapes_of.items():
            rows.append(
                (
                    *(pipeline.name, str(pipeline.micro_batches), _NAMES[schedule]),
                    *(seconds(shape.makespan_s), percent(100 * fmean(shape.busy_shares))),
                    seconds(pipeline.step_s if schedule == pipeline.schedule else None),
                )
            )
            if pipeline is drawn[0] or schedule == pipeline.schedule:
                charts.append(_gantt(shape, f"{pipeline.name}, {_NAMES[schedule]}", longest_s))
    return Figure(
        "pipelines",
        "What does a pipeline wait for?",
        charts,
        drawn[0].finding(rows[0][4], rows[1][4]),
        "A row is a stage on a device of its own; a block is one micro-batch, and white is waiting. "
        + drawn[0].rests_on,
        [Table("Pipelines", columns, rows, frozenset({columns[1], *columns[3:]}))],
    )


_NAMES: dict[str, str] = {"gpipe": "GPipe", "1f1b": "1F1B"}


class _Pipeline:
    """Stage times of one micro-batch, and what a step took where it was run."""

    def __init__(
        self,
        name: str,
        forward_s: list[float],
        backward_s: list[float],
        micro_batches: int,
        schedule: str,
        rests_on: str,
        step_s: float | None = None,
        speedup: float | None = None,
    ) -> None:
        self.name, self.forward_s, self.backward_s = name, forward_s, backward_s
        self.micro_batches, self.schedule, self.rests_on = micro_batches, schedule, rests_on
        self.step_s, self.speedup = step_s, speedup

    def shapes(self) -> dict[Schedule, Timeline]:
        """All work of a batch in time, by schedule."""
        times, count = (self.forward_s, self.backward_s), self.micro_batches
        return {schedule: timeline(*times, schedule, count) for schedule in get_args(Schedule)}

    def finding(self, gpipe: str, one_f_one_b: str) -> str:
        busy = f"{self.name}: devices are busy {gpipe} of a step (GPipe) and {one_f_one_b} (1F1B)"
        if self.step_s is None:
            return busy + ", by calculation; it was not run."
        faster = f"{digits(self.speedup)} times as fast as one core"
        return f"{busy}. Run here, a step took {seconds(self.step_s)}, {faster}."


def _of_run(record: Mapping[str, Any], wrong: list[str]) -> _Pipeline | None:
    try:
        summary, stages = record["summary"], len(record["stages"])
        return _Pipeline(
            f"{record['network']} in {counted(stages, 'stage')}",
            [float(time) for time in summary["forward_s"]],
            [float(time) for time in summary["backward_s"]],
            int(record["micro_batches"]),
            str(record["schedule"]),
            "Lengths are the stages' measured times; when they start is calculated, without transfers.",
            float(summary["step_s"]),
            float(summary["speedup"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        wrong.append(f"{record['file']} is not as expected ({error!r})")
        return None


def _of_plan(experiment: Mapping[str, Any], wrong: list[str]) -> _Pipeline | None:
    try:
        devices, found = next(iter(experiment["on_devices"].items()))
        micro_batches = int(found["micro_batches"])
        times = [1e-6 * float(stage["time"]) / micro_batches for stage in found["plan"]["stages"]]
        return _Pipeline(
            f"{experiment['network']} in {devices} stages",
            [_FORWARD_SHARE * time for time in times],
            [(1 - _FORWARD_SHARE) * time for time in times],
            micro_batches,
            "1f1b",
            f"Lengths are task times ({experiment['source']}), a third of them taken as forward; the "
            "pipeline was not run.",
        )
    except (KeyError, TypeError, ValueError, StopIteration, ZeroDivisionError) as error:
        wrong.append(f"{experiment['file']} is not as expected ({error!r})")
        return None


def _gantt(shape: Timeline, name: str, longest_s: float) -> Chart:
    events = [
        {
            "stage": str(event.stage + 1),
            "start": 1e3 * event.start_s,
            "stop": 1e3 * event.stop_s,
            "pass": event.phase,
            "micro-batch": str(event.micro_batch + 1),
            "takes": seconds(event.stop_s - event.start_s),
            "from": seconds(event.start_s),
        }
        for event in shape.events[:_MOST_EVENTS]
    ]
    frame = pd.DataFrame(events)
    y = alt.Y("stage:O", title="stage", sort=sorted(set(frame["stage"]), key=int))
    x = alt.X(
        "start:Q",
        title="milliseconds",
        scale=alt.Scale(domain=[0, 1e3 * longest_s], nice=False),
        axis=alt.Axis(tickCount=5),
    )
    hover = tooltips("stage", "micro-batch", "pass", "from", "takes")
    bars = (
        alt.Chart(values(frame))
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            x=x,
            x2="stop:Q",
            y=y,
            color=alt.Color(
                "pass:N", title=None, scale=colours(list(PIPELINE), list(PIPELINE.values()))
            ),
            tooltip=hover,
        )
    )
    few = frame[(frame["stop"] - frame["start"]) > 0.03 * 1e3 * shape.makespan_s]
    labels = (
        alt.Chart(values(few.assign(middle=(few["start"] + few["stop"]) / 2)))
        .mark_text(fontSize=11)
        .encode(
            x="middle:Q",
            y=y,
            text="micro-batch:N",
            tooltip=hover,
            color=alt.condition("datum.pass == 'forward'", alt.value("white"), alt.value(INK)),
        )
    )
    rows = len(set(frame["stage"]))
    return titled(bars + labels, name, max(80, 34 * rows)).properties(
        view=alt.ViewConfig(stroke=GREY)
    )
