"""Seconds of ops on a GPU, from their kernels and the rates that these kernels reach.

A matrix product is cut into tiles. The GPU's multiprocessors compute one wave of tiles at a time. A wave
takes longer if its tiles reach a smaller share of the plateau, which is the rate of large products. It also
takes the time that fills and empties the pipeline. Every other kernel takes its bytes over a share of the
memory's bandwidth. The shares are fitted to single kernels that were measured on other GPUs
(``kernel_rates.yaml``). The plateau is measured, or follows from the GPU's peak rate and power limit.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from joulecast.errors import JoulecastError
from joulecast.graphs.autocast import NARROW_BYTES, WIDE_BYTES
from joulecast.graphs.costs import Cost, Costs, Direction, Parts, Scaled, part_of
from joulecast.graphs.kernels import (
    CAST_LAUNCHES,
    TURN,
    Attention,
    Kernel,
    Pass,
    Product,
    kernels_of,
)
from joulecast.graphs.opgraph import Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, PRECISIONS, TrainingSetup
from joulecast.runs.platforms import Architecture, Device, Platform, as_catalogued

Engine = Literal["vector", "matrix"]

JOULES_PER_FLOP_NM = 1.45e-12
"""Joules of an fp32 operation for each nm of the process: 23 pJ at 16 nm, 17 at 12, 5.8 at 4. It follows from
the rates of P4, T4 and L4 in ``neusight.csv``. The power of these GPUs limits their rates. Alone, the three
GPUs give 1.9e-12, 1.1e-12 and 1.5e-12."""
MATRIX_POWER = 0.7
"""Power of the matrix units at their peak rate over the power of the vector units at theirs. It is an
assumption. An L20, which holds 0.92 of its peak rate, shows that it is below 0.86."""

_WIDE_HEAD = 128
_OF_FRAMEWORK = {
    "narrow_batch_norm": "batch_norm",
    "narrow_batch_norm_backward": "batch_norm",
    "max_pool": "elementwise",
    "columns": "elementwise",
    "norm_columns": "norm",
}


class ProductRates(BaseModel):
    """How the matrix products of an engine use the multiprocessors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tiles: tuple[tuple[int, int, float], ...]
    """Rows and columns of each size of tile, and the share of the plateau that it reaches."""
    depth: float
    """Time that fills and empties the pipeline of a tile, as a number of elements of k."""
    round: float
    """Share of the idle room in the final wave that counts as time. It is 1 if a wave starts only after the
    wave before it has ended."""


class KernelRates(BaseModel):
    """Content of ``kernel_rates.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    products: dict[Engine, ProductRates]
    attention_backward: float
    """Rate of fused attention in the backward over its rate in the forward (Dao 2023)."""
    attention_fp32: dict[Direction, float]
    """Share of the fp32 plateau that fused attention reaches at fp32, and at tf32 (it has no own kernel)."""
    attention_dropout: dict[Direction, float]
    """Rate of fused attention with dropout over its rate without dropout."""
    attention_head: float
    """Rate of fused attention with heads narrower than 128 over its rate with wider heads."""
    rows: dict[int, float]
    """Relative rate of products on matrix units with rows that are multiples of only 2, 4 or 8 bytes."""
    passes: dict[str, dict[str, float]]
    """Bandwidth of each kind of pass over the bandwidth of element-wise kernels, by vendor."""
    clock_bytes: dict[str, float]
    """Bytes that a multiprocessor moves in a clock cycle, for kinds of passes that the memory alone does not
    limit. For example, torch does not vectorise passes over numbers of two sizes."""
    block_bytes: dict[str, tuple[float, float]]
    """For kinds of passes whose blocks wait for memory, two numbers. The first: bytes that a block moves in a
    clock cycle if it is alone on its multiprocessor. The second: the most that several blocks on a
    multiprocessor move together, divided by the first."""
    column_bytes: dict[str, float]
    """For kinds of sums over all rows: bytes of a column of 16-bit numbers that are summed in a cycle."""
    padded_flops: float
    """Operations at 16 bits that a multiprocessor does in a clock cycle, for convolutions of few channels."""
    host_s: float
    """Seconds in which the host starts a kernel of plain PyTorch. The mean of four virtual machines."""
    fast_host_s: float
    """Seconds in which a fast host starts a kernel of plain PyTorch. It is an assumption."""
    slow_host_s: float
    """Seconds in which a slow host starts a kernel of plain PyTorch. They follow from the slowest of the
    measured steps that a host limited."""
    launch_s: float
    """Seconds that every kernel takes on the GPU to start."""
    dispatch_s: float
    """Least seconds between two kernels, which are the host's work for an op in eager mode."""


