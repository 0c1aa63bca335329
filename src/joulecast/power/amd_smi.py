"""AMD GPUs by AMD's library, where its Python package ``amdsmi`` is installed.

The package has to match the ROCm of the node, so that it is no dependency of ours. The two dies of an MI250
are GPUs of one package, of which the first has the power of both. MI300A is a package with processor and
memory. The energy counters of some GPUs (MI100, MI210) stand still or count wrongly: they are held against
the watts.
"""

import importlib
import importlib.util
import math
import time
from pathlib import Path
from typing import Any

from joulecast.power.agreement import Agreement
from joulecast.power.kernel_files import identity_of
from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.power.register import Limits, Register
from joulecast.records.covers import Covers

_DRIVER = Path("/dev/kfd")
_LIMITS = Limits(least_w=0.1, most_w=4000.0, renewed_s=0.1, moves_within_s=10.0)
# Newer packages first: older ones say N/A for what a GPU has not.
_POWERS = ("socket_power", "current_socket_power", "average_socket_power")


def _number(value: Any) -> float | None:
    """A number that the library gave; ``None`` for its N/A."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _asked(smi: Any, function: str, device: Any) -> Any:
    """What a function of the library gives for a GPU.

    Raises:
        ReadFailed: it gives nothing.
    """
    try:
        return getattr(smi, function)(device)
    except (smi.AmdSmiException, AttributeError, OSError) as error:
        raise ReadFailed(f"{function}: {type(error).__name__}") from error


def _watts(smi: Any, device: Any) -> float:
    powers = _asked(smi, "amdsmi_get_power_info", device)
    numbers = (_number(powers.get(name)) for name in _POWERS)
    watts = next((number for number in numbers if number is not None), None)
    if watts is None or not 0 <= watts <= _LIMITS.most_w:
        raise ReadFailed(f"{watts} W, which no GPU draws")
    return watts


def _energy(smi: Any, device: Any) -> tuple[int, float]:
    """Count of the energy accumulator, and joules of one."""
    energy = _asked(smi, "amdsmi_get_energy_count", device)
    count = _number(energy.get("energy_accumulator", energy.get("power")))
    unit_uj = _number(energy.get("counter_resolution"))
    if count is None or unit_uj is None or unit_uj <= 0:
        raise ReadFailed("it counts no energy")
    return int(count), unit_uj * 1e-6


class AmdMeter:
    """One GPU: joules since it was opened where it counts them, and watts."""

    source = "measured"
    remark: str | None = None

    def __init__(self, smi: Any, device: Any, index: int, node: str) -> None:
        self._smi, self._device = smi, device
        self.node, self.name = node, f"amdsmi:{index}"
        self.covers: Covers = "module" if _is_mi300a(smi, device) else "gpu"
        self.identity = _uuid(smi, device) or identity_of(self.name)
        self._agreement = Agreement()
        self._register: Register | None = None
        try:
            count, unit_j = _energy(smi, device)
            if count > 0:
                self._register = Register(count, time.monotonic(), unit_j=unit_j, limits=_LIMITS)
        except ReadFailed:
            pass  # watts alone
        self.counter = self._register is not None

    def read(self) -> Reading:
        """Joules since it was opened, and watts.

        Raises:
            ReadFailed: it gives neither.
            MeterFailed: its counter cannot be believed.
        """
        joules = None
        before_s = time.monotonic()
        if self._register is not None:
            count, _ = _energy(self._smi, self._device)
            joules = self._register.joules(count, before_s, time.monotonic())
        try:
            watts = _watts(self._smi, self._device)
        except ReadFailed:
            # Joules are worth having without watts.
            if joules is None:
                raise
            return Reading(None, joules)
        if joules is not None:
            self._agreement.check(joules, watts, before_s)
        return Reading(watts, joules)


def _uuid(smi: Any, device: Any) -> str | None:
    try:
        return str(_asked(smi, "amdsmi_get_gpu_device_uuid", device))
    except ReadFailed:
        return None


def _is_mi300a(smi: Any, device: Any) -> bool:
    try:
        return "MI300A" in str(_asked(smi, "amdsmi_get_gpu_asic_info", device).get("market_name"))
    except ReadFailed:
        return False


def _draws(smi: Any, device: Any) -> bool:
    """Whether a GPU has a power of its own; the second die of a package has none, or 0."""
    try:
        return _watts(smi, device) > 0
    except ReadFailed:
        return False


def _library() -> tuple[Any, list[Any]]:
    """The library, and its GPUs.

    Raises:
        MeterUnavailable: the package is not installed, does not match the node, or there is no GPU.
    """
    has_driver = _DRIVER.exists()
    if importlib.util.find_spec("amdsmi") is None:
        raise MeterUnavailable(
            "amdsmi: its Python package is not installed",
            "with AMD GPUs: `pip install /opt/rocm/share/amd_smi` of the node's ROCm; `hwmon` reads them "
            "without it",
            elsewhere=True,
        )
    remedy = "install the package of the node's own ROCm; `hwmon` reads the GPUs without it"
    try:
        smi = importlib.import_module("amdsmi")
        smi.amdsmi_init()
        return smi, list(smi.amdsmi_get_processor_handles())
    except Exception as error:
        # Without a driver or with another ROCm it raises errors of many kinds, also when it is imported.
        reason = f"amdsmi: {type(error).__name__}: {error}".splitlines()[0]
        raise MeterUnavailable(reason, remedy, elsewhere=not has_driver) from None


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """One meter for each AMD GPU, or package of two dies, of this host.

    Raises:
        MeterUnavailable: no package, no driver, or no GPU that has a power.
    """
    smi, devices = _library()
    own = [_draws(smi, device) for device in devices]
    meters = [
        AmdMeter(smi, device, index, nodes.host_node)
        for index, device in enumerate(devices)
        if own[index]
    ]
    if not meters:
        raise MeterUnavailable(
            f"amdsmi: none of {len(devices)} GPUs has a power", "look at `amd-smi metric --power`"
        )
    if without := [str(index) for index, has in enumerate(own) if not has]:
        for meter in meters:
            meter.remark = (
                f"GPU {', '.join(without)} have no power of their own: the second die of a package is "
                "counted with the first"
            )
    return [*meters]
