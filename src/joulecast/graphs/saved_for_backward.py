"""What an op's backward needs of its forward: the tensors that it keeps, and what it keeps in addition.

Time and memory share these rules: what is kept is held until the backward, and read there. They are those of
torch's kernels; for a transformer's layer at 16 bit they add up to Korthikanti et al. 2022, section 4.
"""

from dataclasses import dataclass

from joulecast.graphs.opgraph import KINDS, Access, Op, OpGraph

_NOTHING = frozenset(
    ("add", "avg_pool", "timed", "scale", "mask", "rotary", "dropout", "cross_entropy")
)
"""Their gradients need no tensor of the forward, or only what is kept in addition."""
_OUTPUT = frozenset(("relu", "tanh", "softmax"))
"""Their gradients follow from what they wrote."""


def kept_for_backward(graph: OpGraph, op: Op) -> list[Access]:
    """Activations that an op's backward reads."""
    if op.kind == "cross_entropy" and op.attributes.get("fused"):
        return [op.reads[0]]
    if op.kind in _NOTHING or KINDS[op.kind] in ("copy", "lookup"):
        return []
    if op.kind in _OUTPUT:
        return list(op.writes)
    reads = [a for a in op.reads if graph.tensors[a.tensor].role in ("input", "activation")]
    if op.kind == "attention":
        return [*reads, *op.writes]
    if op.kind == "multiply" and len(op.reads) > 1:
        # A factor is needed for the gradient of the others, if they have one.
        return [a for a in reads if any(_has_gradient(graph, b) for b in op.reads if b is not a)]
    return reads


def _has_gradient(graph: OpGraph, access: Access) -> bool:
    return graph.tensors[access.tensor].role in ("activation", "parameter")


@dataclass(frozen=True)
class Beside:
    """Bytes that an op keeps which are no tensor of the graph."""

    access: Access
    """The tensor whose axes they follow."""
    bytes: float


def extra_kept(graph: OpGraph, op: Op) -> Beside | None:
    """What an op keeps that only its own backward reads.

    Dropout: a byte an element; a maximum: its index, 8 bytes; norms: mean and deviation of a row at fp32;
    fused attention: a logarithm a row and head; cross entropy: the shares' logarithms, at fp32 at least, or a
    logarithm a row in a fused kernel.
    """
    written = op.writes[0]
    elements = graph.tensors[written.tensor].elements
    if op.kind == "dropout":
        return Beside(written, elements)
    if op.kind == "max_pool":
        return Beside(written, 8.0 * elements)
    if op.kind in ("layer_norm", "rms_norm"):
        rows = elements / max(1, graph.tensors[written.tensor].shape[-1])
        return Beside(written, (8.0 if op.kind == "layer_norm" else 4.0) * rows)
    if op.kind == "attention":
        return Beside(written, 4.0 * elements / op.dim("head_dim").size)
    if op.kind == "cross_entropy" and op.attributes.get("fused"):
        return Beside(written, 4.0 * elements)
    if op.kind == "cross_entropy":
        logits = graph.tensors[op.reads[0].tensor]
        return Beside(op.reads[0], float(max(4, logits.itemsize) * logits.elements))
    return None
