"""The kernels that a GPU runs for an op: matrix products by their sizes, passes over memory by their bytes.

They are the kernels of PyTorch's eager mode, forward and backward. The backward has one product for each
operand that has a gradient. Each element-wise operation is one pass. If several ops read a tensor, further
passes add its gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from joulecast.graphs.autocast import (
    NARROW_BYTES,
    cast_bytes,
    cast_reads,
    casts_first,
    promoted_reads,
)
from joulecast.graphs.costs import Direction, Parts, bytes_of, has_gradient, part_of
from joulecast.graphs.opgraph import KINDS, Op, OpGraph


@dataclass(frozen=True)
class Product:
    """``count`` matrix products (m, k) x (k, n)."""

    count: float
    m: float
    n: float
    k: float
    itemsize: int
    operand_bytes: float | None = None
    """Bytes of a number of the operands, if they are cast for the product; ``None``: ``itemsize``."""
    row_bytes: int = 16
    """The largest power of 2, up to 16, that divides the size in bytes of all rows of the matrices."""
    moved: float | None = None
    """Bytes that a product without written matrices (convolution) moves; ``None``: the bytes of its
    matrices."""
    is_winograd: bool = False
    """Whether Winograd's algorithm computes this convolution with fewer operations."""
    padded: float = 1.0
    """Number of operations, divided by the number without padding. cuDNN pads the few channels of an image to
    16 bytes. Above 1, the loads of these short rows limit the kernel, and not the matrix units."""
    launches: int = 1
    """Number of kernels that the host starts."""

    @property
    def flops(self) -> float:
        """Operations of all ``count`` products."""
        return 2 * self.count * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        """Memory traffic if each element moves once."""
        if self.moved is not None:
            return self.moved
        operands = (self.m * self.k + self.k * self.n) * (self.operand_bytes or self.itemsize)
        return self.count * (operands + self.m * self.n * self.itemsize)


@dataclass(frozen=True)
class Attention:
    """A fused attention. Its scores stay on the chip."""

    flops: float
    bytes: float
    direction: Direction
    cudnn: bool = False
    """Whether the kernel is cuDNN's, or one of the same speed (FlashAttention 3)."""
    drops: bool = False
    """Whether the kernel drops scores."""
    head: int = 128
    """Size of a head."""

    @property
    def launches(self) -> int:
        """Number of kernels that the host starts. The backward pass starts one more kernel before the main
        one, and one more after it."""
        return 3 if self.direction == "backward" else 1


TURN = "turn"
"""Kind of a copy of images into another order of their axes. It is made only for products on matrix units."""

STRIDED = "strided"
"""Kind of a pass whose operands have their axes in different orders. Its threads limit it, and not the
memory. So it has the bytes that it would have at 16 bits."""


@dataclass(frozen=True)
class Pass:
    """A pass over memory."""

    kind: str
    """Kind of pass: ``elementwise``, ``mixed`` (numbers of two sizes), ``softmax``, ``norm``, ``batch_norm``,
    ``narrow_batch_norm`` and ``narrow_batch_norm_backward``, ``max_pool``, ``dropout``, ``power``, ``copy``,
    ``turn``, ``strided``, ``columns`` and ``norm_columns`` (sums over all rows, for the gradients of a bias,
    and of a norm's weights), or ``lookup``."""
    bytes: float
    launches: float = 1
    """Number of kernels that the host starts for the pass, or could start in the same time."""
    blocks: float = math.inf
    """Largest number of parts that run side by side."""


Kernel = Product | Attention | Pass

CAST_LAUNCHES = 1.5
"""Time that the host takes for a cast, divided by the time that it takes to start a kernel. For each weight,
the host also needs about this time to pass on the gradient and to update the weight. With this value, the
model explains 43 steps that four hosts limited."""

