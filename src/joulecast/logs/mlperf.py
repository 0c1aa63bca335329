"""Makes run records from power submissions of MLPerf Training.

``SYSTEM/BENCHMARK/result_X.txt`` is a run. ``SYSTEM/BENCHMARK/power/result_X/node_N.txt`` has the readings of
its meters. (Files of switches are not read, because these are no part of the nodes.) Above SYSTEM there is
usually ``results``, and any number of folders. Submitters are not strict about X: in one of the two names,
its number may have leading zeros, or ``_raw`` may be added. Then the power folder belongs to the run only if
no other run and no other folder can be meant.

A source is a folder of submissions, or flat tables of runs. One run at a time is read, judged and written.
Only a few numbers of each run stay in memory. At the end, they are used to compare the repeats of a setting.
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.logs.imported_run import (
    MOST_NODES,
    ImportedRun,
    ImportSummary,
    imported,
    require_outside,
)
from joulecast.logs.log import Findings, LoggedMeter, each_once, printable, sanitised
from joulecast.logs.log_table import scale_of
from joulecast.logs.mllog import PowerLog, ResultLog, read_power, read_result, whole_number
from joulecast.logs.mlperf_tables import are_tables, is_times_table, read_tables, read_times
from joulecast.logs.run_phases import intervals_of
from joulecast.quantities import listed
from joulecast.runs.files.reading import json_of, read_bytes
from joulecast.runs.meter_choice import Supply

MAX_FILES = 1_000_000
_MAX_LOG_BYTES = 256_000_000
"""The most bytes of one log, which is held in memory."""
_RESULT = re.compile(r"result_[^/]*\.txt")
_METER = re.compile(r"node_([0-9]{1,5})\.txt")
_LEADING_COUNT = re.compile(r"(\d+)x", re.IGNORECASE)


def import_mlperf(source: Path, out: Path, unit: str = "W", shift_s: float = 0.0) -> ImportSummary:
    """Write a run record to ``out/RUN`` for every run of ``source``.

    Args:
        source: a folder with ``SYSTEM/BENCHMARK/result_*.txt`` somewhere below it, with
            ``runs.csv``, ``events.csv`` and ``power.csv``, or with a table of times (``runs.csv.gz`` alone).
        out: folder for the records. A new folder appears with all records, or not at all. In an existing
            folder, records are replaced one by one.
        unit: unit of the readings.
        shift_s: seconds that are added to the times of the readings.

    Raises:
        JoulecastError: the source has no run, or no run that fits may use. The error gives the list of
            reasons.
    """
    if not source.is_dir():
        raise JoulecastError(f"{source}: no such folder")
    require_outside(out, source)
    what, factor = scale_of(unit, "--unit")
    if what != "watts":
        raise JoulecastError(f"--unit {unit}: submissions have readings of power, not of energy")
    runs: Iterable[ImportedRun]
    if are_tables(source):
        runs = read_tables(source)
    elif is_times_table(source):
        runs = read_times(source)
    else:
        files = runs_of(source)
        if not files:
            raise JoulecastError(
                f"{source}: no runs; expected SYSTEM/BENCHMARK/result_*.txt below it, the tables runs.csv, "
                "events.csv and power.csv, or a table of times runs.csv.gz"
            )
        runs = map(read_run, files)

    def in_watts() -> Iterator[ImportedRun]:
        for run in runs:
            if factor != 1.0 or shift_s:
                run.source |= {"unit": unit, "shift_s": shift_s}
            for place, meter in enumerate(run.meters):
                watts = factor * meter.power
                run.meters[place] = replace(meter, t_s=meter.t_s + shift_s, watts=watts)
            yield run

    return imported(in_watts(), source, out)


@dataclass(frozen=True)
class RunFiles:
    """The files of one run, and the names that follow from its folders.

    ``power`` maps ``node_0``, ``node_1`` ... to files. ``benchmark_has_power`` says whether any run of the
    benchmark has a power folder. ``description`` is the submission's file that describes the system.
    ``submitter`` is made of the folders above ``results``.
    """

    run: str
    source: Path
    submitter: str
    system: str
    benchmark: str
    stem: str
    repeat: int
    result: str
    power: dict[str, str]
    benchmark_has_power: bool
    description: str | None

    @property
    def submission(self) -> str:
        """Submitter, benchmark, system and result file. No other run has the same four."""
        name = f"{self.benchmark}-{self.system}-{self.stem}"
        return f"{self.submitter}/{name}" if self.submitter else name

    def read(self, path: str) -> bytes:
        """The content of one file of the run.

        Raises:
            JoulecastError: the file cannot be read, is no regular file, or is too large.
        """
        file = self.source / path
        # A link in a folder from outside must not make us read other files of this machine.
        if not file.resolve().is_relative_to(self.source.resolve()):
            raise JoulecastError(f"{file}: is a link that leaves {self.source}; it is not read")
        return read_bytes(file, "log", _MAX_LOG_BYTES)


def _files_below(folder: Path) -> Iterator[str]:
    seen = 0
    for above, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        seen += len(names)
        if seen > MAX_FILES:
            raise JoulecastError(
                f"{folder}: has more than {MAX_FILES:,} files; name a folder inside it"
            )
        yield from ((Path(above).relative_to(folder) / name).as_posix() for name in names)


def _loosely(stem: str) -> str:
    """``stem`` without ``_raw``, and without leading zeros of the number at its end."""
    return re.sub(r"(?<!\d)0+(?=\d+$)", "", re.sub(r"_raw(?=_|$)", "", stem))


def _folders_of(stems: list[str], folders: list[str]) -> dict[str, str]:
    """The power folder of each result file, if there is no doubt which one it is."""
    found = {stem: stem for stem in stems if stem in set(folders)}
    by_name: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        if folder not in found:
            by_name[_loosely(folder)].append(folder)
    claims = Counter(_loosely(stem) for stem in stems if stem not in found)
    for stem in stems:
        candidates = by_name[_loosely(stem)]
        if stem not in found and len(candidates) == 1 and claims[_loosely(stem)] == 1:
            found[stem] = candidates[0]
    return found


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key under which 2 comes before 10."""
    words = re.split(r"([0-9]{1,18})", text)
    return [(int(word), "") if n % 2 else (-1, word) for n, word in enumerate(words)]


