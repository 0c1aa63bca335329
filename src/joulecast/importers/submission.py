"""One run of a submission as handed in: its result file and its power folder, read together."""

import math
import re
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.files.reading import json_of
from joulecast.importers.foreign import MOST_NODES, ForeignRun
from joulecast.importers.mllog import (
    PowerLog,
    ResultLog,
    read_power,
    read_result,
    whole_number,
)
from joulecast.importers.run_files import RunFiles, printable
from joulecast.importers.sources import Tree
from joulecast.importers.traps import Findings, MeterLog, switch_remark, utc
from joulecast.importers.work import intervals_of
from joulecast.records.metering import Supply

CAMPAIGN = "mlperf"

_SAME_ERA = 0.01
"""Half a year in fifty-six."""

_LEADING_COUNT = re.compile(r"(\d+)x", re.IGNORECASE)


def read_run(tree: Tree, files: RunFiles) -> ForeignRun:
    """Read one run. Nothing in its files makes this fail; what is wrong is among its findings."""
    findings = Findings()
    log = ResultLog([], [], {}, None)
    try:
        log = read_result(tree.read(files.result))
    except JoulecastError as error:
        findings.pollute("unreadable file", str(error))
    _judge_log(log, files.result, findings)
    facts = log.system | {
        k: v for k, v in _described(tree, files, findings).items() if k not in log.system
    }
    run = ForeignRun(
        run=files.run,
        campaign=files.submitter or CAMPAIGN,
        system=files.system,
        benchmark=files.benchmark,
        submission=files.submission,
        repeat=files.repeat,
        source={"format": "mlperf", **tree.provenance, "result": printable(files.result)},
        nodes=_nodes(facts, log, files.system),
        accelerators_per_node=whole_number(facts.get("accelerators_per_node")),
        accelerator=_text(facts.get("accelerator_model_name")),
        global_batch_size=_value(log, "global_batch_size"),
        train_samples=_value(log, "train_samples"),
        seed=_value(log, "seed"),
        versions=_versions(facts),
        findings=findings,
    )
    zero_ms = _course(run, log)
    _meters(run, tree, files, zero_ms)
    return run


def _judge_log(log: ResultLog, name: str, findings: Findings) -> None:
    if not log.events:
        findings.pollute("empty log", f"{name} has no :::MLLOG line that can be read")
    if log.broken_lines:
        shown = ", ".join(map(str, log.broken_lines[:3]))
        findings.pollute("truncated line", f"{name}: line {shown} is no complete :::MLLOG line")


def _described(tree: Tree, files: RunFiles, findings: Findings) -> dict[str, Any]:
    """The submission's description of the system, where it lies in the tree and can be read."""
    if files.description is None:
        return {}
    try:
        facts = json_of(tree.read(files.description), files.description)
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
    """Number of nodes: what the log or the description says, else ``8x`` before the system's name
    (after it, it counts accelerators), else the launcher's line."""
    platform = log.first("submission_platform")
    named = [system, str(platform.value) if platform else ""]
    counts = [_LEADING_COUNT.match(name) for name in named]
    candidates = [
        facts.get("number_of_nodes"),
        *(count[1] for count in counts if count),
        log.dlpal_nodes,
    ]
    counts_of = map(whole_number, candidates)
    return next((nodes for nodes in counts_of if nodes is not None and nodes <= MOST_NODES), None)


def _versions(facts: dict[str, Any]) -> dict[str, str | None]:
    versions = {"framework": _text(facts.get("framework"))}
    stack = facts.get("other_software_stack")
    if isinstance(stack, dict):
        versions |= {str(name): _text(value) for name, value in stack.items()}
    return {name: version for name, version in versions.items() if version}


def _course(run: ForeignRun, log: ResultLog) -> float | None:
    """Set when the run did what; returns the zero of the run clock in ms since the epoch."""
    init, init_stop = log.first("init_start"), log.first("init_stop")
    start, stop = log.first("run_start"), log.first("run_stop")
    zero = init or start or (log.events[0] if log.events else None)
    if zero is None:
        return None
    run.started_utc = utc(zero.time_ms)
    run.zero_ms = zero.time_ms

    def seconds(time_ms: float) -> float:
        return (time_ms - zero.time_ms) / 1000

    if init and init_stop:
        run.init_s = seconds(init.time_ms), seconds(init_stop.time_ms)
    if start:
        run.start_s = seconds(start.time_ms)
    if stop:
        run.stop_s = seconds(stop.time_ms)
        run.status = _text(stop.metadata.get("status"))
    end_s = run.stop_s if run.stop_s is not None else seconds(log.events[-1].time_ms)
    run.intervals = intervals_of(log.events, zero.time_ms, end_s)
    return zero.time_ms


