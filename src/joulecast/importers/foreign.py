"""A run that others did, and the record made of it, whichever form it was read from.

The forms differ in what they know: a submission as handed in says what machine it ran on, a table of
runs does not. What is not known stays ``None``; what the record's model cannot leave open gets the
least it allows, and the run says why it is polluted.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from joulecast.files.reading import validated
from joulecast.importers.lags import Course
from joulecast.importers.node_clocks import aligned_by_node
from joulecast.importers.readings import CheckedMeter, checked, checked_switch
from joulecast.importers.repeats import Repeat, RunPlace, repeat_of
from joulecast.importers.traps import NODE_METER, Findings, MeterLog, mark_shared, usual_spacing
from joulecast.importers.units import bounds_of, in_watts
from joulecast.importers.work import Interval, work_of
from joulecast.platforms import Platform
from joulecast.records.frames import ACTIVITY_COLUMNS, POWER_COLUMNS, STAGE_COLUMNS
from joulecast.records.metering import ESTIMATED_SWITCH, MeterInfo
from joulecast.records.record import Checks, Outcome, RunInfo, RunRecord
from joulecast.records.spec import Foreign, RunSpec

_PLATFORM = TypeAdapter(Platform)
_NEVER_BEGUN = "its energy is not known"

MOST_NODES = 100_000
_MOST_ACCELERATORS = 1_000
_LONGEST_S = 1e9
"""Thirty years: what a clock says beyond is garbled."""


@dataclass
class ForeignRun:
    """What a log says of a run. Times in seconds of the run clock, which starts with the
    initialisation.

    ``nodes`` is what the submission says of their number, ``missing_nodes`` the names of those that
    should have a file and have none. ``switches`` are meters of the network, ``estimates`` constant figures
    for it: node, time (NaN if it means nothing) and watts. ``zero_ms`` is the zero of the run clock since
    the epoch, where the log has it. ``findings`` holds what reading the files brought to light; with
    ``notes_lag`` a remark says what is known of the meters' clocks, and with ``prints_fact`` the command
    prints a line on the run.
    """

    run: str
    campaign: str
    system: str
    benchmark: str
    submission: str
    source: dict[str, Any]
    repeat: int = 1
    nodes: int | None = None
    accelerators_per_node: int | None = None
    accelerator: str | None = None
    global_batch_size: int | None = None
    train_samples: int | None = None
    seed: int | None = None
    init_s: tuple[float, float] | None = None
    start_s: float | None = None
    stop_s: float | None = None
    status: str | None = None
    started_utc: str = ""
    zero_ms: float | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    meters: list[MeterLog] = field(default_factory=list)
    missing_nodes: list[str] = field(default_factory=list)
    switches: list[MeterLog] = field(default_factory=list)
    estimates: list[tuple[str, float, float]] = field(default_factory=list)
    notes_lag: bool = False
    prints_fact: bool = False
    findings: Findings = field(default_factory=Findings)

    @property
    def run_s(self) -> tuple[float, float] | None:
        """Start and stop, where both are known and in order."""
        if self.start_s is None or self.stop_s is None or self.stop_s <= self.start_s:
            return None
        return self.start_s, self.stop_s


def _leave_out_what_cannot_be(run: ForeignRun) -> None:
    """Take out counts and times that no run has: a garbled one would make lists as long, and no record."""
    for name, most in (("nodes", MOST_NODES), ("accelerators_per_node", _MOST_ACCELERATORS)):
        count = getattr(run, name)
        if count is not None and not 1 <= count <= most:
            run.findings.remark("garbled", f"{name} {count}")
            setattr(run, name, None)
    for name in ("start_s", "stop_s"):
        at_s = getattr(run, name)
        if at_s is not None and not abs(at_s) <= _LONGEST_S:
            run.findings.remark("garbled", f"{name} {at_s:g}")
            setattr(run, name, None)
    if run.init_s is not None and not max(map(abs, run.init_s)) <= _LONGEST_S:
        run.init_s = None
    known = [i for i in run.intervals if max(abs(i.start_s), abs(i.stop_s)) <= _LONGEST_S]
    if len(known) < len(run.intervals):
        run.findings.remark("garbled", f"the times of {len(run.intervals) - len(known)} phases")
        run.intervals = known
    for meters in (run.meters, run.switches):
        for place, meter in enumerate(meters):
            good = np.abs(meter.t_s) <= _LONGEST_S
            if not good.all():
                text = f"{meter.file}: {int((~good).sum())} times of readings"
                run.findings.remark("garbled", text)
                meters[place] = meter.only(good)
    run.estimates = [e for e in run.estimates if not abs(e[1]) > _LONGEST_S]


def _judge_course(run: ForeignRun) -> None:
    """Note what is wrong with how the run went, apart from its meters."""
    if run.start_s is None:
        run.findings.pollute("no run_start", f"the log has none; {_NEVER_BEGUN}")
    if run.stop_s is None:
        run.findings.pollute("no run_stop", f"the log has none; {_NEVER_BEGUN}")
    if run.start_s is not None and run.stop_s is not None:
        if run.run_s is None:
            run.findings.pollute(
                "stops before it starts", f"run_stop at {run.stop_s:.1f}, start {run.start_s:.1f} s"
            )
        if run.status is None:
            run.findings.remark("status unknown", "run_stop does not say whether it succeeded")
        elif run.status != "success":
            # The log's own word is no kind of trap: it may be anything.
            kind = run.status if run.status == "aborted" else "not successful"
            run.findings.pollute(kind, f"run_stop says {run.status!r:.50}, not 'success'")
    late = [i for i in run.intervals if i.phase == "evaluation" and run.run_s]
    late = [i for i in late if run.run_s and i.start_s >= run.run_s[1]]
    if late:
        run.findings.remark(
            "evaluations after the run", f"{len(late)} begin after run_stop and are left out"
        )


def _judged_meters(run: ForeignRun) -> list[CheckedMeter]:
    """The meters of the nodes: in watts, on the run's clock, and without what cannot be believed."""
    bounds = bounds_of(run.accelerators_per_node, run.accelerator or run.system)
    logs = in_watts(run.meters, bounds, run.run_s, run.findings)
    if run.run_s is not None:
        course = Course(run.run_s, run.init_s, run.intervals)
        logs = aligned_by_node(logs, course, run.findings, notes_lag=run.notes_lag)
    return [checked(meter, run.run_s, run.findings) for meter in logs]


