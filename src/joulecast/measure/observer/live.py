"""The energy and power of a running `joulecast measure` so far, read from its growing files."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.measure.observer.job_folder import PREFIX, Began, JobFiles
from joulecast.measure.observer.steps import Steps
from joulecast.measure.power.meters import READING
from joulecast.measure.power.samples import SAMPLES, Samples, read_samples
from joulecast.runs.integration import EnergyCurve
from joulecast.runs.meter_choice import EnergySource, metered

_NOW_S = 10.0
"""Watts "now" are the mean over this number of seconds."""


@dataclass(frozen=True)
class Running:
    """One measurement that is running.

    Attributes:
        watts: watts of all hosts now; ``None`` if not known.
        joules: joules of all hosts so far; ``None`` if not known, with the reason in ``why_no_energy``.
        source: source of watts and joules, as in a record.
        lasted_s: time since the first sample.
        steps: number of steps so far; ``None`` if no steps are seen.
        left_s, whole_j: seconds to the end of the training, and joules of the whole training. They are right
            if the rest of the training is as fast as before, and draws as much power as now. ``None`` if they
            are not known.
    """

    name: str
    hosts: int
    watts: float | None
    joules: float | None
    source: EnergySource | None
    why_no_energy: str | None
    lasted_s: float
    steps: int | None
    left_s: float | None
    whole_j: float | None


def _drawn(samples: Samples) -> tuple[float | None, float | None, EnergySource | None, str | None]:
    """Watts now and joules so far of one host, and their source; or why there are none."""
    choice = metered(samples.facts.nodes, samples.facts.meters)
    if choice.source is None:
        return None, None, None, choice.why_not
    chosen = {(meter.node, meter.meter) for meter in choice.meters}
    watts = joules = 0.0
    for meter, readings in zip(samples.facts.meters, samples.readings, strict=True):
        if (meter.node, meter.meter) not in chosen:
            continue
        try:
            curve = EnergyCurve.of(pd.DataFrame(dict(zip(READING, readings, strict=True))))
        except ValueError:
            return None, None, None, "it has just begun"
        end_s = curve.t_s[-1]
        begin_s = max(curve.t_s[0], end_s - _NOW_S)
        joules += float(curve.between(curve.t_s[0], end_s))
        watts += float(curve.between(np.array(begin_s), end_s) / (end_s - begin_s))
    return watts, joules, choice.source, None


def running_measurements(out: Path, steps_in_all: int | None = None) -> list[Running]:
    """The measurements of `joulecast measure` that run now.

    Args:
        out: folder of the records, as in `joulecast measure --out`.

    Raises:
        JoulecastError: a file of a measurement has unexpected content.
    """
    found = []
    for folder in sorted(out.glob(f"{PREFIX}*")):
        job = JobFiles(folder)
        began = job.read("began", Began)
        hosts = [read_samples(file) for file in sorted(folder.glob(f"*{SAMPLES}"))]
        hosts = [host for host in hosts if host.span_s is not None]
        if began is None or not hosts or not job.is_held():
            continue
        drawn = [_drawn(host) for host in hosts]
        missing = next((row[3] for row in drawn if row[3]), None)
        watts = None if missing else sum(row[0] or 0.0 for row in drawn)
        joules = None if missing else sum(row[1] or 0.0 for row in drawn)
        lasted_s = max(float(np.ptp(host.work[0])) for host in hosts)
        processes = job.marks_of(0)
        ends = Steps.of(processes[0].marks).ends.tolist() if processes else []
        done = len(ends)
        left_s = whole_j = None
        if steps_in_all is not None and done > 1:
            half = done // 2
            step_s = (ends[-1] - ends[half - 1]) / (done - half)
            left_s = max(0.0, step_s * (steps_in_all - done) - (time.monotonic() - ends[-1]))
            if watts is not None and joules is not None:
                whole_j = joules + watts * left_s
        found.append(
            Running(
                str(began.training.network),
                len(hosts),
                watts,
                joules,
                drawn[0][2],
                missing,
                lasted_s,
                done or None,
                left_s,
                whole_j,
            )
        )
    return found