def _meters(run: ForeignRun, tree: Tree, files: RunFiles, zero_ms: float | None) -> None:
    """Read the power folder into ``run``, node by node."""
    findings = run.findings
    if files.benchmark_has_power and not files.power:
        findings.remark("no power folder", f"there is none for {files.stem}; its times are used")
    for node, path in files.power.items():
        try:
            log = read_power(tree.read(path))
        except JoulecastError as error:
            findings.pollute("unreadable file", str(error))
            log = PowerLog(np.empty(0), np.empty(0))
        name = path.rsplit("/", 1)[1]
        if log.broken_lines:
            findings.pollute(
                "truncated line",
                f"{name}: line {log.broken_lines[0]} is no complete :::MLLOG line",
            )
        if zero_ms is None and len(log.time_ms):
            zero_ms = float(log.time_ms[0])
        if zero_ms is not None:
            _in_milliseconds(name, log, zero_ms, findings)
        meter = MeterLog(
            node,
            name,
            (log.time_ms - (zero_ms or 0.0)) / 1000,
            log.watts,
            _supply(log, run),
            _efficiency(log),
        )
        if node.startswith("sw_"):
            _switch(run, node, name, log, zero_ms)
            if len(meter.t_s):
                run.switches.append(meter)
            continue
        run.meters.append(meter)
        _judge_window(name, log, findings)
    metered = [int(meter.node.split("_")[1]) for meter in run.meters]
    if metered:
        _judge_number_of_files(run, metered)


def _in_milliseconds(name: str, log: PowerLog, zero_ms: float, findings: Findings) -> None:
    """Read stamps that are seconds since 1970 as such: no run was at once in 1970 and today."""
    if len(log.time_ms) and abs(1000 * float(np.median(log.time_ms)) / zero_ms - 1) < _SAME_ERA:
        findings.remark("stamps in seconds", f"{name}: taken as such, milliseconds are expected")
        log.time_ms = 1000 * log.time_ms


def _supply(log: PowerLog, run: ForeignRun) -> Supply | None:
    """What was metered: as the power file says, else as the names of submitter and system do."""
    stated = (log.measured or "").upper()
    words = re.split(r"[^A-Z]+", f"{run.campaign} {run.system}".upper())
    kinds: tuple[Supply, ...] = ("AC", "DC")
    of_name = [kind for kind in kinds if kind in words]
    return next(
        (kind for kind in kinds if kind == stated), of_name[0] if len(of_name) == 1 else None
    )


def _efficiency(log: PowerLog) -> float | None:
    return log.conversion_eff if log.conversion_eff and 0 < log.conversion_eff <= 1 else None


def _judge_window(name: str, log: PowerLog, findings: Findings) -> None:
    if len(log.time_ms):
        if log.stop_ms is None:
            findings.remark("missing stop", f"{name} has no power_measurement_stop")
        elif log.stop_ms <= (log.start_ms if log.start_ms is not None else -math.inf):
            findings.remark(
                "missing stop", f"{name}: power_measurement_stop carries the time of the start"
            )
    if log.conversion_eff is not None and log.conversion_eff != 1:
        findings.remark(
            "conversion efficiency", f"{name} names {log.conversion_eff:g}; watts are as logged"
        )


def _switch(run: ForeignRun, node: str, name: str, log: PowerLog, zero_ms: float | None) -> None:
    for time_ms, watts in log.estimates[:1]:
        if not watts >= 0:
            run.findings.remark("switch estimate", f"{name}: {watts:g} W is none, left out")
            continue
        run_ms = None
        if zero_ms is not None and run.run_s is not None:
            run_ms = zero_ms, zero_ms + 1000 * run.run_s[1]
        dated = switch_remark(name, watts, time_ms, run_ms, run.findings)
        t_s = (time_ms - zero_ms) / 1000 if dated and zero_ms is not None else math.nan
        run.estimates.append((node, t_s, watts))


def _judge_number_of_files(run: ForeignRun, metered: list[int]) -> None:
    """Name the nodes without a file. Files are numbered from 0 or from 1."""
    first = 0 if 0 in metered or (run.nodes and max(metered) < run.nodes) else 1
    nodes = run.nodes or max(metered) - first + 1
    expected = range(first, first + nodes)
    found = set(metered)
    missing = [number for number in expected if number not in found]
    if len(metered) < nodes:
        run.missing_nodes = [f"node_{number}" for number in missing]
        run.findings.pollute(
            "node without readings",
            f"{len(metered)} power files for {nodes} nodes: "
            f"{', '.join(f'{name}.txt' for name in run.missing_nodes[:3])} missing",
        )
    elif len(metered) > nodes:
        run.findings.pollute(
            "more meters than nodes", f"{len(metered)} power files for {nodes} nodes"
        )
