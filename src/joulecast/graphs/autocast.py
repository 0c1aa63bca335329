"""A network at fp32 under ``torch.autocast``: which ops run at 16 bits, and which casts they need.

The rules come from torch's documentation ("CUDA Ops that can autocast to float16", "to float32", "that
promote to the widest input type"). Products read and write 16 bits. Layer norm, softmax, powers and losses
compute at 32. Every other op has the size of its widest input. A cast is a kernel of its own, and so is the
cast of its gradient.

transformers 5 computes experts with grouped products. These are not on torch's list, and stay at 32 bits.
"""

from dataclasses import replace

from joulecast.graphs.opgraph import KINDS, Access, Op, OpGraph

NARROW_BYTES, WIDE_BYTES = 2, 4
_WIDE = ("layer_norm", "softmax", "pow", "cross_entropy")
_AS_INPUT = ("batch_norm",)
"""Kinds whose output has the size of the input, although they also read wide tensors (statistics)."""
_FLOATS = (NARROW_BYTES, WIDE_BYTES)


def autocast(graph: OpGraph) -> OpGraph:
    """The graph with each tensor at its size under autocast. Weights stay wide."""
    tensors = dict(graph.tensors)
    # What torch's unfused attention computes at 32 bits; a copy gives it the size of its queries.
    math = {a.tensor for op in graph.ops if op.attributes.get("math") for a in op.writes}
    for op in graph.ops:
        if op.attributes.get("math"):
            size = WIDE_BYTES
        elif op.kind == "copy" and op.reads[0].tensor in math:
            size = NARROW_BYTES
        elif KINDS[op.kind] == "matmul":
            size = WIDE_BYTES if _of_experts(op) else NARROW_BYTES
        elif op.kind in _WIDE:
            size = WIDE_BYTES
        else:
            read = op.reads[:1] if op.kind in _AS_INPUT else op.reads
            sizes = [tensors[access.tensor].itemsize for access in read]
            size = max((size for size in sizes if size in _FLOATS), default=WIDE_BYTES)
        for access in op.writes:
            if tensors[access.tensor].itemsize == WIDE_BYTES:
                tensors[access.tensor] = replace(tensors[access.tensor], itemsize=size)
    return replace(graph, tensors=tensors)


def _of_experts(op: Op) -> bool:
    return any(dim.name == "experts" for dim in op.dims)


def cast_reads(graph: OpGraph, op: Op) -> list[Access]:
    """Tensors that autocast casts for an op. A graph at one precision has none.

    The operands of products are cast to 16 bits. The inputs of ops that compute at 32 bits are cast to 32
    bits. The loss makes its casts itself.
    """
    if not op.writes:
        return []
    written = graph.tensors[op.writes[0].tensor].itemsize
    sizes = [(access, graph.tensors[access.tensor].itemsize) for access in op.reads]
    floats = [(access, size) for access, size in sizes if size in _FLOATS]
    if KINDS[op.kind] == "matmul":
        return [access for access, size in floats if size > written == NARROW_BYTES]
    if op.kind in _WIDE and op.kind != "cross_entropy":
        return [access for access, size in floats if size < written]
    return []


def casts_first(graph: OpGraph, op: Op, access: Access) -> bool:
    """Whether the cast of a tensor that an op needs is made for this op, and not for an earlier op.

    A weight and its gradient are cast once a step, for the first op that needs the cast. Everything else is
    cast for each op.
    """
    if graph.tensors[access.tensor].role != "parameter":
        return True
    readers = graph.readers[access.tensor]
    cast = (
        each for each in readers if access.tensor in {a.tensor for a in cast_reads(graph, each)}
    )
    return next(cast) is op


def promoted_reads(graph: OpGraph, op: Op) -> list[Access]:
    """Narrow activations that an op reads together with wide ones. Their gradients are cast."""
    if not op.writes or KINDS[op.kind] == "matmul" or op.kind in _WIDE:
        return []
    written = graph.tensors[op.writes[0].tensor].itemsize
    return [
        access
        for access in op.reads
        if graph.tensors[access.tensor].role == "activation"
        and NARROW_BYTES == graph.tensors[access.tensor].itemsize < written == WIDE_BYTES
    ]


def cast_bytes(graph: OpGraph, access: Access) -> float:
    """Bytes that the cast of a whole tensor reads and writes."""
    return (NARROW_BYTES + WIDE_BYTES) * graph.tensors[access.tensor].elements


def copy_bytes(graph: OpGraph, access: Access) -> float:
    """Bytes of the copy that a cast makes."""
    tensor = graph.tensors[access.tensor]
    return (NARROW_BYTES + WIDE_BYTES - tensor.itemsize) * tensor.elements
