"""Nodes of HPE Cray machines: ``/sys/cray/pm_counters``, of the node, its CPU, memory and accelerators.

The node's controller renews all files together, ten times a second, and counts each time in ``freshness``:
what was read belongs together if that is the same before and after. ``startup`` is when the counters began; a
controller that is started anew changes it. The node's energy holds that of its parts, so they are never
added. On nodes with two dies to an accelerator (MI250X) a counter is that of both.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from joulecast.power.kernel_files import MOST_NODE_W, identity_of, text_in
from joulecast.power.meters import (
    Meter,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.power.register import Limits, Register
from joulecast.records.covers import Covers

FOLDER = Path("cray/pm_counters")
_USUAL_HZ = 10.0
_STILL_S = 5.0
_TRIES = 3
_NODE = Limits(least_w=1.0, most_w=MOST_NODE_W, renewed_s=0.3, moves_within_s=_STILL_S)
_PART = Limits(least_w=0.2, most_w=10_000.0, renewed_s=0.3, moves_within_s=_STILL_S)


def _counted(text: str, unit: str, file: Path) -> int:
    """The number of ``123 J 1700000000 us``."""
    words = text.split()
    if len(words) < 2 or not words[0].isdigit() or words[1] != unit:
        raise ReadFailed(f"{file}: {text[:40]!r}, expected a number and {unit}")
    return int(words[0])


@dataclass(frozen=True)
class _Files:
    """The files of one meter, ``None`` for what it has not."""

    folder: Path
    energy: Path | None
    power: Path | None

    def look(self) -> tuple[int | None, int | None, str | None]:
        """Joules, watts and freshness that belong together.

        Raises:
            ReadFailed: they cannot be read, or are renewed faster than they are read.
        """
        for _ in range(_TRIES):
            before = text_in(self.folder / "freshness")
            values = [
                None if file is None else _counted(self._text(file), unit, file)
                for file, unit in ((self.energy, "J"), (self.power, "W"))
            ]
            if text_in(self.folder / "freshness") == before:
                return values[0], values[1], before
        raise ReadFailed(f"{self.folder}: was renewed while it was read, {_TRIES} times")

    @staticmethod
    def _text(file: Path) -> str:
        try:
            return file.read_text()
        except (OSError, ValueError) as error:
            raise ReadFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from error


class PmCounter:
    """One counter of the node: joules since it was opened, and watts."""

    source = "measured"

    def __init__(self, files: _Files, name: str, node: str, covers: Covers, hz: float) -> None:
        self.name, self.node, self.covers = name, node, covers
        self.identity = identity_of(name)
        self.renewed_s = 1 / hz
        self._files = files
        self._startup = text_in(files.folder / "startup")
        self._limits = _NODE if covers == "node" else _PART
        self.counter = files.energy is not None
        joules, _, self._fresh = files.look()
        self._fresh_s = time.monotonic()
        self._register = None
        if joules is not None:
            self._register = Register(joules, self._fresh_s, unit_j=1.0, limits=self._limits)

    def read(self) -> Reading:
        """Joules and watts of one moment."""
        before_s = time.monotonic()
        joules, watts, fresh = self._files.look()
        after_s = time.monotonic()
        if text_in(self._files.folder / "startup") != self._startup:
            raise MeterFailed("the node's controller was restarted, and its counters with it")
        self._require_fresh(fresh, before_s)
        counted = None
        if self._register is not None and joules is not None:
            counted = self._register.joules(joules, before_s, after_s)
        if watts is not None and watts > self._limits.most_w:
            watts = None
        if watts is None and counted is None:
            raise ReadFailed(f"{self.name}: watts that cannot be")
        return Reading(None if watts is None else float(watts), counted)

    def _require_fresh(self, fresh: str | None, now_s: float) -> None:
        if fresh != self._fresh:
            self._fresh, self._fresh_s = fresh, now_s
        elif fresh is not None and now_s - self._fresh_s > _STILL_S:
            raise MeterFailed(
                f"its files were not renewed for {now_s - self._fresh_s:.2g} s: they stand still"
            )


def _part(file: Path) -> tuple[str, Covers] | None:
    """What a file ``cpu_energy`` belongs to and covers; ``None`` for files that are no meter."""
    stem, _, quantity = file.name.rpartition("_")
    if quantity not in ("energy", "power"):
        return None
    if not stem:
        return "node", "node"
    if stem.startswith("accel") and stem[5:].isdigit():
        return stem, "gpu"
    parts: dict[str, tuple[str, Covers]] = {
        "cpu": ("cpu", "cpu"),
        "memory": ("memory", "memory"),
        "accel": ("accel", "gpu"),
    }
    return parts.get(stem)


def _hz(folder: Path) -> float:
    words = (text_in(folder / "raw_scan_hz") or "").split()
    hz = float(words[0]) if words and words[0].isdigit() else _USUAL_HZ
    return min(max(hz, 0.1), 1000.0)


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """The counters of this node: its own first, then those of its parts.

    Raises:
        MeterUnavailable: this is no node of a Cray, or its files may not be read.
    """
    folder = nodes.sysfs / FOLDER
    if not folder.is_dir():
        raise MeterUnavailable(
            f"pm_counters: there is no {folder}",
            "only nodes of HPE Cray machines have it (in a container: mount /sys/cray)",
            elsewhere=True,
        )
    found: dict[tuple[str, Covers], dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        part = _part(file)
        if part is not None:
            found.setdefault(part, {})[file.name.rpartition("_")[2]] = file
    meters: list[Meter] = []
    try:
        for (part_name, covers), files in sorted(found.items(), key=lambda f: f[0][1] != "node"):
            of_part = _Files(folder, files.get("energy"), files.get("power"))
            name = f"pm_counters:{part_name}"
            meters.append(PmCounter(of_part, name, nodes.host_node, covers, _hz(folder)))
    except ReadFailed as error:
        remedy = "ask the site to let users read /sys/cray/pm_counters"
        raise MeterUnavailable(f"pm_counters: {error}", remedy) from None
    if not meters:
        raise MeterUnavailable(
            f"pm_counters: {folder} has no file of energy or power", "look into that folder"
        )
    return meters
