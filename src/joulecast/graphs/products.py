"""Makes ops of torch's linear layers, matrix products, convolutions and pools."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.capture_builder import (
    BATCH,
    OPAQUE,
    OTHER,
    REDUCE,
    Call,
    Groups,
    bindings,
    map_groups,
    rows,
)
from joulecast.graphs.opgraph import Dim
from joulecast.graphs.views import View, units


def _layer(call: Call, x: View, weight: View, bias: View | None, names: tuple[str, str]) -> View:
    """A linear layer. ``names`` says which axis of the weight is ``in`` and which is ``out``."""
    leading = rows(x.axes[:-1])
    sizes = dict(zip(names, weight.shape, strict=True))
    reads = [
        (x, [*bindings(View(x.tensor, x.axes[:-1]), leading), (x.axes[-1], "in")]),
        (weight, list(zip(weight.axes, names, strict=True))),
    ]
    if bias:
        reads.append((bias, [(bias.axes[-1], "out")]))
    return call.emit(
        "linear",
        reads,
        [*leading, [Dim("out", sizes["out"], OTHER)]],
        (Dim("in", sizes["in"], REDUCE),),
    )


def linear(call: Call) -> View:
    """A linear layer. Its dims are the batch, ``sequence`` and ``out`` (OTHER), and ``in`` (REDUCE)."""
    return _layer(call, call["input"], call["weight"], call["bias"], ("out", "in"))


def matmul(call: Call) -> View:
    """A linear layer if the second factor is a weight. Otherwise the same as :func:`batched`."""
    one, other = call["mat1"] or call["self"], call["mat2"] or call["other"]
    bias = call["self"] if call["mat1"] else None
    if len(other.axes) == 2 and call.builder.tensors[other.tensor].role == "parameter":
        return _layer(call, one, other, bias, ("in", "out"))
    return batched(call, one, other, bias)


def batched(call: Call, one: View, other: View, bias: View | None = None) -> View:
    """A product of matrices. Its dims are the batch and all other axes in front, which both factors have,
    then ``rows``, ``columns`` and ``inner`` (REDUCE)."""
    if len(one.axes) != len(other.axes) or len(one.axes) < 2:
        raise JoulecastError("a product of matrices with different axes in front is not known")
    front = rows(one.axes[:-2])
    row = rows([one.axes[-2]])[0]
    if len(row) > 1 and front:
        raise JoulecastError("a product of matrices whose rows merge axes is not known")
    row = [dim if dim.kind is BATCH else Dim("rows", dim.size, OTHER) for dim in row]
    column, inner = Dim("columns", other.shape[-1], OTHER), Dim("inner", one.shape[-1], REDUCE)
    reads = [
        (one, [*bindings(View(one.tensor, one.axes[:-1]), [*front, row]), (one.axes[-1], "inner")]),
        (
            other,
            [
                *bindings(View(other.tensor, other.axes[:-2]), front),
                (other.axes[-2], "inner"),
                (other.axes[-1], "columns"),
            ],
        ),
    ]
    if bias:
        reads.append((bias, [(bias.axes[-1], "columns")]))
    roles = {dim.name: "count" for group in front for dim in group}
    roles |= {dim.name: "m" for dim in row} | {"columns": "n", "inner": "k"}
    return call.emit("matmul", reads, [*front, row, [column]], (inner,), roles=roles)


def baddbmm(call: Call) -> View:
    """A batched product, and the addition of a tensor to it."""
    product = batched(call, call["batch1"], call["batch2"])
    written = map_groups(product.axes)
    reads = [(view, bindings(view, written)) for view in (product, call["self"])]
    return call.emit("add", reads, written)


def einsum(call: Call) -> View:
    """An einsum of one or two tensors. Each letter is a dim. It is REDUCE if the result lacks the letter."""
    equation, operands = call["equation"].replace(" ", ""), call["tensors"]
    given, _, result = equation.partition("->")
    terms = given.split(",")
    if "..." in equation or not result or len(operands) > 2:
        raise JoulecastError(f"a sum over `{equation}` is not known")
    dims: dict[str, Dim] = {}
    for term, view in zip(terms, operands, strict=True):
        for letter, axis, size in zip(term, view.axes, view.shape, strict=True):
            found = units(axis)
            if len(found) > 1:
                raise JoulecastError("a sum over axes that are merged with the batch is not known")
            kind = OPAQUE if letter in result else REDUCE
            if found[0].batch:
                dims[letter] = Dim("batch", size, BATCH)
            elif dims.get(letter, Dim("", 1, kind)).size == 1:
                dims[letter] = Dim(letter, size, kind)
    reads = [
        (view, [(axis, dims[letter].name) for letter, axis in zip(term, view.axes, strict=True)])
        for term, view in zip(terms, operands, strict=True)
    ]
    inner = tuple(dim for letter, dim in dims.items() if letter not in result)
    roles = {dim.name: _role(letter, terms, result) for letter, dim in dims.items()}
    return call.emit("matmul", reads, [[dims[letter]] for letter in result], inner, roles=roles)


def _role(letter: str, terms: list[str], result: str) -> str:
    """The role of a letter of an einsum in the product of matrices that computes it."""
    if letter not in result:
        return "k"
    if letter not in terms[0]:
        return "n"
    return "count" if letter in terms[-1] and len(terms) > 1 else "m"


def grouped(call: Call) -> View:
    """A product for each expert of a mixture. The tokens of each expert stand together.

    Its dims are the batch, ``experts``, ``sequence`` and ``out`` (OTHER), and ``in`` (REDUCE). The sequence
    has the tokens of one expert. All experts have the same number of tokens.
    """
    x, weight = call["input"] or call["self"], call["weight"] or call["mat2"]
    experts, inner, out = weight.shape
    *leading, tokens = rows(x.axes[:1])[0]
    if tokens.kind is BATCH or tokens.size % experts or len(x.axes) != 2:
        raise JoulecastError("experts among which tokens cannot be spread evenly are not known")
    spread = [
        *leading,
        Dim("experts", experts, OTHER),
        Dim("sequence", tokens.size // experts, OTHER),
    ]
    reads = [
        (x, [*bindings(View(x.tensor, x.axes[:1]), [spread]), (x.axes[1], "in")]),
        (weight, list(zip(weight.axes, ("experts", "in", "out"), strict=True))),
    ]
    written = [spread, [Dim("out", out, OTHER)]]
    return call.emit("linear", reads, written, (Dim("in", inner, REDUCE),))


def _pair(value: Any, default: Any = None) -> list[int]:
    """Height and width, from torch's one or two numbers."""
    value = default if value is None or value == [] else value
    return list(value) * 2 if len(value) == 1 else list(value)


