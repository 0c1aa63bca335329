"""Makes run records from logs of other tools: finds the runs in a log, and writes a record of each.

The user names the runs, by options or by a table with a row for each run. If the user names none, the log
itself may know its runs. If it does not, the whole log is one run. The further steps are the same for every
imported run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pydantic.dataclasses
from pydantic import ConfigDict, Field, PositiveInt, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.logs.imported_run import ImportedRun, ImportSummary, imported, require_outside
from joulecast.logs.log import (
    Log,
    LoggedMeter,
    LoggedRun,
    LogOptions,
    counted_up,
    each_once,
    expanded,
    sanitised,
    utc,
)
from joulecast.logs.log_kinds import KINDS
from joulecast.logs.log_table import LogTable
from joulecast.logs.log_times import Clock, Times, in_words
from joulecast.logs.run_phases import Interval, work_done
from joulecast.quantities import counted, listed
from joulecast.runs.files.reading import validated
from joulecast.runs.record import read_info

_AROUND_S = 600.0
"""The readings in this time (s) before and after a run are used, because they show the clock of the meter and
the idle power of the node."""
_TOUCH_S = 1.5
"""Runs that follow each other may overlap by this time (s), because some logs have whole seconds."""
_OF_EACH_GPU = ("csv", "nvidia-smi", "prometheus", "zeus")
"""Kinds of logs in which a device that covers a GPU is one GPU. (A sensor of jpwr may be one die of a
GPU.)"""
_ALIKE, _VALUES = 1000, 5
"""Number of first readings that are compared to find copies of a log (the log may have been copied while it
was written), and the least number of different values among them (idle devices may read the same)."""
_ALMOST = 0.02
"""Relative difference by which samples may differ from steps times batch: the last batch of an epoch may be
short."""
_MOST_FILES = 10_000
_MOST_RUNS = 100_000

Amount = Annotated[float, Field(ge=0, le=1e18)]
Whole = Annotated[int, Field(ge=0, le=10**18)]


@pydantic.dataclasses.dataclass(
    frozen=True, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True)
)
class RunFacts:
    """What is known about a run from other sources than its log.

    Attributes:
        run: its name.
        network: what was trained.
        platform: name of the node type.
        nodes: number of nodes.
        hosts: names of the nodes in the log; none: all nodes of the log.
        batch: samples in one step, of all nodes together.
        start: start of the training.
        stop: end of the training.
        epochs: number of whole epochs between start and stop; or else ``samples``, or ``steps``.
        repeat: number of the repeat, from 1.
        accelerators: number of accelerators in each node.
        accelerator: name of the accelerators.
        seed: seed of the run.
    """

    run: str | None = None
    network: str | None = None
    platform: str | None = None
    nodes: PositiveInt | None = None
    hosts: tuple[str, ...] = ()
    batch: PositiveInt | None = None
    start: Times | None = None
    stop: Times | None = None
    epochs: Whole | None = None
    samples: Amount | None = None
    steps: Amount | None = None
    repeat: PositiveInt | None = None
    accelerators: PositiveInt | None = None
    accelerator: str | None = None
    seed: PositiveInt | None = None

    def over(self, other: "RunFacts") -> "RunFacts":
        """These facts. Facts that are missing here are taken from ``other``."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(other, **{name: v for name, v in own.items() if v not in (None, ())})


_FACTS = TypeAdapter(RunFacts)


def run_facts(said: dict[str, Any], clock: Clock, where: str) -> RunFacts:
    """The facts of a run from the texts of a user.

    Raises:
        JoulecastError: a fact is not known, or impossible. The message begins with ``where``.
    """
    facts = {name: value for name, value in said.items() if value not in (None, "")}
    for name in [key for key in ("start", "stop") if key in facts]:
        facts[name] = clock.moment(facts[name], f"{where}, column {name}")
    if "hosts" in facts:
        facts["hosts"] = expanded(facts["hosts"])
    return validated(_FACTS, facts, where)


