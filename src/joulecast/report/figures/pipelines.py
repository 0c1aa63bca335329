"""The figure of pipelines: who works when."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_args

import altair as alt
import pandas as pd

from joulecast.graphs.schedules import Schedule, Timeline, timeline
from joulecast.quantities import counted, digits, percent, seconds
from joulecast.report.figures.look import (
    GREY,
    PIPELINE,
    Chart,
    Figure,
    blocks,
    titled,
)
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results

_MOST_PIPELINES, _MOST_EVENTS, _BARS_HEIGHT = 4, 600, 150
_FILE = "tables/partition/partition_pipeline"
_THIN_GAP = 0.2
_FORWARD_SHARE = 1 / 3
"""Share of the forward pass where only a stage's whole time is kept: backward multiplies twice as much."""
_NAMES: dict[str, str] = {"gpipe": "GPipe", "1f1b": "1F1B"}


def pipeline_timelines(results: Results) -> Figure:
    """Work of pipelines in time: those that were run, with their stages' measured times; else those that
    were cut, with the times of their tasks.

    Raises:
        NothingToShow: there is neither.
    """
    drawn = [_of_run(record) for record in results.pipelines[:_MOST_PIPELINES]]
    drawn = drawn or [_of_plan(plan) for plan in results.experiments[:_MOST_PIPELINES]]
    if not drawn:
        raise NothingToShow("no network was cut into stages", "partition_tables")
    columns = ("pipeline", "micro-batches", "schedule", "step by schedule", "busy", "measured step")
    rows, charts = [], []
    longest_s = max(shape.makespan_s for each in drawn for shape in each.shapes().values())
    for pipeline in drawn:
        for schedule, shape in pipeline.shapes().items():
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
        "A row is a stage on a device of its own; a block is one micro-batch, and what is empty is waiting. "
        + drawn[0].rests_on,
        [Table("Pipelines", columns, rows, frozenset({columns[1], *columns[3:]}), _FILE)],
        files=(_FILE,),
    )


@dataclass(frozen=True)
class _Pipeline:
    """Stage times of one micro-batch, and what a step took where it was run."""

    name: str
    forward_s: list[float]
    backward_s: list[float]
    micro_batches: int
    schedule: str
    rests_on: str
    step_s: float | None = None
    speedup: float | None = None

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


def _of_run(record: Mapping[str, Any]) -> _Pipeline:
    summary, stages = record["summary"], counted(len(record["stages"]), "stage")
    planner = f" ({record['planner']})" if record.get("planner") else ""
    return _Pipeline(
        f"{record['network']} in {stages}{planner}",
        summary["forward_s"],
        summary["backward_s"],
        record["micro_batches"],
        record["schedule"],
        "Lengths are the stages' measured times; when they start is calculated, without transfers.",
        summary["step_s"],
        summary["speedup"],
    )


def _of_plan(experiment: Mapping[str, Any]) -> _Pipeline:
    devices, found = next(iter(experiment["on_devices"].items()))
    micro_batches = found["micro_batches"]
    times = [1e-6 * stage["time"] / micro_batches for stage in found["plan"]["stages"]]
    return _Pipeline(
        f"{experiment['network']} in {devices} stages",
        [_FORWARD_SHARE * time for time in times],
        [(1 - _FORWARD_SHARE) * time for time in times],
        micro_batches,
        "1f1b",
        f"Lengths are task times ({experiment['source']}), a third of them taken as forward; the "
        "pipeline was not run.",
    )


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
    long = frame["stop"] - frame["start"] > 0.03 * 1e3 * longest_s
    frame["label"] = frame["micro-batch"].where(long, "")
    stages = sorted(set(frame["stage"]), key=int)
    y = alt.Y("stage:O", title="stage", sort=stages)
    scale = alt.Scale(domain=[0, 1e3 * longest_s], nice=False)
    x = alt.X("start:Q", title="milliseconds", scale=scale, axis=alt.Axis(tickCount=5))
    hover = ("stage", "micro-batch", "pass", "from", "takes")
    drawn = blocks(frame, x, y, "pass", PIPELINE, hover, gap=1 if long.any() else _THIN_GAP)
    return titled(drawn, name, max(80, 34 * len(stages))).properties(
        view=alt.ViewConfig(stroke=GREY)
    )
