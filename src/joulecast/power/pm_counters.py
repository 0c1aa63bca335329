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
_ROUND_S = 0.02
"""What was read longer ago is read anew."""
_NODE = Limits(least_w=1.0, most_w=MOST_NODE_W, renewed_s=0.3, moves_within_s=_STILL_S)
_PART = Limits(least_w=0.2, most_w=10_000.0, renewed_s=0.3, moves_within_s=_STILL_S)


def _counted(text: str, unit: str, file: Path) -> int:
    """The number of ``123 J 1700000000 us``."""
    words = text.split()
    if len(words) < 2 or not words[0].isdigit() or words[1] != unit:
        raise ReadFailed(f"{file}: {text[:40]!r}, expected a number and {unit}")
    return int(words[0])


@dataclass(frozen=True)
class _Value:
    """What a file held, or why it held nothing of use; with all files of its board at one moment."""

    number: int | ReadFailed
    fresh: str | None
    startup: str | None
    before_s: float
    after_s: float


class _Board:
    """The files of a node. They are read together, as the meters of a round belong to one moment.

    Args:
        units: of each file that is read: ``J`` or ``W``.
    """

    def __init__(self, folder: Path, units: dict[Path, str]) -> None:
        self._folder, self._units = folder, units
        self._values: dict[Path, _Value] = {}
        self._read_s = -_ROUND_S

    def value(self, file: Path) -> _Value:
        """What a file holds; each look at the board gives it once.

        Raises:
            ReadFailed: the files are renewed faster than they are read.
        """
        if file not in self._values or time.monotonic() - self._read_s > _ROUND_S:
            self._values = self._look()
            self._read_s = time.monotonic()
        return self._values.pop(file)

    def _look(self) -> dict[Path, _Value]:
        for _ in range(_TRIES):
            before_s, before = time.monotonic(), text_in(self._folder / "freshness")
            numbers = {file: self._number(file, unit) for file, unit in self._units.items()}
            startup, after = text_in(self._folder / "startup"), text_in(self._folder / "freshness")
            after_s = time.monotonic()
            if after == before:
                return {
                    file: _Value(number, after, startup, before_s, after_s)
                    for file, number in numbers.items()
                }
        raise ReadFailed(f"{self._folder}: was renewed while it was read, {_TRIES} times")

    @staticmethod
    def _number(file: Path, unit: str) -> int | ReadFailed:
        try:
            return _counted(file.read_text(), unit, file)
        except ReadFailed as failed:
            return failed
        except (OSError, ValueError) as error:
            return ReadFailed(f"{file}: {getattr(error, 'strerror', None) or error}")


class PmCounter:
    """One counter of the node: joules since it was opened, or watts where it counts none."""

    source = "measured"

    def __init__(
        self, board: _Board, file: Path, name: str, node: str, covers: Covers, hz: float
    ) -> None:
        self.name, self.node, self.covers = name, node, covers
        self.identity = identity_of(name)
        self.renewed_s = 1 / hz
        self._board, self._file = board, file
        self._limits = _NODE if covers == "node" else _PART
        self.counter = file.name.endswith("energy")
        first = board.value(file)
        if isinstance(first.number, ReadFailed):
            raise first.number
        self._startup, self._fresh, self._fresh_s = first.startup, first.fresh, first.after_s
        self._register = None
        if self.counter:
            self._register = Register(first.number, first.after_s, unit_j=1.0, limits=self._limits)

    def read(self) -> Reading:
        """Joules, or watts.

        Raises:
            ReadFailed: the file holds neither.
            MeterFailed: the counters were restarted or stand still, or their figures cannot be.
        """
        value = self._board.value(self._file)
        if value.startup != self._startup:
            raise MeterFailed("the node's controller was restarted, and its counters with it")
        if isinstance(value.number, ReadFailed):
            raise value.number
        self._require_fresh(value.fresh, value.before_s)
        if self._register is not None:
            joules = self._register.joules(value.number, value.before_s, value.after_s)
            return Reading(None, joules)
        if value.number > self._limits.most_w:
            raise ReadFailed(f"{self._file}: {value.number} W, which cannot be")
        return Reading(float(value.number), None)

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
    found: dict[tuple[str, Covers], Path] = {}
    # An energy comes before the power of the same part, which it makes needless.
    for file in sorted(folder.iterdir(), key=lambda f: (not f.name.endswith("energy"), f.name)):
        part = _part(file)
        if part is not None:
            found.setdefault(part, file)
    if any(name.startswith("accel") and name != "accel" for name, _ in found):
        found.pop(("accel", "gpu"), None)  # it would be their sum
    units = {file: "J" if file.name.endswith("energy") else "W" for file in found.values()}
    board, hz = _Board(folder, units), _hz(folder)
    meters: list[Meter] = []
    try:
        # The node first, then its parts by name.
        for (part_name, covers), file in sorted(
            found.items(), key=lambda f: (f[0][1] != "node", f[0])
        ):
            name = f"pm_counters:{part_name}"
            meters.append(PmCounter(board, file, name, nodes.host_node, covers, hz))
    except ReadFailed as error:
        remedy = "ask the site to let users read /sys/cray/pm_counters"
        raise MeterUnavailable(f"pm_counters: {error}", remedy) from None
    if not meters:
        raise MeterUnavailable(
            f"pm_counters: {folder} has no file of energy or power", "look into that folder"
        )
    return meters