def record_of(run: ForeignRun) -> tuple[RunRecord, Repeat | None]:
    """The record of a run, and what is compared with its repeats if it is not polluted already."""
    _leave_out_what_cannot_be(run)
    _judge_course(run)
    meters = _judged_meters(run)
    infos = [meter.info for meter in meters]
    mark_shared(run.meters, infos, run.findings)
    infos += [
        MeterInfo(
            node=node,
            meter=NODE_METER,
            available=False,
            source="imported",
            reason="there is no power file of this node",
        )
        for node in run.missing_nodes
    ]
    work = work_of(run.intervals, run.init_s, run.run_s, run.global_batch_size, run.train_samples)
    if run.run_s is not None and not work.total:
        run.findings.remark(
            "work unknown", "no epoch was finished and no evaluation counts samples"
        )
    metered = list(dict.fromkeys(info.node for info in infos))
    spec = _spec(run, work.unit, max(1, run.nodes or len(metered)))
    outcome = Outcome(
        start_s=run.run_s[0] if run.run_s else 0.0,
        stop_s=run.run_s[1] if run.run_s else 0.0,
        samples=work.total,
        steps=round(work.total / run.global_batch_size)
        if run.global_batch_size and work.unit == "samples"
        else 0,
        reached_target=None if run.status is None else run.status == "success",
    )
    names = metered or [f"node_{n}" for n in range(spec.nodes)]
    switches = [checked_switch(meter, run.findings) for meter in run.switches]
    infos += [switch.info for switch in switches]
    infos += [
        MeterInfo(node=node, meter=ESTIMATED_SWITCH, available=True, source="estimated", readings=1)
        for node, _, _ in run.estimates
    ]
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        started_utc=run.started_utc,
        nodes=names,
        node_of_rank=[node for node in names for _ in range(spec.ranks_per_node)],
        nodes_are="hosts",
        outcome=outcome,
        checks=Checks(ranks=spec.ranks, distinct_hosts=spec.nodes),
        meters=infos,
        versions=run.versions,
        source=run.source,
        polluted=run.findings.polluted,
        remarks=run.findings.remarks,
    )
    record = RunRecord(
        info,
        stages=pd.DataFrame(columns=list(STAGE_COLUMNS)),
        power=_power([*meters, *switches], run.estimates),
        activity=pd.DataFrame(columns=list(ACTIVITY_COLUMNS)),
        phases=work.phases,
    )
    if info.polluted or run.run_s is None:
        return record, None
    place = RunPlace(
        run.run,
        (run.campaign, run.system, run.benchmark, str(spec.nodes)),
        run.run_s,
        run.zero_ms,
    )
    return record, repeat_of(place, meters, work.total)


def _spec(run: ForeignRun, unit: Any, nodes: int) -> RunSpec:
    spacings = [usual_spacing(meter.t_s) for meter in run.meters]
    known = [spacing for spacing in spacings if spacing is not None]
    optional: dict[str, Any] = {"seed": run.seed} if run.seed is not None else {}
    if known:
        optional["sample_period_s"] = round(float(np.median(known)), 6) or 1e-6
    return RunSpec(
        run=run.run,
        campaign=run.campaign,
        kind="imported",
        platform=validated(_PLATFORM, {"name": run.system}, f"{run.source.get('path')}: {run.run}"),
        nodes=nodes,
        ranks_per_node=run.accelerators_per_node or 1,
        repeat=run.repeat,
        foreign=Foreign(
            benchmark=run.benchmark,
            submission=run.submission,
            global_batch_size=run.global_batch_size,
            accelerators_per_node=run.accelerators_per_node,
            accelerator=run.accelerator,
            work_unit=unit,
        ),
        meters=(),
        **optional,
    )


def _power(meters: list[CheckedMeter], estimates: list[tuple[str, float, float]]) -> pd.DataFrame:
    frames = [
        pd.DataFrame(
            {
                "node": m.info.node,
                "meter": m.info.meter,
                "t_s": m.t_s,
                "watts": m.watts if m.joules is None else np.nan,
                "joules": np.nan if m.joules is None else m.joules,
            }
        )
        for m in meters
        if len(m.t_s)
    ]
    if estimates:
        rows = [(node, ESTIMATED_SWITCH, t_s, watts, np.nan) for node, t_s, watts in estimates]
        frames.append(pd.DataFrame(rows, columns=list(POWER_COLUMNS)))
    if not frames:
        return pd.DataFrame(columns=list(POWER_COLUMNS)).astype(
            {"t_s": "float64", "watts": "float64", "joules": "float64"}
        )
    return pd.concat(frames, ignore_index=True)
