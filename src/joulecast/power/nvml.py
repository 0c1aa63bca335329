"""NVIDIA GPUs through NVML: the energy counter where the device has one, else instant power.

The plain power call is a one-second average on most GPUs since Ampere, so the instant value is asked
for by its field (157) and the plain call is the last resort, named so in the meter.
"""

import re
import time
from dataclasses import replace
from typing import Any

from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.power.register import Limits, Register
from joulecast.records.covers import Covers

MOST_W = 4000.0
"""Watts that no GPU exceeds, whatever is put on one board."""
RENEWED_EVERY_S = 0.1
_LIMITS = Limits(least_w=0.1, most_w=MOST_W, renewed_s=RENEWED_EVERY_S, moves_within_s=10.0)
"""An idle GPU draws watts; some drivers renew the counter of such a one seldom."""
_PEAK = 3.0
"""Transients of milliseconds reach twice the limit that the board allows."""
_FIELD_POWER_INSTANT = 157  # NVML_FI_DEV_POWER_INSTANT, milliwatts


def _instant_watts(nvml: Any, device: Any) -> float:
    value = nvml.nvmlDeviceGetFieldValues(device, [_FIELD_POWER_INSTANT])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise ReadFailed(f"power field: NVML code {value.nvmlReturn}")
    return float(value.value.uiVal) / 1e3


def _limits(nvml: Any, device: Any) -> Limits:
    """What is possible for a GPU: where the driver says its highest power limit, a peak of that."""
    try:
        highest_w = nvml.nvmlDeviceGetPowerManagementLimitConstraints(device)[1] / 1e3
    except (nvml.NVMLError, AttributeError):
        return _LIMITS
    return replace(_LIMITS, most_w=min(MOST_W, _PEAK * highest_w)) if highest_w > 0 else _LIMITS


def _uuid(nvml: Any, device: Any) -> str | None:
    try:
        uuid = nvml.nvmlDeviceGetUUID(device)
    except nvml.NVMLError:
        return None
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _remark(nvml: Any, device: Any) -> str | None:
    """What a reader should know of this GPU's figures."""
    try:
        if nvml.nvmlDeviceGetMigMode(device)[0]:
            return "the GPU is cut into MIG slices: its figures are those of the whole GPU"
    except (nvml.NVMLError, AttributeError):
        pass  # it knows no MIG
    try:
        name = nvml.nvmlDeviceGetName(device)
    except (nvml.NVMLError, AttributeError):
        return None
    name = name.decode() if isinstance(name, bytes) else str(name)
    if re.search(r"\bG[HB]\d00\b", name):
        return f"{name}: its driver may count the whole module, of CPU, memory and GPU"
    return None


class NvmlMeter:
    """One GPU."""

    source = "measured"
    covers: Covers = "gpu"

    def __init__(self, nvml: Any, device: Any, index: int, node: str) -> None:
        self._nvml, self._device = nvml, device
        self.node = node
        self.remark = _remark(nvml, device)
        self.identity = _uuid(nvml, device)
        self.counter = True
        try:
            first_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(device)
            self._register = Register(
                first_mj,
                time.monotonic(),
                unit_j=1e-3,
                limits=_limits(nvml, device),
            )
        except nvml.NVMLError:
            self.counter = False
        self.instant = True
        try:
            _instant_watts(nvml, device)
        except (nvml.NVMLError, ReadFailed, AttributeError):
            self.instant = False
        self.name = f"nvml:{index}" + ("" if self.counter or self.instant else ":average")

    def read(self) -> Reading:
        nvml = self._nvml
        joules = None
        try:
            if self.counter:
                before_s = time.monotonic()
                counted_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(self._device)
                joules = self._register.joules(counted_mj, before_s, time.monotonic())
        except nvml.NVMLError as error:
            raise ReadFailed(str(error)) from error
        try:
            return Reading(self._watts(), joules)
        except (nvml.NVMLError, ReadFailed) as error:
            # Joules are worth having without watts.
            if joules is None:
                raise ReadFailed(str(error)) from error
            return Reading(None, joules)

    def _watts(self) -> float:
        if self.instant:
            watts = _instant_watts(self._nvml, self._device)
        else:
            watts = float(self._nvml.nvmlDeviceGetPowerUsage(self._device)) / 1e3
        if not 0 <= watts <= MOST_W:
            raise ReadFailed(f"{watts:g} W, which no GPU draws")
        return watts


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """One meter for each GPU of this host.

    Raises:
        MeterUnavailable: no driver or no GPU.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except pynvml.NVMLError as error:
        raise MeterUnavailable(
            f"NVML: {error}",
            "needs an NVIDIA GPU and its driver (in a container: run it with the GPU passed in)",
        ) from None
    if count == 0:
        raise MeterUnavailable("NVML: the driver sees no GPU", "check nvidia-smi on this host")
    return [
        NvmlMeter(pynvml, device, index, nodes.host_node) for index, device in enumerate(devices)
    ]


def mean_utilisation() -> float | None:
    """Mean share of time that this host's GPUs were busy; ``None`` if NVML does not say."""
    import pynvml

    try:
        devices = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        shares = [pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100 for device in devices]
    except pynvml.NVMLError:
        return None
    return sum(shares) / len(shares) if shares else None


def uuid_of(index: int) -> str | None:
    """UUID of a GPU by its number in nvidia-smi; ``None`` if NVML does not give it."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return _uuid(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError:
        return None
