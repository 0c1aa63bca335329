"""Writes out fused attention: one kernel for each operation, as in eager code of Hugging Face and torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from joulecast.graphs.network_builder import MASK_BYTES, Axes, NetworkBuilder
from joulecast.graphs.opgraph import Access, Dim, DimKind, Op, OpGraph

CORE = "core"
"""Last part of the module path of ops in selective recomputation (Korthikanti et al. 2022)."""
_FRONT = ("batch", "heads", "query")


def write_out_attention(
    graph: OpGraph, fuses: bool = False, only: Callable[[Op], bool] | None = None, **facts: Any
) -> OpGraph:
    """The graph with one op for each operation of its attention.

    Args:
        graph: the graph, for one sample.
        fuses: whether scale and mask run inside the kernel of the softmax.
        only: which attention to write out; by default all.
        facts: attributes of the new ops.
    """
    net = NetworkBuilder(fuses=fuses, tensors=dict(graph.tensors))
    for op in graph.ops:
        if op.kind == "attention" and (only is None or only(op)):
            known = len(net.ops)
            _write_out(net, op)
            net.ops[known:-1] = [
                replace(new, attributes={**new.attributes, **facts}) for new in net.ops[known:-1]
            ]
        else:
            net.ops.append(op)
    return replace(graph, ops=tuple(net.ops), tensors=net.tensors)


def write_out_unfused(graph: OpGraph) -> OpGraph:
    """The graph. Attention is written out if torch has no fused kernel for it.

    Torch has none if the mask is learnt, such as the biases of positions in T5 and Swin, or if keys and
    values are repeated by broadcasting, as in Falcon. In both cases, torch computes attention at 32 bits
    (``_scaled_dot_product_attention_math``).
    """

    def is_unfused(op: Op) -> bool:
        masked = op.attributes.get("masked")
        is_learnt = masked and _is_learnt(graph, op.reads[-1].tensor)
        return bool(op.attributes.get("broadcast") or is_learnt)

    if not any(op.kind == "attention" and is_unfused(op) for op in graph.ops):
        return graph
    return write_out_attention(graph, only=is_unfused, wide=True, math=True)


def _is_learnt(graph: OpGraph, tensor: str) -> bool:
    """Whether a tensor follows from weights."""
    seen, ahead = set(), [tensor]
    while ahead:
        name = ahead.pop()
        if graph.tensors[name].role == "parameter":
            return True
        if name in seen or name not in graph.producer:
            continue
        seen.add(name)
        ahead += [access.tensor for access in graph.producer[name].reads]
    return False


def _write_out(net: NetworkBuilder, op: Op) -> None:
    module = op.module.removesuffix(f".{CORE}")
    core = f"{module}.{CORE}"
    sizes = {dim.name: dim.size for dim in op.dims}
    # Keys and values may be parts of one tensor. The op reads it once.
    first, *others = op.reads[: -1 if op.attributes.get("masked") else None]
    q, k, v = (
        net.add(
            "copy",
            f"{op.name}/{name}",
            {axis: sizes[axis] for axis in axes},
            [(read.tensor, read.axes)],
            module=module,
        )
        for name, read, axes in zip(
            ("q", "k", "v"),
            (first, others[0], others[-1]),
            (
                (*_FRONT, "head_dim"),
                ("batch", "heads", "head_dim", "key"),
                ("batch", "heads", "key", "head_dim"),
            ),
            strict=True,
        )
    )
    scales_queries = op.attributes.get("scales_queries")
    if scales_queries:
        q = net.pointwise("scale", f"{op.name}/scale", q, module=module)
    scores = net.add(
        "matmul",
        f"{op.name}/scores",
        _summed(sizes, "head_dim"),
        [(q, (*_FRONT, "head_dim")), (k, ("batch", "heads", "head_dim", "key"))],
        module=core,
    )
    if not scales_queries:
        scores = net.pointwise("scale", f"{op.name}/scale", scores, module=core, in_next=True)
    scores = _masked(net, core, scores, op)
    shares = net.normalised("softmax", f"{op.name}/softmax", scores, (), core)
    if p := op.attributes.get("dropout"):
        shares = net.pointwise("dropout", f"{op.name}/dropout", shares, module=core, p=p)
    context = net.add(
        "matmul",
        f"{op.name}/values",
        _summed(sizes, "key"),
        [(shares, (*_FRONT, "key")), (v, ("batch", "heads", "key", "head_dim"))],
        module=core,
    )
    axes = (*_FRONT, "head_dim")
    dims = tuple(op.dim(axis) for axis in axes)
    net.ops.append(Op(op.name, "copy", module, dims, (Access(context, axes),), op.writes))


def _summed(sizes: dict[str, int], over: str) -> dict[str, int | Dim]:
    """The dims of a product that sums over one of them."""
    return {**sizes, over: Dim(over, sizes[over], DimKind.REDUCE)}


def _masked(net: NetworkBuilder, core: str, scores: str, op: Op) -> str:
    """The scores after the mask, which sets hidden scores to the least number."""
    given: dict[str, Any] = {"module": core, "in_next": True}
    mask: tuple[str, Axes] | None = None
    if op.attributes.get("masked"):
        mask = op.reads[-1].tensor, op.reads[-1].axes
    elif op.attributes.get("causal") or op.attributes.get("padded"):
        axes = ("query", "key") if op.attributes.get("causal") else ("key",)
        # Encoder and decoder may have other lengths.
        sizes = tuple(op.dim(axis).size for axis in axes)
        name = "mask"
        if name in net.tensors and net.tensors[name].shape != sizes:
            name = f"{op.name}/hidden"
        net.tensor(name, sizes, "buffer", MASK_BYTES)
        mask = name, axes
    if mask is not None:
        scores = net.pointwise("mask", f"{op.name}/mask", scores, mask, **given)
    if op.attributes.get("clamps"):
        scores = net.pointwise("mask", f"{op.name}/mask#2", scores, **given)
    return scores