_PASS_OF = {
    "dropout": "dropout",
    "pow": "power",
    "softmax": "softmax",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "batch_norm": "batch_norm",
    "copy": "copy",
    "concat": "copy",
    "avg_pool": "copy",
}
_BACKWARD_PASSES: dict[str, float] = {
    # Number of reads and writes of a tensor that has the size of the output.
    "scale": 2,
    "mask": 2,
    "copy": 2,
    "concat": 2,
    "rotary": 2,
    "dropout": 2,
    # The gradient of each of the two operands is the gradient of the output times the other operand.
    "multiply": 6,
    # The power with an exponent lower by one, times the exponent, times the gradient of the output.
    "pow": 7,
    "add": 0,
    # The gradient of the input. The gradients of the weights have a kernel of their own.
    "layer_norm": 3,
    # The gradient of the input, and then the gradients of the weights.
    "rms_norm": 5,
    "batch_norm": 5,
}
_BACKWARD_LAUNCHES = {"multiply": 2, "pow": 3}
"""Number of kernels of a backward op, if there are several."""
_WEIGHT_PASSES = 2
"""For the gradients of a layer norm's weights, two tensors are read: its input, and its output's gradient."""
_MANY_ROWS, _FEW_COLUMNS = 65536, 2048
"""For the gradients of a layer norm's weights, torch divides the rows if there are more than 64 Ki of them
and few columns (on 132 multiprocessors)."""
_PIXELS_OF_THREADS = 140
"""Pixels of a channel below which torch's forward batch norm at 16 bits has idle threads."""
_ROW_BYTES = 16
"""Bytes that cuDNN loads together."""
_OTHER_BACKWARD_PASSES = 3
"""Number of tensors that a backward op reads or writes, if its kind is not in ``_BACKWARD_PASSES``. It reads
the kept tensor and the output's gradient. It writes the input's gradient."""
_PACKED = "in_proj_weight"
"""Name of the one weight in torch's MultiheadAttention that makes queries, keys and values together."""
_MASK_BYTES, _INDEX_BYTES = 1, 8


def _sizes(op: Op, parts: Parts) -> dict[str, float]:
    return {dim.name: max(dim.size / parts.get(dim.name, 1), 1.0) for dim in op.dims}


def product_of(graph: OpGraph, op: Op, parts: Parts) -> Product:
    """The matrix product of a linear layer, of a convolution, or of two activations.

    The op's attribute ``roles`` has the role of each dim. If a dim has no role there, it follows from the
    operands: the product sums over a dim that is not written. Any other dim that both operands have is a
    number of equal products.
    """
    first, second = op.reads[0], op.reads[1]
    written = {axis for access in op.writes for axis in access.axes}
    has_first = {axis for axis in first.axes if axis is not None}
    has_second = {axis for axis in second.axes if axis is not None}
    found = {"count": 1.0, "m": 1.0, "n": 1.0, "k": 1.0}
    given = op.attributes.get("roles", {})
    for name, size in _sizes(op, parts).items():
        if name in given:
            role = given[name]
        elif name not in written:
            role = "k"
        elif name in has_second:
            role = "count" if name in has_first else "n"
        else:
            role = "m"
        found[role] *= size
    groups = op.attributes.get("groups", 1)
    if groups > 1:
        # Each group has its own channels.
        found |= {
            "count": found["count"] * groups,
            "n": max(found["n"] / groups, 1.0),
            "k": max(found["k"] / groups, 1.0),
        }
    itemsize = graph.tensors[op.writes[0].tensor].itemsize
    narrow = op.attributes.get("operand_bytes")
    rows, moved, is_winograd, padded = 16, None, False, 1.0
    if op.kind == "conv2d":
        elements = (
            graph.tensors[access.tensor].elements * part_of(access, parts)
            for access in (first, second, op.writes[0])
        )
        moved = itemsize * sum(elements)
        window = op.attributes.get("kernel"), op.attributes.get("stride"), groups
        is_winograd = window == ([3, 3], [1, 1], 1)
        channels = found["k"] / math.prod(op.attributes.get("kernel", (1,)))
        if groups == 1 and graph.tensors[first.tensor].role == "input":
            padded = max(1.0, _ROW_BYTES / itemsize / channels)
    else:
        # The features lie side by side in the rows of activations and weights. Tokens do not.
        sizes = (int(found["n"]) * itemsize, int(found["k"]) * itemsize)
        rows = math.gcd(16, *sizes)
    return Product(
        found["count"],
        found["m"],
        found["n"],
        found["k"],
        itemsize,
        narrow,
        rows,
        moved,
        is_winograd,
        padded,
    )


