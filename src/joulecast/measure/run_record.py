"""Makes the record of a run, from the samples of its hosts and from the stages of its ranks.

The same function, :func:`run_record`, makes the record of our own training and of an observed command.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from joulecast.measure.power.host_clocks import RunClock
from joulecast.measure.power.other_load import Load, disturbances
from joulecast.measure.power.samples import Samples
from joulecast.runs import provenance
from joulecast.runs.frames import ACTIVITY_COLUMNS, PHASE_COLUMNS, POWER_COLUMNS
from joulecast.runs.integration import reading_quality
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.record import Outcome, RunInfo, RunRecord
from joulecast.runs.spec import RunSpec

_SEEN_S = 1.0
"""The load of other programs is judged over at least this number of seconds, or over the whole time of the
sampler if that is shorter."""
_SHORTEST_JUDGED_S = 0.2
"""If the sampler ran for at most this time (s), the load of other programs is not judged: the kernel counts
CPU time in ticks of 10 ms."""
_STOOD_STILL_S, _STOOD_STILL_SHARE = 3.0, 0.01
"""A sampler reads the work of its host at least every two seconds. If it read nothing for this time (s), and
for this share of the run, the run is disturbed."""


@dataclass(frozen=True)
class SampledHost:
    """One host: its identity, its name in the record, its clock, what its sampler read, its facts for the
    record, and the load by other programs before the run, if it was measured."""

    host: str
    node: str
    clock: RunClock
    samples: Samples
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    load_before: Load | None = None


def _meter_infos(
    hosts: Sequence[SampledHost], power: pd.DataFrame, outcome: Outcome, period_s: float
) -> list[MeterInfo]:
    """The meters of all hosts. For each: how completely it was read during the run."""
    infos = []
    meters = [meter for host in hosts for meter in host.samples.facts.meters]
    for meter in meters:
        facts = meter.model_dump(exclude={"identity"})
        if meter.source is not None:
            of_meter = power[(power["node"] == meter.node) & (power["meter"] == meter.meter)]
            facts["coverage"], facts["longest_gap_s"] = reading_quality(
                of_meter["t_s"].to_numpy(float),
                outcome.start_s,
                outcome.stop_s,
                max(period_s, meter.renewed_s or 0.0),
            )
            facts["readings"] = len(of_meter)
            # Containers of one machine count as hosts, and read the same devices.
            shared = [o.node for o in meters if meter.identity and o.identity == meter.identity]
            facts["shared_with"] = [n for n in dict.fromkeys(shared) if n != meter.node]
        infos.append(MeterInfo(**facts))
    return infos


def _frames(hosts: Sequence[SampledHost]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Power and activity of all hosts on the run clock."""
    power, activity = [], []
    for host in hosts:
        for meter, (t_s, watts, joules) in zip(
            host.samples.facts.meters, host.samples.readings, strict=True
        ):
            values = (meter.node, meter.meter, host.clock(t_s), watts, joules)
            power.append(pd.DataFrame(dict(zip(POWER_COLUMNS, values, strict=True))))
        for node, (t_s, *shares) in host.samples.activity.items():
            values = (node, host.clock(t_s), *shares)
            activity.append(pd.DataFrame(dict(zip(ACTIVITY_COLUMNS, values, strict=True))))
    return _joined(power, POWER_COLUMNS), _joined(activity, ACTIVITY_COLUMNS)


def _joined(tables: list[pd.DataFrame], columns: tuple[str, ...]) -> pd.DataFrame:
    filled = [table for table in tables if len(table)]
    if filled:
        return pd.concat(filled, ignore_index=True)
    numbers = dict.fromkeys([c for c in columns if c not in ("node", "meter")], float)
    return pd.DataFrame(columns=list(columns)).astype(numbers)


