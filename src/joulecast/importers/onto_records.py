"""Meters of logs added to records of runs that joulecast measured: the record is written anew elsewhere.

A record says to the second when its run began, and two clocks differ. So the lag is estimated: what the meter
read is laid over what the kernel saw of the node's work meanwhile (``activity.parquet``), and where that
shows none, over the begin and end of the training.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_added_to
from joulecast.importers.from_logs import meter_log, near, read_source
from joulecast.importers.imported import fact_of, require_outside
from joulecast.importers.lags import Course, Trace, lag_behind, lag_between, trace_of
from joulecast.importers.log_times import in_words
from joulecast.importers.logs import Log, LoggedMeter, LogOptions
from joulecast.importers.node_clocks import nodes_of
from joulecast.importers.runs_table import named
from joulecast.importers.traps import MeterLog, usual_spacing
from joulecast.power.integration import EnergyCurve, reading_quality
from joulecast.records.folders import record_folders
from joulecast.records.frames import POWER_COLUMNS
from joulecast.records.metering import JOB_ACCOUNT, MeterInfo, host_of
from joulecast.records.record import RunRecord, read_record, write_record

_REACH_S = 90.0
"""Clocks of two machines that differ by more are not brought together."""
_LEAST_MEAN_S, _MOST_POINTS, _GAP_PERIODS = 1.0, 16_384, 3
_LEAST_READINGS = 15
"""In the run: fewer fit some lag by chance."""


@dataclass
class AddedMeters:
    """What became of each record: ``facts`` of those that got a meter, ``left`` why the others got none."""

    out: Path
    facts: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The outcome as lines for a person."""
        lines = [f"{len(self.facts)} records with a meter more in {self.out}"]
        lines += [f"  {fact}" for fact in self.facts]
        lines += [f"  left out: {run}: {why}" for run, why in self.left.items()]
        return "\n".join(lines)


class _LeftOut(Exception):
    """A record gets no meter; says why."""


@dataclass(frozen=True)
class _Lag:
    """How far a log's clock is behind a record's, in s; ``None`` where it is not known, with the reason."""

    lag_s: float | None
    how: str

    @property
    def in_words(self) -> str:
        """For a remark."""
        if self.lag_s is None:
            return (
                f"clock lag: not known ({self.how}); nothing was applied, and a record "
                "begins at a whole second"
            )
        return f"clock lag: {self.lag_s:.1f} s {self.how}, applied"


def _began(record: RunRecord) -> float:
    try:
        begun = datetime.fromisoformat(record.info.started_utc)
    except ValueError:
        raise _LeftOut("it does not say when it began") from None
    return (begun if begun.tzinfo else begun.replace(tzinfo=UTC)).timestamp()


def _placed(log: Log, record: RunRecord) -> list[LoggedMeter]:
    """The meters that overlap a record, on its clock, under the names of its nodes."""
    began_s, outcome = _began(record), record.info.outcome
    first_s, last_s = outcome.start_s - _REACH_S, outcome.stop_s + _REACH_S
    runs = [meter for run in log.runs for meter in run.meters]
    found = []
    for meter in (*log.meters, *runs):
        own = near(replace(meter, t_s=meter.t_s - began_s), first_s, last_s)
        t_s = own.t_s[np.isfinite(own.t_s)]
        if len(t_s) and t_s.min() < outcome.stop_s and t_s.max() > outcome.start_s:
            found.append(own)
    if not found:
        raise _LeftOut(_apart([*log.meters, *runs], began_s + outcome.start_s))
    return _on_nodes(found, record)


def _apart(meters: Sequence[LoggedMeter], began_s: float) -> str:
    known = [m.t_s[np.isfinite(m.t_s)] for m in meters]
    times = [t_s for t_s in known if len(t_s)]
    if not times:
        return "the log has no reading"
    first, last, began = (
        datetime.fromtimestamp(s, UTC).isoformat(" ", "seconds")
        for s in (min(t.min() for t in times), max(t.max() for t in times), began_s)
    )
    return (
        f"nothing was read while it ran: it began at {began}, the log reaches from {first} to {last}; is it "
        "another --timezone?"
    )


def _on_nodes(meters: Sequence[LoggedMeter], record: RunRecord) -> list[LoggedMeter]:
    hosts = list(dict.fromkeys(host_of(node) for node in record.info.nodes))
    known = {name: name for name in (*hosts, *record.info.nodes)}
    known = {name.split(".")[0]: name for name in hosts} | known
    there = list(dict.fromkeys(meter.node for meter in meters))
    by_name = {name: known.get(name) or known.get(name.split(".")[0]) for name in there}
    if not any(by_name.values()) and len(there) == len(hosts) == 1:
        by_name = {there[0]: hosts[0]}
        guess = f"read on {there[0]}, which is taken to be {hosts[0]}"
        meters = [replace(m, remark="; ".join(filter(None, (m.remark, guess)))) for m in meters]
    found = [replace(m, node=node) for m in meters if (node := by_name[m.node]) is not None]
    if not found:
        raise _LeftOut(f"its nodes are {named(hosts)}, the log's {named(there)}; say --node")
    return found


