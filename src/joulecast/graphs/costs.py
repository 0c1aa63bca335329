"""Costs of ops: their arithmetic, their memory traffic, and the seconds that a device takes for them.

A roofline computes two times, FLOPs over peak rate and bytes over memory bandwidth, and takes the longer one
(Williams et al. 2009). A convolution counts as an implicit matrix product. A backward op counts as one
product for the gradient of the input and one for the gradient of the weights (Duan et al. 2024). A cost is
the cost of the part of an op that one device has: the size of each dim is divided by the number of its parts.

:func:`kept_for_backward` and :func:`extra_kept` say what the forward op keeps for its backward op. Time and
memory use the same rules, because a kept tensor is held until the backward op, and read there. The rules are
the rules of torch's kernels. For a transformer's layer at 16 bit, they add up to Korthikanti et al. 2022,
section 4.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from joulecast.errors import JoulecastError
from joulecast.graphs.autocast import cast_reads, casts_first, copy_bytes
from joulecast.graphs.opgraph import KINDS, Access, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, PRECISIONS, TrainingSetup
from joulecast.runs.platforms import Device, Platform

Direction = Literal["forward", "backward"]
Parts = Mapping[str, float]
"""Number of parts of each split dim. A dim that is not named is whole."""


@dataclass(frozen=True)
class OpWork:
    """FLOPs and bytes of memory traffic of a part of an op."""

    flops: float
    bytes: float


def part_of(access: Access, parts: Parts) -> float:
    """The share of a tensor that a part of an op touches."""
    share = 1.0
    for axis in access.axes:
        if axis is not None:
            share /= parts.get(axis, 1)
    return share


def bytes_of(graph: OpGraph, accesses: Iterable[Access], parts: Parts) -> float:
    """Bytes of tensors that a part of an op touches."""
    return sum(graph.tensors[a.tensor].bytes * part_of(a, parts) for a in accesses)


def _matmul_work(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> OpWork:
    touched = bytes_of(graph, op.reads, parts) + bytes_of(graph, op.writes, parts)
    flops = 2.0 * math.prod(dim.size / parts.get(dim.name, 1) for dim in op.dims)
    if op.kind == "attention":
        # Products are counted whole, causal or not, as torch's counter does. No scores are in memory: the
        # backward computes them again (Dao et al. 2022).
        return (
            OpWork(2.0 * flops, touched)
            if direction == "forward"
            else OpWork(5.0 * flops, 2 * touched)
        )
    flops /= op.attributes.get("groups", 1)
    if direction == "forward":
        return OpWork(flops, touched)
    # There is one product for the gradient of each factor. Data have no gradient. A bias is no factor.
    products = sum(has_gradient(graph, access) for access in op.reads[:2])
    return OpWork(products * flops, products * touched)


def op_work(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> OpWork:
    """FLOPs and bytes of a part of an op.

    Args:
        graph: the graph of the op, at the batch in question.
        op: the operator.
        parts: number of parts of each split dim.
        direction: forward; or backward, for the gradients of everything that it reads except network inputs.
    """
    family = KINDS[op.kind]
    if op.attributes.get("in_next"):
        # The kernel of the next op computes this op, too.
        return OpWork(0.0, 0.0)
    if family == "matmul":
        return _matmul_work(graph, op, parts, direction)
    reads, writes = bytes_of(graph, op.reads, parts), bytes_of(graph, op.writes, parts)
    if family == "lookup":
        # Only the rows that are looked up are read and written, whatever the size of the table.
        return OpWork(0.0, 2.0 * writes)
    elements = writes / graph.tensors[op.writes[0].tensor].itemsize if op.writes else 0.0
    also = sum(extra.bytes * part_of(extra.access, parts) for extra in extra_kept(graph, op))
    if direction == "forward":
        passes = 2.0 if family == "normalise" else 1.0
        return OpWork(passes * elements, passes * reads + writes + also)
    # The gradient of the output and the kept tensors are read. The gradient of the input is written.
    into = bytes_of(
        graph,
        (a for a in op.reads if graph.tensors[a.tensor].role in ("input", "activation")),
        parts,
    )
    kept = bytes_of(graph, kept_for_backward(graph, op), parts)
    return OpWork(2.0 * elements, writes + kept + also + into)


Source = Literal["measured", "interpolated", "kernels", "calibrated", "roofline", "given"]
"""Where the seconds of an op come from."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a part of an op, and where they come from."""

    seconds: float
    source: Source