def _channels_of(call: Call, view: View, name: str) -> Groups:
    """The dims of a feature map that the op writes: batch, ``name``, rows and columns."""
    n = units(view.axes[0])[0].size
    _, c, h, w = call.shape
    return [
        [Dim("batch", n, BATCH)],
        [Dim(name, c, OTHER)],
        [Dim("h", h, OPAQUE)],
        [Dim("w", w, OPAQUE)],
    ]


def conv2d(call: Call) -> View:
    """A convolution. Its dims are ``n``, ``cout``, ``h``, ``w`` of the output, ``cin`` (REDUCE), ``k1``,
    ``k2``.

    ``cin`` is the input's channels. With groups, it is OPAQUE, and each output channel reads
    ``cin / groups``.
    """
    x, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"]
    _, cin, *kernel = call.builder.tensors[weight.tensor].shape
    written = _channels_of(call, x, "cout")
    written[0] = [replace(written[0][0], name="n")]
    inner = (
        Dim("cin", cin * groups, REDUCE if groups == 1 else OPAQUE),
        Dim("k1", kernel[0], OPAQUE),
        Dim("k2", kernel[1], OPAQUE),
    )
    names = ["n", "cin", "h", "w"]
    reads = [(x, list(zip(x.axes, names, strict=True)))]
    names = ["cout", "cin", "k1", "k2"]
    reads.append((weight, list(zip(weight.axes, names, strict=True))))
    if bias:
        reads.append((bias, [(bias.axes[0], "cout")]))
    return call.emit(
        "conv2d",
        reads,
        written,
        inner,
        kernel=kernel,
        stride=_pair(call["stride"]),
        **({} if _pair(call["dilation"]) == [1, 1] else {"dilation": _pair(call["dilation"])}),
        groups=groups,
    )


def conv1d(call: Call) -> View:
    """A convolution over maps of one row. It has the dims of :func:`conv2d`. ``h`` and ``k1`` are 1."""
    x, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"]
    _, cin, kernel = weight.shape
    n, cout, length = call.shape
    one = Dim("h", 1, OPAQUE)
    inner = (
        Dim("cin", cin * groups, REDUCE if groups == 1 else OPAQUE),
        Dim("k1", 1, OPAQUE),
        Dim("k2", kernel, OPAQUE),
    )
    reads = [
        (x, list(zip(x.axes, ("n", "cin", "w"), strict=True))),
        (weight, list(zip(weight.axes, ("cout", "cin", "k2"), strict=True))),
    ]
    if bias:
        reads.append((bias, [(bias.axes[0], "cout")]))
    written = [[Dim("n", n, BATCH)], [Dim("cout", cout, OTHER)], [one, Dim("w", length, OPAQUE)]]
    stride = [1, _pair(call["stride"])[-1]]
    return call.emit(
        "conv2d", reads, written, inner, kernel=[1, kernel], stride=stride, groups=groups
    )


def _pool(call: Call, kind: str, kernel: list[int], stride: list[int]) -> View:
    x = call["self"]
    written = _channels_of(call, x, "channels")
    inner = (Dim("k1", kernel[0], OPAQUE), Dim("k2", kernel[1], OPAQUE))
    return call.emit(
        kind, [(x, bindings(x, written))], written, inner, kernel=kernel, stride=stride
    )


def pool(kind: str) -> Callable[[Call], View]:
    """A pool. Its dims are the batch, ``channels`` (OTHER), ``h``, ``w`` of the output, ``k1``, ``k2``."""

    def build(call: Call) -> View:
        kernel = _pair(call["kernel_size"])
        return _pool(call, kind, kernel, _pair(call["stride"], kernel))

    return build


def adaptive_avg_pool(call: Call) -> View:
    """An average pool. Its window has the size of the input over the size of the output, rounded up."""
    (h, w), (rows_out, columns_out) = call["self"].shape[2:], call.shape[2:]
    kernel = [ceil(h / rows_out), ceil(w / columns_out)]
    return _pool(call, "avg_pool", kernel, kernel)
