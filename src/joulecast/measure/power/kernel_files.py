"""Meters that the kernel shows as files of one number: an energy, or a power."""

import time
from pathlib import Path

from joulecast.measure.power.meters import ReadFailed, Reading
from joulecast.measure.power.register import Limits, Register
from joulecast.runs.covers import Covers
from joulecast.runs.provenance import boot_id

MOST_NODE_W = 50_000.0
"""Watts that no node draws."""


def identity_of(device: str) -> str | None:
    """A device's name, the same in all containers of this machine; ``None`` if the boot is not known."""
    boot = boot_id()
    return None if boot is None else f"{boot}:{device}"


def number_in(file: Path) -> int:
    """The number that a file of the kernel begins with (``123`` or ``123 J 1700000000 us``).

    Raises:
        ReadFailed: it cannot be read now, or begins with something else.
    """
    try:
        return int(file.read_text().split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise ReadFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from error


def text_in(file: Path) -> str | None:
    """The line in a file of the kernel; ``None`` if there is none."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


class FileMeter:
    """One device: the file of its energy where it counts one, else that of its power.

    Args:
        unit: joules of one count of an energy, watts of one of a power.
        limits: what power is possible for the device.

    Raises:
        ReadFailed: the file cannot be read.
    """

    source = "measured"
    remark: str | None = None

    def __init__(
        self,
        name: str,
        node: str,
        file: Path,
        *,
        counter: bool,
        unit: float,
        covers: Covers,
        limits: Limits,
        renewed_s: float | None = None,
    ) -> None:
        self.name, self.node, self.covers = name, node, covers
        self.identity = identity_of(name)
        self.counter, self.renewed_s = counter, renewed_s
        self._file, self._unit, self._most_w = file, unit, limits.most_w
        first = number_in(file)
        self._register = Register(first, time.monotonic(), unit_j=unit, limits=limits)

    def read(self) -> Reading:
        """Joules since it was opened, or watts."""
        before_s = time.monotonic()
        number = number_in(self._file)
        if self.counter:
            return Reading(None, self._register.joules(number, before_s, time.monotonic()))
        watts = number * self._unit
        if not 0 <= watts <= self._most_w:
            raise ReadFailed(f"{self._file}: {watts:g} W, which cannot be")
        return Reading(watts, None)
