"""Seconds of ops on a GPU, from the kernels that they run and what such kernels reach.

A matrix product is cut into tiles, a wave of which the GPU's multiprocessors compute at once: it takes its
waves, each as long as the tile's share of the rate that large products reach (the plateau), and a depth that
fills and empties the pipeline. Every other kernel takes its bytes over a share of the memory's bandwidth. The
shares are fitted to single kernels that were measured on other GPUs (``kernel_rates.yaml``); the plateau is
measured, or follows from the GPU's description: its peak, and the power that it may take.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from joulecast.errors import JoulecastError
from joulecast.graphs.autocast import WIDE_BYTES
from joulecast.graphs.costs import Cost, Costs, Direction, Parts, Scaled, part_of
from joulecast.graphs.kernels import TURN, Attention, Kernel, Pass, Product, kernels_of
from joulecast.graphs.opgraph import Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, PRECISIONS, TrainingSetup
from joulecast.runs.platforms import Architecture, Device, Platform, as_catalogued

Engine = Literal["vector", "matrix"]

JOULES_PER_FLOP_NM = 1.45e-12
"""Joules of an fp32 operation for each nm of the process: 24 pJ at 16 nm, 16 at 12, 5.7 at 4. From the rates
that P4, T4 and L4, which their power limits, hold in ``neusight.csv``; alone they say 1.9, 1.1 and 1.5."""
MATRIX_POWER = 0.7
"""Power of the matrix units at their peak over that of the vector units at theirs. An assumption; an L20,
which holds 0.92 of its peak, says below 0.86."""

_WIDE_HEAD = 128
_OF_FRAMEWORK = {"narrow_batch_norm": "batch_norm", "max_pool": "elementwise"}
_WAITING = ("narrow_batch_norm", "max_pool")
"""Passes whose threads wait for each other more than they work."""


class ProductRates(BaseModel):
    """How matrix products of one engine use the multiprocessors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tiles: tuple[tuple[int, int, float], ...]
    """Rows, columns, and the share of the plateau that such tiles reach."""
    depth: float
    """Elements of k that filling and emptying a tile's pipeline takes."""
    round: float
    """How much of the last wave's idle room counts: 1 where a wave has to end before the next."""


class KernelRates(BaseModel):
    """``kernel_rates.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    products: dict[Engine, ProductRates]
    attention_backward: float
    """Rate of fused attention backward over its rate forward (Dao 2023)."""
    attention_fp32: dict[Direction, float]
    """Share of the fp32 plateau that fused attention reaches at fp32, and at tf32: it has no own kernel."""
    attention_dropout: dict[Direction, float]
    """Rate of fused attention that drops scores over that of one which does not."""
    attention_head: float
    """The same of one whose heads are narrower than 128, over that of one whose are not."""
    rows: dict[int, float]
    """Rate of matrix products on the matrix units whose rows are multiples of 2, 4 or 8 bytes alone."""
    passes: dict[str, dict[str, float]]
    """Bandwidth of the kinds of passes over that of element-wise kernels, by vendor."""
    clock_bytes: dict[str, float]
    """Bytes a clock of a multiprocessor that passes reach which the memory does not limit alone: those over
    numbers of two sizes, which torch does not vectorise, and its batch norms at 16 bits."""
    host_s: float
    """Seconds in which the host starts a kernel of plain PyTorch: the mean of three virtual machines."""
    fast_host_s: float
    """The same of a fast host; assumed."""
    slow_host_s: float
    """The same of a slow host: the slowest steps of the slowest machine."""
    launch_s: float
    """Of every kernel on the GPU."""
    dispatch_s: float
    """The least seconds between two kernels: the host's work for an op in eager mode."""


@cache
def kernel_rates() -> KernelRates:
    """The shipped rates."""
    text = (resources.files("joulecast.graphs") / "kernel_rates.yaml").read_text()
    return KernelRates.model_validate(yaml.safe_load(text))


def engine_of(precision: str) -> Engine:
    """The units that compute at a precision."""
    return "vector" if precision in ("fp32", "fp64") else "matrix"