def read_runs(path: Path, clock: Clock) -> list[RunFacts]:
    """The runs of a table.

    Args:
        path: a CSV file with some of the columns of :class:`RunFacts`.

    Raises:
        JoulecastError: a column is not known, or a value is impossible. The error names line and column.
    """
    table = LogTable(path, "table of runs", LogOptions())
    known = [f.name for f in fields(RunFacts)]
    if odd := [name for name in table.columns if name not in known]:
        raise JoulecastError(
            f"{path}, line 1: `{odd[0][:40]}` is no column of a table of runs; there are: {', '.join(known)}"
        )
    table.require(table.columns, "")
    rows = table.rows(table.columns).fillna("")
    if not 0 < len(rows) <= _MOST_RUNS:
        raise JoulecastError(
            f"{path}: has {len(rows)} runs, from 1 to {_MOST_RUNS:,} can be imported"
        )
    found = [
        run_facts(row, clock, f"{path}, line {line}")
        for line, row in zip(rows.index, rows.to_dict("records"), strict=True)
    ]
    counts = Counter(facts.run for facts in found if facts.run is not None)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise JoulecastError(f"{path}, column run: `{twice[0][:40]}` is there twice")
    return found


def read_source(kind: str, source: Path, options: LogOptions) -> Log:
    """Read a log from one file, or from all files of a folder.

    Raises:
        JoulecastError: a file cannot be read as ``kind``, or there is no file.
    """
    chosen = KINDS[kind]
    files = [source]
    if source.is_dir():
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
    known: dict[bytes, tuple[Path, str]] = {}
    for file in files:
        read = chosen.read(file, options)
        log.add(read, file)
        for meter in read.meters:
            device = (meter.device or "").encode()
            uuid = device if device.startswith(b"GPU-") else b""
            for mark in filter(None, (_beginning(meter), uuid)):
                other, node = known.setdefault(mark, (file, meter.node))
                if other != file and node != meter.node:
                    raise JoulecastError(
                        f"{file}: is a copy of {other}, or has a GPU of it, and would count as another node; "
                        "take one of them away, or name the node of both (--node)"
                    )
    return log.shifted(options.shift_s) if options.shift_s else log


def _beginning(meter: LoggedMeter) -> bytes:
    """The first readings of a meter with their times; empty if they hardly differ."""
    values = meter.power if meter.joules is None else meter.joules
    first = np.array([meter.t_s, values])[:, :_ALIKE]
    return first.tobytes() if len(np.unique(first[1])) >= _VALUES else b""


@dataclass(frozen=True)
class Window:
    """A run and its part of a log: begin and end on the log's clock. If the log says something about the run,
    this is kept, too."""

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

    @property
    def hosts(self) -> set[str]:
        """Names of its nodes, from the user or from the log; empty if they are not known."""
        return set(self.facts.hosts or (self.logged.hosts if self.logged else ()))


def windows(log: Log, source: Path, rows: Sequence[RunFacts], usual: RunFacts) -> list[Window]:
    """The runs of a log.

    Args:
        rows: a row for each run, from the user; none: the runs that the log knows, or the whole log as one
            run.

    Raises:
        JoulecastError: a row has no times, and the log knows no run of this name; or the times of a row have
            another form than the times of the log.
    """
    if rows:
        found = [_window(log, source, row.over(usual)) for row in rows]
    elif log.runs and usual.start is None and usual.stop is None:
        own = replace(usual, run=None)
        found = [
            Window(own, r.start_s, r.stop_s, r) for r in log.runs if usual.run in (None, r.name)
        ]
        found = found or [_window(log, source, usual)]
    else:
        found = [_window(log, source, usual)]
    for window in found:
        if not window.stop_s > window.start_s:
            raise JoulecastError(
                f"{source}: run {window.name} stops before it starts, or takes no time; correct its times, "
                "or name the other runs alone (--run, --runs)"
            )
    return [
        replace(window, facts=replace(window.facts, run=name))
        for window, name in zip(found, each_once([w.name for w in found]), strict=True)
    ]