def runs_of(source: Path) -> list[RunFiles]:
    """All runs below a folder, sorted. Empty if there is no result file.

    A run's name is ``BENCHMARK-SYSTEM-STEM``. If two submitters share it, the submitter stands in front.
    """
    results: dict[PurePosixPath, list[str]] = defaultdict(list)
    power: dict[PurePosixPath, dict[str, dict[str, str]]] = defaultdict(dict)
    descriptions = set()
    for path in _files_below(source):
        place = PurePosixPath(path)
        if _RESULT.fullmatch(place.name):
            results[place.parent].append(place.stem)
        elif (meter := _METER.fullmatch(place.name)) and place.parts[-3:-2] == ("power",):
            of_run = power[place.parents[2]].setdefault(place.parts[-2], {})
            of_run.setdefault(f"node_{int(meter[1])}", path)
        elif place.suffix == ".json" and place.parent.name == "systems":
            descriptions.add(path)
    runs = []
    for folder, stems in results.items():
        system, benchmark = ("", "", *source.resolve().parts[1:], *folder.parts)[-2:]
        above = PurePosixPath(*folder.parts[:-2])
        outer = above.parent if above.name == "results" else above
        description = (outer / "systems" / f"{system}.json").as_posix()
        stems.sort(key=_natural)
        folders = _folders_of(stems, list(power[folder]))
        for repeat, stem in enumerate(stems, start=1):
            of_run = power[folder].get(folders.get(stem, ""), {})
            runs.append(
                RunFiles(
                    run=sanitised(f"{benchmark}-{system}-{stem}"),
                    source=source,
                    submitter="" if outer == PurePosixPath(".") else printable(outer.as_posix()),
                    system=printable(system) or "unknown",
                    benchmark=printable(benchmark) or "unknown",
                    stem=printable(stem),
                    repeat=repeat,
                    result=(folder / f"{stem}.txt").as_posix(),
                    power={name: of_run[name] for name in sorted(of_run, key=_natural)},
                    benchmark_has_power=bool(power[folder]),
                    description=description if description in descriptions else None,
                )
            )
    runs.sort(key=lambda run: _natural(run.result))
    shared = Counter(run.run for run in runs)
    names = [
        sanitised(f"{run.submitter}-{run.run}") if shared[run.run] > 1 else run.run for run in runs
    ]
    return [replace(run, run=name) for run, name in zip(runs, each_once(names), strict=True)]


