"""Logs of other tools to run records: which part of a log is which run, and the record of each.

A run is what the user says (:mod:`joulecast.importers.runs_table`), or what the log itself knows of its
runs, or the whole log. Everything after that is done as for any imported run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_added_to
from joulecast.importers.foreign import ForeignRun
from joulecast.importers.imported import ImportSummary, require_outside, summarised, written
from joulecast.importers.log_kinds import KINDS, meter_kind
from joulecast.importers.log_times import Times, in_words
from joulecast.importers.logs import Log, LoggedMeter, LoggedRun, LogOptions, counted_up
from joulecast.importers.run_files import sanitised
from joulecast.importers.runs_table import RunFacts, named
from joulecast.importers.traps import Floats, MeterLog, utc
from joulecast.importers.work import Interval, work_done

_AROUND_S = 600.0
"""What a meter reads so long before and after a run shows its clock, and what the node draws idle."""
_TOUCH_S = 1.5
"""Runs that follow each other may overlap by so much: some logs have whole seconds."""
_MOST_FILES = 10_000


def read_source(kind: str, source: Path, options: LogOptions) -> Log:
    """All that a file, or each file of a folder, holds.

    Raises:
        JoulecastError: a file cannot be read as ``kind``, or there is none.
    """
    chosen = KINDS[kind]
    if not source.is_dir():
        return chosen.read(source, options)
    files = sorted(
        f
        for f in source.iterdir()
        if any(fnmatch(f.name.lower(), each) for each in chosen.files) and f.name[0] != "."
    )
    if not 0 < len(files) <= _MOST_FILES:
        raise JoulecastError(
            f"{source}: has {len(files)} files {', '.join(chosen.files)}; from 1 to "
            f"{_MOST_FILES:,} can be imported"
        )
    log = Log()
    for file in files:
        log.add(chosen.read(file, options), file)
    return log


@dataclass(frozen=True)
class Window:
    """A run and its part of a log: begin and end on the log's clock, and the log's own word on it, if any."""

    facts: RunFacts
    start_s: float
    stop_s: float
    logged: LoggedRun | None
    is_whole: bool = False

    @property
    def name(self) -> str:
        """Name of the run."""
        own = self.logged.name if self.logged else None
        return sanitised(self.facts.run or own or self.facts.network or "run")


def windows(log: Log, source: Path, rows: Sequence[RunFacts], usual: RunFacts) -> list[Window]:
    """The runs of a log.

    Args:
        log: what it holds.
        source: where it is from, for errors.
        rows: a run each, as the user says; none: those that the log knows, or the whole log.
        usual: facts of all of them.

    Raises:
        JoulecastError: a row has no times and the log knows no run of its name; or its times are of another
            form than the log's.
    """
    if rows:
        found = [_window(log, source, row.over(usual)) for row in rows]
    elif log.runs and usual.start is None and usual.stop is None:
        chosen = [run for run in log.runs if run.name == usual.run] or log.runs
        found = [Window(replace(usual, run=None), r.start_s, r.stop_s, r) for r in chosen]
    else:
        found = [_window(log, source, usual)]
    for window in found:
        if not window.stop_s > window.start_s:
            raise JoulecastError(f"{source}: run {window.name} stops before it starts")
    return _uniquely_named(found)


def _window(log: Log, source: Path, facts: RunFacts) -> Window:
    logged = next((r for r in log.runs if facts.run in (r.name, sanitised(r.name))), None)
    if logged is None and len(log.runs) == 1 and facts.start is None:
        logged = log.runs[0]
    start_s = _on_clock(facts.start, log, source) if facts.start else None
    stop_s = _on_clock(facts.stop, log, source) if facts.stop else None
    if logged is not None:
        start_s = logged.start_s if start_s is None else start_s
        stop_s = logged.stop_s if stop_s is None else stop_s
    elif log.runs and start_s is None:
        there = named([run.name for run in log.runs])
        raise JoulecastError(f"{source}: has no run {facts.run}; there are: {there}")
    whole = start_s is None and stop_s is None
    meters = _readings(log, source) if logged is None else []
    spans = [(float(m.t_s.min()), float(m.t_s.max())) for m in meters if len(m.t_s)]
    if not spans and logged is None:
        raise JoulecastError(
            f"{source}: holds no reading; its runs are totals: name them in --runs (column run), without "
            "times"
        )
    start_s = min(first for first, _ in spans) if start_s is None else start_s
    stop_s = max(last for _, last in spans) if stop_s is None else stop_s
    return Window(facts, start_s, stop_s, logged, whole)


def _on_clock(times: Times, log: Log, source: Path) -> float:
    if times.form != log.form:
        way_out = (
            "give --timezone" if "relative" not in (times.form, log.form) else "write both alike"
        )
        raise JoulecastError(
            f"{source}: its times are {in_words(log.form)}, start and stop are "
            f"{in_words(times.form)}; {way_out}"
        )
    return float(times.t_s[0])


def _uniquely_named(found: Sequence[Window]) -> list[Window]:
    taken: set[str] = set()
    unique = []
    for window in found:
        name, number = window.name, 2
        while name in taken:
            name, number = f"{window.name}-{number}", number + 1
        taken.add(name)
        unique.append(replace(window, facts=replace(window.facts, run=name)))
    return unique


def _hosts(window: Window, meters: Sequence[LoggedMeter]) -> list[str]:
    """The nodes of a run, in the order of the log."""
    there = list(dict.fromkeys(meter.node for meter in meters))
    return [node for node in there if node in window.facts.hosts] if window.facts.hosts else there


def _neighbours(window: Window, others: Sequence[Window]) -> tuple[float, float]:
    """When the runs before and after it on its nodes end and begin."""
    shared = _on_its_nodes(window, others)
    before = [o.stop_s for o in shared if o.stop_s <= window.start_s + _TOUCH_S]
    after = [o.start_s for o in shared if o.start_s >= window.stop_s - _TOUCH_S]
    return (
        min(window.start_s, max([window.start_s - _AROUND_S, *before])),
        max(window.stop_s, min([window.stop_s + _AROUND_S, *after])),
    )


def _on_its_nodes(window: Window, others: Sequence[Window]) -> list[Window]:
    """The other runs that had one of its nodes, or may have had."""
    own = set(window.facts.hosts)
    return [
        other
        for other in others
        if other is not window and (not (own and other.facts.hosts) or own & set(other.facts.hosts))
    ]


def _overlapping(window: Window, others: Sequence[Window]) -> list[str]:
    return [
        other.name
        for other in _on_its_nodes(window, others)
        if other.start_s + _TOUCH_S < window.stop_s and window.start_s + _TOUCH_S < other.stop_s
    ]


def near(meter: LoggedMeter, first_s: float, last_s: float) -> LoggedMeter:
    """A meter's readings from ``first_s`` to ``last_s``, and the next one on either side."""
    chosen = (meter.t_s >= first_s) & (meter.t_s <= last_s)
    for outside, nearest in ((meter.t_s < first_s, np.argmax), (meter.t_s > last_s, np.argmin)):
        if outside.any() and chosen.any():
            places = np.flatnonzero(outside)
            chosen[places[nearest(meter.t_s[places])]] = True
    return meter.only(chosen)


