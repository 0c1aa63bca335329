"""Makes ops of torch's linear and recurrent layers, matrix products, convolutions and pools."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from string import ascii_letters
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.capture_builder import (
    BATCH,
    OPAQUE,
    OTHER,
    REDUCE,
    Call,
    bindings,
    copied,
    grown,
    map_groups,
    rows,
)
from joulecast.graphs.opgraph import Dim
from joulecast.graphs.views import View, expand, permute, repeats, select, units


def linear_layer(
    call: Call,
    x: View,
    weight: View,
    bias: View | None,
    names: tuple[str, str] = ("out", "in"),
    splits: bool = True,
    **facts: Any,
) -> View:
    """A linear layer. ``names`` says which axis of the weight is ``in`` and which is ``out``. Without
    ``splits``, no dim but the batch may be split."""
    free, summed = (OTHER, REDUCE) if splits else (OPAQUE, OPAQUE)
    leading = rows(x.axes[:-1], free)
    sizes = dict(zip(names, weight.shape, strict=True))
    out, inner = Dim("out", sizes["out"], free), Dim("in", sizes["in"], summed)
    reads = [
        (x, bindings(x, [*leading, [inner]])),
        (weight, list(zip(weight.axes, names, strict=True))),
    ]
    if bias:
        reads.append((bias, [(bias.axes[-1], "out")]))
    return call.emit("linear", reads, [*leading, [out]], (inner,), **facts)


def linear(call: Call) -> View:
    """A linear layer. Its dims are the batch, ``sequence`` and ``out`` (OTHER), and ``in`` (REDUCE)."""
    return linear_layer(call, call["input"], call["weight"], call["bias"])


def matmul(call: Call) -> View:
    """A linear layer if the second factor is a weight. Otherwise the same as :func:`batched`."""
    one, other = call["mat1"] or call["self"], call["mat2"] or call["other"]
    bias = call["self"] if call["mat1"] else None
    if len(other.axes) == 2 and call.builder.tensors[other.tensor].role == "parameter":
        return linear_layer(call, one, other, bias, ("in", "out"))
    return batched(call, one, other, bias)


def batched(call: Call, one: View, other: View, bias: View | None = None) -> View:
    """A product of matrices. Its dims are the batch and all other axes in front, then ``rows``, ``columns``
    and ``inner`` (REDUCE). Axes in front of one factor alone are more rows, or more columns."""
    if min(len(one.axes), len(other.axes)) < 2:
        raise JoulecastError("a product of a matrix and a vector is not known")
    if len(one.axes) > 3:
        # The axes in front become one. For this, torch copies tensors that are repeated.
        one, other = (copied(call, view) if repeats(view) else view for view in (one, other))
    front = rows(grown([replace(view, axes=view.axes[:-2]) for view in (one, other)]))
    row = [
        dim if dim.kind is BATCH else Dim(f"rows{place or ''}", dim.size, OTHER)
        for place, dim in enumerate(rows([one.axes[-2]])[0])
    ]
    column, inner = Dim("columns", other.shape[-1], OTHER), Dim("inner", one.shape[-1], REDUCE)
    reads = [
        (one, bindings(one, [*front, row, [inner]])),
        (other, bindings(other, [*front, [inner], [column]])),
    ]
    if bias:
        reads.append((bias, [(bias.axes[-1], "columns")]))
    alone = "m" if len(other.axes) == 2 else "n" if len(one.axes) == 2 else "count"
    roles = {dim.name: alone for group in front for dim in group}
    roles |= {dim.name: "m" for dim in row} | {"columns": "n", "inner": "k"}
    return call.emit("matmul", reads, [*front, row, [column]], (inner,), roles=roles)


def baddbmm(call: Call) -> View:
    """A batched product, and the addition of a tensor to it."""
    product = batched(call, call["batch1"], call["batch2"])
    written = map_groups(product.axes)
    reads = [(view, bindings(view, written)) for view in (product, call["self"])]
    return call.emit("add", reads, written)


def einsum(call: Call) -> View:
    """An einsum of two tensors. Each letter is a dim. It is REDUCE if the result lacks the letter.

    An einsum of one tensor that sums nothing only turns its axes.
    """
    operands = call["tensors"]
    terms, result = _letters(call["equation"].replace(" ", ""), operands)
    if not result or len(operands) > 2:
        raise JoulecastError(f"a sum over `{call['equation']}` is not known")
    if len(operands) == 1:
        (given,) = terms
        if sorted(given) != sorted(result):
            raise JoulecastError(f"a sum of one tensor over `{call['equation']}` is not known")
        return permute(operands[0], [given.index(letter) for letter in result])
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


def _letters(equation: str, operands: list[View]) -> tuple[list[str], str]:
    """The letters of each operand of an einsum, and of its result. Axes of an ellipsis get letters, too."""
    given, _, result = equation.partition("->")
    spare = "".join(letter for letter in ascii_letters if letter not in equation)
    terms, most = given.split(","), 0
    for place, view in enumerate(operands):
        count = len(view.axes) - len(terms[place].replace("...", ""))
        terms[place] = terms[place].replace("...", spare[-count:] if count else "")
        most = max(most, count)
    return terms, result.replace("...", spare[-most:] if most else "")


def _role(letter: str, terms: list[str], result: str) -> str:
    """The role of a letter of an einsum in the product of matrices that computes it."""
    if letter not in result:
        return "k"
    if letter not in terms[0]:
        return "n"
    return "count" if letter in terms[-1] else "m"


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
    of_expert = Dim("in", inner, REDUCE)
    spread = [
        *leading,
        Dim("experts", experts, OTHER),
        Dim("sequence", tokens.size // experts, OTHER),
    ]
    reads = [
        (x, bindings(x, [spread, [of_expert]])),
        (weight, list(zip(weight.axes, ("experts", "in", "out"), strict=True))),
    ]
    return call.emit("linear", reads, [spread, [Dim("out", out, OTHER)]], (of_expert,))


_PLACES, _WINDOW = ("d", "h", "w"), ("k0", "k1", "k2")
"""Names of the dims of a map and of a window with three axes. With fewer axes, the last names are used."""


def _sides(value: Any, axes: int) -> list[int]:
    """A list with one number for each axis. ``value`` is torch's: one number for all axes, or one for
    each."""
    return list(value) * axes if len(value) == 1 else list(value)


def convolution(transposed: bool = False) -> Callable[[Call], View]:
    """A convolution over maps of one to three axes.

    Its dims are ``n``, ``cout``, the output's places ``d``, ``h``, ``w``, then ``cin`` (REDUCE), and the
    window ``k0``, ``k1``, ``k2``. ``cin`` is the input's channels. With groups, it is OPAQUE, and each output
    channel reads ``cin / groups``. A transposed convolution has the places of its input, because each of them
    meets the whole window.
    """

    def build(call: Call) -> View:
        x, weight, bias, groups = call["input"], call["weight"], call["bias"], call["groups"]
        kernel = weight.shape[2:]
        axes = len(kernel)
        places, window = _PLACES[-axes:], _WINDOW[-axes:]
        sizes = (x.shape if transposed else call.shape)[2:]
        # What is merged with the batch: pictures of a film, for example.
        samples = [
            replace(dim, name="n") if dim.kind is BATCH else dim for dim in rows(x.axes[:1])[0]
        ]
        written = [
            samples,
            [Dim("cout", call.shape[1], OTHER)],
            *([Dim(name, size, OPAQUE)] for name, size in zip(places, sizes, strict=True)),
        ]
        inner = (
            Dim("cin", x.shape[1], REDUCE if groups == 1 else OPAQUE),
            *(Dim(name, size, OPAQUE) for name, size in zip(window, kernel, strict=True)),
        )
        channels = ("cin", "cout") if transposed else ("cout", "cin")
        reads = [
            (
                x,
                [
                    *bindings(View(x.tensor, x.axes[:1]), [samples]),
                    *zip(x.axes[1:], ("cin", *places), strict=True),
                ],
            ),
            (weight, list(zip(weight.axes, (*channels, *window), strict=True))),
        ]
        if bias:
            reads.append((bias, [(bias.axes[0], "cout")]))
        dilation = _sides(call["dilation"], axes)
        return call.emit(
            "conv2d",
            reads,
            written,
            inner,
            shape=[*(dim.size for dim in samples), *call.shape[1:]],
            kernel=list(kernel),
            stride=_sides(call["stride"], axes),
            **({} if dilation == [1] * axes else {"dilation": dilation}),
            groups=groups,
        )

    return build


def _pool(call: Call, kind: str, kernel: list[int], stride: list[int]) -> View:
    x = call["self"]
    sizes = call.shape[2:]
    written = [
        rows(x.axes[:1])[0],
        [Dim("channels", call.shape[1], OTHER)],
        *([Dim(n, size, OPAQUE)] for n, size in zip(_PLACES[-len(sizes) :], sizes, strict=True)),
    ]
    inner = (Dim(n, size, OPAQUE) for n, size in zip(_WINDOW[-len(sizes) :], kernel, strict=True))
    return call.emit(
        kind, [(x, bindings(x, written))], written, tuple(inner), kernel=kernel, stride=stride
    )


def pool(kind: str) -> Callable[[Call], View]:
    """A pool. Its dims are the batch, ``channels`` (OTHER), the output's places, and the window."""

    def build(call: Call) -> View:
        axes = len(call.shape) - 2
        kernel = _sides(call["kernel_size"], axes)
        return _pool(call, kind, kernel, _sides(call["stride"] or kernel, axes))

    return build


