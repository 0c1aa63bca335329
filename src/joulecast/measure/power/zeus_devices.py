"""GPUs, CPUs and systems on a chip, read by Zeus (https://ml.energy/zeus).

Zeus knows NVIDIA and AMD GPUs, RAPL (also without root, through its daemon ``zeusd``), and
Jetson. Each of its devices becomes a meter. It has joules if the device counts them, and otherwise
watts.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zeus.exception import ZeusBaseError

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

GPU_RENEWED_S, CPU_RENEWED_S = 0.1, 0.001
"""Seconds between two renewals of a GPU's counter (NVML), and of a counter of RAPL."""
_PEAK = 2.0
"""Most power of a device, divided by its power limit: transients of milliseconds reach twice the limit."""
_SOC_LEAST_W = 1e-3
"""Least watts of a part of a system on a chip. Parts of chips for phones can sleep on their own."""
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@contextmanager
def _all_devices() -> Iterator[None]:
    """Let Zeus see all GPUs of the host, because the energy of a node contains all of them."""
    hidden = {name: os.environ.pop(name) for name in _VISIBLE if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def all_gpus() -> Any:
    """Zeus' object for all GPUs of this host, in the driver's order (nvidia-smi, amd-smi).

    Raises:
        ZeusBaseGPUError: there is no GPU, or its driver refuses.
    """
    from zeus.device import get_gpus

    with _all_devices():
        return get_gpus()


def _asking(name: str, ask: Callable[[], float]) -> Callable[[], float]:
    """A function that calls ``ask``. If Zeus raises an error, it raises :class:`ReadFailed` in its place."""

    def asked() -> float:
        try:
            return float(ask())
        except (ZeusBaseError, OSError, ValueError) as error:
            raise ReadFailed(f"{name}: {error}") from error

    return asked


def _gpu_identity(gpu: Any, index: int) -> str | None:
    """Identity of a GPU: the same in all containers of a machine; ``None`` if its driver gives none."""
    from zeus.device.gpu.nvidia import NVIDIAGPU

    if not isinstance(gpu, NVIDIAGPU):
        return identity_of(f"gpu:{index}")
    import pynvml

    with suppress(pynvml.NVMLError):
        return str(pynvml.nvmlDeviceGetUUID(gpu.handle))
    return None


def gpu_identity(index: int) -> str | None:
    """The identity of a GPU, by its number in nvidia-smi; ``None`` if its driver gives none."""
    try:
        return _gpu_identity(all_gpus().gpus[index], index)
    except (ZeusBaseError, IndexError):
        return None


def gpu_limits(gpu: Any) -> Limits:
    """Limits of what a GPU can draw. The most watts follow from its highest power limit, if that is known."""
    most_w = None
    with suppress(ZeusBaseError):
        most_w = _PEAK * gpu.get_power_management_limit_constraints()[1] / 1e3 or None
    return limits_of("gpu", renewed_s=GPU_RENEWED_S, most_w=most_w)


def _cpu_limits(cpu: Any, covers: Covers) -> Limits:
    """Limits of a processor or of its memory. For a processor, the most watts follow from the power limits
    that the kernel shows next to its counter."""
    folder = Path(getattr(getattr(cpu, "rapl_file", None), "path", "/nowhere"))
    found = []
    if covers == "cpu":
        for file in folder.glob("constraint_*_power_limit_uw"):
            with suppress(OSError, ValueError):
                found.append(_PEAK * int(file.read_text()) / 1e6)
    most_w = max(found, default=0.0) or None
    return limits_of(covers, renewed_s=CPU_RENEWED_S, moves_within_s=2.0, most_w=most_w)


def _gpu_meter(gpu: Any, index: int, node: str) -> Meter:
    name, remark = str(gpu.get_name()), None
    if any(superchip in name for superchip in ("GH200", "GB200", "GB300")):
        remark = f"{name}: its driver may count the whole module, of CPU, memory and GPU"
    label, counter = f"gpu:{index}", bool(gpu.supports_get_total_energy_consumption())
    ask = gpu.get_total_energy_consumption
    if not counter:
        ask = gpu.get_instant_power_usage
        try:
            ask()
        except ZeusBaseError:
            # On most GPUs, this is a mean over the last second. So the name of the meter says ``average``.
            label, ask = f"{label}:average", gpu.get_average_power_usage
    return DeviceMeter(
        label,
        node,
        "gpu",
        _asking(label, ask),
        gpu_limits(gpu),
        counter=counter,
        unit=1e-3,
        identity=_gpu_identity(gpu, index),
        remark=remark,
    )


def open_gpus(nodes: MeteredNodes) -> list[Meter]:
    """One meter for each GPU of this host.

    Raises:
        MeterUnavailable: there is no GPU, or no GPU can be read.
    """
    from zeus.device.gpu import ZeusGPUNotSupportedError

    meters: list[Meter] = []
    try:
        for index, gpu in enumerate(all_gpus().gpus):
            # The counter of the first die of an MI250 contains the second die, for which Zeus raises this
            # error.
            with suppress(ZeusGPUNotSupportedError):
                meters.append(_gpu_meter(gpu, index, nodes.host_node))
    except (ZeusBaseError, ReadFailed) as error:
        raise MeterUnavailable(
            f"gpu: {_line(error)}",
            "needs a GPU of NVIDIA or AMD and its driver (in a container: run it with the GPU passed in)",
        ) from None
    if not meters:
        raise MeterUnavailable("gpu: no GPU can be read", "look at nvidia-smi or amd-smi")
    return meters


def open_cpus(nodes: MeteredNodes) -> list[Meter]:
    """The meters of each processor of this host: one for the package, and one for its memory if RAPL counts
    that.

    Raises:
        MeterUnavailable: there is no RAPL (a virtual machine, another CPU), or it may not be read.
    """
    from zeus.device import get_cpus
    from zeus.device.cpu.common import ZeusCPUInitError, ZeusCPUNoPermissionError

    meters: list[Meter] = []
    try:
        # Zeus also lists the domain of the whole platform, which holds the packages.
        for cpu in get_cpus().cpus:
            if str(getattr(getattr(cpu, "rapl_file", None), "name", "")).startswith("psys"):
                continue
            parts: list[tuple[str, Covers]] = [("package", "cpu")]
            if cpu.supports_get_dram_energy_consumption():
                parts.append(("dram", "memory"))
            for part, covers in parts:
                name = f"cpu:{part}-{cpu.cpu_index}"
                count = _part_of(cpu, "cpu_mj" if covers == "cpu" else "dram_mj")
                meters.append(
                    DeviceMeter(
                        name,
                        nodes.host_node,
                        covers,
                        _asking(name, count),
                        _cpu_limits(cpu, covers),
                        unit=1e-3,
                        identity=identity_of(name),
                    )
                )
    except ZeusCPUNoPermissionError:
        raise MeterUnavailable(
            "cpu: energy_uj may be read by root only (Linux 5.10 and later)",
            "have an administrator run zeusd and set ZEUSD_SOCK_PATH, or let one group read it: "
            "`chgrp power /sys/class/powercap/*/energy_uj && chmod g+r /sys/class/powercap/*/energy_uj`",
        ) from None
    except ZeusCPUInitError:
        raise MeterUnavailable(
            "cpu: the kernel offers no RAPL",
            "needs bare metal with an Intel or AMD CPU and the module intel_rapl_msr",
        ) from None
    except (ZeusBaseError, ReadFailed, OSError) as error:
        raise MeterUnavailable(f"cpu: {_line(error)}", "check /sys/class/powercap") from None
    if not meters:
        raise MeterUnavailable("cpu: RAPL has no package", "check /sys/class/powercap")
    return meters


def _part_of(device: Any, figure: str) -> Callable[[], float]:
    """A function that asks a device for one of its energy counters, in mJ."""
    return lambda: float(getattr(device.get_total_energy_consumption(), figure))


_SOC_PARTS: tuple[tuple[str, str, Covers], ...] = (
    ("total_energy_mj", "total", "module"),
    ("cpu_energy_mj", "cpu", "cpu"),
    ("gpu_energy_mj", "gpu", "gpu"),
)
"""The energies of a Jetson that become meters: their name in Zeus, their name here, and what they cover."""


def open_soc(nodes: MeteredNodes) -> list[Meter]:
    """One meter for each part of a Jetson (a system on a chip) whose energy is counted.

    Raises:
        MeterUnavailable: this machine is no Jetson.
    """
    from zeus.device import get_soc

    try:
        soc = get_soc()
        known = soc.get_available_metrics()
        return [
            DeviceMeter(
                f"soc:{part}",
                nodes.host_node,
                covers,
                _asking(f"soc:{part}", _part_of(soc, metric)),
                limits_of(covers, renewed_s=0.5, least_w=_SOC_LEAST_W),
                unit=1e-3,
                identity=identity_of(f"soc:{part}"),
            )
            for metric, part, covers in _SOC_PARTS
            if metric in known
        ]
    except (ZeusBaseError, ReadFailed, OSError) as error:
        raise MeterUnavailable(
            f"soc: {_line(error)}", "only Jetson has it", not_applicable=True
        ) from None


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def gpu_utilisation() -> float | None:
    """Utilisation of the GPUs of this host, 0 to 1: the mean over all GPUs; ``None`` if no driver gives
    it."""
    import pynvml

    try:
        shares = [
            pynvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100 for gpu in all_gpus().gpus
        ]
    except (pynvml.NVMLError, AttributeError):
        return None
    return sum(shares) / len(shares) if shares else None
