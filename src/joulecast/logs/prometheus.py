"""Answers of Prometheus to a range query, saved as JSON: Kepler, the DCGM exporter, and others.

The name of a metric shows whether it counts joules or reads watts, and what it covers. If the name does
not show it, ``--unit`` and ``--covers`` say it.
"""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LogOptions
from joulecast.logs.log_table import scale_of
from joulecast.quantities import listed
from joulecast.runs.files.reading import read_json_object
from joulecast.runs.meter_choice import Covers

_WHAT = "answer of Prometheus to a range query"
_MAX_BYTES = 500_000_000
_NODE_LABELS = (
    *("Hostname", "hostname", "node", "nodename", "node_name", "kubernetes_node"),
    *("exported_instance", "host", "instance"),
)
_DEVICE_LABELS = (
    *("UUID", "uuid", "gpu", "device", "gpu_id", "package", "socket", "zone", "path", "name"),
    "sensor",
)
_COVERS: tuple[tuple[str, Covers], ...] = (
    (r"DCGM|gpu|nvidia", "gpu"),
    (r"dram|memory", "memory"),
    (r"package|core|cpu|rapl|socket", "cpu"),
    (r"platform|psys|ipmi|redfish|pdu|outlet", "node"),
)
_WHOLE_ZONES, _INNER_ZONES = ("psys", "platform"), ("core", "uncore")
_NO_POWER = (
    (
        re.compile(r"limit|violation|capacity|rated|threshold|_cap(?:_|$)", re.IGNORECASE),
        "is what a device may draw, not what it draws; ask for its power or energy",
    ),
    (
        re.compile(r"container|pod_|process|_vm_|_active_|_idle_", re.IGNORECASE),
        "is a share of what a device draws (of programs, or without idling); ask for the metric of the node",
    ),
)
_UNITS = (
    (r"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ"),
    (r"kilowatt_?hour|kwh", "kWh"),
    (r"watt_?hour|_wh(?:_|$)", "Wh"),
    (r"kilowatt|_kw(?:_|$)", "kW"),
    (r"kilojoule", "kJ"),
    (r"milliwatt|_mw(?:_|$)", "mW"),
    (r"microwatt", "uW"),
    (r"millijoule", "mJ"),
    (r"microjoule", "uJ"),
    (r"joule", "J"),
    (r"watt|power", "W"),
)
"""The unit of a metric, by a part of its name. The first that is found counts."""
_MODE = "mode"
"""Label by which Kepler divides an energy into a dynamic and an idle part. The parts are added up."""
_SLICE = "GPU_I_ID"
_ESTIMATORS = ("estimator", "trained_power_model", "regressor")
_Series = tuple[dict[str, str], LoggedMeter]
"""A series of the answer: its labels, and its values as a meter."""


def read(file: Path, options: LogOptions) -> Log:
    """The power or energy of each device.

    Raises:
        JoulecastError: the file is no answer of Prometheus to a range query, or it does not say what its
            numbers mean.
    """
    series = _series(file)
    names = sorted({labels.get("__name__", "") for labels, _ in series})
    if options.metric is not None:
        series = [one for one in series if one[0].get("__name__") == options.metric]
        if not series:
            raise JoulecastError(
                f"{file}: has no metric {options.metric}; there are: {listed(names)}"
            )
    elif len(names) > 1:
        raise JoulecastError(
            f"{file}: has {len(names)} metrics ({listed(names)}); choose one with --metric"
        )
    by_meter: dict[tuple[str, str | None, Covers | None, str], list[_Series]] = defaultdict(list)
    slices = set()
    for labels, values in series:
        if labels.get(_SLICE):
            # With MIG, the exporter says of each slice what the whole GPU draws.
            whole = tuple(labels.get(n, "") for n in ("Hostname", "instance", "UUID", "gpu"))
            if whole in slices:
                continue
            slices.add(whole)
        meter = _meter(file, labels, values, options, alone=len(series) == 1)
        if labels.get("zone") not in _INNER_ZONES:
            key = meter.node, meter.device, meter.covers, labels.get("source", "")
            by_meter[key].append((labels, meter))
    if not by_meter:
        raise JoulecastError(f"{file}: holds no series that covers a device or node")
    meters = [_added(alike, file) for alike in by_meter.values()]
    of_node = Counter(meter.node for meter in meters if meter.covers == "node")
    if options.covers is None and (several := [n for n, count in of_node.items() if count > 1]):
        raise JoulecastError(
            f"{file}: has {of_node[several[0]]} series of the whole node {several[0]}; select one in "
            "the query, or say --covers node if they are to be added up"
        )
    return Log(meters=meters)


