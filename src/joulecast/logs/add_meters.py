"""Adds meters from logs to records of runs that joulecast measured. The new record is written to another
folder.

The clocks of meter and run may differ. Their difference is estimated from the begin and end of the training,
and reported. If the clock of a meter is so far off that this would change the energy, the record does not get
the meter. The user then has to give ``--shift``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.checked_meters import CheckedMeter, about_meter, check_watts
from joulecast.logs.import_log import near, on_clock, read_source
from joulecast.logs.imported_run import fact_of, power_frame, require_outside
from joulecast.logs.lags import Lag, LoggedActivity, lag_of
from joulecast.logs.log import Findings, Log, LoggedMeter, LogOptions, usual_spacing, utc
from joulecast.logs.log_times import in_words
from joulecast.quantities import listed
from joulecast.runs.files.writing import directory_added_to
from joulecast.runs.folders import record_folders
from joulecast.runs.frames import POWER_COLUMNS
from joulecast.runs.integration import reading_quality
from joulecast.runs.meter_choice import host_of
from joulecast.runs.metered_power import unusable
from joulecast.runs.record import RunRecord, fill_record, read_record

_AROUND_S = 90.0
"""The readings in this time (s) before and after a run are used, because they show the clock of the meter."""


@dataclass
class AddedMeters:
    """The result for each record: ``facts`` about the records that got a meter; ``left`` has the reasons why
    the others got none."""

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
    """Raised if a record gets no meter. The message says why."""


def _placed(log: Log, record: RunRecord) -> list[LoggedMeter]:
    """The meters that overlap a record, on its clock, under the names of its nodes."""
    try:
        begun = datetime.fromisoformat(record.info.started_utc)
    except ValueError:
        raise _LeftOut("it does not say when it began") from None
    began_s = (begun if begun.tzinfo else begun.replace(tzinfo=UTC)).timestamp()
    outcome = record.info.outcome
    meters = [*log.meters, *(meter for run in log.runs for meter in run.meters)]
    found = []
    for meter in meters:
        own = replace(meter, t_s=meter.t_s - began_s)
        own = near(own, outcome.start_s - _AROUND_S, outcome.stop_s + _AROUND_S)
        own = own.only(np.isfinite(own.t_s))
        if (own.t_s < outcome.stop_s).any() and (own.t_s > outcome.start_s).any():
            found.append(own)
    if not found:
        t_s = np.concatenate([np.empty(0), *(meter.t_s for meter in meters)])
        t_s = t_s[np.isfinite(t_s)]
        if not len(t_s):
            raise _LeftOut("the log has no reading")
        first, last, began = (
            utc(s).replace("T", " ") for s in (t_s.min(), t_s.max(), began_s + outcome.start_s)
        )
        raise _LeftOut(
            f"nothing was read while it ran: it began at {began}, the log reaches from {first} to {last}; is "
            "it another --timezone?"
        )
    return _on_nodes(found, record)


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
        raise _LeftOut(f"its nodes are {listed(hosts)}, the log's {listed(there)}; say --node")
    return found


def _refuse_twice(meters: Sequence[LoggedMeter], record: RunRecord) -> None:
    there = {
        (host_of(m.node), m.covers): m.meter
        for m in record.info.meters
        if m.available and m.source not in (None, "estimated", "simulated")
    }
    for meter in meters:
        known = there.get((host_of(meter.node), meter.covers))
        if known is not None:
            raise _LeftOut(f"has a meter of {meter.covers} on {meter.node} already ({known})")


def _added(meter: LoggedMeter, record: RunRecord, lag: Lag) -> CheckedMeter:
    """The meter for the record, with the quality of its readings during the run."""
    outcome = record.info.outcome
    meter = meter.only(np.argsort(meter.t_s, kind="stable"))
    period_s = usual_spacing(meter.t_s) or 0.0
    good = np.isfinite(meter.power if meter.joules is None else meter.joules)
    coverage, gap_s = reading_quality(meter.t_s[good], outcome.start_s, outcome.stop_s, period_s)
    info = about_meter(meter)
    info.available, info.renewed_s = True, period_s
    info.readings, info.failed_reads = int(good.sum()), int((~good).sum())
    info.coverage, info.longest_gap_s = coverage, gap_s
    origin = f"imported from {meter.file}; {': '.join(lag.remark)}"
    info.remark = "; ".join(filter(None, (meter.remark, origin)))
    return CheckedMeter(meter.t_s, meter.power, info, meter.joules)


def with_meters(
    record: RunRecord, log: Log, kind: str, source: Path, options: LogOptions
) -> RunRecord:
    """A record, with the meters of a log whose readings overlap with the run.

    Raises:
        _LeftOut: no meter fits. The error says why.
    """
    if record.info.spec.kind == "imported":
        raise _LeftOut("is imported itself; import the log with --runs instead")
    meters = _placed(log, record)
    _refuse_twice(meters, record)
    logs = [on_clock(meter, kind, 0.0) for meter in meters if meter.trace]
    if not logs:
        raise _LeftOut(
            f"{kind} has one figure for the whole, of which no step or stage has a part; add a log "
            "of readings"
        )
    span = record.info.outcome.start_s, record.info.outcome.stop_s
    findings = Findings()
    # An idle node may draw less than any node under load.
    for meter in logs if record.info.spec.kind == "training" else ():
        check_watts(meter, None, span, findings)
    if findings.left_out:
        raise _LeftOut("; ".join(findings.left_out))
    lag = lag_of(logs, LoggedActivity(span))
    if lag.matters:
        raise _LeftOut(
            f"clock lag: {lag.text}: the load of the log is not where the training is; if the log's clock is "
            f"wrong, {lag.way_out(options.shift_s)}"
        )
    added = [_added(meter, record, lag) for meter in logs]
    taken = {(m.node, m.meter) for m in record.info.meters}
    if twice := [m.info.meter for m in added if (m.info.node, m.info.meter) in taken]:
        raise _LeftOut(f"has a meter {twice[0]} already")
    about = {
        "format": kind,
        "path": str(source.resolve()),
        "clock_lag_s": lag.lag_s,
        "shifted_by_s": options.shift_s,
    }
    own = record.info
    before = own.source.get("imported_meters", [])
    info = own.model_copy(
        update={
            "meters": [*own.meters, *(meter.info for meter in added)],
            "remarks": [
                *own.remarks,
                f"imported meter: {kind}",
                ": ".join(lag.remark),
            ],
            "source": {**own.source, "imported_meters": [*before, about]},
        }
    )
    frames = [f for f in (record.power, power_frame(added)) if len(f)]
    power = pd.concat(frames, ignore_index=True)[list(POWER_COLUMNS)]
    new = replace(record, info=info, power=power)
    wrong = unusable(new)
    faults = [wrong.get((meter.info.node, meter.info.meter)) for meter in added]
    if all(faults):
        raise _LeftOut(f"{added[0].info.meter} on {added[0].info.node} {faults[0]}")
    return new


def add_to_records(
    kind: str, source: Path, out: Path, records: Path, options: LogOptions
) -> AddedMeters:
    """Copy records to ``out``, with the meters of a log: each record that overlaps with the log in time.

    Args:
        out: folder for the new records. The old records are not changed.

    Raises:
        JoulecastError: the log cannot be read, or fits no record. The error gives the reason for each record.
    """
    require_outside(out, records)
    log = read_source(kind, source, options)
    if log.form != "placed":
        raise JoulecastError(
            f"{source}: its times are {in_words(log.form)}; give --timezone to lay them on records"
        )
    added = AddedMeters(out)
    with directory_added_to(out) as partial:
        for folder in record_folders(records):
            record = read_record(folder)
            try:
                new = with_meters(record, log, kind, source, options)
            except _LeftOut as why:
                added.left[folder.name] = str(why)
                continue
            if (partial / folder.name).exists():
                raise JoulecastError(
                    f"{records}: has two records {folder.name}; import to one folder each"
                )
            fill_record(partial / folder.name, new)
            added.facts.append(fact_of(new))
        if not added.facts:
            reasons = "".join(f"\n  {run}: {why}" for run, why in added.left.items())
            raise JoulecastError(f"{source}: no record in {records} got a meter:{reasons}")
    return added