@cache
def kernel_rates() -> KernelRates:
    """The shipped rates."""
    text = (resources.files("joulecast.graphs") / "kernel_rates.yaml").read_text()
    return KernelRates.model_validate(yaml.safe_load(text))


def engine_of(precision: str) -> Engine:
    """The units that compute at a precision."""
    return "vector" if precision in ("fp32", "fp64") else "matrix"


def plateau(device: Device, precision: str) -> float:
    """FLOP/s of large matrix products. They are measured, or follow from peak rate and power limit.

    Raises:
        JoulecastError: the device has no rate at this precision. The error names the precisions that it has.
    """
    asked = precision
    if PRECISIONS[precision].plain:
        # The precision of the weights does not change the rate of products.
        precision = "amp"
    if precision in device.measured_flops:
        return device.measured_flops[precision]
    if PRECISIONS[precision].plain:
        precision = PRECISIONS[asked].of_products(device.peak_flops)
        asked = f"{precision}, at which {asked} computes"
    if precision in device.measured_flops:
        return device.measured_flops[precision]
    if precision not in device.peak_flops or device.architecture is None:
        known = ", ".join(device.peak_flops) or "none"
        raise JoulecastError(
            f"{device.name}: no rate at {asked} (known: {known}); take one of these, or put its peak "
            f"FLOP/s under cluster.device.peak_flops.{precision} of a platform file of yours"
        )
    architecture, peak = device.architecture, device.peak_flops[precision]
    engine = engine_of(precision)
    share = architecture.vector if engine == "vector" else architecture.matrix
    reached = architecture.narrow.get(precision, share) * peak
    fp32 = device.peak_flops.get("fp32")
    if device.power_limit_w is None or fp32 is None or precision == "fp64":
        return reached
    held = device.power_limit_w / (JOULES_PER_FLOP_NM * architecture.nm) / fp32
    # AMD's fp32 products run on the matrix units too.
    vector = engine == "vector" and architecture.vendor == "nvidia"
    return min(reached, peak * held / (1.0 if vector else MATRIX_POWER))


