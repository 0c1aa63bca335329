"""Meters that the kernel shows as files of one number: an energy, or a power.

``pm_counters``  nodes of HPE Cray machines: counters in ``/sys/cray/pm_counters`` for the whole node, its
                 CPU, its memory and its accelerators. The energy of the node contains the energy of its
                 parts, so node and parts are never added. If an accelerator has two dies (MI250X), its
                 counter covers both.
``hwmon``        power sensors in ``/sys/class/hwmon`` whose drivers are known to measure power. Sensors of
                 other drivers are not read: most of them measure voltage regulators, whose power another
                 sensor already contains. Known are the board's ACPI power meter (whose label says what it
                 covers on Grace and Grace-Hopper), AMD's processors, Intel's GPUs, and servers' power
                 supplies on PMBus. GPUs of NVIDIA and AMD are read by Zeus.
"""

import re
from pathlib import Path

from joulecast.measure.power.meters import (
    DeviceMeter,
    Limits,
    Meter,
    MeteredNodes,
    MeterUnavailable,
    ReadFailed,
    identity_of,
    limits_of,
)
from joulecast.runs.meter_choice import Covers


def _number_in(file: Path) -> int:
    """The number with which a file of the kernel begins (``123`` or ``123 J 1700000000 us``)."""
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise ReadFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from error


def _text_in(file: Path) -> str | None:
    """The line of text in a file of the kernel; ``None`` if there is none."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


def _meter(
    name: str,
    node: str,
    covers: Covers,
    file: Path,
    limits: Limits,
    *,
    counter: bool = True,
    unit: float = 1e-6,
    renewed_s: float | None = None,
) -> DeviceMeter:
    """The meter of a device whose energy or power is in a file."""
    return DeviceMeter(
        name,
        node,
        covers,
        lambda: _number_in(file),
        limits,
        counter=counter,
        unit=unit,
        identity=identity_of(name),
        renewed_s=renewed_s,
    )


_CRAY = Path("cray/pm_counters")
_CRAY_RENEWED_S = 0.1
"""The node's controller renews all files ten times a second."""
_CRAY_PARTS: dict[str, Covers] = {"": "node", "cpu": "cpu", "memory": "memory"}


def open_pm_counters(nodes: MeteredNodes) -> list[Meter]:
    """The counters of this node: first the counter of the whole node, then the counters of its parts.

    Raises:
        MeterUnavailable: this machine is no node of a Cray, or its files may not be read.
    """
    folder = Path(nodes.sysfs_root) / _CRAY
    if not folder.is_dir():
        raise MeterUnavailable(
            f"pm_counters: there is no {folder}",
            "only nodes of HPE Cray machines have it (in a container: mount /sys/cray)",
            not_applicable=True,
        )
    meters: list[Meter] = []
    try:
        for file in sorted(folder.glob("*energy")):
            part = file.name.removesuffix("energy").rstrip("_")
            is_gpu = re.fullmatch(r"accel\d+", part)
            covers = "gpu" if is_gpu else _CRAY_PARTS.get(part)
            if covers is not None:
                meters.append(
                    _meter(
                        f"pm_counters:{part or 'node'}",
                        nodes.host_node,
                        covers,
                        file,
                        # One counter counts all processors of a node, and one all of its memory.
                        limits_of(covers if covers in ("node", "gpu") else "module", renewed_s=0.3),
                        unit=1.0,
                        renewed_s=_CRAY_RENEWED_S,
                    )
                )
    except ReadFailed as error:
        remedy = "ask the site to let users read /sys/cray/pm_counters"
        raise MeterUnavailable(f"pm_counters: {error}", remedy) from None
    if not meters:
        raise MeterUnavailable(
            f"pm_counters: {folder} has no file of energy", "look into that folder"
        )
    return sorted(meters, key=lambda meter: (meter.name != "pm_counters:node", meter.name))


_HWMON = Path("class/hwmon")

_LABELLED: tuple[tuple[str, Covers], ...] = (
    (r"module power socket (\d+)", "module"),
    (r"grace power socket (\d+)", "socket"),
    (r"cpu power socket (\d+)", "cpu"),
)
_INSIDE = r"sysio power|soc power"
"""Labels of power rails inside a socket. These rails are not read, because the socket's meter already
contains their power."""
_SUPPLIES = re.compile(
    r"dps\d+\w*|cffps\d?|ipsps\d?|pfe\d+|fsp\w+|crps\w*|acbel\w*|fsg\d+|bpa[-_]?rs600|corsairpsu|bel\w*"
)


