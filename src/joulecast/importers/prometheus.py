"""Answers of Prometheus to a range query, saved as JSON: Kepler, the DCGM exporter, and others.

Whether a metric counts joules or reads watts shows in its name, and so does what it covers; where it does
not, ``--unit`` and ``--covers`` say it.
"""

import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_json_object
from joulecast.importers.log_units import scale_of
from joulecast.importers.logs import Log, LoggedMeter, LogOptions
from joulecast.importers.runs_table import named
from joulecast.importers.traps import Floats
from joulecast.records.covers import Covers

_WHAT = "answer of Prometheus to a range query"
_MAX_BYTES = 500_000_000
_NODE_LABELS = (
    *(
        "Hostname",
        "hostname",
        "node",
        "nodename",
        "node_name",
        "kubernetes_node",
        "exported_instance",
    ),
    *("host", "instance"),
)
_DEVICE_LABELS = (
    "UUID",
    "uuid",
    "gpu",
    "device",
    "gpu_id",
    "package",
    "socket",
    "zone",
    "path",
    "name",
    "sensor",
)
_COVERS: tuple[tuple[str, Covers], ...] = (
    (r"DCGM|gpu|nvidia", "gpu"),
    (r"dram|memory", "memory"),
    (r"package|core|cpu|rapl|socket", "cpu"),
    (r"platform|psys|ipmi|redfish|pdu|outlet", "node"),
)
_PARTS_OF_PACKAGE = re.compile(r"core|uncore", re.IGNORECASE)
_SHARES = re.compile(r"container|pod_|process|_vm_|_active_|_idle_", re.IGNORECASE)
_LIMITS = re.compile(r"limit|violation|capacity|rated|threshold|_cap(?:_|$)", re.IGNORECASE)
"""What a device may draw, or how long it was held back."""
_MODE = "mode"
"""Label of Kepler's parts of one energy, which are to be added up: what runs, and idling."""
_ESTIMATORS = ("estimator", "trained_power_model", "regressor")
_Series = tuple[dict[str, str], LoggedMeter]
"""Labels, and the meter."""
_MILLIJOULES = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def read(file: Path, options: LogOptions) -> Log:
    """The power or energy of each device.

    Raises:
        JoulecastError: it is no such answer, or does not say what its numbers are.
    """
    series = _series(file)
    names = sorted({str(one["metric"].get("__name__", "")) for one in series})
    if options.metric is not None:
        series = [one for one in series if one["metric"].get("__name__") == options.metric]
        if not series:
            raise JoulecastError(
                f"{file}: has no metric {options.metric}; there are: {named(names)}"
            )
    elif len(names) > 1:
        raise JoulecastError(
            f"{file}: has {len(names)} metrics ({named(names)}); choose one with --metric"
        )
    # With MIG, the exporter says of each slice what the whole GPU draws.
    slices = [one for one in series if one["metric"].get("GPU_I_ID")]
    whole = {_slice_of(one): one for one in reversed(slices)}
    series = [one for one in series if not one["metric"].get("GPU_I_ID")] + list(whole.values())
    by_meter: dict[tuple[str, str | None, Covers, str], list[_Series]] = defaultdict(list)
    for one in series:
        meter = _meter(file, one, options, alone=len(series) == 1)
        if meter is not None:
            source = str(one["metric"].get("source", ""))
            by_meter[meter.node, meter.device, meter.covers, source].append((one["metric"], meter))
    if not by_meter:
        raise JoulecastError(f"{file}: holds no series that covers a device or node")
    meters = [_added(alike, file) for alike in by_meter.values()]
    if options.covers is None:
        _require_one_total(meters, file)
    return Log(meters=meters)


def _require_one_total(meters: list[LoggedMeter], file: Path) -> None:
    """Refuse several meters of a whole node: a total and its supplies, or one figure from two sources."""
    whole = Counter(meter.node for meter in meters if meter.covers == "node")
    if several := [node for node, count in whole.items() if count > 1]:
        raise JoulecastError(
            f"{file}: has {whole[several[0]]} series of the whole node {several[0]}; select one in "
            "the query, or say --covers node if they are to be added up"
        )


def _slice_of(one: dict[str, Any]) -> tuple[str, ...]:
    """The GPU that a slice is of, with the node that it is on."""
    return tuple(
        str(one["metric"].get(label, "")) for label in ("Hostname", "instance", "UUID", "gpu")
    )


def _series(file: Path) -> list[dict[str, Any]]:
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
    for number, one in enumerate(series, start=1):
        if (
            not isinstance(one, dict)
            or not isinstance(one.get("metric"), dict)
            or "values" not in one
        ):
            raise JoulecastError(f"{file}: series {number} has no `metric` and `values`")
    return series