def load_during(hosts: Sequence[SampledHost], outcome: Outcome) -> Load | None:
    """Load by other programs during the run, on the machine where it was highest; ``None`` if it is not
    known.

    If a run lasts less than a second, the time just before and after it counts, too.
    """
    loads = []
    around_s = max(0.0, (_SEEN_S - (outcome.stop_s - outcome.start_s)) / 2)
    ends = [outcome.start_s - around_s, outcome.stop_s + around_s]
    machines: dict[str, list[SampledHost]] = {}
    for host in hosts:
        # Each container sees the work of the whole machine. So the work of all its containers is added up
        # first.
        boot = host.host.partition(":")[2]
        machines.setdefault(host.host if boot == "unknown-boot" else boot, []).append(host)
    for of_machine in machines.values():
        if any(host.samples.died or not host.samples.work.size for host in of_machine):
            continue
        worked = []
        for host in of_machine:
            t_s, *worked_s = host.samples.work
            times = host.clock(t_s)
            inside = np.clip(ends, times[0], times[-1])
            seen = [float(np.diff(np.interp(inside, times, of))[0]) for of in worked_s]
            worked.append((float(inside[1] - inside[0]), *seen))
        span, machine, _ = worked[0]
        if span > _SHORTEST_JUDGED_S:
            others = max(0.0, machine - sum(own for _, _, own in worked)) / span
            programs = tuple(sorted(of_machine[0].samples.facts.programs))
            loads.append(Load(round(others, 3), programs))
    return max(loads, key=lambda load: load.busy_cores, default=None)


def standstills(hosts: Sequence[SampledHost], outcome: Outcome, period_s: float) -> list[str]:
    """Sentences for the record about hosts on which the run stood still: a scheduler or a container engine
    may suspend all its processes while the clock continues."""
    found = []
    longest_s = _STOOD_STILL_SHARE * (outcome.stop_s - outcome.start_s)
    for host in hosts:
        if host.samples.died or not host.samples.work.size:
            continue
        read_s = host.clock(host.samples.work[0])
        _, gap_s = reading_quality(read_s, outcome.start_s, outcome.stop_s, period_s)
        if gap_s > max(_STOOD_STILL_S + period_s, longest_s):
            found.append(
                f"nothing was read on {host.node} for {gap_s:.1f} s: was the run suspended?"
            )
    return found


def run_record(
    spec: RunSpec,
    hosts: Sequence[SampledHost],
    outcome: Outcome,
    stages: pd.DataFrame,
    *,
    init_s: float | None = None,
    **facts: Any,
) -> RunRecord:
    """The record of a run.

    Args:
        outcome: what the run did, on the run's clock.
        stages: a table with the columns of :data:`~joulecast.runs.frames.STAGE_COLUMNS`.
        init_s: begin of the phase before the first step, in s on the run's clock, if meters were read in it.
        facts: other fields of :class:`~joulecast.runs.record.RunInfo`.
    """
    power, activity = _frames(hosts)
    loads = [host.load_before for host in hosts if host.load_before is not None]
    before = max(loads, key=lambda load: load.busy_cores, default=None)
    during = load_during(hosts, outcome)
    phases = [("run", 0.0, outcome.start_s, outcome.stop_s, float(outcome.samples))]
    if init_s is not None and outcome.steps and outcome.start_s > init_s:
        phases.insert(0, ("init", 0.0, init_s, outcome.start_s, float("nan")))
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        nodes_are=spec.nodes_are,
        outcome=outcome,
        meters=_meter_infos(hosts, power, outcome, spec.sample_period_s),
        clock={host.host: host.clock.facts() for host in hosts},
        hosts=[dict(host.fingerprint) for host in hosts],
        versions=provenance.versions(),
        source=provenance.source_state(),
        load_before={} if before is None else {"busy_cores": before.busy_cores},
        load_during={} if during is None else {"busy_cores": during.busy_cores},
        disturbed=[
            *disturbances(before, during),
            *standstills(hosts, outcome, spec.sample_period_s),
        ],
        **facts,
    )
    frame = pd.DataFrame(phases, columns=list(PHASE_COLUMNS))
    return RunRecord(info, stages, power, activity, frame)