class Costs(Protocol):
    """A source of the seconds of ops."""

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        """Seconds of a part of an op."""

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        """Seconds of the optimizer for parameters of this size in bytes."""


@dataclass(frozen=True)
class Roofline:
    """Costs from a device's peak rates. Each op also has the cost of its launch."""

    flops_per_s: float
    bytes_per_s: float
    launch_s: float = 0.0
    narrow_flops_per_s: float | None = None
    """Peak rate for products whose operands are narrower than tensors."""

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        work = op_work(graph, op, parts, direction)
        narrow = op.attributes.get("operand_bytes") is not None
        rate = self.narrow_flops_per_s if narrow and self.narrow_flops_per_s else self.flops_per_s
        longer = max(work.flops / rate, work.bytes / self.bytes_per_s)
        return Cost(longer + self.launch_s, "roofline")

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        return Cost(training.update_bytes(parameter_bytes) / self.bytes_per_s, "roofline")


@dataclass(frozen=True)
class Scaled:
    """Costs times ``factor``. The factor is the correction by measured steps, or the slowdown by the host."""

    costs: Costs
    factor: float
    source: Source | None = None
    """Where the scaled seconds come from. If ``None``, the source of ``costs`` stays."""
    updates: bool = True
    """Whether the optimizer takes longer too."""

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        return self._scaled(self.costs.cost(graph, op, parts, direction))

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        known = self.costs.optimizer(parameter_bytes, training)
        return self._scaled(known) if self.updates else known

    def _scaled(self, known: Cost) -> Cost:
        return Cost(self.factor * known.seconds, self.source or known.source)


def roofline_of(platform: Platform, precision: str = "fp32") -> Roofline:
    """The roofline of a platform's device.

    Raises:
        JoulecastError: a peak rate is not in the platform's file. The error names the key.
    """
    device: Device = platform.require_cluster().device
    narrow = PRECISIONS[precision].operand_bytes is not None
    wide = PRECISIONS[precision].of_products(device.peak_flops)
    for needed in (wide, *([precision] if narrow else [])):
        if needed not in device.peak_flops:
            known = ", ".join(device.peak_flops) or "none"
            raise JoulecastError(
                f"platform {platform.name}: cluster.device.peak_flops has no {needed}"
                + (f", at which {precision} computes" if needed != precision else "")
                + f" (known: {known}); put the device's peak FLOP/s there, or measure an op database on it"
            )
    if device.memory_bytes_per_s is None:
        raise JoulecastError(
            f"platform {platform.name}: cluster.device.memory_bytes_per_s is not known; put it there, or "
            "measure an op database on it"
        )
    peak = device.peak_flops
    narrow_flops_per_s = peak[precision] if narrow else None
    return Roofline(peak[wide], device.memory_bytes_per_s, device.launch_s, narrow_flops_per_s)


_NOTHING = frozenset(
    ("add", "avg_pool", "timed", "scale", "mask", "rotary", "dropout", "cross_entropy")
)
"""Kinds whose gradients need no tensor of the forward pass, or only the tensors of :func:`extra_kept`."""
_FACTORS = frozenset(("multiply", "linear", "matmul", "conv2d"))
"""Kinds that multiply their operands. A bias, which is the third operand, is no factor."""
_OUTPUT = frozenset(("relu", "tanh", "softmax"))
"""Kinds whose gradients follow from their output."""


def kept_for_backward(graph: OpGraph, op: Op) -> list[Access]:
    """Activations that the backward op reads."""
    return graph.once(("kept", op.name), lambda: _kept_for_backward(graph, op))