def read_run(files: RunFiles) -> ImportedRun:
    """Read one run. A fault in its files raises no error: it becomes one of the findings."""
    findings = Findings()
    log = ResultLog([], [], {}, None)
    try:
        log = read_result(files.read(files.result))
    except JoulecastError as error:
        findings.leave_out("unreadable file", str(error))
    if not log.events:
        findings.leave_out("empty log", f"{files.result} has no :::MLLOG line that can be read")
    if log.broken_lines:
        shown = ", ".join(map(str, log.broken_lines[:3]))
        findings.leave_out(
            "truncated line", f"{files.result}: line {shown} is no complete :::MLLOG line"
        )
    said = {name: fact for name, fact in log.system.items() if fact not in ("", None)}
    facts = _described(files, findings) | said
    others = facts.get("other_software_stack")
    stack = {"framework": facts.get("framework"), **(others if isinstance(others, dict) else {})}
    run = ImportedRun(
        run=files.run,
        campaign=files.submitter or "mlperf",
        system=files.system,
        benchmark=files.benchmark,
        submission=files.submission,
        repeat=files.repeat,
        source={
            "format": "mlperf",
            "path": str(files.source.resolve()),
            "result": printable(files.result),
        },
        nodes=_nodes(facts, log, files.system),
        accelerators_per_node=whole_number(facts.get("accelerators_per_node")),
        accelerator=_text(facts.get("accelerator_model_name")),
        global_batch_size=_value(log, "global_batch_size"),
        train_samples=_value(log, "train_samples"),
        seed=_value(log, "seed"),
        versions={str(name): text for name, value in stack.items() if (text := _text(value))},
        findings=findings,
    )
    sizes = [event.value for event in log.events if event.key == "global_batch_size"]
    batches = {str(whole_number(size)) for size in sizes}
    if len(batches) > 1:
        text = f"global_batch_size is {listed(sorted(batches))}; a setting has one batch"
        findings.leave_out("several batches", text)
    _set_course(run, log)
    _add_meters(run, files)
    return run