def _run_of_name(log: Log, source: Path, facts: RunFacts) -> LoggedRun | None:
    """The run that the log knows by the user's name for it, or the only one that it knows; ``None`` if the
    user says when the run was.

    Raises:
        JoulecastError: there is no such run, or there are several.
    """
    # The names that the runs have if no table names them.
    called = each_once([sanitised(run.name) for run in log.runs])
    of_name = [
        run
        for run, name in zip(log.runs, called, strict=True)
        if facts.run in (run.name, name, sanitised(run.name), run.about.get("run_id") or name)
    ]
    ids = [str(run.about["run_id"]) for run in of_name if run.about.get("run_id")]
    if len(ids) > 1 and facts.run not in ids:
        raise JoulecastError(
            f"{source}: has {len(ids)} runs {facts.run}; name each by its run_id: {listed(ids)}"
        )
    if not of_name and log.runs and facts.start is None:
        if len(log.runs) == 1:
            return log.runs[0]
        raise JoulecastError(f"{source}: has no run {facts.run}; there are: {listed(called)}")
    return next(iter(of_name), None)


def _window(log: Log, source: Path, facts: RunFacts) -> Window:
    logged = _run_of_name(log, source, facts)
    if logged is not None:
        ends = [logged.start_s, logged.stop_s]
    else:
        known = [meter.t_s for meter in _readings(log, source) if len(meter.t_s)]
        if not known:
            raise JoulecastError(
                f"{source}: holds no reading; its runs are totals: name them in --runs (column run), without "
                "times"
            )
        ends = [min(float(t.min()) for t in known), max(float(t.max()) for t in known)]
    for place, times in enumerate((facts.start, facts.stop)):
        if times is None:
            continue
        if times.form != log.form:
            way_out = (
                "give --timezone"
                if "relative" not in (times.form, log.form)
                else "write both alike"
            )
            raise JoulecastError(
                f"{source}: its times are {in_words(log.form)}, start and stop are "
                f"{in_words(times.form)}; {way_out}"
            )
        ends[place] = float(times.t_s[0])
    is_whole = logged is None and facts.start is None and facts.stop is None
    if is_whole and ends[0] == ends[1]:
        raise JoulecastError(f"{source}: has readings of one moment; give --start and --stop")
    return Window(facts, ends[0], ends[1], logged, is_whole)


def _on_its_nodes(window: Window, others: Sequence[Window]) -> list[Window]:
    """The other runs that used a node of this run, or may have used one."""
    own = window.hosts
    return [
        other
        for other in others
        if other is not window and (not (own and other.hosts) or own & other.hosts)
    ]


def near(meter: LoggedMeter, first_s: float, last_s: float) -> LoggedMeter:
    """A meter's readings from ``first_s`` to ``last_s``, and the next one on either side."""
    chosen = (meter.t_s >= first_s) & (meter.t_s <= last_s)
    for outside, nearest in ((meter.t_s < first_s, np.argmax), (meter.t_s > last_s, np.argmin)):
        if outside.any() and chosen.any():
            places = np.flatnonzero(outside)
            chosen[places[nearest(meter.t_s[places])]] = True
    return meter.only(chosen)


def on_clock(meter: LoggedMeter, kind: str, zero_s: float) -> LoggedMeter:
    """A meter with the name that it has in records, and with times on a run's clock. If a counter restarted
    at zero, its counts are continued from the last one. For a counter, mean watts are computed, too."""
    name, file = kind, meter.file
    if meter.device is not None:
        name, file = f"{name}:{sanitised(meter.device)}", f"{file}, {meter.device}"
    found = replace(meter, name=name, file=file, t_s=meter.t_s - zero_s, by_unit=True)
    if found.joules is None:
        return found
    t_s, first = np.unique(found.t_s, return_index=True)
    joules, restarts = counted_up(found.joules[first], file)
    # Watts since the reading before; the first reading has those of the second.
    watts = np.full(len(t_s), np.nan)
    watts[1:] = np.diff(joules) / np.diff(t_s)
    watts[:1] = watts[1:2] if len(t_s) > 1 else np.nan
    lost = tuple((float(t_s[place - 1]), float(t_s[place])) for place in restarts)
    return replace(found, t_s=t_s, watts=watts, joules=joules, lost=lost)


