"""Makes ops of torch's operators. Each operator has one function here.

A function takes the arguments of the exported node by name (:class:`Call`). Tensors among them are views. It
adds an op to the builder, and returns the view of what the op writes. Some operators change only the view of
a tensor. Their functions only return another view. :data:`OPERATORS` has the functions by aten name.

Torch's schema names the arguments, so this module imports no torch.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs import views
from joulecast.graphs.capture_builder import (
    BATCH,
    OPAQUE,
    OTHER,
    REDUCE,
    TRACED_BATCH,
    Call,
    Groups,
    any_operator,
    bindings,
    copied,
    grown,
    has_batch,
    map_groups,
    rows,
)
from joulecast.graphs.opgraph import Dim
from joulecast.graphs.products import (
    adaptive_avg_pool,
    baddbmm,
    convolution,
    einsum,
    grouped,
    linear,
    matmul,
    pool,
    recurrent,
    recurrent_cell,
)
from joulecast.graphs.views import View, units

Result = View | list[View]


def attention(call: Call) -> View:
    """softmax(q k') v. Its dims are the batch, ``heads`` (OTHER), ``query``, ``head_dim`` and ``key``
    (OPAQUE).

    The dim of the queries is OPAQUE, although each query could be computed alone. In self-attention, queries
    and keys are read from one tensor. A split of the queries would also split the keys, which must be whole.
    """
    q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    first, *merged = units(q.axes[0])
    if len(q.axes) != 4 or (first.batch and merged):
        return _folded_attention(call)
    *front, inner = q.shape
    # In latent attention, the products of the scores are wider than the products of the values.
    width = (inner + v.shape[3]) // 2
    size = dict(zip(("batch", "heads", "query", "head_dim"), (*front, width), strict=True))
    batch, heads, query, head_dim = (
        Dim(name, n, BATCH if name == "batch" else OTHER if name == "heads" else OPAQUE)
        for name, n in size.items()
    )
    reads = [(q, list(zip(q.axes, size, strict=True)))]
    reads += [
        (x, list(zip(x.axes, ("batch", "heads", "key", "head_dim"), strict=True))) for x in (k, v)
    ]
    if mask:
        reads.append(
            (mask, list(zip(mask.axes[::-1], ("key", "query", "heads", "batch"), strict=False)))
        )
    facts: dict[str, Any] = {}
    if k.shape[1] < q.shape[1]:
        facts["grouped" if call["enable_gqa"] else "broadcast"] = True
    if mask:
        facts["masked"] = True
    return call.emit(
        "attention",
        reads,
        [[batch], [heads], [query], [head_dim]],
        (Dim("key", k.shape[2], OPAQUE),),
        (*front, v.shape[3]),
        causal=bool(call["is_causal"]),
        dropout=float(call["dropout_p"]),
        **facts,
    )


def _folded_attention(call: Call) -> View:
    """Attention of tensors whose front axes are not just the batch and the heads. (Windows are an example.)
    All front axes behind the batch are taken as heads. A mask is read whole."""
    mask = call["attn_mask"]
    folded: dict[str, Any] = {}
    if mask:
        folded["attn_mask"] = replace(mask, axes=mask.axes[-2:])
    for name in ("query", "key", "value"):
        x = call[name]
        first = units(x.axes[0])[0]
        batch = first.size if first.batch else x.shape[0]
        shape = (batch, prod(x.shape[:-2]) // batch, *x.shape[-2:])
        folded[name] = views.reshape(x, shape)
    made = attention(replace(call, arguments=call.arguments | folded))
    return views.reshape(made, call.shape)


def _flash_attention(call: Call) -> Result:
    """Attention by the package flash-attn. In its tensors, the sequence comes before the heads."""
    moved = {
        name: views.transpose(call[own], 1, 2)
        for name, own in (("query", "q"), ("key", "k"), ("value", "v"))
    }
    how = {"dropout_p": call["dropout_p"], "is_causal": call["causal"], "enable_gqa": True}
    made = attention(replace(call, arguments=moved | how))
    # The other results are for its own backward.
    return [views.transpose(made, 1, 2)] * len(call.shapes)


def _norm(call: Call, kind: str, written: Groups, along: str, *vectors: str) -> View:
    """A norm that reads vectors along a dim."""
    x = call["input"]
    read = [call[name] for name in ("weight", "bias", *vectors) if call[name]]
    reads = [(x, bindings(x, written)), *((v, [(v.axes[0], along)]) for v in read)]
    return call.emit(kind, reads, written)


def batch_norm(call: Call) -> View:
    """Batch norm. Its dims are the batch, ``channels`` (OTHER), ``h`` and ``w``. It reads running
    statistics."""
    written = map_groups(call["input"].axes)
    return _norm(call, "batch_norm", written, written[1][0].name, "running_mean", "running_var")


def _batch_norm_of_torch_2_5(call: Call) -> Result:
    """Batch norm as torch 2.5 exports it: the operator also returns statistics, which have no op here."""
    return [batch_norm(call)] * len(call.shapes)


def layer_norm(call: Call) -> Result:
    """Layer norm. Its dims are the batch, ``sequence`` (OTHER) and ``features`` (OPAQUE)."""
    x, count = call["input"], len(call["normalized_shape"])
    if count != 1:
        raise JoulecastError("a layer norm over several axes is not known")
    written = [*rows(x.axes[:-1]), [Dim("features", x.shape[-1], OPAQUE)]]
    return _norm(call, "layer_norm", written, "features")


def group_norm(call: Call) -> Result:
    """Group norm, or instance norm. It has the dims of an element-wise op, but no channels may be split."""
    written = map_groups(call["input"].axes)
    written[1] = [replace(dim, kind=OPAQUE) for dim in written[1]]
    return _norm(call, "layer_norm", written, written[1][0].name)


def softmax(call: Call) -> Result:
    """Softmax. It has the dims of an element-wise op, but the dim over which it normalises may not be split
    (OPAQUE)."""
    x = call["self"]
    written = map_groups(x.axes)
    written[call["dim"]] = [replace(dim, kind=OPAQUE) for dim in written[call["dim"]]]
    return call.emit("softmax", [(x, bindings(x, written))], written)


def group_wise(kind: str, **attributes: bool) -> Callable[[Call], Result]:
    """A function that adds an op of this kind, as :func:`.any_operator` does. It is for operators that are
    known to be bound by memory.

    Operators that only move numbers are copies. Their backward does not need these numbers.
    """
    return lambda call: any_operator(call, kind, **attributes)[0]


def summed(call: Call) -> Result:
    """A sum or a mean. If it is over the last axis, as in a norm, the other dims are those of an element-wise
    op."""
    x = call["self"]
    *leading, last = map_groups(x.axes)
    if call["dim"] not in ([-1], [len(leading)]) or any(dim.kind is BATCH for dim in last):
        return any_operator(call, "other", sums=True)[0]
    bound = bindings(x, [*leading, last])
    inner = tuple(replace(dim, kind=OPAQUE) for dim in last)
    written = [*leading, []] if call["keepdim"] else leading
    return call.emit("other", [(x, bound)], written, inner, sums=True)


def elementwise(kind: str, **fixed: str) -> Callable[[Call], Result]:
    """An element-wise op on one or two tensors. :func:`.map_groups` gives its dims.

    ``fixed`` has the name of each attribute, and the argument that gives its value.
    """

    def build(call: Call) -> Result:
        # A tensor without axes is a number.
        operands = [v for v in call.arguments.values() if isinstance(v, View) and v.axes]
        if not operands:
            raise JoulecastError("a function of numbers alone is not known")
        if operands[0].tensor in call.builder.tensors:
            role = call.builder.tensors[operands[0].tensor].role
            if role == "buffer" and call.inplace:  # batch norm counts its batches
                return operands[0]
        whole = [v for v in operands if v.shape == call.shape]
        if whole:
            like = max(whole, key=has_batch)
            written = map_groups(like.axes)
        else:
            written = map_groups(grown(operands))
        if [prod(dim.size for dim in group) for group in written] != list(call.shape):
            raise JoulecastError("operands that give another shape are not known")
        reads = [(v, bindings(v, written)) for v in operands]
        attributes = {name: call[a] for name, a in fixed.items()}
        alone = kind in ("add", "multiply") and len(operands) == 1
        return call.emit("scale" if alone else kind, reads, written, **attributes)

    return build


def converted(call: Call) -> View:
    """A conversion of numbers to another type. It is a copy if the size of the numbers changes.

    Numbers at fp16, bf16 and fp32 have the same size here: the graph is at fp32, and its precision comes
    later. So a conversion to fp32, and the one back, change only what the view says.
    """
    source: View = call["self"]
    if call.builder.tensors[source.tensor].itemsize != call.itemsize:
        return copy(call)
    return replace(source, wide=not source.wide if call.wide is None else call.wide)


def dropout(call: Call) -> Result:
    """Dropout. If nothing is dropped, torch returns its input, so there is no op."""
    if not call["train"] or call["p"] == 0:
        # The operator in place has another name for its input.
        return call["input"] or call["self"]  # type: ignore[no-any-return]
    return elementwise("dropout", p="p")(call)


def concat(call: Call) -> Result:
    """Joins tensors along a dim, which may not be split (OPAQUE). The other dims are those of an element-wise
    op."""
    operands: list[View] = [view for view in call["tensors"] if 0 not in view.shape]
    like = max(operands, key=has_batch)
    axis = (call["dim"] or 0) % len(like.axes)
    written = map_groups(like.axes)
    if any(dim.kind is BATCH for dim in written[axis]):
        # Samples next to other samples, as the two pictures of a pair.
        return any_operator(call, "concat")[0]
    written[axis] = [Dim(written[axis][0].name, call.shape[axis], OPAQUE)]
    return call.emit("concat", [(v, bindings(v, written)) for v in operands], written)


def copy(call: Call) -> View:
    """A copy. It has the same dims as an element-wise op."""
    return copied(call, call["self"])


def embedding(call: Call) -> Result:
    """Embedding. Its dims are the batch, ``sequence`` and ``hidden`` (OTHER), and ``vocab`` (REDUCE): each
    part of the table gives a partial sum."""
    weight, ids = call["weight"], call["indices"]
    vocab, hidden = weight.shape
    leading = rows(ids.axes)
    reads = [
        (ids, bindings(ids, leading)),
        (weight, [(weight.axes[0], "vocab"), (weight.axes[1], "hidden")]),
    ]
    return call.emit(
        "embedding",
        reads,
        [*leading, [Dim("hidden", hidden, OTHER)]],
        (Dim("vocab", vocab, REDUCE),),
    )


def embedding_bag(call: Call) -> Result:
    """The embedding of each index, and the sum of the embeddings in each bag."""
    indices = call["indices"]
    batch, *each = units(indices.axes[0])
    if not batch.batch or batch.size != call.shape[0]:
        raise JoulecastError("bags of different sizes are not known")
    split = replace(indices, axes=tuple(unit.atoms for unit in (batch, *each)))
    rows_of_bags = embedding(replace(call, arguments={**call.arguments, "indices": split}))
    summed = replace(call, arguments={"self": rows_of_bags}, shapes=call.shapes[:1])
    # Its other results are for the backward alone.
    return any_operator(summed, "other", sums=True) * len(call.shapes)


def cross_entropy(call: Call) -> Result:
    """Cross entropy. Its dims are the batch, ``sequence`` (OTHER) and ``classes`` (REDUCE).

    The op writes one value for each sample (and position), and not their mean. Each rank takes the mean of
    its own samples, so nothing is summed over ranks here. If each rank holds a part of the classes, the
    exponentials and the score of the target are summed over the ranks, as in Megatron's parallel loss.
    """
    logits, target = call["self"], call["target"]
    leading = rows(logits.axes[:-1])
    classes = Dim("classes", logits.shape[-1], REDUCE)
    reads = [(logits, bindings(logits, [*leading, [classes]])), (target, bindings(target, leading))]
    return call.emit("cross_entropy", reads, leading, (classes,))


def _reshaped(call: Call) -> Result:
    try:
        seen = views.reshape(call["self"], call.shape)
        if not views.merges_repeats(seen):
            return seen
    except JoulecastError:
        # Axes were merged, and are now cut at another point. Torch copied the numbers when it merged the
        # axes, unless they were stored in this order.
        views.reshape(views.stored(call["self"]), call.shape)
    return views.reshape(copied(call, call["self"]), call.shape)


def _split(call: Call) -> Result:
    axis, start, pieces = call["dim"] or 0, 0, []
    for shape in call.shapes:
        pieces.append(views.narrow(call["self"], axis, start, shape[axis]))
        start += shape[axis]
    return pieces


def _chunk(call: Call) -> Result:
    call.builder.note_parts(call["self"])
    return _split(call)


def _unbind(call: Call) -> Result:
    call.builder.note_parts(call["self"])
    return [views.select(call["self"], call["dim"]) for _ in call.shapes]


def _slice(call: Call) -> Result:
    x, axis = call["self"], call["dim"] or 0
    start = call["start"] or 0
    start += x.shape[axis] if start < 0 else 0
    return views.narrow(x, axis, start, call.shape[axis], call["step"] or 1)


def _expanded(call: Call) -> Result:
    """The view repeated to a larger shape. An axis that is repeated for each sample (for example, of learnt
    queries) follows the batch."""
    return views.expand(call["self"], call.shape, TRACED_BATCH)


def _moved(call: Call) -> Result:
    return replace(converted(call), wide=call["self"].wide)


def _unchanged(call: Call) -> Result:
    return call["self"]  # type: ignore[no-any-return]


OPERATORS: dict[str, Callable[[Call], Result]] = {
    **{
        f"conv{axes}d.{form}": convolution()
        for axes in (1, 2, 3)
        for form in ("default", "padding")
    },
    "conv_transpose1d.default": convolution(transposed=True),
    "conv_transpose2d.input": convolution(transposed=True),
    "conv_transpose3d.input": convolution(transposed=True),
    "_grouped_mm.default": grouped,
    "transformers.grouped_mm_fallback.default": grouped,
    "linear.default": linear,
    "matmul.default": matmul,
    "bmm.default": matmul,
    "mm.default": matmul,
    "addmm.default": matmul,
    "baddbmm.default": baddbmm,
    "einsum.default": einsum,
    **{f"{name}.input": recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{f"{name}_cell.default": recurrent_cell for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "scaled_dot_product_attention.default": attention,
    "flash_attn._flash_attn_forward.default": _flash_attention,
    "batch_norm.default": batch_norm,
    "_native_batch_norm_legit_functional.default": _batch_norm_of_torch_2_5,
    "layer_norm.default": layer_norm,
    "softmax.int": softmax,
    **{
        f"{kind}{axes}d.default": pool(kind)
        for kind in ("max_pool", "avg_pool")
        for axes in (1, 2, 3)
    },
    **{f"adaptive_avg_pool{axes}d.default": adaptive_avg_pool for axes in (1, 2, 3)},
    "relu.default": elementwise("relu"),
    "relu_.default": elementwise("relu"),
    "silu.default": elementwise("silu"),
    "silu_.default": elementwise("silu"),
    **{
        f"{name}.default": elementwise("tanh")
        for name in ("tanh", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal")
    },
    "pow.Tensor_Scalar": elementwise("pow"),
    "neg.default": elementwise("scale"),
    "rsub.Scalar": elementwise("scale"),
    "where.self": elementwise("mask"),
    "where.ScalarOther": elementwise("mask"),
    "masked_fill.Scalar": elementwise("mask"),
    "masked_fill.Tensor": elementwise("mask"),
    "masked_fill_.Scalar": elementwise("mask"),
    **{
        f"{name}.default": elementwise("other")
        for name in (
            *("erf", "sin", "cos", "abs", "log", "relu6"),
            *("hardtanh", "hardswish", "hardsigmoid", "hardtanh_", "hardswish_", "leaky_relu"),
            *("leaky_relu_", "elu", "softplus", "addcmul", "prelu", "square"),
        )
    },
    **{
        f"{name}.{form}": elementwise("other")
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("Scalar", "Tensor")
    },
    "maximum.default": elementwise("other"),
    "minimum.default": elementwise("other"),
    "max.other": elementwise("other"),
    "clamp.default": elementwise("other"),
    "clamp_min.default": elementwise("other"),
    "group_norm.default": group_norm,
    "instance_norm.default": group_norm,
    **{
        f"{name}.default": group_wise("copy")
        for name in ("stack", "pad", "roll", "flip", "repeat", "constant_pad_nd", "gather")
    },
    "index.Tensor": group_wise("copy"),
    **{
        f"upsample_{name}.vec": group_wise("copy")
        for name in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d")
    },
    "mean.dim": summed,
    "sum.dim_IntList": summed,
    "mean.default": group_wise("other", sums=True),
    "sum.default": group_wise("other", sums=True),
    "linalg_vector_norm.default": group_wise("other", sums=True),
    "cumsum.default": group_wise("other", sums=True),
    "amax.default": group_wise("other"),
    "repeat_interleave.self_int": group_wise("copy"),
    "gelu.default": elementwise("gelu", approximate="approximate"),
    "dropout.default": dropout,
    "dropout_.default": dropout,
    "add.Tensor": elementwise("add"),
    "add_.Tensor": elementwise("add"),
    "sub.Tensor": elementwise("add"),
    "sub_.Tensor": elementwise("add"),
    "mul.Tensor": elementwise("multiply"),
    "mul_.Tensor": elementwise("multiply"),
    "div.Tensor": elementwise("multiply"),
    "div_.Tensor": elementwise("multiply"),
    "cat.default": concat,
    "clone.default": copy,
    "to.dtype": converted,
    "to.dtype_layout": converted,
    "to.device": _moved,
    "_to_copy.default": converted,
    "type_as.default": converted,
    "log_softmax.int": softmax,
    "embedding.default": embedding,
    "embedding_bag.padding_idx": embedding_bag,
    "view.default": _reshaped,
    "reshape.default": _reshaped,
    "reshape_as.default": _reshaped,
    "view_as.default": _reshaped,
    "flatten.using_ints": _reshaped,
    "unflatten.int": _reshaped,
    "_unsafe_view.default": _reshaped,
    "unsqueeze.default": _reshaped,
    "squeeze.dim": _reshaped,
    "squeeze.default": _reshaped,
    "permute.default": lambda call: views.permute(call["self"], call["dims"]),
    "transpose.int": lambda call: views.transpose(call["self"], call["dim0"], call["dim1"]),
    "swapaxes.default": lambda call: views.transpose(call["self"], call["axis0"], call["axis1"]),
    "numpy_T.default": lambda call: views.permute(
        call["self"], range(len(call["self"].axes))[::-1]
    ),
    "mT.default": lambda call: views.transpose(call["self"], -2, -1),
    "t.default": lambda call: views.transpose(call["self"], 0, 1),
    "select.int": lambda call: views.select(call["self"], call["dim"]),
    "expand.default": _expanded,
    "expand_as.default": _expanded,
    "broadcast_to.default": _expanded,
    "slice.Tensor": _slice,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "chunk.default": _chunk,
    "tensor_split.indices": _split,
    "tensor_split.sections": _split,
    "unbind.int": _unbind,
    "contiguous.default": _unchanged,
    "alias.default": _unchanged,
    "lift_fresh_copy.default": _unchanged,
    "detach.default": _unchanged,
}
"""Functions by aten name, without its namespace."""