def _meter(
    file: Path, one: dict[str, Any], options: LogOptions, *, alone: bool
) -> LoggedMeter | None:
    labels = {str(k): str(v) for k, v in one["metric"].items()}
    name = labels.get("__name__", "")
    what, factor = _measures(file, name, options)
    device = next((labels[label] for label in _DEVICE_LABELS if labels.get(label)), None)
    parts = " ".join(
        (name, labels.get("zone", ""), labels.get("package", ""), labels.get("path", ""))
    )
    covers = options.covers or next(
        (c for pattern, c in _COVERS if re.search(pattern, parts)), None
    )
    if labels.get("zone") in ("psys", "platform"):
        covers = options.covers or "node"
    if _LIMITS.search(name):
        raise JoulecastError(
            f"{file}: {name} is what a device may draw, not what it draws; ask for its power or energy"
        )
    if _SHARES.search(name):
        raise JoulecastError(
            f"{file}: {name} is a share of what a device draws (of programs, or without idling); ask for the "
            "metric of the node"
        )
    if covers is None:
        raise JoulecastError(
            f"{file}: what does {name or 'the query'} cover? say --covers node, gpu, cpu or memory"
        )
    if _PARTS_OF_PACKAGE.fullmatch(labels.get("zone", "")):
        return None
    t_s, values = _values(file, one["values"], name)
    is_model = labels.get("source") in _ESTIMATORS
    remark = f"a model ({labels['source']}) of the exporter, no meter" if is_model else None
    if labels.get("GPU_I_ID"):
        remark = "MIG is on: it reads the whole GPU, not a slice"
    meter = LoggedMeter(
        _node(file, labels, options, alone=alone),
        device,
        covers,
        str(file),
        t_s,
        source="estimated" if is_model else "imported",
        remark=remark,
    )
    if what == "watts":
        return replace(meter, watts=factor * values)
    return replace(meter, joules=factor * values)


def _measures(file: Path, name: str, options: LogOptions) -> tuple[str, float]:
    if options.unit is not None:
        return scale_of(options.unit, str(file))
    plain = name.lower()
    if name == _MILLIJOULES:
        return "joules", 1e-3
    for unit, words in (
        ("mW", "milliwatt"),
        ("uW", "microwatt"),
        ("mJ", "millijoule"),
        ("uJ", "microjoule"),
    ):
        if words in plain:
            return scale_of(unit, str(file))
    if "joule" in plain:
        return "joules", 1.0
    if "watt" in plain or "power" in plain:
        return "watts", 1.0
    raise JoulecastError(
        f"{file}: does {name or 'the query'} read watts or count joules? say --unit W or --unit J"
    )


def _node(file: Path, labels: dict[str, str], options: LogOptions, *, alone: bool) -> str:
    if options.node_label is not None:
        if options.node_label not in labels:
            raise JoulecastError(
                f"{file}: a series has no label {options.node_label}; it has: {named(sorted(labels))}"
            )
        return _host(labels[options.node_label])
    label = next((label for label in _NODE_LABELS if labels.get(label)), None)
    if label is None and not alone and options.node is None:
        raise JoulecastError(
            f"{file}: which label names the node? say --node-label; there are: {named(sorted(labels))}"
        )
    return options.node_of(file) if label is None or options.node else _host(labels[label])


def _host(address: str) -> str:
    """``n01`` of ``n01:9100``; an address of version 6 stays."""
    host, colon, port = address.rpartition(":")
    return host if colon and port.isdigit() and ":" not in host else address


def _values(file: Path, values: Any, name: str) -> tuple[Floats, Floats]:
    try:
        pairs = np.array([(float(t), float(v)) for t, v in values], dtype=float).reshape(-1, 2)
    except (TypeError, ValueError):
        raise JoulecastError(
            f"{file}: a value of {name or 'the query'} is no pair of time and number"
        ) from None
    t_s, found = pairs[:, 0], pairs[:, 1]
    if not np.isfinite(t_s).all():
        raise JoulecastError(f"{file}: a time of {name or 'the query'} is not finite")
    return t_s, np.where(np.isfinite(found), found, np.nan)


def _sum(parts: list[Floats | None]) -> Floats | None:
    known = [part for part in parts if part is not None]
    return np.asarray(np.sum(known, axis=0)) if len(known) == len(parts) else None


def _differing(alike: list[_Series]) -> list[str]:
    """Labels in which series differ."""
    names = dict.fromkeys(name for labels, _ in alike for name in labels)
    return [name for name in names if len({str(labels.get(name)) for labels, _ in alike}) > 1]


def _added(alike: list[_Series], file: Path) -> LoggedMeter:
    """Series of one device that differ in other labels: added up where they are its idle and its dynamic
    part, once where they are the same, one after the other where their times are apart (the programs that
    used it).

    Raises:
        JoulecastError: they are none of these.
    """
    meters = [meter for _, meter in alike]
    first, differ = meters[0], _differing(alike)
    if len(alike) == 1:
        mode = alike[0][0].get(_MODE)
        part = f"mode {mode} alone, as the query asked" if mode else None
        return replace(first, remark="; ".join(filter(None, (first.remark, part))) or None)
    if all(np.array_equal(m.t_s, first.t_s) for m in meters):
        if differ == [_MODE]:
            return replace(
                first,
                watts=_sum([m.watts for m in meters]),
                joules=_sum([m.joules for m in meters]),
            )
        if all(_same_values(m, first) for m in meters):
            return first
    log = Log()
    try:
        for meter in sorted(meters, key=lambda m: float(m.t_s[0])):
            log.add(Log([meter]), file)
    except JoulecastError:
        raise JoulecastError(
            f"{file}: has {len(alike)} series of {first.node}, {first.device or 'the node'}, at some of the "
            f"same times, which differ in {named(differ)}; select one in the query, or add them up (sum by)"
        ) from None
    return log.meters[0]


def _same_values(one: LoggedMeter, other: LoggedMeter) -> bool:
    pairs = ((one.watts, other.watts), (one.joules, other.joules))
    return all(
        a is b or (a is not None and b is not None and np.array_equal(a, b, equal_nan=True))
        for a, b in pairs
    )