def _joined(graph: OpGraph, op: Op, parts: Parts) -> list[Kernel]:
    """The copy that joins the gradients of the parts of an output that the network's code takes apart
    (attribute ``joins``). If the code has exchanged axes before, another copy puts them back."""
    joins = op.attributes.get("joins")
    moved = 2 * bytes_of(graph, op.writes, parts)
    if joins != "turned":
        return [Pass("copy", moved)] if joins else []
    narrow = NARROW_BYTES / graph.tensors[op.writes[0].tensor].itemsize
    turned: list[Kernel] = [Pass(STRIDED, narrow * moved)]
    return 2 * turned


def _casts(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    """The pass that casts an operand of a product: forward its input, backward the gradient of its output.

    It writes two copies. The second one, along the other axis, is for the gradient of the weights. If several
    products read a tensor, it is cast once. Weights are cast once a step; these casts are not counted.
    """
    narrow = op.attributes.get("operand_bytes")
    cast = op.reads[0] if direction == "forward" else op.writes[0]
    if narrow is None or (direction == "forward" and graph.readers[cast.tensor][0] is not op):
        return []
    size = graph.tensors[cast.tensor].itemsize
    return [Pass("copy", (1 + 2 * narrow / size) * bytes_of(graph, (cast,), parts))]


def _autocasts(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    """The casts that autocast makes for an op. In the backward, they are the casts of the gradients.

    A weight is cast once a step, for the first op that needs the cast. So is its gradient.
    """
    found = []
    for access in cast_reads(graph, op):
        if not casts_first(graph, op, access):
            continue
        if direction == "forward" or has_gradient(graph, access):
            found.append(access)
    if direction == "backward":
        found += promoted_reads(graph, op)
    return [
        Pass("mixed", cast_bytes(graph, access) * part_of(access, parts), CAST_LAUNCHES)
        for access in found
    ]


def _added_gradients(graph: OpGraph, op: Op, parts: Parts) -> list[Kernel]:
    """Additions of gradients, for tensors that other ops read, too. The last reader has nothing to add."""
    found: list[Kernel] = []
    for access in op.reads:
        tensor = graph.tensors[access.tensor]
        if tensor.role == "activation" and graph.readers[access.tensor][-1] is not op:
            found.append(Pass("elementwise", 3 * tensor.bytes * part_of(access, parts)))
    return found


def _is_depthwise(graph: OpGraph, op: Op) -> bool:
    """Whether each channel of an image is convolved alone."""
    channels = graph.tensors[op.reads[0].tensor].shape[1]
    return len(op.attributes.get("kernel", ())) == 2 and 1 < channels == op.attributes.get("groups")


def _turned(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    """The copies that a convolution makes on matrix units, which want the channels side by side (NHWC).

    Forward, it copies its input. Backward, it copies the gradient of its output, and its input again. A copy
    turns the result back, unless the convolution's kernel has one pixel. Torch's own kernel for channels
    that are convolved alone (depthwise) takes images as they are. The library starts these copies, which the
    host does not notice.
    """
    if op.kind != "conv2d" or _is_depthwise(graph, op):
        return []
    itemsize = graph.tensors[op.writes[0].tensor].itemsize
    read, written = (
        Pass(TURN, 2 * itemsize * graph.tensors[access.tensor].elements * part_of(access, parts), 0)
        for access in (op.reads[0], op.writes[0])
    )
    is_point = math.prod(op.attributes.get("kernel", (1,))) == 1
    if direction == "forward":
        return [read] if is_point else [read, written]
    back = not is_point and has_gradient(graph, op.reads[0])
    return [written, read, read] if back else [written, read]


def _columns(number: float, itemsize: int) -> float:
    """Number of parts of a sum over all rows: one for each column at 16 bits, and two at 32 bits. So a column
    takes as long at 32 bits as at 16."""
    return number * itemsize / NARROW_BYTES


def _steps(kernel: Product | Pass, steps: int) -> list[Kernel]:
    """The same kernel for each time step. The host starts only the first one. The library starts the others,
    which takes the host no time."""
    return [kernel, *(steps - 1) * [replace(kernel, launches=0)]]


def _products(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    product = product_of(graph, op, parts)
    # Of a recurrent layer, only the gradient of the weights is one product for all steps.
    steps = op.attributes.get("steps", 1)
    found = _casts(graph, op, parts, direction) + _turned(graph, op, parts, direction)
    if direction == "forward":
        if op.kind == "conv2d" and len(op.reads) > 2:
            # A kernel of its own adds the bias of each channel.
            written = graph.tensors[op.writes[0].tensor].elements * part_of(op.writes[0], parts)
            found.append(Pass(STRIDED, 2 * NARROW_BYTES * written))
        return [*found, *_steps(replace(product, m=product.m / steps), steps)]
    m, n, k = product.m, product.n, product.k
    if has_gradient(graph, op.reads[0]):
        # The gradient of a convolution's input also sums over the window, and has each pixel once.
        window = math.prod(op.attributes.get("kernel", (1,)))
        found += _steps(replace(product, m=m / steps, n=k / window, k=n * window), steps)
    if has_gradient(graph, op.reads[1]):
        found.append(replace(product, m=k, k=m))
    if len(op.reads) > 2 and has_gradient(graph, op.reads[2]):
        # The gradient of a bias is the sum of the gradient of the output.
        summed = bytes_of(graph, op.writes, parts)
        found.append(
            Pass("elementwise", summed)
            if op.kind == "conv2d"
            else Pass("columns", summed, blocks=_columns(product.n, product.itemsize))
        )
    return found


def _unpacked(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    """The copies of torch's MultiheadAttention, which takes queries, keys and values out of one product.

    Forward, it copies all three, and then the output of attention. Backward, it writes each of the three
    gradients into zeros that have the size of all three. It adds these, and changes the order of their axes.
    """
    made = graph.producer.get(op.reads[0].tensor)
    if made is None or not any(a.tensor.endswith(_PACKED) for a in made.reads):
        return []
    one = bytes_of(graph, op.writes, parts)
    narrow = NARROW_BYTES * one / graph.tensors[op.writes[0].tensor].itemsize
    turned: list[Kernel] = [Pass(STRIDED, 2 * 3 * narrow), Pass(STRIDED, 2 * narrow)]
    if direction == "forward":
        return turned
    zeros, placed = 3 * [Pass("elementwise", 3 * one)], 3 * [Pass("copy", 2 * one)]
    added = 2 * [Pass("elementwise", 9 * one)]
    return [*zeros, *placed, *added, *turned]


def _attention(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    points = math.prod(_sizes(op, parts).values())
    flops = 4 * points * (0.5 if op.attributes.get("causal") else 1.0)
    itemsize = graph.tensors[op.writes[0].tensor].itemsize
    moved = itemsize * sum(
        graph.tensors[access.tensor].elements * part_of(access, parts)
        for access in (*op.reads, *op.writes)
    )
    if direction == "backward":
        # The scores are computed again. Then there are four products (Dao et al. 2022).
        flops, moved = 2.5 * flops, 2 * moved
    cudnn, drops = bool(op.attributes.get("cudnn")), bool(op.attributes.get("dropout"))
    head = op.dim("head_dim").size
    kernel = Attention(flops, moved, direction, cudnn, drops, head)
    return [*_unpacked(graph, op, parts, direction), kernel]


def _lookup(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    written = bytes_of(graph, op.writes, parts)
    if direction == "forward":
        return [Pass("lookup", 2 * written)]
    # A dense gradient is set to zero. Then rows are added to it.
    table = tuple(a for a in op.reads if graph.tensors[a.tensor].role == "parameter")
    return [Pass("elementwise", bytes_of(graph, table, parts)), Pass("lookup", 3 * written)]


def _passes(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    kind = _PASS_OF.get(op.kind, "elementwise")
    if op.kind == "max_pool":
        # The place of each maximum has 8 bytes, and is read in the backward. The threads limit this pass, and
        # not the memory: numbers of 4 bytes take no longer than numbers of 2 bytes.
        read, written = (
            graph.tensors[a.tensor].elements * part_of(a, parts)
            for a in (op.reads[0], op.writes[0])
        )
        return [Pass("max_pool", NARROW_BYTES * (read + written) + _INDEX_BYTES * written)]
    if kind == "elementwise" and promoted_reads(graph, op):
        kind = "mixed"
    if op.attributes.get(STRIDED) and kind in ("elementwise", "copy"):
        kind, size = STRIDED, NARROW_BYTES / graph.tensors[op.writes[0].tensor].itemsize
    else:
        size = 1.0
    launches, blocks, stretch = 1, math.inf, 1.0
    if op.kind == "batch_norm":
        # One of the kernels counts the batches.
        launches = 2
        if graph.tensors[op.writes[0].tensor].itemsize == NARROW_BYTES:
            # At 32 bits the kernel is cuDNN's. At 16 bits it is torch's own, with one block for each channel.
            kind = "narrow_batch_norm" + ("_backward" if direction == "backward" else "")
            launches = 4
            _, channels, *sides = graph.tensors[op.writes[0].tensor].shape
            blocks = channels * (part_of(op.reads[1], parts) if len(op.reads) > 1 else 1.0)
            if sides:
                stretch = max(1.0, _PIXELS_OF_THREADS / math.prod(sides))
    reads, writes = bytes_of(graph, op.reads, parts), bytes_of(graph, op.writes, parts)
    elements = writes / graph.tensors[op.writes[0].tensor].itemsize if op.writes else 0.0
    # If only a part of an axis is taken, only this part is read.
    if KINDS[op.kind] == "copy":
        reads = min(reads, writes)
    elif KINDS[op.kind] == "elementwise" and {d.name for d in op.dims} <= {*op.writes[0].axes}:
        reads = sum(
            min(bytes_of(graph, (a,), parts), elements * graph.tensors[a.tensor].itemsize)
            for a in op.reads
        )
    mask = _MASK_BYTES * elements if op.kind == "dropout" else 0.0
    if steps := op.attributes.get("steps"):
        # The cell of a recurrent layer. The backward reads the states too, and writes gradients.
        moved = (reads + writes) * (1 if direction == "forward" else 2)
        return _steps(Pass(kind, moved / steps), steps)
    if direction == "forward":
        return [Pass(kind, stretch * size * (reads + writes) + mask, launches, blocks)]
    if not any(has_gradient(graph, access) for access in op.reads):
        return []
    passes = _BACKWARD_PASSES.get(op.kind, _OTHER_BACKWARD_PASSES)
    launches = _BACKWARD_LAUNCHES.get(op.kind, 1)
    found: list[Kernel] = (
        [Pass(kind, size * passes * writes + mask, launches, blocks)] if passes else []
    )
    if op.kind == "layer_norm" and len(op.reads) > 1 and has_gradient(graph, op.reads[1]):
        # The gradients of the weights are sums over all rows.
        width = graph.tensors[op.reads[1].tensor].elements * part_of(op.reads[1], parts)
        itemsize = graph.tensors[op.writes[0].tensor].itemsize
        blocks = _columns(width, itemsize)
        if writes / itemsize / width > _MANY_ROWS and width < _FEW_COLUMNS:
            # Torch divides the rows, too.
            blocks = math.inf
        found.append(Pass("norm_columns", _WEIGHT_PASSES * writes, blocks=blocks))
    return found


def _loss(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    """Cross entropy. A fused kernel reads logits, and writes their gradients. Torch's kernels also read and
    write shares, at fp32 or wider. Logits in half precision are cast for them. Losses that are logged take
    torch's forward kernels."""
    logits = op.reads[0]
    itemsize = graph.tensors[logits.tensor].itemsize
    elements = bytes_of(graph, (logits,), parts) / itemsize
    wide = max(4, itemsize)
    cast = itemsize + wide if itemsize < wide else 0
    of_torch = {"forward": 2 * wide + cast, "backward": 3 * wide + cast}
    of_fused = {"forward": itemsize, "backward": 3 * itemsize}
    moved = (of_fused if op.attributes.get("fused") else of_torch)[direction]
    if direction == "forward":
        moved += op.attributes.get("metrics", 0) * of_torch["forward"]
    return [Pass("softmax", moved * elements)]


def kernels_of(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> list[Kernel]:
    """The kernels of a part of an op.

    Args:
        graph: the graph of the op, at the batch and precision in question.
        op: the operator.
        parts: number of parts of each split dim.
        direction: forward; or backward, for the gradients of everything that it reads except network inputs.
    """
    if op.attributes.get("in_next"):
        return []
    own: dict[str, Callable[[OpGraph, Op, Parts, Direction], list[Kernel]]] = {
        "cross_entropy": _loss,
        "attention": _attention,
        "embedding": _lookup,
    }
    usual = _products if KINDS[op.kind] == "matmul" else _passes
    found = own.get(op.kind, usual)(graph, op, parts, direction)
    found += _autocasts(graph, op, parts, direction)
    if direction == "backward":
        found += _added_gradients(graph, op, parts) + _joined(graph, op, parts)
    return found
