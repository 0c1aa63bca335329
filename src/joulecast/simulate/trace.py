"""Writes a simulated step as a Chrome trace (for chrome://tracing or Perfetto). Each class of devices is a
process of the trace."""

import json
from pathlib import Path
from typing import Any

from joulecast.runs.files.writing import written_aside
from joulecast.simulate.simulate import Simulation

_COMPUTE, _FEATURES, _GRADIENTS = 0, 1, 2
_LANES = {_COMPUTE: "compute", _FEATURES: "feature communication", _GRADIENTS: "gradients"}


def _event(name: str, process: int, lane: int, start_s: float, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": lane,
        "ts": start_s * 1e6,
        "dur": seconds * 1e6,
    }


def trace_events(simulation: Simulation) -> list[dict[str, Any]]:
    """Events of the trace format, in microseconds. An activity of several ops is shown op by op."""
    events: list[dict[str, Any]] = []
    classes = simulation.device_mesh.classes
    for number, (first, size) in enumerate(zip(classes.first, classes.size, strict=True)):
        name = f"device {first}" + (f" and {size - 1} like it" if size > 1 else "")
        events.append({"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}})
        events += [
            {"name": "thread_name", "ph": "M", "pid": number, "tid": lane, "args": {"name": text}}
            for lane, text in _LANES.items()
        ]
    for activity in simulation.activities:
        start, end = activity.start_s, activity.end_s
        if activity.usage is not None:
            lane = _GRADIENTS if activity.gradient else _FEATURES
            events += [
                _event(activity.label, d, lane, start, end - start) for d in activity.devices
            ]
            continue
        parts = activity.parts or [(None, activity.work)]
        # If a straggler or gradients made an activity slower, all of its ops are shown longer by the same
        # factor.
        planned = sum(seconds for _, seconds in parts)
        stretch = (end - start) / planned if planned > 0 else 0.0
        now = start
        for step, seconds in parts:
            name = activity.label if step is None else f"{step.item.op.name} {step.direction}"
            if step is not None and step.again:
                name += " again"
            events.append(_event(name, activity.devices[0], _COMPUTE, now, seconds * stretch))
            now += seconds * stretch
    return events


def write_trace(simulation: Simulation, path: Path) -> None:
    """Write the trace as JSON."""
    content = {"traceEvents": trace_events(simulation), "displayTimeUnit": "ms"}
    with written_aside(path) as partial:
        partial.write_text(json.dumps(content))