def _refuse_unclear_work(facts: RunFacts, source: Path, name: str) -> None:
    """Raise an error if the facts do not say how much a run trained, or contradict each other."""
    if facts.steps is not None and facts.batch is None:
        raise JoulecastError(
            f"{source}: run {name}: its steps say how much was trained only with --batch-size"
        )
    if None not in (facts.samples, facts.steps, facts.batch):
        trained = (facts.steps or 0) * (facts.batch or 0)
        if abs(trained - (facts.samples or 0)) > _ALMOST * trained:
            raise JoulecastError(
                f"{source}: run {name}: {facts.steps:g} steps of {facts.batch} samples are not "
                f"{facts.samples:g} samples; correct them, or leave out the samples or the steps"
            )


def _meters_of_run(
    kind: str, source: Path, log: Log, facts: RunFacts, logged: LoggedRun | None
) -> tuple[list[str], list[LoggedMeter]]:
    """The nodes of a run, and their meters.

    Raises:
        JoulecastError: a node has no readings, a meter is there twice, or meters are of other GPUs.
    """
    meters = list(logged.meters) if logged and logged.meters else _readings(log, source)
    there = list(dict.fromkeys(meter.node for meter in meters))
    if missing := [host for host in facts.hosts if host not in there]:
        raise JoulecastError(
            f"{source}: has no readings of {listed(missing)}; there are: {listed(there)}; name the nodes as "
            "the log does (hosts), or say whose readings these are (--node)"
        )
    seen = Counter((m.node, m.device) for m in meters)
    if twice := [key for key, count in seen.items() if count > 1]:
        device = twice[0][1] or "one meter"
        raise JoulecastError(
            f"{source}: has {device} of {twice[0][0]} twice in one run; select one of them"
        )
    hosts = [node for node in there if node in (facts.hosts or there)]
    meters = [meter for meter in meters if meter.node in hosts]
    _refuse_other_gpus(kind, source, facts, meters)
    return hosts, meters


def run_of_window(
    kind: str,
    source: Path,
    log: Log,
    window: Window,
    others: Sequence[Window],
    options: LogOptions,
) -> ImportedRun:
    """A run of a log, in the form that all imported runs have.

    Raises:
        JoulecastError: it is not known what was trained, or on which platform.
    """
    facts, logged, name = window.facts, window.logged, window.name
    if logged is not None:
        facts = facts.over(RunFacts(samples=logged.samples, batch=logged.batch))
    if facts.network is None or facts.platform is None:
        lacks = "--network" if facts.network is None else "--platform"
        raise JoulecastError(
            f"{source}: it does not say what run {name} trained, and on what; give {lacks}, or its column in "
            "--runs"
        )
    _refuse_unclear_work(facts, source, name)
    hosts, meters = _meters_of_run(kind, source, log, facts, logged)
    # Its readings near the run, up to the runs before and after it.
    shared = _on_its_nodes(window, others)
    start_s, stop_s = window.start_s, window.stop_s
    before = [o.stop_s for o in shared if o.stop_s <= start_s + _TOUCH_S]
    after = [o.start_s for o in shared if o.start_s >= stop_s - _TOUCH_S]
    first_s = min(start_s, max([start_s - _AROUND_S, *before]))
    last_s = max(stop_s, min([stop_s + _AROUND_S, *after]))
    about: dict[str, Any] = {} if logged is None else dict(logged.about)
    about |= {"unit": options.unit} if options.unit else {}
    about |= {"shift_s": options.shift_s} if options.shift_s else {}
    run = ImportedRun(
        run=name,
        campaign=kind,
        system=facts.platform,
        benchmark=facts.network,
        submission=name,
        source={"format": kind, "path": str(source.resolve()), **about},
        repeat=facts.repeat or 1,
        nodes=facts.nodes or (logged.nodes if logged else None) or max(1, len(hosts)),
        accelerators_per_node=facts.accelerators,
        accelerator=facts.accelerator,
        global_batch_size=facts.batch,
        seed=facts.seed,
        start_s=0.0,
        stop_s=stop_s - start_s,
        status="failed" if logged and logged.succeeded is False else "success",
        zero_s=start_s if log.form == "placed" else None,
        intervals=_work(facts, stop_s - start_s),
        meters=[on_clock(near(meter, first_s, last_s), kind, start_s) for meter in meters],
        is_of_tool=True,
    )
    read = [meter for meter in meters if len(meter.t_s)]
    if read and not any(len(meter.t_s) for meter in run.meters):
        run.findings.leave_out(
            "clocks do not overlap",
            f"{source} was read from {_moment(log, min(float(m.t_s.min()) for m in read))} to "
            f"{_moment(log, max(float(m.t_s.max()) for m in read))}, the run lasts from "
            f"{_moment(log, start_s)} to {_moment(log, stop_s)}; look at --timezone and --shift",
        )
    overlapping = [
        o.name for o in shared if o.start_s + _TOUCH_S < stop_s and start_s + _TOUCH_S < o.stop_s
    ]
    _judge(run, log, window, hosts, overlapping)
    return run