def _watts(
    folder: Path, name: str, node: str, covers: Covers, file: Path, least_w: float | None = None
) -> DeviceMeter:
    interval_ms = _text_in(folder / "power1_average_interval") or ""
    return _meter(
        f"hwmon:{name}",
        node,
        covers,
        file,
        limits_of(covers, least_w=least_w),
        counter=False,
        renewed_s=int(interval_ms) / 1e3 if interval_ms.isdigit() and int(interval_ms) else None,
    )


def _joules(name: str, node: str, covers: Covers, file: Path) -> DeviceMeter:
    return _meter(f"hwmon:{name}", node, covers, file, limits_of(covers, renewed_s=0.2))


def _of_board(folders: list[Path], node: str) -> list[DeviceMeter]:
    """The ACPI power meters. The label of a meter says what it covers. A single meter without a known label
    covers the whole board."""
    found, of_board = [], []
    for folder in folders:
        names = ("power1_average", "power1_input")
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is None or _text_in(folder / "power1_is_battery") == "1":
            continue
        label = (
            _text_in(folder / "power1_oem_info") or _text_in(folder / "power1_label") or ""
        ).lower()
        for pattern, covers in _LABELLED:
            if match := re.fullmatch(pattern, label):
                found.append(_watts(folder, f"{covers}-{match[1]}", node, covers, file))
                break
        else:
            if not re.match(_INSIDE, label):
                of_board.append((folder, file))
    if len(of_board) == 1:
        # If there are several without a known label, it is not known what each covers.
        found.append(_watts(of_board[0][0], "board", node, "node", of_board[0][1]))
    return found


def _of_supplies(folders: list[Path], node: str) -> list[DeviceMeter]:
    """One meter for each power supply: the power that it takes from the wall. All supplies together feed the
    node."""
    found = []
    for number, folder in enumerate(folders):
        for file in sorted(folder.glob("power[1-4]_input")):
            label = _text_in(file.with_name(file.name.replace("input", "label"))) or ""
            if label.lower() in ("pin", "power total"):
                # A supply in standby reads 0 W.
                found.append(_watts(folder, f"supply-{number}", node, "node", file, least_w=0.0))
                break
    return found


def _of_processors(folders: list[Path], node: str) -> list[DeviceMeter]:
    """One meter for each CPU socket, from AMD's driver amd_energy. The driver also counts the energy of
    single cores. It is part of the socket's energy, so it is not read."""
    found = []
    for folder in folders:
        for label in sorted(folder.glob("energy*_label")):
            if match := re.fullmatch(r"esocket(\d+)", (_text_in(label) or "").lower()):
                energy = label.with_name(label.name.replace("_label", "_input"))
                found.append(_joules(f"cpu-{match[1]}", node, "cpu", energy))
    return found


def open_hwmon(nodes: MeteredNodes) -> list[Meter]:
    """The power sensors of this host that are known to be meters.

    Raises:
        MeterUnavailable: the host has no power sensors, or their files may not be read.
    """
    root, node = Path(nodes.sysfs_root) / _HWMON, nodes.host_node
    of_driver: dict[str, list[Path]] = {}
    for folder in sorted(root.glob("hwmon*"), key=lambda f: (len(f.name), f.name)):
        driver = _text_in(folder / "name") or ""
        kind = "supply" if _SUPPLIES.fullmatch(driver) else driver
        of_driver.setdefault(kind, []).append(folder)
    try:
        found = _of_board(of_driver.get("power_meter", []), node)
        has_node = any(meter.covers == "node" for meter in found)
        found += _of_processors(of_driver.get("amd_energy", []), node)
        of_intel = [*of_driver.get("xe", []), *of_driver.get("i915", [])]
        counters = [folder / "energy1_input" for folder in of_intel]
        found += [
            _joules(f"gpu-{number}", node, "gpu", file)
            for number, file in enumerate(counters)
            if file.is_file()
        ]
        found += [] if has_node else _of_supplies(of_driver.get("supply", []), node)
    except ReadFailed as error:
        raise MeterUnavailable(
            f"hwmon: {error}", "let one group read it (docs/how-to/meters.md)"
        ) from None
    if not found:
        raise MeterUnavailable(
            "hwmon: no driver of the kernel shows a power meter that is known",
            "a board with an ACPI meter needs `modprobe acpi_power_meter`",
            not_applicable=True,
        )
    return [*found]