def _described(files: RunFiles, findings: Findings) -> dict[str, Any]:
    """The submission's description of the system; empty if there is none, or if it cannot be read."""
    if files.description is None:
        return {}
    try:
        facts = json_of(files.read(files.description), files.description)
    except JoulecastError as error:
        findings.remark("unreadable description", str(error))
        return {}
    return facts if isinstance(facts, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _value(log: ResultLog, key: str) -> int | None:
    event = log.first(key)
    return None if event is None else whole_number(event.value)


def _nodes(facts: dict[str, Any], log: ResultLog, system: str) -> int | None:
    """Number of nodes: from the log or the description; else from a name of the system that begins with a
    count, as ``8x`` (behind the name, it would count accelerators); else from the launcher's line."""
    platform = log.first("submission_platform")
    named = [_LEADING_COUNT.match(name) for name in (system, str(platform and platform.value))]
    candidates = [
        facts.get("number_of_nodes"),
        *(count[1] for count in named if count),
        log.dlpal_nodes,
    ]
    counts = map(whole_number, candidates)
    return next((nodes for nodes in counts if nodes is not None and nodes <= MOST_NODES), None)


def _set_course(run: ImportedRun, log: ResultLog) -> None:
    """Set the times of the run: its initialisation, its start and stop, and its epochs, blocks and
    evaluations."""
    init, init_stop = log.first("init_start"), log.first("init_stop")
    start, stop = log.first("run_start"), log.first("run_stop")
    zero = init or start or (log.events[0] if log.events else None)
    if zero is None:
        return
    run.zero_s = zero.time_ms / 1000

    def seconds(time_ms: float) -> float:
        return (time_ms - zero.time_ms) / 1000

    if init and init_stop:
        run.init_s = seconds(init.time_ms), seconds(init_stop.time_ms)
    if start:
        run.start_s = seconds(start.time_ms)
    if stop:
        run.stop_s = seconds(stop.time_ms)
        run.status = _text(stop.metadata.get("status"))
    began = [event.time_ms for event in log.events if event.key == "init_start"]
    if start and start.time_ms < max(began, default=0):
        run.findings.leave_out(
            "began again",
            f"init_start at {seconds(max(began)):.1f} s, after run_start; make a file of each training",
        )
    end_s = run.stop_s if run.stop_s is not None else seconds(log.events[-1].time_ms)
    run.intervals, missing = intervals_of(log.events, zero.time_ms, end_s)
    if missing:
        text = f"{missing} starts or stops of phases have no other end; their times are not exact"
        run.findings.remark("events missing", text)


def _add_meters(run: ImportedRun, files: RunFiles) -> None:
    """Read the power folder into ``run``, node by node."""
    findings = run.findings
    if files.benchmark_has_power and not files.power:
        findings.remark("no power folder", f"there is none for {files.stem}; its times are used")
    zero_s = run.zero_s
    for node, path in files.power.items():
        try:
            log = read_power(files.read(path))
        except JoulecastError as error:
            findings.leave_out("unreadable file", str(error))
            log = PowerLog(np.empty(0), np.empty(0))
        name = path.rsplit("/", 1)[1]
        if log.broken_lines:
            findings.leave_out(
                "truncated line", f"{name}: line {log.broken_lines[0]} is no complete :::MLLOG line"
            )
        if zero_s is None and len(log.time_ms):
            zero_s = float(log.time_ms[0]) / 1000
        t_s = (log.time_ms - 1000 * (zero_s or 0.0)) / 1000
        meter = LoggedMeter(node, None, None, name, t_s, log.watts, supply=_supply(log, run))
        if log.conversion_eff and 0 < log.conversion_eff <= 1:
            meter = replace(meter, conversion_eff=log.conversion_eff)
        run.meters.append(meter)
        if len(t_s) and log.stop_ms is None:
            findings.remark("missing stop", f"{name} has no power_measurement_stop")
        elif len(t_s) and (log.stop_ms or 0.0) <= (log.start_ms or -math.inf):
            findings.remark(
                "missing stop", f"{name}: power_measurement_stop carries the time of the start"
            )
        if log.conversion_eff is not None and log.conversion_eff != 1:
            findings.remark(
                "conversion efficiency", f"{name} names {log.conversion_eff:g}; watts are as logged"
            )
    if metered := [int(meter.node.split("_")[1]) for meter in run.meters]:
        _judge_number_of_files(run, metered)


def _supply(log: PowerLog, run: ImportedRun) -> Supply | None:
    """Where the power was metered: as the power file says, or else as the names of submitter and system
    say."""
    names = re.split(r"[^A-Z]+", f"{run.campaign} {run.system}".upper())
    kinds: tuple[Supply, ...] = ("AC", "DC")
    for words in ([(log.measured or "").upper()], names):
        found = [kind for kind in kinds if kind in words]
        if len(found) == 1:
            return found[0]
    return None


def _judge_number_of_files(run: ImportedRun, metered: list[int]) -> None:
    """Name the nodes without a file. Files are numbered from 0 or from 1."""
    first = 0 if 0 in metered or (run.nodes and max(metered) < run.nodes) else 1
    nodes = run.nodes or max(metered) - first + 1
    missing = [number for number in range(first, first + nodes) if number not in set(metered)]
    if len(metered) < nodes:
        run.missing_nodes = [f"node_{number}" for number in missing]
        run.findings.leave_out(
            "node without readings",
            f"{len(metered)} power files for {nodes} nodes: "
            f"{', '.join(f'{name}.txt' for name in run.missing_nodes[:3])} missing",
        )
    elif len(metered) > nodes:
        run.findings.leave_out(
            "more meters than nodes", f"{len(metered)} power files for {nodes} nodes"
        )
