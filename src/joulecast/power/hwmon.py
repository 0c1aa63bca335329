"""Power sensors that the kernel shows in ``/sys/class/hwmon``, by drivers that are known to be meters.

A sensor of an unknown driver is left alone: most of them are regulators inside of what another one counts.
Known are the board's ACPI power meter (whose label says what it covers on Grace and Grace-Hopper), AMD's
and Intel's GPUs, AMD's processors, and servers' power supplies on PMBus. Two dies of an MI250 are one package
with one sensor; the die without is left out.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from joulecast.power.kernel_files import (
    MOST_NODE_W,
    FileMeter,
    identity_of,
    may_read,
    number_in,
    text_in,
)
from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed
from joulecast.power.register import Limits
from joulecast.records.covers import Covers

FOLDER = Path("class/hwmon")

_NODE = Limits(least_w=1.0, most_w=MOST_NODE_W, renewed_s=1.0, moves_within_s=10.0)
_DEVICE = Limits(least_w=0.1, most_w=4000.0, renewed_s=0.2, moves_within_s=10.0)

_LABELLED: tuple[tuple[str, Covers], ...] = (
    (r"module power socket (\d+)", "module"),
    (r"grace power socket (\d+)", "socket"),
    (r"cpu power socket (\d+)", "cpu"),
)
_INSIDE = r"sysio power|soc power"
"""Labels of rails that lie in a socket and are no part of their own."""
_MI300A = ("0x74a0",)
"""Accelerators whose package has the processor and the memory too."""
_SUPPLIES = re.compile(
    r"dps\d+\w*|cffps\d?|ipsps\d?|pfe\d+|fsp\w+|crps\w*|acbel\w*|fsg\d+|bpa[-_]?rs600|corsairpsu|bel\w*"
)
_GPUS = {"amdgpu": "energy1_input", "xe": "energy1_input", "i915": "energy1_input"}


@dataclass(frozen=True)
class _Sensor:
    """A folder ``hwmon0``: the name of its driver, and where its files lie."""

    folder: Path
    driver: str

    def file(self, name: str) -> Path | None:
        """A file of it; older drivers put them into the device's folder."""
        places = (self.folder / name, self.folder / "device" / name)
        return next((place for place in places if place.is_file()), None)

    def text(self, *names: str) -> str:
        """The first text that one of its files has."""
        files = filter(None, map(self.file, names))
        return next(filter(None, map(text_in, files)), "")

    @property
    def power(self) -> Path | None:
        return self.file("power1_average") or self.file("power1_input")

    @property
    def device(self) -> str:
        """The device's name on its bus, as ``0000:c1:00.0``."""
        link = self.folder / "device"
        return os.path.basename(os.path.realpath(link)) if link.exists() else self.folder.name


def _sensors(root: Path) -> Iterator[_Sensor]:
    folders = [f for f in root.glob("hwmon*") if f.name[5:].isdigit()]
    for folder in sorted(folders, key=lambda f: int(f.name[5:])):
        driver = text_in(folder / "name") or text_in(folder / "device" / "name")
        if driver:
            yield _Sensor(folder, driver)


def _renewed_s(sensor: _Sensor) -> float | None:
    """Seconds over which the sensor averages, where it says them."""
    interval_ms = sensor.text("power1_average_interval", "power1_interval")
    return int(interval_ms) / 1e3 if interval_ms.isdigit() and interval_ms != "0" else None


def _watts(
    sensor: _Sensor, name: str, node: str, covers: Covers, file: Path | None = None
) -> FileMeter:
    return FileMeter(
        f"hwmon:{name}",
        node,
        covers=covers,
        limits=_NODE if covers in ("node", "module", "socket") else _DEVICE,
        power=file or sensor.power,
        identity=identity_of(f"hwmon:{sensor.driver}:{name}"),
        renewed_s=_renewed_s(sensor),
    )


def _of_board(sensors: list[_Sensor], node: str) -> list[FileMeter]:
    """Meters of ACPI: by their label, and one that has none is the board's."""
    found, of_board = [], []
    for sensor in sensors:
        if sensor.power is None or sensor.text("power1_is_battery") == "1":
            continue
        label = sensor.text("power1_label", "power1_oem_info").lower()
        for pattern, covers in _LABELLED:
            if match := re.fullmatch(pattern, label):
                found.append(_watts(sensor, f"{covers}-{match[1]}", node, covers))
                break
        else:
            if not re.match(_INSIDE, label):
                of_board.append(sensor)
    if len(of_board) == 1:
        # Of several without a known label it is not known what they cover.
        found.append(_watts(of_board[0], "board", node, "node"))
    return found


