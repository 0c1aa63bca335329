"""A run that others did, the record that is made from it, and the summary of an import for the user.

The forms of logs know different things: a submission says on which machine it ran, a table of runs does not.
What is not known stays ``None``. If the record needs a value that is not known, it gets the least value that
a record may have. Such a run is left out of fits, with the reason.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.logs.checked_meters import CheckedMeter, checked_meters
from joulecast.logs.lags import LoggedActivity, lag_of
from joulecast.logs.log import NODE_METER, Findings, LoggedMeter, usual_spacing, utc
from joulecast.logs.run_phases import Interval, logged_work
from joulecast.logs.suspicious_runs import Repeat, compared, repeat_of
from joulecast.quantities import counted
from joulecast.runs.files.reading import validated
from joulecast.runs.files.writing import directory_added_to
from joulecast.runs.frames import ACTIVITY_COLUMNS, POWER_COLUMNS, STAGE_COLUMNS
from joulecast.runs.integration import EnergyCurve
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.platforms import Platform
from joulecast.runs.record import (
    Checks,
    Outcome,
    RunInfo,
    RunRecord,
    fill_record,
    read_info,
    write_info,
)
from joulecast.runs.spec import Imported, RunSpec

_PLATFORM = TypeAdapter(Platform)
_NEVER_BEGUN = "its energy is not known"

MOST_NODES = 100_000
_MOST_ACCELERATORS = 1_000
_LONGEST_S = 1e9
"""The largest time on the run clock, in s: thirty years. A larger time is garbled."""


@dataclass
class ImportedRun:
    """What a log says about a run. Times are in seconds on the run clock, which starts with the
    initialisation.

    Attributes:
        nodes: number of nodes, if the log says it.
        zero_s: seconds since 1970 at which the clock of the run is 0, if the log has them.
        missing_nodes: names of nodes whose file is missing.
        is_of_tool: whether a log of a tool is imported (and not a submission). Then the user sees the facts
            of each run, and its lag.
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
    zero_s: float | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    meters: list[LoggedMeter] = field(default_factory=list)
    missing_nodes: list[str] = field(default_factory=list)
    is_of_tool: bool = False
    findings: Findings = field(default_factory=Findings)

    @property
    def run_s(self) -> tuple[float, float] | None:
        """Start and stop, if both are known and in order."""
        if self.start_s is None or self.stop_s is None or self.stop_s <= self.start_s:
            return None
        return self.start_s, self.stop_s


def _leave_out_what_cannot_be(run: ImportedRun) -> None:
    """Take out counts and times that no run can have. Otherwise a garbled count of nodes could make a list of
    that length."""

    def garbled(what: str) -> None:
        run.findings.remark("garbled", what)

    for name, least, most in (
        ("nodes", 1, MOST_NODES),
        ("accelerators_per_node", 1, _MOST_ACCELERATORS),
        ("start_s", -_LONGEST_S, _LONGEST_S),
        ("stop_s", -_LONGEST_S, _LONGEST_S),
    ):
        value = getattr(run, name)
        if value is not None and not least <= value <= most:
            garbled(f"{name} {value:g}")
            setattr(run, name, None)
    if run.init_s is not None and not max(map(abs, run.init_s)) <= _LONGEST_S:
        run.init_s = None
    known = [i for i in run.intervals if max(abs(i.start_s), abs(i.stop_s)) <= _LONGEST_S]
    if len(known) < len(run.intervals):
        garbled(f"the times of {len(run.intervals) - len(known)} phases")
        run.intervals = known
    for place, meter in enumerate(run.meters):
        good = np.abs(meter.t_s) <= _LONGEST_S
        if not good.all():
            garbled(f"{meter.file}: {int((~good).sum())} times of readings")
            run.meters[place] = meter.only(good)


