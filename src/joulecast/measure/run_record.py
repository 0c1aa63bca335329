"""The record of a run, from the samplers of its hosts and from what its ranks did.

Our own training and an observed command are recorded by this one function.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from joulecast.measure.power.foreign_load import Load, disturbances
from joulecast.measure.power.sampled_hosts import SampledHost, frames, load_during, meter_infos
from joulecast.runs import provenance
from joulecast.runs.frames import PHASE_COLUMNS
from joulecast.runs.record import Outcome, RunInfo, RunRecord
from joulecast.runs.spec import RunSpec


def run_record(
    spec: RunSpec,
    samplers: Sequence[SampledHost],
    fingerprints: Sequence[Mapping[str, Any]],
    outcome: Outcome,
    stages: pd.DataFrame,
    *,
    init_s: float | None = None,
    load: Load | None = None,
    **facts: Any,
) -> RunRecord:
    """The record of a run.

    Args:
        samplers: what each host's sampler has read.
        fingerprints: what each host is.
        outcome: what the run did, on the clock of the run.
        stages: with the columns of :data:`~joulecast.runs.frames.STAGE_COLUMNS`.
        init_s: begin of the phase before the first step, in s on the run's clock, where it was sampled.
        load: load by other programs before the run.
        facts: other fields of :class:`~joulecast.runs.record.RunInfo`.
    """
    power, activity = frames(samplers)
    during = load_during(samplers, outcome)
    phases = [("run", 0.0, outcome.start_s, outcome.stop_s, float(outcome.samples))]
    if init_s is not None and outcome.steps and outcome.start_s > init_s:
        phases.insert(0, ("init", 0.0, init_s, outcome.start_s, float("nan")))
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        nodes_are=spec.nodes_are,
        outcome=outcome,
        meters=meter_infos(samplers, power, outcome, spec.sample_period_s),
        clock={host.host: host.clock.facts() for host in samplers},
        hosts=[dict(fingerprint) for fingerprint in fingerprints],
        versions=provenance.versions(),
        source=provenance.source_state(),
        load_during={} if during is None else {"busy_cores": during.busy_cores},
        disturbed=disturbances(load, during),
        **facts,
    )
    frame = pd.DataFrame(phases, columns=list(PHASE_COLUMNS))
    return RunRecord(info, stages, power, activity, frame)
