"""Operators of torch on feature maps as ops: convolutions and pools."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from joulecast.graphs.builder import BATCH, OPAQUE, OTHER, REDUCE, Call, Groups, bindings
from joulecast.graphs.opgraph import Dim
from joulecast.graphs.views import View, units


def _pair(value: Any, default: Any = None) -> list[int]:
    """Height and width, from torch's one or two numbers."""
    value = default if value is None or value == [] else value
    return list(value) * 2 if len(value) == 1 else list(value)


def _channels_of(call: Call, view: View, name: str) -> Groups:
    """The dims of a feature map that the op writes: batch, ``name``, and rows and columns."""
    n = units(view.axes[0])[0].size
    _, c, h, w = call.shape
    return [
        [Dim("batch", n, BATCH)],
        [Dim(name, c, OTHER)],
        [Dim("h", h, OPAQUE)],
        [Dim("w", w, OPAQUE)],
    ]


def conv2d(call: Call) -> View:
    """Dims n, cout, h, w (of the output), cin REDUCE, k1, k2; cin is OPAQUE where there are groups.

    cin is the input's channels; with groups, each output channel reads only ``cin / groups`` of them.
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
    """A convolution over maps of one row: dims as of :func:`conv2d`, with h and k1 of 1."""
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
    """Dims batch, channels OTHER, h, w of the output, k1, k2."""

    def build(call: Call) -> View:
        kernel = _pair(call["kernel_size"])
        return _pool(call, kind, kernel, _pair(call["stride"], kernel))

    return build


def adaptive_avg_pool(call: Call) -> View:
    """An average pool whose window is what the sizes make of it, rounded up."""
    (h, w), (rows_out, columns_out) = call["self"].shape[2:], call.shape[2:]
    kernel = [ceil(h / rows_out), ceil(w / columns_out)]
    return _pool(call, "avg_pool", kernel, kernel)