def meter_log(meter: LoggedMeter, kind: str, zero_s: float) -> MeterLog:
    """A meter as the judges of imported runs take it, on the run's clock."""
    name = meter_kind(kind)
    t_s, watts = meter.t_s - zero_s, meter.watts
    named_file = meter.file if meter.device is None else f"{meter.file}, {meter.device}"
    joules, remark = meter.joules, meter.remark
    if joules is not None:
        t_s, first = np.unique(t_s, return_index=True)
        joules, restarts = counted_up(joules[first], named_file)
        remark = "; ".join(filter(None, (remark, restarts))) or None
        watts = _mean_watts(t_s, joules)
    assert watts is not None
    return MeterLog(
        meter.node,
        named_file,
        t_s,
        watts,
        meter=name if meter.device is None else f"{name}:{sanitised(meter.device)}",
        covers=meter.covers,
        source=meter.source,
        joules=joules,
        trace=meter.trace,
        unit_known=True,
        remark=remark,
    )


def _mean_watts(t_s: Floats, joules: Floats) -> Floats:
    """Watts since the reading before; the first reading has those of the second."""
    lasting = np.diff(t_s)
    watts = np.full(len(t_s), np.nan)
    watts[1:] = np.divide(
        np.diff(joules), lasting, out=np.full(len(lasting), np.nan), where=lasting > 0
    )
    if len(watts) > 1:
        watts[0] = watts[1]
    return watts