def _moment(log: Log, t_s: float) -> str:
    return utc(t_s) if log.form == "placed" else f"{t_s:.10g} s"


def _refuse_another_run(out: Path, source: Path, runs: Sequence[Window]) -> None:
    """Raise an error if there is a record of this name from another log, because it would be lost."""
    for window in runs:
        there = out / window.name
        if not (there / "run.json").is_file():
            continue
        before = read_info(there).source.get("path", "another source")
        if before != str(source.resolve()):
            raise JoulecastError(
                f"{there}: holds a run imported from {before}; name this one with --run, or delete that "
                "folder"
            )


def _refuse_other_gpus(
    kind: str, source: Path, facts: RunFacts, meters: Sequence[LoggedMeter]
) -> None:
    """Raise if a log with a meter for each GPU has fewer or more meters than a node has GPUs.

    Its energy would look like that of the run's GPUs.
    """
    if kind not in _OF_EACH_GPU or facts.accelerators is None:
        return
    for node, count in Counter(m.node for m in meters if m.covers == "gpu" and m.device).items():
        if count != facts.accelerators:
            raise JoulecastError(
                f"{source}: has readings of {counted(count, 'GPU')} of {node}, and a node has "
                f"{facts.accelerators} (--accelerators); take a log of the GPUs that the run used, and give "
                "their number"
            )


def _readings(log: Log, source: Path) -> list[LoggedMeter]:
    """The meters of a log. If it has none, the meters of its runs that have readings over time."""
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
    run: ImportedRun, log: Log, window: Window, hosts: Sequence[str], overlapping: Sequence[str]
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
        run.findings.leave_out(
            "node without readings", f"{len(hosts)} of {run.nodes} nodes have some"
        )
    if run.nodes is not None and len(hosts) > run.nodes:
        run.findings.leave_out(
            "more meters than nodes", f"{len(hosts)} nodes were read, {run.nodes} trained"
        )
    gpus = Counter(meter.node for meter in run.meters if meter.covers == "gpu")
    fewest = min(hosts, key=lambda node: gpus[node], default="")
    if gpus and gpus[fewest] < max(gpus.values()):
        few = counted(gpus[fewest], "GPU meter")
        run.findings.leave_out(
            "node without readings", f"{fewest} has {few}, another node {max(gpus.values())}"
        )
    if overlapping:
        run.findings.leave_out(
            "at the same time", f"{listed(overlapping)} ran on its nodes meanwhile"
        )


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
        kind: a name in :data:`~joulecast.logs.log_kinds.KINDS`.
        out: folder for the records. A new folder appears with all records, or not at all.
        rows: facts of each run; none: the runs that the log knows, or the whole log as one run.

    Raises:
        JoulecastError: the log cannot be read, has no run, or has no run that fits may use.
    """
    if source.is_dir():
        require_outside(out, source)
    log = read_source(kind, source, options)
    found = windows(log, source, rows, usual)
    _refuse_another_run(out, source, found)

    def runs() -> Iterator[ImportedRun]:
        for window in found:
            yield run_of_window(kind, source, log, window, found, options)

    summary = imported(runs(), source, out)
    if rows:
        used = {id(window.logged) for window in found}
        others = [run.name for run in log.runs if id(run) not in used]
        summary.facts += [f"not imported, no row in --runs: {listed(others)}"] if others else []
    return summary
