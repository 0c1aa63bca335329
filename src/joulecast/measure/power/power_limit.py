"""The power limit of a GPU. It is set through Zeus, and restored at the end.

    found = preflight(0)
    if found.why_not is None:
        with power_limit(0) as set_limit:
            set_limit(200)

When the block ends, or when the process is asked to end, the GPU gets back the limit that it had before (and
not its highest one). If a process is killed outright (SIGKILL), the limit that it set stays. The command
``nvidia-smi -pl`` sets another one. GPUs have the numbers that nvidia-smi gives them.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from zeus.exception import ZeusBaseError

from joulecast.errors import JoulecastError
from joulecast.measure.power import zeus_devices

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_MISSING_RIGHT = (
    "only root or a process with CAP_SYS_ADMIN may set it: run as root (in a container: with --cap-add "
    "SYS_ADMIN), have an administrator run zeusd and set ZEUSD_SOCK_PATH, or on a SLURM cluster ask for what "
    "the site offers"
)


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is known about a GPU's power limit.

    Attributes:
        name: name of the GPU; ``None`` if there is no GPU.
        found_w: the limit in force now.
        lowest_w, highest_w: the limits that can be set; ``None`` if the driver does not say.
        why_not: why no limit may be set, and how to get the right; ``None`` if a limit may be set.
    """

    name: str | None = None
    found_w: float | None = None
    lowest_w: float | None = None
    highest_w: float | None = None
    why_not: str | None = None

    def watts(self, step_w: int = 25) -> tuple[int, ...]:
        """Limits that can be set, from the highest down in steps. The lowest is always among them.

        The limit that was in force before is the highest of them, because an administrator may have set it.
        Empty if no limit can be set.
        """
        if self.why_not is not None or self.highest_w is None:
            return ()
        first = int(min(self.highest_w, self.found_w or self.highest_w))
        last = -int(-(self.lowest_w or 0.0) // 1)
        if last > first:
            return ()
        return tuple(dict.fromkeys([*range(first, last - 1, -step_w), last]))


def _gpu(index: int) -> Any:
    """Zeus' object for one GPU."""
    try:
        gpus = zeus_devices.all_gpus().gpus
    except ZeusBaseError as error:
        raise JoulecastError(f"power limits need a GPU and its driver ({error})") from None
    if not 0 <= index < len(gpus):
        raise JoulecastError(f"there is no GPU {index} among the {len(gpus)} of this host")
    return gpus[index]


def preflight(index: int = 0, *, may_set: bool = True) -> Preflight:
    """Find out what can be done about the power limit of a GPU. Changes nothing.

    Args:
        index: number of the GPU in nvidia-smi.
    """
    from zeus.device.common import has_sys_admin

    why_not = None if may_set else "setting it was not allowed: `allow_power_limit` is false"
    try:
        gpu = _gpu(index)
        name = str(gpu.get_name())
        lowest, highest = gpu.get_power_management_limit_constraints()
        found = gpu.get_power_management_limit()
    except JoulecastError as error:
        return Preflight(why_not=str(error))
    except ZeusBaseError as error:
        return Preflight(name, why_not=f"GPU {index} ({name}): {error}")
    # Through its daemon, Zeus sets limits without blocking, and needs no right of ours.
    if may_set and not gpu.supports_nonblocking_setters and not has_sys_admin():
        why_not = f"GPU {index} ({name}): {_MISSING_RIGHT}"
    return Preflight(name, found / 1e3, lowest / 1e3, highest / 1e3, why_not)


@contextmanager
def power_limit(index: int = 0) -> Iterator[Callable[[int], None]]:
    """Gives a function that sets the power limit of a GPU in watts. It may be called in the ``with`` block,
    in the main thread.

    SIGTERM and SIGHUP end the block as Ctrl-C does, so that the limit is restored.

    Args:
        index: number of the GPU in nvidia-smi.

    Raises:
        JoulecastError: on entering, the GPU does not exist, or does not say its limit; in the block, the
            driver refuses a limit; on leaving, the limit could not be restored. The error then has the
            command to do this by hand.
    """
    gpu = _gpu(index)
    try:
        found_mw = int(gpu.get_power_management_limit())
    except ZeusBaseError as error:
        raise JoulecastError(f"GPU {index}: its power limit cannot be read ({error})") from None
    is_changed = False

    def set_limit(watts: int) -> None:
        nonlocal is_changed
        # This is noted before the limit is set, because a signal may come in between.
        is_changed = True
        try:
            gpu.set_power_management_limit(watts * 1000)
        except ZeusBaseError as error:
            raise JoulecastError(
                f"GPU {index}: a power limit of {watts} W is refused ({error}); {_MISSING_RIGHT}"
            ) from None

    before = {number: signal.signal(number, _interrupt) for number in _ENDING}
    try:
        yield set_limit
    finally:
        try:
            if is_changed:
                gpu.set_power_management_limit(found_mw)
        except ZeusBaseError as refused:
            watts = f"{found_mw / 1e3:g}"
            raise JoulecastError(
                f"GPU {index}: its power limit could not be put back to {watts} W ({refused}); do it "
                f"by hand: nvidia-smi -i {index} -pl {watts}"
            ) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
