"""Multi-head attention as ops: fused into one kernel, or written out with the copies that eager code makes.

Fused (Dao et al. 2022): the scores never reach memory; q, k, v, the output and a logarithm a row are kept.
Eager: scores, scale, mask, softmax, dropout and product with the values are ops of their own, whose tensors
grow with the square of the sequence. A batched product takes contiguous factors, so that Hugging Face's
code copies q, k and v, whose heads lie side by side, and copies the output back.
"""

from typing import Literal

from joulecast.graphs.network_names import TransformerSize
from joulecast.graphs.opgraph import Dim, DimKind, OpGraph
from joulecast.graphs.sheet import FLOAT_BYTES, MASK_BYTES, Axes, Sheet

Attention = Literal["eager", "fused"]
ATTENTIONS: tuple[Attention, ...] = ("eager", "fused")
CORE = "core"
"""Last part of the module path of what selective recomputation computes again (Korthikanti et al. 2022)."""


def attention_of(graph: OpGraph) -> Attention | None:
    """How a graph computes attention; ``None``: it has none."""
    kinds = {op.kind for op in graph.ops}
    return "fused" if "attention" in kinds else "eager" if "matmul" in kinds else None


def _products(sheet: Sheet, module: str, x: str, size: TransformerSize) -> list[str]:
    """Queries, keys and values: GPT in one product, the others in three."""
    narrow = size.hidden // size.heads * size.kv_heads
    widths = {"query": size.hidden, "key": narrow, "value": narrow}
    if size.family == "gpt":
        parts = {f"{module}.{name}": width for name, width in widths.items()}
        sheet.linear(f"{module}.qkv", x, sum(widths.values()), bias=size.bias, parts=parts)
        return list(parts)
    return [
        sheet.linear(f"{module}.{name}", x, width, bias=size.bias) for name, width in widths.items()
    ]


def _rotated(sheet: Sheet, module: str, x: str, size: TransformerSize, how: Attention) -> str:
    """Rotary positions (Su et al. 2021): one kernel, or x cos + (x with halves exchanged) sin."""
    head_dim = size.hidden // size.heads
    if "cos" not in sheet.tensors:
        for table in ("cos", "sin"):
            sheet.tensor(table, (size.sequence, head_dim), "buffer", FLOAT_BYTES)
    cos, sin = (("cos", ("sequence", None)), ("sin", ("sequence", None)))
    if how == "fused":
        return sheet.pointwise("rotary", f"{x}/rotary", x, cos, sin, module=module)
    along = sheet.pointwise("multiply", f"{x}/multiply", x, cos, module=module)
    turned = sheet.pointwise("copy", f"{x}/turned", x, module=module)
    across = sheet.pointwise("multiply", f"{x}/multiply#2", turned, sin, module=module)
    return sheet.pointwise("add", f"{x}/add", along, across, module=module)


def attention(sheet: Sheet, module: str, x: str, size: TransformerSize, how: Attention) -> str:
    """Attention of a block with its products before and after; the name of what it gives."""
    q, k, v = _products(sheet, module, x, size)
    if size.family == "llama":
        q, k = (_rotated(sheet, module, part, size, how) for part in (q, k))
    core = _fused if how == "fused" else _eager
    context = core(sheet, module, (q, k, v), size)
    return sheet.linear(f"{module}.out", context, size.hidden, bias=size.bias)


def _dims(size: TransformerSize) -> dict[str, int]:
    return {
        "batch": 1,
        "heads": size.heads,
        "query": size.sequence,
        "key": size.sequence,
        "head_dim": size.hidden // size.heads,
    }


def _causal(size: TransformerSize) -> bool:
    return size.family not in ("bert", "vit")


def _fused(sheet: Sheet, module: str, qkv: tuple[str, ...], size: TransformerSize) -> str:
    name = f"{module}.{CORE}"
    rows = ("batch", "query", "heads")
    columns = ("batch", "key", "heads")
    shape = {"batch": 1, "sequence": size.sequence, "features": size.hidden}
    return sheet.add(
        "attention",
        name,
        dict(_dims(size)),
        [(qkv[0], rows), (qkv[1], columns), (qkv[2], columns)],
        [(name, rows, shape)],
        causal=_causal(size),
        dropout=size.dropout,
    )


def _contiguous(
    sheet: Sheet, module: str, x: str, axes: tuple[str, ...], size: TransformerSize
) -> str:
    """A copy with the heads in front; where keys have fewer heads, each is repeated for its queries."""
    sizes = _dims(size)
    place = next(axis for axis in axes if axis in ("query", "key"))
    read: Axes = ("batch", place, "heads")
    shape: dict[str, int | Dim] = {axis: sizes[axis] for axis in axes}
    return sheet.add("copy", f"{x}/contiguous", shape, [(x, read)], module=module)


def _masked(sheet: Sheet, core: str, scores: str, size: TransformerSize) -> str:
    """The scores with what must not be seen set to least: causal, or BERT's padding."""
    if size.family == "vit":
        return scores
    axes: Axes = ("query", "key") if _causal(size) else ("key",)
    if "mask" not in sheet.tensors:
        sheet.tensor("mask", [size.sequence] * len(axes), "buffer", MASK_BYTES)
    scores = sheet.pointwise(
        "mask", f"{core}/mask", scores, ("mask", axes), module=core, in_next=True
    )
    if size.family == "opt":
        # Its code also limits them from below.
        scores = sheet.pointwise("mask", f"{core}/mask#2", scores, module=core, in_next=True)
    return scores


def _eager(sheet: Sheet, module: str, qkv: tuple[str, ...], size: TransformerSize) -> str:
    core, sizes = f"{module}.{CORE}", _dims(size)
    q, k, v = qkv
    if size.family == "opt":
        # OPT scales its queries, the others the scores.
        q = sheet.pointwise("scale", f"{module}/scale", q, module=module)
    q = _contiguous(sheet, module, q, ("batch", "heads", "query", "head_dim"), size)
    k = _contiguous(sheet, module, k, ("batch", "heads", "head_dim", "key"), size)
    v = _contiguous(sheet, module, v, ("batch", "heads", "key", "head_dim"), size)
    front = ("batch", "heads", "query")
    dims: dict[str, int | Dim] = dict(sizes)
    dims["head_dim"] = Dim("head_dim", sizes["head_dim"], DimKind.REDUCE)
    scores = sheet.add(
        "matmul",
        f"{core}/scores",
        dims,
        [(q, (*front, "head_dim")), (k, ("batch", "heads", "head_dim", "key"))],
        module=core,
    )
    if size.family != "opt":
        scores = sheet.pointwise("scale", f"{core}/scale", scores, module=core, in_next=True)
    scores = _masked(sheet, core, scores, size)
    shares = sheet.normalised("softmax", f"{core}/softmax", scores, ())
    if size.dropout:
        shares = sheet.pointwise("dropout", f"{core}/dropout", shares, module=core, p=size.dropout)
    dims = dict(sizes)
    dims["key"] = Dim("key", sizes["key"], DimKind.REDUCE)
    context = sheet.add(
        "matmul",
        f"{core}/values",
        dims,
        [(shares, (*front, "key")), (v, ("batch", "heads", "key", "head_dim"))],
        module=core,
    )
    rows = ("batch", "query", "heads")
    shape = {"batch": 1, "sequence": size.sequence, "features": size.hidden}
    return sheet.add(
        "copy",
        f"{module}/contiguous",
        {axis: sizes[axis] for axis in (*front, "head_dim")},
        [(context, (*front, "head_dim"))],
        [(f"{module}/contiguous", rows, shape)],
        module=module,
    )
