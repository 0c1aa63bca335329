"""Figures of a run's power by time, and of what it did meanwhile."""

from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from joulecast.records.record import RunRecord
from joulecast.report.figures.look import (
    PARTS,
    PHASES,
    Chart,
    colours,
    nothing,
    palette_of,
    save,
    titled,
    values,
)
from joulecast.report.figures.time_parts import STAGES

_WIDTH = 640
_MOST_READINGS = 2 * _WIDTH
"""Most readings of a meter in a figure; more cannot be distinguished, and take minutes to draw."""
_MARGIN = 0.15
"""Share of the run's time that is shown before and after it."""
_SHOWN_PHASES = {
    "epoch": "training",
    "block": "training",
    "evaluation": "evaluating",
    "init": "other",
}
"""What the log of an imported run tells, by the name of the phase."""


def power_trace(record: RunRecord, stem: Path) -> None:
    """Write the power of every node of one run, with its stages behind it; says why where there is none."""
    info = record.info
    if info.energy_source is None:
        charts: list[Chart] = [nothing(f"no power: {info.no_energy_reason}", info.spec.run)]
    else:
        charts = [_traces(record, info.energy_source)]
    save(charts, stem, width=_WIDTH)


def _traces(record: RunRecord, source: str) -> Chart:
    start_s, stop_s = record.info.outcome.start_s, record.info.outcome.stop_s
    margin = _MARGIN * (stop_s - start_s)
    scale = alt.Scale(domain=[start_s - margin, stop_s + margin], nice=False)
    x = alt.X("start_s:Q", title="run clock, s", scale=scale)
    shaded = _shades(record)
    palette = {name: c for name, c in (PARTS | PHASES).items() if name in set(shaded["stage"])}
    legend = "phase" if record.info.spec.kind == "imported" else "stage of rank 0"
    stage = palette_of("stage:N", palette, legend)
    shades = alt.Chart(values(shaded)).mark_rect(opacity=0.3, clip=True)
    power = _watts(record, source)
    meter = alt.Color(
        "meter:N",
        title="node and meter",
        scale=colours(sorted(set(power["meter"]))),
        legend=alt.Legend(orient="right", columns=1),
    )
    y = alt.Y("watts:Q", title=f"power, W ({source})")
    lines = alt.Chart(values(power)).mark_line(clip=True, strokeWidth=1.4)
    both = shades.encode(x=x, x2="stop_s:Q", color=stage) + lines.encode(
        x=alt.X("t_s:Q", title="run clock, s", scale=scale), y=y, color=meter
    )
    return titled(both.resolve_scale(color="independent"), record.info.spec.run)


def _watts(record: RunRecord, source: str) -> pd.DataFrame:
    """Power by time of the meters of a source, ``meter`` with its node."""
    used = {m.meter for m in record.info.meters if m.available and m.source == source}
    power = record.power[record.power["meter"].isin(used)].sort_values("t_s", kind="stable")
    parts = []
    for (node, meter), of_meter in power.groupby(["node", "meter"]):
        watts = of_meter["watts"]
        if watts.isna().all():
            watts = of_meter["joules"].diff() / of_meter["t_s"].diff()
        trace = _thinned(pd.DataFrame({"t_s": of_meter["t_s"], "watts": watts}))
        parts.append(trace.assign(meter=f"{node} {meter}"))
    return pd.concat(parts) if parts else pd.DataFrame(columns=["t_s", "watts", "meter"])


def _thinned(trace: pd.DataFrame) -> pd.DataFrame:
    """Means of neighbouring readings, where there are more than can be drawn."""
    each = -(-len(trace) // _MOST_READINGS)
    return trace if each == 1 else trace.groupby(np.arange(len(trace)) // each).mean()


def _shades(record: RunRecord) -> pd.DataFrame:
    """What is shaded behind a trace: stages of rank 0, or the phases that the log tells."""
    if record.info.spec.kind == "imported":
        phases, names = record.phases, _SHOWN_PHASES
        spans = phases.assign(stage=phases["phase"].map(names))
    else:
        names = {column: name for name, column in STAGES.items()}
        spans = record.stages[record.stages["rank"] == 0]
        spans = spans.assign(stage=spans["stage"].map(names))
    return spans.loc[spans["stage"].notna(), ["stage", "start_s", "stop_s"]]