def _judge_course(run: ImportedRun) -> None:
    """Note what is wrong with how the run went, apart from its meters."""
    for name, at_s in (("run_start", run.start_s), ("run_stop", run.stop_s)):
        if at_s is None:
            run.findings.leave_out(f"no {name}", f"the log has none; {_NEVER_BEGUN}")
    if run.start_s is not None and run.stop_s is not None:
        if run.run_s is None:
            run.findings.leave_out(
                "stops before it starts", f"run_stop at {run.stop_s:.1f}, start {run.start_s:.1f} s"
            )
        if run.status is None:
            run.findings.remark("status unknown", "the log does not say whether it succeeded")
        elif run.status != "success":
            # The status in the log may be any text, so it is no kind of fault by itself.
            kind = run.status if run.status == "aborted" else "not successful"
            run.findings.leave_out(kind, f"its status is {run.status!r:.50}, not 'success'")
    late = [
        i
        for i in run.intervals
        if i.phase == "evaluation" and run.run_s and i.start_s >= run.run_s[1]
    ]
    if late:
        run.findings.remark(
            "evaluations after the run", f"{len(late)} begin after run_stop and are left out"
        )


def _report_lag(run: ImportedRun) -> None:
    if run.run_s is None or not run.meters:
        return
    lag = lag_of(run.meters, LoggedActivity(run.run_s, run.init_s, run.intervals))
    if lag.matters:
        run.findings.leave_out(
            "clock lag",
            f"{lag.text}: the load is not where the run is; if the meters' clock is wrong, "
            f"{lag.way_out(run.source.get('shift_s', 0.0))}",
        )
    elif run.is_of_tool and any(meter.trace for meter in run.meters):
        run.findings.remark(*lag.remark)


def record_of(run: ImportedRun) -> tuple[RunRecord, Repeat | None]:
    """The record of a run, and the figures that are compared with its repeats. There are no such figures if
    the run is already left out."""
    _leave_out_what_cannot_be(run)
    _judge_course(run)
    meters = checked_meters(run.meters, run.accelerators_per_node, run.run_s, run.findings)
    _report_lag(run)
    infos = [meter.info for meter in meters]
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
    phases, unit, work = logged_work(
        run.intervals, run.init_s, run.run_s, run.global_batch_size, run.train_samples
    )
    if run.run_s is not None and not work:
        why = "no epoch was finished and no evaluation counts samples"
        if run.is_of_tool:
            why = "no fit uses the run; give --epochs, --samples or --steps"
        run.findings.remark("work unknown", why)
    metered = list(dict.fromkeys(info.node for info in infos))
    spec = _spec(run, unit, max(1, run.nodes or len(metered)))
    start_s, stop_s = run.run_s or (0.0, 0.0)
    batch = run.global_batch_size if unit == "samples" else None
    outcome = Outcome(
        start_s=start_s,
        stop_s=stop_s,
        samples=work,
        steps=round(work / batch) if batch else 0,
        # A log of power does not say whether the target was reached.
        reached_target=None if run.status is None or run.is_of_tool else run.status == "success",
    )
    names = metered or [f"node_{n}" for n in range(spec.nodes)]
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        started_utc="" if run.zero_s is None else utc(run.zero_s),
        nodes=names,
        node_of_rank=[node for node in names for _ in range(spec.ranks_per_node)],
        nodes_are="hosts",
        outcome=outcome,
        checks=Checks(ranks=spec.ranks, distinct_hosts=spec.nodes),
        meters=infos,
        versions=run.versions,
        source=run.source,
        left_out=run.findings.left_out,
        remarks=run.findings.remarks,
    )
    record = RunRecord(
        info,
        stages=pd.DataFrame(columns=list(STAGE_COLUMNS)),
        power=power_frame(meters),
        activity=pd.DataFrame(columns=list(ACTIVITY_COLUMNS)),
        phases=phases,
    )
    if info.left_out or run.run_s is None:
        return record, None
    setting = run.campaign, run.system, run.benchmark, str(spec.nodes), str(run.global_batch_size)
    return record, repeat_of(run.run, setting, run.run_s, run.zero_s, meters, work)