def _lag(meters: Sequence[MeterLog], record: RunRecord) -> _Lag:
    """How far the meters' clock is behind the record's, by the first node that shows it."""
    outcome = record.info.outcome
    whys = []
    for meter in nodes_of(meters):
        if not meter.trace or meter.source == "estimated":
            whys.append("a total or an estimate shows no clock")
            continue
        over_s = max(_LEAST_MEAN_S, usual_spacing(meter.t_s) or 0.0)
        power = _smoothed(meter, over_s)
        if outcome.stop_s - outcome.start_s < _LEAST_READINGS * over_s:
            whys.append(f"fewer than {_LEAST_READINGS} readings in the run")
            continue
        if power is None:
            whys.append("the load is flat, or has too few readings")
            continue
        for of, activity in _activities(meter, record):
            trace = _smoothed(activity, over_s)
            # The record is the shorter one: it has to lie in the log.
            lag = None if trace is None else lag_between(power, trace)
            if lag is not None and lag.sharp:
                return _Lag(-lag.lag_s, f"by {of}")
        behind = lag_behind(Course((outcome.start_s, outcome.stop_s), None, ()), [power])
        if behind.sharp and abs(behind.lag_s) <= _REACH_S:
            return _Lag(behind.lag_s, "by the begin and end of the training")
        whys.append("no lag fits the run's activity beyond doubt")
    return _Lag(None, whys[0] if whys else "no reading")


def _smoothed(meter: MeterLog, over_s: float) -> Trace | None:
    """A meter as its mean over ``over_s`` around each moment: what the kernel sees in a tenth of a second is
    mostly noise."""
    known = np.isfinite(meter.watts)
    if known.sum() < 2:
        return None
    curve = EnergyCurve.of_power(meter.t_s[known], meter.watts[known])
    grid_s = max(over_s / 4, float(np.ptp(curve.t_s)) / _MOST_POINTS)
    t_s = np.arange(curve.t_s[0] + over_s / 2, curve.t_s[-1] - over_s / 2, grid_s)
    gaps = np.diff(curve.t_s)
    before = np.clip(np.searchsorted(curve.t_s, t_s, side="right") - 1, 0, len(gaps) - 1)
    good = gaps[before] <= max(over_s, _GAP_PERIODS * (usual_spacing(curve.t_s) or 0.0))
    watts = curve.between(t_s - over_s / 2, t_s + over_s / 2) / over_s
    return trace_of(MeterLog(meter.node, meter.file, t_s[good], watts[good]), grid_s)


def _activities(meter: MeterLog, record: RunRecord) -> Iterable[tuple[str, MeterLog]]:
    """What the kernel saw of the node's work, the GPUs' first where the meter is of one."""
    activity = record.activity[[host_of(n) == host_of(meter.node) for n in record.activity["node"]]]
    names = ["gpu_utilisation", "cpu_utilisation"]
    for name in names if meter.covers in ("gpu", "node", "module") else reversed(names):
        known = activity[activity[name].notna()].groupby("t_s", as_index=False)[name].mean()
        if len(known) > 1:
            t_s, share = known["t_s"].to_numpy(float), known[name].to_numpy(float)
            # A row is the mean since the row before.
            middle_s = t_s - np.diff(t_s, prepend=t_s[0]) / 2
            of = f"the node's {name.split('_')[0].upper()} utilisation"
            yield of, MeterLog(meter.node, name, middle_s, 100 * share)


def _refuse_twice(meters: Sequence[LoggedMeter], record: RunRecord) -> None:
    there = {
        (host_of(m.node), m.covers): m.meter
        for m in record.info.meters
        if m.available and m.source not in (None, "estimated", "simulated")
    }
    for meter in meters:
        known = there.get((host_of(meter.node), meter.covers))
        if known is not None and meter.trace:
            raise _LeftOut(f"has a meter of {meter.covers} on {meter.node} already ({known})")


def _info(meter: MeterLog, record: RunRecord, how: str) -> MeterInfo:
    """The meter as the record lists it, judged over the run."""
    outcome = record.info.outcome
    period_s = usual_spacing(meter.t_s) or 0.0
    good = np.isfinite(meter.watts if meter.joules is None else meter.joules)
    coverage, gap_s = reading_quality(meter.t_s[good], outcome.start_s, outcome.stop_s, period_s)
    return MeterInfo(
        node=meter.node,
        meter=meter.meter,
        available=True,
        source=meter.source,
        counter=meter.joules is not None,
        readings=int(good.sum()),
        failed_reads=int((~good).sum()),
        longest_gap_s=gap_s,
        coverage=coverage,
        covers=meter.covers,
        renewed_s=period_s,
        trace=meter.trace,
        remark="; ".join(filter(None, (meter.remark, f"imported from {meter.file}; {how}"))),
    )


