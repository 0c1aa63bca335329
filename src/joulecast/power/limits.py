"""Power limits of NVIDIA GPUs: what may be set, and setting them so that nothing stays behind.

    found = preflight((0,))
    if found.why_not is None:
        with PowerLimits((0,)) as limits:
            limits.set(200)

Each device gets back the limit that it was found with (not its maximum), on leaving the block and when the
process is asked to end. A process that is killed outright (SIGKILL) leaves its limit behind, and a note of
what it had found; the next one that looks puts it back. Devices are numbered as nvidia-smi numbers them.
"""

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.power.limits_to_restore import FoundLimit

_STEP_W = 25
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What is known of a device's power limit.

    Attributes:
        found_w: in force now.
        lowest_w, highest_w: what can be set; ``None`` where the driver does not say.
        why_not: why it may not be set, and how that is usually had; ``None``: it may.
    """

    index: int
    name: str
    found_w: float | None
    lowest_w: float | None
    highest_w: float | None
    why_not: str | None


@dataclass(frozen=True, slots=True)
class Preflight:
    """What can be done about the power limits of some devices.

    Attributes:
        why_not: why limits may not be set, and how that is usually had; ``None``: they may, on all of
            the devices.
        notes: limits that an earlier process had left behind.
    """

    devices: tuple[DeviceLimits, ...]
    why_not: str | None
    notes: tuple[str, ...] = ()

    @property
    def highest_w(self) -> float | None:
        """The highest limit that all devices take; ``None`` where one of them does not say."""
        highest = [device.highest_w for device in self.devices]
        known = [watts for watts in highest if watts is not None]
        return min(known) if known and len(known) == len(highest) else None

    def watts(self, step_w: int = _STEP_W) -> tuple[int, ...]:
        """Limits that all devices take, from the highest down in steps; the lowest is always among them.

        None is above the limit that was found in force: an administrator may have capped it there. Empty
        where none can be set.
        """
        highest = self.highest_w
        if self.why_not is not None or highest is None:
            return ()
        lowest = max(device.lowest_w or 0.0 for device in self.devices)
        found = [device.found_w for device in self.devices if device.found_w is not None]
        first, last = int(min([highest, *found])), -int(-lowest // 1)
        if last > first:
            return ()
        return tuple(dict.fromkeys([*range(first, last - 1, -step_w), last]))


def _initialised() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def _missing_right(nvml: Any, error: Any) -> str:
    code = getattr(error, "value", None)
    if code == nvml.NVML_ERROR_NO_PERMISSION:
        who = f"this process runs as user id {os.geteuid()} without CAP_SYS_ADMIN"
        return (
            f"the driver lets only root or a process with CAP_SYS_ADMIN set power limits ({who}): run as "
            "root (in a container: with --cap-add SYS_ADMIN), have an administrator run zeusd, which sets "
            "limits for users, or on a Slurm cluster ask for what the site offers (an option such as "
            "--gpu-power, or a prolog that runs nvidia-smi -pl)"
        )
    if code == nvml.NVML_ERROR_NOT_SUPPORTED:
        return (
            "this GPU has no power limit that can be set (usual on laptops, virtual GPUs and MIG slices); "
            "no right would help"
        )
    return f"the driver refuses: {error}"


def _uuid(nvml: Any, device: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(device)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _put_back_what_was_left(nvml: Any, device: Any, index: int, left: FoundLimit) -> str | None:
    """Undo what a process that was killed has left; what people should know of it."""
    if left.left_mw is None:
        return None
    in_force = nvml.nvmlDeviceGetPowerManagementLimit(device)
    if in_force == left.left_mw:
        return None
    nvml.nvmlDeviceSetPowerManagementLimit(device, left.left_mw)
    return (
        f"GPU {index}: an earlier process was killed and had left its power limit at {in_force / 1e3:g} W; "
        f"it is put back to {left.left_mw / 1e3:g} W"
    )


def _look_at(nvml: Any, index: int, may_set: bool, notes: list[str]) -> DeviceLimits:
    why_not = None if may_set else "setting it was not allowed: `allow_power_limit` is false"
    found = lowest = highest = None
    name = "?"
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        named = nvml.nvmlDeviceGetName(device)
        name = named.decode() if isinstance(named, bytes) else str(named)
        least, most = nvml.nvmlDeviceGetPowerManagementLimitConstraints(device)
        lowest, highest = least / 1e3, most / 1e3
        found = nvml.nvmlDeviceGetPowerManagementLimit(device) / 1e3
        if may_set:
            found = _set_once_more(nvml, device, index, notes) / 1e3
    except nvml.NVMLError as error:
        why_not = _missing_right(nvml, error)
    except JoulecastError as error:
        why_not = str(error)
    return DeviceLimits(index, name, found, lowest, highest, why_not)


def _set_once_more(nvml: Any, device: Any, index: int, notes: list[str]) -> int:
    """Set the limit that is in force, or should be; milliwatts."""
    left = FoundLimit(_uuid(nvml, device), index)
    try:
        note = _put_back_what_was_left(nvml, device, index, left)
        if note is not None:
            notes.append(note)
        milliwatts = int(nvml.nvmlDeviceGetPowerManagementLimit(device))
        nvml.nvmlDeviceSetPowerManagementLimit(device, milliwatts)
    except nvml.NVMLError:
        left.close()
        raise
    left.remove()
    return milliwatts


def preflight(indices: Sequence[int] = (0,), *, may_set: bool = True) -> Preflight:
    """Find out what can be done about power limits; changes nothing, but puts back what was left behind.

    Args:
        indices: of the devices, as nvidia-smi numbers them.
        may_set: whether to set the limit in force once more, the only way to learn whether setting is
            permitted; without it the reason is that it was not asked for.
    """
    import pynvml

    try:
        nvml = _initialised()
        count = nvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return Preflight((), f"NVML: {error}; power limits need an NVIDIA GPU and its driver")
    absent = [index for index in indices if not 0 <= index < count]
    if absent or not indices:
        return Preflight((), f"NVML: there is no GPU {absent or ''} among the {count} of this host")
    notes: list[str] = []
    devices = tuple(_look_at(nvml, index, may_set, notes) for index in indices)
    refused = [device for device in devices if device.why_not is not None]
    why_not = "; ".join(f"GPU {d.index} ({d.name}): {d.why_not}" for d in refused)
    return Preflight(devices, why_not or None, tuple(notes))


@dataclass(slots=True)
class _Held:
    index: int
    device: Any
    found_mw: int
    kept: FoundLimit
    changed: bool = False


class PowerLimits:
    """Power limits of some devices for as long as a ``with`` block lasts.

    On SIGTERM, SIGINT and SIGHUP the limits are put back before the signal does what it would have done
    without the block. Signals can be caught in the main thread only; elsewhere, the block alone restores. So
    it does for a signal whose handler a C library has installed, which Python can neither call nor put back.

    Args:
        indices: of the devices, as nvidia-smi numbers them.

    Attributes:
        notes: limits that an earlier process had left behind, and were put back on entering.

    Raises:
        JoulecastError: on entering, a device is not there or does not say its limit, or another process
            of this user holds it; on leaving, a limit
            could not be put back (says which, and the command that does it by hand).
    """

    def __init__(self, indices: Sequence[int] = (0,)) -> None:
        self._indices = tuple(indices)
        self._held: list[_Held] = []
        self._before: dict[int, Any] = {}
        self._nvml: Any = None
        self.notes: list[str] = []

    @property
    def found_w(self) -> tuple[float, ...]:
        """Limits as found, by device."""
        return tuple(held.found_mw / 1e3 for held in self._held)

    def __enter__(self) -> "PowerLimits":
        import pynvml

        self._held = []
        try:
            for index in self._indices:
                try:
                    self._nvml = _initialised()
                    self._held.append(self._hold(index))
                except pynvml.NVMLError as error:
                    raise JoulecastError(
                        f"GPU {index}: its power limit cannot be read, or what an earlier process left not "
                        f"be put back ({error}); continue without power limits"
                    ) from None
        except JoulecastError:
            for held in self._held:
                held.kept.remove()
            raise
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                before = signal.getsignal(number)
                # One that is ignored, or was installed by a C library, stays as it is.
                if before is not None and before != signal.SIG_IGN:
                    self._before[number] = before
                    signal.signal(number, self._told_to_end)
        return self

    def _hold(self, index: int) -> _Held:
        nvml = self._nvml
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        kept = FoundLimit(_uuid(nvml, device), index)
        try:
            note = _put_back_what_was_left(nvml, device, index, kept)
            found = int(nvml.nvmlDeviceGetPowerManagementLimit(device))
        except nvml.NVMLError:
            kept.close()
            raise
        if note is not None:
            self.notes.append(note)
        kept.keep(found)
        return _Held(index, device, found, kept)

    def set(self, watts: int) -> None:
        """Set every device to ``watts``.

        Raises:
            JoulecastError: refused, by the device that is named.
        """
        for held in self._held:
            # Noted first: a signal may come between the two.
            held.changed = True
            try:
                self._nvml.nvmlDeviceSetPowerManagementLimit(held.device, watts * 1000)
            except self._nvml.NVMLError as error:
                raise JoulecastError(
                    f"GPU {held.index}: a power limit of {watts} W is refused ({error}); "
                    f"{_missing_right(self._nvml, error)}"
                ) from None

    def restore(self) -> None:
        """Put back every limit that was changed; doing it again is harmless.

        Raises:
            JoulecastError: some could not be put back; the others were.
        """
        failed = []
        for held in self._held:
            if not held.changed:
                continue
            try:
                self._nvml.nvmlDeviceSetPowerManagementLimit(held.device, held.found_mw)
                held.changed = False
            except self._nvml.NVMLError as error:
                watts = f"{held.found_mw / 1e3:g}"
                failed.append(
                    f"GPU {held.index} could not be put back to {watts} W ({error}); do it by hand: "
                    f"nvidia-smi -i {held.index} -pl {watts}"
                )
        if failed:
            raise JoulecastError("power limit: " + "; ".join(failed))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.restore()
        finally:
            for held in self._held:
                # What could not be put back is left to the next one who looks.
                held.kept.close() if held.changed else held.kept.remove()
            for number, before in self._before.items():
                signal.signal(number, before)
            self._before = {}

    def _told_to_end(self, number: int, frame: FrameType | None) -> None:
        try:
            self.restore()
        except BaseException as error:
            # The signal is passed on whatever happens. Python's stderr may be in the middle of a line, where
            # it takes no other, or be a terminal that was closed, which is what the signal is about.
            with suppress(BaseException):
                os.write(2, f"{error}\n".encode())
        before = self._before.get(number, signal.SIG_DFL)
        if callable(before):
            # If the process continues after it, the limits must still be put back at its end.
            before(number, frame)
        else:
            # The end comes without leaving the block.
            for held in self._held:
                if not held.changed:
                    held.kept.remove()
            signal.signal(number, before)
            os.kill(os.getpid(), number)