def _spec(run: ImportedRun, unit: Any, nodes: int) -> RunSpec:
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
        imported=Imported(
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


def power_frame(meters: Iterable[CheckedMeter]) -> pd.DataFrame:
    """The power frame of a record: the readings of some meters."""
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
    if frames:
        return pd.concat(frames, ignore_index=True)
    numbers = dict.fromkeys(("t_s", "watts", "joules"), float)
    return pd.DataFrame(columns=list(POWER_COLUMNS)).astype(numbers)


@dataclass
class ImportSummary:
    """What an import did.

    Attributes:
        runs: number of imported runs. ``without_power`` of them have only times.
        left_out: the reasons for each run that is left out of fits.
        facts: a line about each run from the log of a tool. It is printed.
        traps: for each kind of fault, the number of runs in which it was found.
    """

    out: Path
    runs: int = 0
    without_power: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    traps: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> int:
        """Runs that fits may use."""
        return self.runs - len(self.left_out)

    def require_clean(self, source: Path) -> None:
        """Refuse an import that leaves no run for fits.

        Raises:
            JoulecastError: no run is left. The error gives the list of reasons.
        """
        if not self.clean:
            reasons = "".join(f"\n  {run}: {'; '.join(why)}" for run, why in self.left_out.items())
            raise JoulecastError(
                f"{source}: no run is left for fits; all {self.runs} are kept in {self.out} and marked:"
                f"{reasons}"
            )

    @property
    def reasons(self) -> Counter[str]:
        """For each kind of reason, the number of runs that it leaves out. A run may have several reasons."""
        return Counter(_kind(text) for texts in self.left_out.values() for text in texts)

    def text(self) -> str:
        """The summary as lines for a person."""
        lines = [f"{counted(self.runs, 'run')} imported to {self.out}, {self.clean} of them clean"]
        if self.without_power:
            lines.append(f"  {self.without_power} without power: their times are used")
        lines += [f"  {fact}" for fact in self.facts]
        lines += [f"  left out: {run}: {'; '.join(why)}" for run, why in self.left_out.items()]
        lines += [f"  reason {kind}: {n}" for kind, n in sorted(self.reasons.items())]
        lines += [f"  remark {kind}: {n}" for kind, n in sorted(self.traps.items())]
        return "\n".join(lines)


def require_outside(out: Path, source: Path) -> None:
    """Refuse an output folder that lies inside of the source.

    Raises:
        JoulecastError: ``out`` lies inside ``source``.
    """
    if out.resolve().is_relative_to(source.resolve()):
        raise JoulecastError(
            f"{out}: lies inside {source}, which is only read; name a folder outside it"
        )


def imported(runs: Iterable[ImportedRun], source: Path, out: Path) -> ImportSummary:
    """Write the record of each run to ``out/RUN``. Then compare the runs: those whose readings differ from
    the others are marked. A new folder ``out`` appears with all records, or not at all.

    Raises:
        JoulecastError: every run is left out of fits. The error lists the reasons.
    """
    summary, repeats = ImportSummary(out), list[Repeat]()
    left_out, facts = dict[str, list[str]](), dict[str, str]()
    with directory_added_to(out) as partial:
        for run in runs:
            record, repeat = record_of(run)
            fill_record(partial / run.run, record)
            left_out[run.run] = record.info.left_out
            repeats += [] if repeat is None else [repeat]
            summary.runs += 1
            summary.without_power += not (run.meters or run.missing_nodes)
            if run.is_of_tool:
                facts[run.run] = fact_of(record)
            summary.traps.update({_kind(text) for text in record.info.remarks})
        for name, reasons in compared(repeats).items():
            info = read_info(partial / name)
            info.left_out += reasons
            write_info(partial / name, info)
            left_out[name] = info.left_out
    summary.left_out = {run: why for run, why in sorted(left_out.items()) if why}
    summary.facts = [facts[run] for run in sorted(facts)]
    summary.require_clean(source)
    return summary


def _kind(text: str) -> str:
    return text.split(":", 1)[0]


def fact_of(record: RunRecord) -> str:
    """A line about a run: its time, its nodes, its energy, how far the clock of its meters is off, if this is
    known, and whether its work is not known."""
    info, outcome = record.info, record.info.outcome
    nodes = counted(len(info.nodes), "node")
    parts = [f"{outcome.stop_s - outcome.start_s:.6g} s on {nodes}"]
    metering = info.metering
    own = {(m.node, m.meter) for m in metering.meters}
    joules, ends = 0.0, np.array([[outcome.start_s], [outcome.stop_s]])
    for key, readings in record.power.groupby(["node", "meter"], sort=True):
        if key in own and len(readings) > 1:
            joules += float(EnergyCurve.of(readings).between(*ends).sum())
    if own:
        parts.append(f"{joules:.6g} J of {metering.covers} ({metering.source})")
    else:
        parts.append(f"no energy: {metering.why_not}")
    parts += [remark for remark in info.remarks if remark.startswith(("clock lag", "work unknown"))]
    return f"{info.spec.run}: {', '.join(parts)}"