def _account(meters: Sequence[LoggedMeter], record: RunRecord, kind: str) -> MeterLog:
    """SLURM's total of a job as a check of the record's meters; no other total can be added."""
    if kind != "slurm":
        raise _LeftOut(
            f"{kind} has one figure for the whole, of which no step or stage has a part; add a log "
            "of readings"
        )
    first = meters[0]
    assert first.joules is not None
    total_j = sum(float(m.joules[-1]) for m in meters if m.joules is not None)
    whole = replace(first, node=record.info.nodes[0], joules=np.array([0.0, total_j]))
    return replace(meter_log(whole, kind, 0.0), meter=JOB_ACCOUNT, covers=None)


def with_meters(record: RunRecord, log: Log, kind: str, source: Path) -> RunRecord:
    """A record with the meters of a log that overlap it.

    Raises:
        _LeftOut: none fits; says why.
    """
    if record.info.spec.kind == "imported":
        raise _LeftOut("is imported itself; import the log with --runs instead")
    if log.form != "placed":
        raise JoulecastError(
            f"{source}: its times are {in_words(log.form)}; give --timezone to lay them on records"
        )
    meters = _placed(log, record)
    _refuse_twice(meters, record)
    if all(not meter.trace for meter in meters):
        added, lag = [_account(meters, record, kind)], _Lag(None, "a total shows no clock")
    else:
        logs = [meter_log(meter, kind, 0.0) for meter in meters if meter.trace]
        lag = _lag(logs, record)
        added = [replace(m, t_s=m.t_s - (lag.lag_s or 0.0)) for m in logs]
    infos = [_info(meter, record, lag.in_words) for meter in added]
    taken = {(m.node, m.meter) for m in record.info.meters}
    if twice := [meter.meter for meter in infos if (meter.node, meter.meter) in taken]:
        raise _LeftOut(f"has a meter {twice[0]} already")
    about = {
        "format": kind,
        "path": str(source.resolve()),
        "clock_lag_s": lag.lag_s,
        "applied": lag.lag_s is not None,
    }
    info = record.info.model_copy(
        update={
            "meters": [*record.info.meters, *infos],
            "remarks": [*record.info.remarks, f"imported meter: {kind}", lag.in_words],
            "source": {
                **record.info.source,
                "imported_meters": [*record.info.source.get("imported_meters", []), about],
            },
        }
    )
    frames = [record.power, *(_frame(meter) for meter in added)]
    power = pd.concat([f for f in frames if len(f)], ignore_index=True)[list(POWER_COLUMNS)]
    return replace(record, info=info, power=power)


def _frame(meter: MeterLog) -> pd.DataFrame:
    order = np.argsort(meter.t_s, kind="stable")
    counts = meter.joules is not None
    return pd.DataFrame(
        {
            "node": meter.node,
            "meter": meter.meter,
            "t_s": meter.t_s[order],
            "watts": np.nan if counts else meter.watts[order],
            "joules": meter.joules[order] if meter.joules is not None else np.nan,
        }
    )


def add_to_records(
    kind: str, source: Path, out: Path, records: Path, options: LogOptions
) -> AddedMeters:
    """Write each record of a folder that a log overlaps to ``out`` once more, with the log's meters.

    Args:
        kind: of :data:`~joulecast.importers.log_kinds.KINDS`.
        source: a file, or a folder of files.
        out: where the records go; those that are read stay as they are.
        records: folder of run records.
        options: how the log is read.

    Raises:
        JoulecastError: the log cannot be read, or fits no record; with the reason for each.
    """
    require_outside(out, records)
    log = read_source(kind, source, options)
    added = AddedMeters(out)
    with directory_added_to(out) as partial:
        for folder in record_folders(records):
            record = read_record(folder)
            try:
                new = with_meters(record, log, kind, source)
            except _LeftOut as why:
                added.left[folder.name] = str(why)
                continue
            if (partial / folder.name).exists():
                raise JoulecastError(
                    f"{records}: has two records {folder.name}; import to one folder each"
                )
            write_record(partial / folder.name, new)
            added.facts.append(fact_of(new))
        if not added.facts:
            reasons = "".join(f"\n  {run}: {why}" for run, why in added.left.items())
            raise JoulecastError(f"{source}: no record in {records} got a meter:{reasons}")
    return added
