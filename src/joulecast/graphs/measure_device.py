"""Measures the rates of large products and copies on a GPU. (Data sheets do not have these rates.) The
measurement takes a minute.

    joulecast profile --device my-gpu.yaml        then        joulecast simulate --platform my-gpu.yaml ...

The file is a platform file. Each rate comes from the second half of some seconds under load, because the
clocks have settled then. This module needs torch.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from joulecast.errors import JoulecastError
from joulecast.graphs.kernel_costs import engine_of, kernel_rates, product_flops
from joulecast.graphs.kernels import Product
from joulecast.runs.files.writing import written_aside
from joulecast.runs.platforms import gpu_named, platform_content

_LEAST_CALL_S = 5e-3
"""Least seconds of a measured product. A smaller product is enlarged, so that its launch does not count."""
_LARGEST = 16384
_COPY_BYTES = 1 << 30
_TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class MeasuredDevice:
    """Measured rates of a device: FLOP/s by precision, and bytes/s of large element-wise passes."""

    name: str
    vendor: str
    units: int
    memory_bytes: float
    flops: dict[str, float]
    bytes_per_s: float


def _settled(work: Callable[[], object], wait: Callable[[], None], seconds: float) -> float:
    """Seconds of a call under load. It is the median of the second half of the calls."""
    work()
    wait()
    times: list[float] = []
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times) < 4:
        before = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - before)
    return median(times[len(times) // 2 :])


def _product_rate(
    precision: str, device: torch.device, units: int, seconds: float, wait: Callable[[], None]
) -> float:
    """The plateau in FLOP/s: the rate of large products at a precision."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    kind, size, took = _TYPES[precision], 512, 0.0
    while took < _LEAST_CALL_S and size < _LARGEST:
        size *= 2
        left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        product = partial(torch.mm, left, right, out=torch.empty_like(left))
        took = _settled(product, wait, 0.0)
    took = _settled(product, wait, seconds)
    shape = Product(1, size, size, size, left.element_size())
    return product_flops(shape, kernel_rates().products[engine_of(precision)], units) / took


def _copy_rate(device: torch.device, moved: int, seconds: float, wait: Callable[[], None]) -> float:
    """Bytes/s of an element-wise pass that reads one large tensor and writes another."""
    source = torch.zeros(moved // 4, device=device)
    target = torch.empty_like(source)

    copy = partial(torch.add, source, 1.0, out=target)
    return 2 * source.nbytes / _settled(copy, wait, seconds)


def measure_device(
    where: str = "cuda", seconds: float = 8.0, copy_bytes: int = _COPY_BYTES
) -> MeasuredDevice:
    """Measure a device.

    Args:
        where: torch's name of the device.
        seconds: seconds under load, for each precision and for the copies.
        copy_bytes: size of a copied tensor.

    Raises:
        JoulecastError: the device does not exist.
    """
    device = torch.device(where)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise JoulecastError(
                "profile --device: torch sees no GPU here; run it on a node that has one, with a torch for "
                "its driver, or take a GPU by name (--platform h100-sxm)"
            )
        facts = torch.cuda.get_device_properties(device)
        name, units = facts.name, facts.multi_processor_count
        memory = float(facts.total_memory)
        precisions = ["fp32", "fp16"]
        if torch.cuda.is_bf16_supported(including_emulation=False):
            precisions += ["tf32", "bf16"]
    else:
        name, units, memory, precisions = "cpu", 1, 1e9, ["fp32"]

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        flops = {p: _product_rate(p, device, units, seconds, wait) for p in precisions}
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    vendor = "amd" if torch.version.hip else "nvidia"
    rate = _copy_rate(device, copy_bytes, seconds, wait)
    return MeasuredDevice(name, vendor, units, memory, flops, rate)


def platform_file_of(measured: MeasuredDevice) -> dict[str, Any]:
    """The content of a platform file: facts of the GPU from the catalogue, and measured rates."""
    known = platform_content(gpu_named(measured.name) or "")
    if known is None:
        # Links and power limit are not known. The plateau is known, so process and shares do not count.
        device: dict[str, Any] = {
            "architecture": {"vendor": measured.vendor, "nm": 5},
            "peak_flops": measured.flops,
            "memory_bytes_per_s": measured.bytes_per_s,
        }
        known = {
            "cluster": {
                "devices_per_node": 1,
                "device": device,
                "links": [{"name": "nic", "bytes_per_s": None}],
                "sources": {"links": "not known: put the rates of your node's links here"},
            }
        }
    found = known["cluster"]["device"] | {
        "name": measured.name,
        "units": measured.units,
        "memory_bytes": measured.memory_bytes,
        "measured_flops": measured.flops,
        "measured_bytes_per_s": measured.bytes_per_s,
    }
    sources = known["cluster"]["sources"] | {"device": "measured with joulecast profile --device"}
    cluster = known["cluster"] | {"device": found, "sources": sources}
    return {"name": measured.name.lower().replace(" ", "-"), "cluster": cluster}


def write_device(measured: MeasuredDevice, path: Path) -> None:
    """Write the platform file of a measured device."""
    with written_aside(path) as partial:
        partial.write_text(yaml.safe_dump(platform_file_of(measured), sort_keys=False))