def _series(file: Path) -> list[tuple[dict[str, str], Any]]:
    """The labels and the values of each series."""
    if not file.suffix:
        raise JoulecastError(f"{file}: is no JSON file; expected: {_WHAT}")
    content = read_json_object(file, _WHAT, _MAX_BYTES)
    if content.get("status", "success") != "success":
        raise JoulecastError(f"{file}: Prometheus refused the query; ask it again")
    data = content.get("data", content)
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind != "matrix":
        raise JoulecastError(
            f"{file}: is no {_WHAT} (its resultType is {str(kind)[:20]}); ask "
            "/api/v1/query_range, which gives a matrix"
        )
    series = data.get("result")
    if not isinstance(series, list) or not series:
        raise JoulecastError(f"{file}: Prometheus found no series; look at the query and its times")
    found = []
    for number, one in enumerate(series, start=1):
        labels = one.get("metric") if isinstance(one, dict) else None
        if not isinstance(labels, dict) or "values" not in one:
            raise JoulecastError(f"{file}: series {number} has no `metric` and `values`")
        found.append(({str(k): str(v) for k, v in labels.items()}, one["values"]))
    return found


def _meter(
    file: Path, labels: dict[str, str], values: Any, options: LogOptions, *, alone: bool
) -> LoggedMeter:
    name = labels.get("__name__", "")
    for pattern, why in _NO_POWER:
        if pattern.search(name):
            raise JoulecastError(f"{file}: {name} {why}")
    unit = options.unit or next(
        (unit for pattern, unit in _UNITS if re.search(pattern, name, re.IGNORECASE)), None
    )
    if unit is None:
        raise JoulecastError(
            f"{file}: does {name or 'the query'} read watts or count joules? say --unit W or --unit J"
        )
    what, factor = scale_of(unit, str(file))
    parts = " ".join((name, *(labels.get(label, "") for label in ("zone", "package", "path"))))
    covers = options.covers or next(
        (c for pattern, c in _COVERS if re.search(pattern, parts)), None
    )
    if options.covers is None and labels.get("zone") in _WHOLE_ZONES:
        covers = "node"
    if covers is None:
        raise JoulecastError(
            f"{file}: what does {name or 'the query'} cover? say --covers node, gpu, cpu or memory"
        )
    try:
        pairs = np.array([(float(t), float(v)) for t, v in values], dtype=float).reshape(-1, 2)
    except (TypeError, ValueError):
        raise JoulecastError(
            f"{file}: a value of {name or 'the query'} is no pair of time and number"
        ) from None
    if not np.isfinite(pairs[:, 0]).all():
        raise JoulecastError(f"{file}: a time of {name or 'the query'} is not finite")
    values = factor * np.where(np.isfinite(pairs[:, 1]), pairs[:, 1], np.nan)
    is_model = labels.get("source") in _ESTIMATORS
    remark = f"a model ({labels['source']}) of the exporter, no meter" if is_model else None
    if labels.get(_SLICE):
        remark = "MIG is on: it reads the whole GPU, not a slice"
    return LoggedMeter(
        _node(file, labels, options, alone=alone),
        next((labels[label] for label in _DEVICE_LABELS if labels.get(label)), None),
        covers,
        str(file),
        pairs[:, 0],
        source="estimated" if is_model else "imported",
        remark=remark,
    ).reading(what, values)


def _node(file: Path, labels: dict[str, str], options: LogOptions, *, alone: bool) -> str:
    label = options.node_label
    if label is None and options.node is None:
        label = next((label for label in _NODE_LABELS if labels.get(label)), None)
        if label is None and not alone:
            raise JoulecastError(
                f"{file}: which label names the node? say --node-label; there are: {listed(sorted(labels))}"
            )
    if label is None:
        return options.node_of(file)
    if label not in labels:
        raise JoulecastError(
            f"{file}: a series has no label {label}; it has: {listed(sorted(labels))}"
        )
    # `n01` of `n01:9100`; an address of version 6 stays.
    host = re.fullmatch(r"([^:]*):\d+", labels[label])
    return host[1] if host else labels[label]


def _added(alike: list[_Series], file: Path) -> LoggedMeter:
    """Join the series of one device that differ in other labels.

    Its idle and its dynamic part are added up. Equal series count once. Series whose times are apart (of
    different programs that used the device) follow one after the other.

    Raises:
        JoulecastError: the series cannot be joined in one of these ways.
    """
    meters = [meter for _, meter in alike]
    first = meters[0]
    if len(alike) == 1:
        mode = alike[0][0].get(_MODE)
        part = f"mode {mode} alone, as the query asked" if mode else None
        return replace(first, remark="; ".join(filter(None, (first.remark, part))) or None)
    labels = dict.fromkeys(name for labels, _ in alike for name in labels)
    differ = [name for name in labels if len({str(of.get(name)) for of, _ in alike}) > 1]
    if all(np.array_equal(m.t_s, first.t_s) for m in meters):
        for what in ("watts", "joules"):
            numbers = [getattr(meter, what) for meter in meters]
            if any(each is None for each in numbers):
                continue
            if differ == [_MODE]:
                return first.reading(what, np.sum(numbers, axis=0))
            if all(np.array_equal(each, numbers[0], equal_nan=True) for each in numbers):
                return first
    log = Log()
    try:
        for meter in sorted(meters, key=lambda m: float(m.t_s.min(initial=0.0))):
            log.add(Log([meter]), file)
    except JoulecastError:
        raise JoulecastError(
            f"{file}: has {len(alike)} series of {first.node}, {first.device or 'the node'}, at some of the "
            f"same times, which differ in {listed(differ)}; select one in the query, or add them up (sum by)"
        ) from None
    return log.meters[0]