def _of_supplies(sensors: list[_Sensor], node: str) -> list[FileMeter]:
    """What power supplies take from the wall: together the node."""
    found = []
    for number, sensor in enumerate(sensors):
        for channel in range(1, 5):
            label = sensor.text(f"power{channel}_label").lower()
            file = sensor.file(f"power{channel}_input")
            if file is not None and label in ("pin", "power total"):
                found.append(_watts(sensor, f"supply-{number}", node, "node", file))
                break
    return found


def _gpu(sensor: _Sensor, name: str, node: str) -> FileMeter | None:
    """A GPU; ``None`` for one whose power another sensor counts."""
    energy, power = sensor.file(_GPUS[sensor.driver]), sensor.power
    if sensor.driver == "amdgpu" and sensor.file("power1_cap") is None:
        return None  # a GPU in the processor's package
    try:
        readings = [number_in(file) for file in (power, energy) if file is not None]
    except ReadFailed:
        return None
    if not any(readings):
        return None  # the second die of a package
    covers: Covers = "module" if sensor.text("device") in _MI300A else "gpu"
    return FileMeter(
        f"hwmon:{name}",
        node,
        covers=covers,
        limits=_DEVICE,
        energy=energy,
        power=power,
        identity=identity_of(f"hwmon:{sensor.device}"),
    )


def _of_gpus(sensors: list[_Sensor], node: str) -> list[FileMeter]:
    found, without = [], []
    for number, sensor in enumerate(sorted(sensors, key=lambda s: s.device)):
        meter = _gpu(sensor, f"{sensor.driver}-{number}", node)
        if meter is not None:
            found.append(meter)
        elif sensor.file("power1_cap") is not None:
            without.append(f"{sensor.driver}-{number}")
    for meter in found:
        if without:
            meter.remark = (
                f"{', '.join(without)} give no power of their own: the second die of a package is counted "
                "with the first"
            )
    return found


def _of_processors(sensors: list[_Sensor], node: str) -> list[FileMeter]:
    """Sockets by AMD's driver amd_energy; its single cores lie inside."""
    found = []
    for sensor in sensors:
        for label in sorted(sensor.folder.glob("energy*_label")):
            match = re.fullmatch(r"esocket(\d+)", (text_in(label) or "").lower())
            energy = label.with_name(label.name.replace("_label", "_input"))
            if match and energy.is_file():
                name = f"cpu-{match[1]}"
                identity = identity_of(f"hwmon:{name}")
                found.append(
                    FileMeter(
                        f"hwmon:{name}",
                        node,
                        covers="cpu",
                        limits=_DEVICE,
                        energy=energy,
                        identity=identity,
                    )
                )
    return found


_PATTERNS = ("power1_average", "power1_input", "energy1_input")


def _denied(sensor: _Sensor) -> Path | None:
    """A file of a sensor that may not be read."""
    files = filter(None, map(sensor.file, _PATTERNS))
    return next((file for file in files if not may_read(file)), None)


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """The power sensors of this host that are known to be meters.

    Raises:
        MeterUnavailable: it has none, or they may not be read.
    """
    by_driver: dict[str, list[_Sensor]] = {}
    denied: list[Path] = []
    for sensor in _sensors(nodes.sysfs / FOLDER):
        if (file := _denied(sensor)) is not None:
            denied.append(file)
            continue
        known = "supply" if _SUPPLIES.fullmatch(sensor.driver) else sensor.driver
        by_driver.setdefault(known, []).append(sensor)
    gpus = [sensor for driver in _GPUS for sensor in by_driver.get(driver, [])]
    node = nodes.host_node
    try:
        board = _of_board(by_driver.get("power_meter", []), node)
        found = board + _of_gpus(gpus, node) + _of_processors(by_driver.get("amd_energy", []), node)
        if not any(meter.covers == "node" for meter in board):
            found += _of_supplies(by_driver.get("supply", []), node)
    except ReadFailed as error:
        raise MeterUnavailable(f"hwmon: {error}", "look at that file, and at `dmesg`") from None
    if not found and denied:
        raise MeterUnavailable(
            f"hwmon: {denied[0]} may not be read by this user",
            "let one group read it (docs/how-to/meters.md)",
        )
    if not found:
        raise MeterUnavailable(
            "hwmon: no driver of the kernel shows a power meter that is known",
            "a board with an ACPI meter needs `modprobe acpi_power_meter`, an AMD or Intel GPU its driver",
            elsewhere=True,
        )
    return [*found]