def foreign_run(
    kind: str, source: Path, log: Log, window: Window, others: Sequence[Window]
) -> ForeignRun:
    """A run of a log, as the judges of imported runs take it.

    Raises:
        JoulecastError: it does not say what was trained, or where.
    """
    facts, logged, name = window.facts, window.logged, window.name
    if facts.network is None or facts.platform is None:
        lacks = "--network" if facts.network is None else "--platform"
        raise JoulecastError(
            f"{source}: run {name}: what was trained, and on what? give {lacks}, or its column in --runs"
        )
    if facts.steps is not None and facts.batch is None:
        raise JoulecastError(
            f"{source}: run {name}: its steps say how much was trained only with --batch-size"
        )
    meters = list(logged.meters) if logged and logged.meters else _readings(log, source)
    hosts = _hosts(window, meters)
    if missing := [host for host in facts.hosts if host not in hosts]:
        there = named(list(dict.fromkeys(m.node for m in meters)))
        raise JoulecastError(f"{source}: has no readings of {named(missing)}; there are: {there}")
    seen = Counter((m.node, m.device) for m in meters)
    if twice := [key for key, count in seen.items() if count > 1]:
        device = twice[0][1] or "one meter"
        raise JoulecastError(
            f"{source}: has {device} of {twice[0][0]} twice in one run; select one of them"
        )
    first_s, last_s = _neighbours(window, others)
    own = [near(meter, first_s, last_s) for meter in meters if meter.node in hosts]
    lasts_s = window.stop_s - window.start_s
    nodes = facts.nodes or (logged.nodes if logged else None) or max(1, len(hosts))
    placed = log.form == "placed"
    run = ForeignRun(
        run=name,
        campaign=kind,
        system=facts.platform,
        benchmark=facts.network,
        submission=name,
        source={
            "format": kind,
            "path": str(source.resolve()),
            **(dict(logged.about) if logged else {}),
        },
        repeat=facts.repeat or 1,
        nodes=nodes,
        accelerators_per_node=facts.accelerators,
        accelerator=facts.accelerator,
        global_batch_size=facts.batch,
        seed=facts.seed,
        start_s=0.0,
        stop_s=lasts_s,
        status="success" if logged is None or logged.succeeded is not False else "failed",
        started_utc=utc(1000 * window.start_s) if placed else "",
        zero_ms=1000 * window.start_s if placed else None,
        intervals=_work(facts, lasts_s),
        meters=[meter_log(meter, kind, window.start_s) for meter in own],
        prints_fact=True,
        notes_lag=not window.is_whole and any(meter.trace for meter in own),
    )
    _judge(run, log, window, hosts, others)
    return run


def _readings(log: Log, source: Path) -> list[LoggedMeter]:
    """The meters of a log: its own, or those of its runs where they show what happened when."""
    joined = Log(list(log.meters), form=log.form)
    for run in log.runs if not log.meters else ():
        joined.add(Log([m for m in run.meters if m.trace], form=log.form), source)
    return joined.meters


def _work(facts: RunFacts, lasts_s: float) -> list[Interval]:
    if facts.samples is not None:
        return work_done("samples", facts.samples, lasts_s)
    if facts.steps is not None and facts.batch is not None:
        return work_done("samples", facts.steps * facts.batch, lasts_s)
    return [] if facts.epochs is None else work_done("epochs", facts.epochs, lasts_s)


def _judge(
    run: ForeignRun, log: Log, window: Window, hosts: Sequence[str], others: Sequence[Window]
) -> None:
    """Note what is wrong with the run apart from its readings."""
    for remark in (*log.remarks, *(window.logged.remarks if window.logged else ())):
        kind, _, detail = remark.partition(": ")
        run.findings.remark(kind, detail)
    if log.form != "placed":
        run.findings.remark(
            "no time zone", f"its times are {in_words(log.form)}; --timezone places them"
        )
    if window.is_whole:
        run.findings.remark(
            "whole log", "its begin and end were not given: the run is all that was read"
        )
    if run.nodes is not None and hosts and len(hosts) < run.nodes:
        run.findings.pollute(
            "node without readings", f"{len(hosts)} of {run.nodes} nodes have some"
        )
    if run.nodes is not None and len(hosts) > run.nodes:
        run.findings.pollute(
            "more meters than nodes", f"{len(hosts)} nodes were read, {run.nodes} trained"
        )
    if twice := _overlapping(window, others):
        run.findings.pollute("at the same time", f"{named(twice)} ran on its nodes meanwhile")


def import_log(
    kind: str,
    source: Path,
    out: Path,
    options: LogOptions,
    usual: RunFacts,
    rows: Sequence[RunFacts] = (),
) -> ImportSummary:
    """Write a run record to ``out/RUN`` for every run of a log.

    Args:
        kind: of :data:`~joulecast.importers.log_kinds.KINDS`.
        source: a file, or a folder of files.
        out: where the records go, all of them or none if it is new.
        options: how the log is read.
        usual: facts of all runs.
        rows: facts of each run; none: the log's own runs, or one.

    Raises:
        JoulecastError: the log cannot be read, names no run, or has none that is clean.
    """
    if source.is_dir():
        require_outside(out, source)
    log = read_source(kind, source, options)
    found = windows(log, source, rows, usual)

    def runs() -> Iterator[ForeignRun]:
        for window in found:
            yield foreign_run(kind, source, log, window, found)

    with directory_added_to(out) as partial:
        summary = summarised(written(runs(), partial), partial)
        summary.out = out
    summary.require_clean(source)
    return summary