def plateau(device: Device, precision: str) -> float:
    """FLOP/s that large matrix products hold: measured, else from peak and power limit.

    Raises:
        JoulecastError: the device has no such precision; names those that it has.
    """
    asked = precision
    if PRECISIONS[precision].plain:
        # Weights have no part in the rate of products.
        precision = "amp"
    if precision in device.measured_flops:
        return device.measured_flops[precision]
    if PRECISIONS[precision].plain:
        precision, asked = PRECISIONS[precision].of_products, f"bf16, at which {asked} computes"
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
    """Operations at the plateau that a product takes the time of."""
    best = math.inf
    for rows, columns, share in rates.tiles:
        tiles = product.count * math.ceil(product.m / rows) * math.ceil(product.n / columns)
        depth = product.k
        if tiles < units:
            # Few tiles: k is split over the units that would stand still.
            split = min(units // tiles, max(1, product.k // 1024))
            tiles, depth = tiles * split, product.k / split
        waves = tiles / units
        waves = 1.0 if waves < 1 else waves + rates.round * (math.ceil(waves) - waves)
        work = waves * units * 2 * rows * columns * (depth + rates.depth) / share
        best = min(best, work)
    return best


@dataclass(frozen=True)
class KernelCosts:
    """Costs of ops on a GPU at a precision; one of the sources of :class:`joulecast.graphs.costs.Costs`."""

    device: Device
    precision: str
    gradient_passes: float = 0.0
    """Reads and writes of each weight's gradient in a backward: to add it up, to copy it into a bucket."""
    clock: float = 1.0
    """Of the GPU, over the clock that its rates are held at."""

    def __post_init__(self) -> None:
        narrow = PRECISIONS[self.precision].operand_bytes is not None
        wide = self.clock * plateau(self.device, "bf16" if narrow else self.precision)
        object.__setattr__(self, "_plateau", wide)
        held = self.clock * plateau(self.device, self.precision) if narrow else wide
        object.__setattr__(self, "_narrow_plateau", held)
        object.__setattr__(self, "_known", {})

    def _attention_rate(self, kernel: Attention) -> float:
        """FLOP/s of a fused attention."""
        rates, architecture = kernel_rates(), self._architecture
        precision = PRECISIONS[self.precision]
        if precision.tensor_bytes == 4 and not precision.plain:
            held = self.clock * plateau(self.device, "fp32")
            return held * rates.attention_fp32[kernel.direction]
        share = architecture.cudnn if kernel.cudnn else architecture.attention
        if precision.plain:
            share = architecture.sdpa or share
            share *= rates.attention_dropout[kernel.direction] if kernel.drops else 1.0
            share *= rates.attention_head if kernel.head < _WIDE_HEAD else 1.0
        held = self.clock * plateau(self.device, precision.of_products)
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
        """Clocks of all multiprocessors together."""
        lanes, fp32 = self._architecture.lanes, self.device.peak_flops.get("fp32")
        if lanes is None or fp32 is None:
            return math.inf
        return self.clock * fp32 / (2 * lanes)

    @property
    def _architecture(self) -> Architecture:
        assert self.device.architecture is not None
        return self.device.architecture

    def _loaded_s(self, kernel: Kernel) -> tuple[float, float]:
        """Seconds in which a kernel uses the memory or the multiprocessors at their rate, and in which its
        threads wait for each other."""
        rates = kernel_rates()
        held: float = self._plateau  # type: ignore[attr-defined]
        moved = kernel.bytes / self.bytes_per_s
        if isinstance(kernel, Product):
            precision = self.precision
            if PRECISIONS[precision].autocast and kernel.itemsize == WIDE_BYTES:
                precision = "fp32"
                held = self.clock * plateau(self.device, precision)
            engine = rates.products[engine_of(precision)]
            assert self.device.units is not None
            if kernel.operand_bytes is not None:
                held = self._narrow_plateau  # type: ignore[attr-defined]
            elif engine_of(precision) == "matrix" and not PRECISIONS[self.precision].half:
                # Code for half precision pads the vocabulary.
                held *= rates.rows.get(kernel.row_bytes, 1.0)
            if kernel.is_winograd and engine_of(precision) == "vector":
                held *= self._architecture.winograd
            return max(product_flops(kernel, engine, self.device.units) / held, moved), 0.0
        if isinstance(kernel, Attention):
            return max(kernel.flops / self._attention_rate(kernel), moved), 0.0
        loaded_s = moved / rates.passes[self._architecture.vendor].get(kernel.kind, 1.0)
        if kernel.kind not in rates.clock_bytes:
            return loaded_s, 0.0
        assert self.device.units is not None
        used = min(1.0, kernel.blocks / self.device.units)
        clocked = used * rates.clock_bytes[kernel.kind] * self._clocks_per_s
        clocked_s = kernel.bytes / clocked
        return (loaded_s, clocked_s) if kernel.kind in _WAITING else (loaded_s + clocked_s, 0.0)

    def seconds(self, kernel: Kernel) -> float:
        """Seconds of one kernel, alone on the GPU."""
        rates = kernel_rates()
        return max(sum(self._loaded_s(kernel)) + rates.launch_s, rates.dispatch_s)

    def _kernels(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
        kernels = kernels_of(graph, op, parts, direction)
        if PRECISIONS[self.precision].half:
            # Frameworks keep the channels of images side by side (NHWC), which needs no turns and for which
            # cuDNN has kernels that the memory limits.
            return [
                replace(k, kind=_OF_FRAMEWORK.get(k.kind, k.kind)) if isinstance(k, Pass) else k
                for k in kernels
                if not (isinstance(k, Pass) and k.kind == TURN)
            ]
        if engine_of(self.precision) == "matrix":
            return kernels
        return [k for k in kernels if not (isinstance(k, Pass) and k.kind == TURN)]

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        """Seconds of a part of an op."""
        if op.kind == "timed":
            return Cost(float(op.attributes[f"{direction}_s"]), "given")
        kernels = self._kernels(graph, op, parts, direction)
        if direction == "backward" and self.gradient_passes:
            kernels += [
                Pass(
                    "elementwise",
                    self.gradient_passes * graph.tensors[a.tensor].bytes * part_of(a, parts),
                )
                for a in op.reads
                # Of a weight that several ops share the gradient is complete with the first of them.
                if graph.tensors[a.tensor].role == "parameter" and graph.readers[a.tensor][0] is op
            ]
        return Cost(sum(self._remembered(kernel) for kernel in kernels), "kernels")

    def _remembered(self, kernel: Kernel) -> float:
        known: dict[Kernel, float] = self._known  # type: ignore[attr-defined]
        if kernel not in known:
            known[kernel] = self.seconds(kernel)
        return known[kernel]

    def pace_s(self, graph: OpGraph, op: Op, parts: Parts, inference: bool) -> NDArray[np.float64]:
        """Seconds that a device runs the kernels of an op's part, that the host starts them in eager mode,
        and in which they use the memory or the multiprocessors at their rate.

        Passes over gradients are the device's alone: the code that starts them is not Python's.
        """
        directions: tuple[Direction, ...] = ("forward",) if inference else ("forward", "backward")
        busy_s = sum(self.cost(graph, op, parts, direction).seconds for direction in directions)
        kernels = [
            k for direction in directions for k in self._kernels(graph, op, parts, direction)
        ]
        host_s = kernel_rates().host_s * sum(kernel.launches for kernel in kernels)
        loaded_s = sum(self._loaded_s(kernel)[0] for kernel in kernels)
        return np.array([busy_s, host_s, loaded_s])

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        """Seconds of the optimizer on parameters of so many bytes."""
        moved = training.update_bytes(parameter_bytes)
        return Cost(moved / self.bytes_per_s, "kernels")


def with_gradient_passes(costs: Costs, passes: float) -> Costs:
    """The costs, where they are those of kernels, with the passes over gradients that a framework makes."""
    if isinstance(costs, Scaled):
        return replace(costs, costs=with_gradient_passes(costs.costs, passes))
    return replace(costs, gradient_passes=passes) if isinstance(costs, KernelCosts) else costs


def kernel_costs_of(platform: Platform, precision: str) -> KernelCosts | None:
    """Costs from kernels on a platform; ``None`` if its device is not described well enough for them.

    A device that names a GPU of the catalogue, as ``H100 SXM``, is described there.
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