def product_flops(product: Product, rates: ProductRates, units: int) -> float:
    """The number of operations at the plateau that take as long as a product."""
    best = math.inf
    for rows, columns, share in rates.tiles:
        tiles = product.count * math.ceil(product.m / rows) * math.ceil(product.n / columns)
        depth = product.k
        if tiles < units:
            # If there are few tiles, k is split over the idle units.
            split = min(units // tiles, max(1, product.k // 1024))
            tiles, depth = tiles * split, product.k / split
        waves = tiles / units
        waves = 1.0 if waves < 1 else waves + rates.round * (math.ceil(waves) - waves)
        work = waves * units * 2 * rows * columns * (depth + rates.depth) / share
        best = min(best, work)
    return best


@dataclass(frozen=True)
class KernelCosts:
    """Costs of ops on a GPU at a precision. It is a source of :class:`joulecast.graphs.costs.Costs`."""

    device: Device
    precision: str
    gradient_passes: float = 0.0
    """Reads and writes of each weight's gradient in a backward, to add it up, or to copy it into a bucket."""
    clock: float = 1.0
    """Clock of the GPU over the clock at which it holds its rates."""

    def __post_init__(self) -> None:
        # A GPU without a rate at this precision is refused here.
        plateau(self.device, self.precision)

    def _held(self, precision: str) -> float:
        """FLOP/s of large products at a precision, at this clock."""
        return self.clock * plateau(self.device, precision)

    @cached_property
    def _known(self) -> dict[Kernel, float]:
        """Seconds of kernels, remembered."""
        return {}

    def _attention_rate(self, kernel: Attention) -> float:
        """FLOP/s of a fused attention."""
        rates, architecture = kernel_rates(), self._architecture
        precision = PRECISIONS[self.precision]
        if precision.tensor_bytes == 4 and not precision.plain:
            return self._held("fp32") * rates.attention_fp32[kernel.direction]
        share = architecture.cudnn if kernel.cudnn else architecture.attention
        if precision.plain:
            share = architecture.sdpa or share
            share *= rates.attention_dropout[kernel.direction] if kernel.drops else 1.0
            share *= rates.attention_head if kernel.head < _WIDE_HEAD else 1.0
        held = self._held(precision.of_products(self.device.peak_flops))
        return held * share * (rates.attention_backward if kernel.direction == "backward" else 1.0)

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth that large element-wise kernels reach."""
        if self.device.measured_bytes_per_s is not None:
            return self.device.measured_bytes_per_s
        assert self.device.memory_bytes_per_s is not None
        return self._architecture.memory * self.device.memory_bytes_per_s

    @property
    def _clocks_per_s(self) -> float:
        """Clock cycles in a second, of all multiprocessors together."""
        lanes, fp32 = self._architecture.lanes, self.device.peak_flops.get("fp32")
        if lanes is None or fp32 is None:
            return math.inf
        return self.clock * fp32 / (2 * lanes)

    @property
    def _architecture(self) -> Architecture:
        assert self.device.architecture is not None
        return self.device.architecture

    def _product_s(self, kernel: Product) -> float:
        """Seconds in which a product computes, without launch."""
        rates, precision = kernel_rates(), self.precision
        if PRECISIONS[precision].plain and kernel.itemsize == WIDE_BYTES:
            precision = "fp32"
        engine = engine_of(precision)
        has_wide = kernel.operand_bytes is None and PRECISIONS[precision].operand_bytes is not None
        held = self._held("bf16" if has_wide else precision)
        if engine == "matrix" and not PRECISIONS[self.precision].half:
            # Frameworks for half precision pad the vocabulary.
            held *= rates.rows.get(kernel.row_bytes, 1.0)
        if kernel.is_winograd and engine == "vector":
            held *= self._architecture.winograd
        assert self.device.units is not None
        seconds = product_flops(kernel, rates.products[engine], self.device.units) / held
        if kernel.padded > 1 and engine == "matrix" and not PRECISIONS[precision].half:
            rate = rates.padded_flops * NARROW_BYTES / kernel.itemsize * self._clocks_per_s
            seconds = max(seconds, kernel.padded * kernel.flops / rate)
        return seconds

    def _pass_s(self, kernel: Pass) -> tuple[float, float]:
        """For a pass over memory: the two times that :meth:`_loaded_s` returns."""
        rates = kernel_rates()
        share = rates.passes[self._architecture.vendor].get(kernel.kind, 1.0)
        loaded_s = kernel.bytes / self.bytes_per_s / share
        if kernel.kind in rates.block_bytes or kernel.kind in rates.column_bytes:
            assert self.device.units is not None
            used = kernel.blocks / self.device.units
            if kernel.kind in rates.block_bytes:
                alone, together = rates.block_bytes[kernel.kind]
                # Blocks on one multiprocessor hide each other's waits, but not all of them.
                most = math.ceil(used)
                rate = used * min(together, math.sqrt(most)) / most * alone
            else:
                rate = used * rates.column_bytes[kernel.kind]
            return loaded_s, max(kernel.bytes / (rate * self._clocks_per_s) - loaded_s, 0.0)
        if kernel.kind not in rates.clock_bytes:
            return loaded_s, 0.0
        clocked_s = kernel.bytes / (rates.clock_bytes[kernel.kind] * self._clocks_per_s)
        # The threads of a pool wait for each other more than they work.
        return (loaded_s, clocked_s) if kernel.kind == "max_pool" else (loaded_s + clocked_s, 0.0)

    def _loaded_s(self, kernel: Kernel) -> tuple[float, float]:
        """Two times of a kernel: the seconds in which it uses memory or multiprocessors at their rate, and
        the seconds in which its threads wait for each other."""
        if isinstance(kernel, Pass):
            return self._pass_s(kernel)
        if isinstance(kernel, Product):
            computed_s = self._product_s(kernel)
        else:
            computed_s = kernel.flops / self._attention_rate(kernel)
        return max(computed_s, kernel.bytes / self.bytes_per_s), 0.0

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of one kernel, alone on the GPU."""
        rates = kernel_rates()
        return max(sum(self._loaded_s(kernel)) + rates.launch_s, rates.dispatch_s)

    def _kernels(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
        # Frameworks keep the channels of images side by side (NHWC). This needs no turns, and cuDNN has
        # kernels for it that the memory limits. Without matrix units, images are not turned either.
        framework = PRECISIONS[self.precision].half
        turns = engine_of(self.precision) == "matrix" and not framework
        return [
            replace(k, kind=_OF_FRAMEWORK.get(k.kind, k.kind))
            if framework and isinstance(k, Pass)
            else k
            for k in kernels_of(graph, op, parts, direction)
            if turns or not (isinstance(k, Pass) and k.kind == TURN)
        ]

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        """Seconds of a part of an op."""
        kernels = self._kernels(graph, op, parts, direction)
        if direction == "backward" and self.gradient_passes:
            kernels += [
                Pass(
                    "elementwise",
                    self.gradient_passes * graph.tensors[a.tensor].bytes * part_of(a, parts),
                )
                for a in op.reads
                # If ops share a weight, its gradient is complete in the backward of the first of them.
                if graph.tensors[a.tensor].role == "parameter" and graph.readers[a.tensor][0] is op
            ]
        for kernel in kernels:
            if kernel not in self._known:
                self._known[kernel] = self.seconds(kernel)
        return Cost(sum(self._known[kernel] for kernel in kernels), "kernels")

    def pace_s(
        self, graph: OpGraph, op: Op, parts: Parts, direction: Direction
    ) -> NDArray[np.float64]:
        """Three numbers of seconds for the kernels of a part of an op. First: how long the device runs them.
        Second: how long the host takes to start them in eager mode. Third: how long, within the first, they
        use memory or multiprocessors at full rate.

        Passes over gradients count only for the device: the code that starts them is not Python. In the
        backward, the host also needs time for each weight.
        """
        busy_s = self.cost(graph, op, parts, direction).seconds
        kernels = self._kernels(graph, op, parts, direction)
        launches = sum(kernel.launches for kernel in kernels)
        if direction == "backward":
            weights = (a for a in op.reads if graph.tensors[a.tensor].role == "parameter")
            launches += CAST_LAUNCHES * sum(graph.readers[a.tensor][0] is op for a in weights)
        host_s = kernel_rates().host_s * launches
        loaded_s = sum(self._loaded_s(kernel)[0] for kernel in kernels)
        return np.array([busy_s, host_s, loaded_s])

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        """Seconds of the optimizer for parameters of this size in bytes."""
        moved = training.update_bytes(parameter_bytes)
        return Cost(moved / self.bytes_per_s, "kernels")


def with_gradient_passes(costs: Costs, passes: float) -> Costs:
    """Add the passes over gradients that a framework makes, if the costs come from kernels."""
    if isinstance(costs, Scaled):
        return replace(costs, costs=with_gradient_passes(costs.costs, passes))
    return replace(costs, gradient_passes=passes) if isinstance(costs, KernelCosts) else costs


def kernel_costs_of(platform: Platform, precision: str) -> KernelCosts | None:
    """Costs from kernels on a platform; ``None`` if its device is not described well enough for them.

    If the device names a GPU of the catalogue (for example ``H100 SXM``), the catalogue describes it.
    """
    device = platform.require_cluster().device
    if device.units is None or device.architecture is None:
        known = as_catalogued(device.model_dump())
        if known is None:
            return None
        device = device.model_validate(known)
    if device.memory_bytes_per_s is None:
        return None
    return KernelCosts(device, precision)