def adaptive_avg_pool(call: Call) -> View:
    """An average pool. Its window has the size of the input over the size of the output, rounded up."""
    sizes = zip(call["self"].shape[2:], call.shape[2:], strict=True)
    kernel = [ceil(inner / outer) for inner, outer in sizes]
    return _pool(call, "avg_pool", kernel, kernel)


def _direction(call: Call, x: View, weights: list[View], steps: int) -> View:
    """Add one recurrent layer in one direction. ``weights`` are, in order: the weights of the inputs, the
    weights of the hidden states, and the biases."""
    of_input, of_hidden, *biases = weights
    of_inputs = linear_layer(call, x, of_input, biases[0] if biases else None, splits=False)
    of_states = linear_layer(
        call, of_inputs, of_hidden, biases[1] if biases else None, splits=False, steps=steps
    )
    leading = rows(x.axes[:-1], OPAQUE)
    states = [(v, bindings(View(v.tensor, v.axes[:-1]), leading)) for v in (of_inputs, of_states)]
    written = [*leading, [Dim("hidden", of_hidden.shape[1], OPAQUE)]]
    return call.emit("other", states, written, steps=steps)


def recurrent(call: Call) -> list[View]:
    """A stack of recurrent layers: LSTM, GRU or Elman's RNN. The last states are a view of the states of all
    steps.

    Each layer has three ops in each direction. The product of the inputs with their weights is one for all
    time steps, as in cuDNN. The product of the hidden states with their weights, and the cell, have one
    kernel for each step (attribute ``steps``), and each waits for the one before. In truth, the
    product of the hidden states reads the states that the cell writes. That would be a cycle, and a graph has
    none. So here it reads the product of the inputs.
    """
    x, directions, layers = call["input"], 1 + call["bidirectional"], call["num_layers"]
    each = 4 if call["has_biases"] else 2
    weights: list[View] = call["params"]
    if len(x.axes) != 3 or len(weights) != each * directions * layers:
        raise JoulecastError(
            "a recurrent layer without a batch, or with a projection, is not known"
        )
    time = 1 if call["batch_first"] else 0
    for layer in range(layers):
        if layer and call["train"] and call["dropout"]:
            written = map_groups(x.axes)
            x = call.emit("dropout", [(x, bindings(x, written))], written, p=call["dropout"])
        states = []
        for _ in range(directions):
            states.append(_direction(call, x, weights[:each], x.shape[time]))
            weights = weights[each:]
        x = states[0]
        if directions > 1:
            written = [*rows(x.axes[:-1]), [Dim("features", 2 * x.shape[-1], OPAQUE)]]
            reads = [(v, [*bindings(View(v.tensor, v.axes[:-1]), written[:-1])]) for v in states]
            x = call.emit("concat", reads, written)
    last = [expand(select(states[0], time), shape) for shape in call.shapes[1:]]
    return [x, *last]


def recurrent_cell(call: Call) -> list[View]:
    """One time step of a recurrent layer, as LSTMCell has it: the products of inputs and of hidden states,
    and an op for each state that the cell writes."""
    x, held = call["input"], call["hx"]
    hidden, *others = held if isinstance(held, list) else [held]
    of_inputs = linear_layer(call, x, call["w_ih"], call["b_ih"])
    of_states = linear_layer(call, hidden, call["w_hh"], call["b_hh"])
    leading = rows(x.axes[:-1])
    written = [*leading, [Dim("hidden", call.shape[-1], OPAQUE)]]
    reads = [
        (v, bindings(View(v.tensor, v.axes[:-1]), leading)) for v in (of_inputs, *others, of_states)
    ]
    return [call.emit("other", reads, written, steps=1) for _ in call.shapes]