def _kept_for_backward(graph: OpGraph, op: Op) -> list[Access]:
    if not graph.has_backward(op):
        return []
    if op.kind == "cross_entropy" and op.attributes.get("fused"):
        return [op.reads[0]]
    if op.kind in _NOTHING or KINDS[op.kind] in ("copy", "lookup") or op.attributes.get("sums"):
        return []
    if op.attributes.get("operand_bytes"):
        # The cast copy of its input is kept, and not the input.
        return []
    if op.attributes.get("steps"):
        # A recurrent layer keeps the gates. The next op keeps the states, which the product reads.
        return [] if KINDS[op.kind] == "matmul" else list(op.reads[-1:])
    if op.kind in _OUTPUT:
        return list(op.writes)
    cast = cast_reads(graph, op)
    reads = [
        access
        for access in op.reads
        if graph.tensors[access.tensor].role in ("input", "activation") and access not in cast
    ]
    if op.kind == "attention":
        return [*reads, *op.writes]
    if op.kind in _FACTORS and len(op.reads) > 1:
        # The output of an op that runs inside this kernel is computed again.
        return [a for a in reads if _needs(graph, op, a) and not _in_next(graph, a)]
    return reads


def _needs(graph: OpGraph, op: Op, access: Access) -> bool:
    """Whether a gradient of an op needs this operand. A factor of a product is needed for the gradients of
    the other factors."""
    if op.kind not in _FACTORS:
        return True
    factors = op.reads if op.kind == "multiply" else op.reads[:2]
    return any(has_gradient(graph, other) for other in factors if other is not access)


def _in_next(graph: OpGraph, access: Access) -> bool:
    made = graph.producer.get(access.tensor)
    return made is not None and bool(made.attributes.get("in_next"))


def has_gradient(graph: OpGraph, access: Access) -> bool:
    """Whether a tensor that an op reads has a gradient: a trained weight, or what depends on one."""
    return access.tensor in graph.trained


@dataclass(frozen=True)
class ExtraBytes:
    """Bytes that an op keeps in addition to tensors of the graph."""

    access: Access
    """The tensor whose axes these bytes follow."""
    bytes: float


def extra_kept(graph: OpGraph, op: Op) -> list[ExtraBytes]:
    """Tensors that only the op's own backward op reads.

    Under autocast, they are the cast copies of its inputs. (The copy of a weight counts for the first op that
    needs it.) Dropout keeps a byte an element. Max pooling keeps an index of 8 bytes an element. Layer norm
    keeps the mean and the deviation of each row, at fp32. RMS norm keeps only the deviation. Fused attention
    keeps a logarithm for each row and head. Cross entropy keeps the logarithms of the shares, at fp32 or
    wider; a fused kernel keeps one logarithm a row. A product with narrow operands keeps its cast input,
    which counts for the first op that reads it.
    """
    return graph.once(("extra", op.name), lambda: _extra_kept(graph, op))


def _extra_kept(graph: OpGraph, op: Op) -> list[ExtraBytes]:
    if not graph.has_backward(op):
        return []
    cast = [
        ExtraBytes(access, copy_bytes(graph, access))
        for access in cast_reads(graph, op)
        # An op whose gradient needs only its output keeps no input.
        if op.kind not in _OUTPUT
        and casts_first(graph, op, access)
        # Autocast keeps its copies of trained weights in any case.
        and (graph.tensors[access.tensor].role == "parameter" or _needs(graph, op, access))
    ]
    own = _own_extra(graph, op)
    return cast if own is None else [*cast, own]


def _own_extra(graph: OpGraph, op: Op) -> ExtraBytes | None:
    written = op.writes[0]
    elements = graph.tensors[written.tensor].elements
    narrow = op.attributes.get("operand_bytes")
    if narrow is not None:
        read = op.reads[0]
        first = graph.readers[read.tensor][0] is op and _needs(graph, op, read)
        return ExtraBytes(read, narrow * graph.tensors[read.tensor].elements) if first else None
    if op.kind == "dropout":
        return ExtraBytes(written, elements)
    if op.kind == "max_pool":
        return ExtraBytes(written, 8.0 * elements)
    if op.kind in ("layer_norm", "rms_norm"):
        rows = elements / max(1, graph.tensors[written.tensor].shape[-1])
        return ExtraBytes(written, (8.0 if op.kind == "layer_norm" else 4.0) * rows)
    if op.kind == "attention":
        return ExtraBytes(written, 4.0 * elements / op.dim("head_dim").size)
    if op.kind == "cross_entropy" and op.attributes.get("fused"):
        return ExtraBytes(written, 4.0 * elements)
    if op.kind == "cross_entropy":
        logits = graph.tensors[op.reads[0].tensor]
        return ExtraBytes(op.reads[0], float(max(4, logits.itemsize) * logits.elements))
    return None
