"""Meters that the kernel shows as files of one number: a power in microwatts, an energy in microjoules."""

import time
from pathlib import Path

from joulecast.power.agreement import Agreement
from joulecast.power.meters import ReadFailed, Reading
from joulecast.power.register import Limits, Register
from joulecast.records.covers import Covers
from joulecast.records.provenance import boot_id

MOST_NODE_W = 50_000.0
"""Watts that no node draws."""


def identity_of(device: str) -> str | None:
    """A device's name, the same in all containers of this machine; ``None`` if the boot is not known."""
    boot = boot_id()
    return None if boot is None else f"{boot}:{device}"


def number_in(file: Path) -> int:
    """The number that a file of the kernel holds.

    Raises:
        ReadFailed: it cannot be read now, or holds something else.
    """
    try:
        return int(file.read_text())
    except (OSError, ValueError) as error:
        raise ReadFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from error


def text_in(file: Path) -> str | None:
    """The line in a file of the kernel; ``None`` if there is none."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


class FileMeter:
    """One device: a file with its microjoules, one with its microwatts, or both.

    Args:
        limits: what is possible for the device.

    Raises:
        ReadFailed: the energy cannot be read.
    """

    source = "measured"

    def __init__(
        self,
        name: str,
        node: str,
        *,
        covers: Covers,
        limits: Limits,
        energy: Path | None = None,
        power: Path | None = None,
        identity: str | None = None,
        remark: str | None = None,
        renewed_s: float | None = None,
    ) -> None:
        self.name, self.node, self.covers, self.identity = name, node, covers, identity
        self.remark, self.renewed_s = remark, renewed_s
        self.counter = energy is not None
        self._energy, self._power, self._most_w = energy, power, limits.most_w
        self._agreement = Agreement()
        self._register: Register | None = None
        if energy is not None:
            first_uj = number_in(energy)
            self._register = Register(first_uj, time.monotonic(), unit_j=1e-6, limits=limits)

    def read(self) -> Reading:
        """Joules since it was opened, and watts, as far as the device gives them."""
        joules = None
        if self._energy is not None and self._register is not None:
            before_s = time.monotonic()
            joules = self._register.joules(number_in(self._energy), before_s, time.monotonic())
        try:
            watts = self._watts()
        except ReadFailed:
            # Joules are worth having without watts.
            if joules is None:
                raise
            watts = None
        if watts is not None and joules is not None:
            self._agreement.check(joules, watts, time.monotonic())
        return Reading(watts, joules)

    def _watts(self) -> float | None:
        if self._power is None:
            return None
        watts = number_in(self._power) / 1e6
        if not 0 <= watts <= self._most_w:
            raise ReadFailed(f"{self._power}: {watts:g} W, which cannot be")
        return watts


def may_read(file: Path) -> bool:
    """Whether this user may read a file; one that fails for another reason counts as readable."""
    try:
        file.read_bytes()
    except PermissionError:
        return False
    except OSError:
        pass  # its meter says what is wrong
    return True
