"""Makes a network's graph op by op, for one sample. Tensors have names, and dims have meanings.

:mod:`joulecast.graphs.transformer` uses this module to make networks from numbers. Captures from torch use
:mod:`joulecast.graphs.capture_builder`, which follows views. This module needs no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.graphs.opgraph import Access, Dim, DimKind, Op, OpGraph, Role, Tensor, checked

FLOAT_BYTES = 4
"""Bytes of a number. Graphs are made at fp32; :func:`joulecast.graphs.precision.at_precision` changes it."""
TOKEN_BYTES = 8
"""Bytes of a token id or class label, which have 64 bits in torch."""
MASK_BYTES = 1

KIND_OF = {
    "batch": DimKind.BATCH,
    "sequence": DimKind.OTHER,
    "features": DimKind.OTHER,
    "heads": DimKind.OTHER,
    "experts": DimKind.OTHER,
    "query": DimKind.OPAQUE,
    "key": DimKind.OPAQUE,
    "head_dim": DimKind.OPAQUE,
}
"""Kind of the dim with each name, if an op does not sum over it."""

Axes = tuple[str | None, ...]


@dataclass
class NetworkBuilder:
    """The ops and tensors so far. A method that adds an op returns the name of the op's output."""

    fuses: bool = False
    """Whether short ops run inside the kernel of the next op, as in Megatron's code for half precision."""
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The meaning of each axis of each activation."""

    def tensor(
        self, name: str, shape: Sequence[int], role: Role = "parameter", size: int = FLOAT_BYTES
    ) -> str:
        """Declare a tensor. Returns its name."""
        self.tensors[name] = Tensor(name, tuple(shape), size, role)
        return name

    def shape(self, name: str) -> dict[str, int]:
        """Sizes of an activation's axes, by their meaning."""
        return dict(zip(self.axes[name], self.tensors[name].shape, strict=True))

    def add(
        self,
        kind: str,
        name: str,
        dims: Mapping[str, int | Dim],
        reads: Sequence[tuple[str, Axes]],
        writes: Sequence[tuple[str, Axes, Mapping[str, int]]] = (),
        *,
        module: str | None = None,
        **attributes: Any,
    ) -> str:
        """Add an op.

        Args:
            kind: one of :data:`joulecast.graphs.opgraph.KINDS`.
            name: name of the op.
            dims: sizes by name. A dim whose kind differs from :data:`KIND_OF` is a :class:`Dim`.
            reads: tensors, and the dim that each axis follows.
            writes: tensors, the dim that each axis follows, and the sizes of the axes by their meaning. By
                default, the op writes one tensor, with the op's name and all dims that are not summed over.
            module: the layer of the op. By default, the op is the whole layer.
            attributes: further facts that its cost needs.
        """
        whole = {
            key: size if isinstance(size, Dim) else Dim(key, size, KIND_OF[key])
            for key, size in dims.items()
        }
        if not writes:
            kept = {d.name: d.size for d in whole.values() if d.kind is not DimKind.REDUCE}
            writes = [(name, tuple(kept), kept)]
        for tensor, _, shape in writes:
            self.tensor(tensor, tuple(shape.values()), "activation")
            self.axes[tensor] = tuple(shape)
        self.ops.append(
            Op(
                name,
                kind,
                name if module is None else module,
                tuple(whole.values()),
                tuple(Access(tensor, axes) for tensor, axes in reads),
                tuple(Access(tensor, axes) for tensor, axes, _ in writes),
                attributes,
            )
        )
        return writes[0][0]

    def pointwise(
        self,
        kind: str,
        name: str,
        *operands: str | tuple[str, Axes],
        module: str | None = None,
        in_next: bool = False,
        **attributes: Any,
    ) -> str:
        """Add an element-wise op. The first operand has all axes. The others name their axes.

        With ``in_next``, the op runs in the kernel of the next op, if the builder fuses (``fuses``).
        """
        if in_next and self.fuses:
            attributes["in_next"] = True
        first = operands[0]
        assert isinstance(first, str)
        reads = [(o, self.axes[o]) if isinstance(o, str) else o for o in operands]
        # An operand that is read twice is one access.
        unique = list(dict.fromkeys(reads))
        return self.add(kind, name, self.shape(first), unique, module=module, **attributes)

    def normalised(
        self, kind: str, name: str, x: str, vectors: Sequence[str], module: str | None = None
    ) -> str:
        """Add a norm or softmax over the last axis of ``x``. This axis cannot be split."""
        shape: dict[str, int | Dim] = dict(self.shape(x))
        last = self.axes[x][-1]
        shape[last] = Dim(last, self.shape(x)[last], DimKind.OPAQUE)
        reads: list[tuple[str, Axes]] = [(x, self.axes[x]), *((v, (last,)) for v in vectors)]
        return self.add(kind, name, shape, reads, module=module or name)

    def linear(
        self,
        name: str,
        x: str,
        out: int,
        *,
        bias: bool,
        weight: str | None = None,
        parts: Mapping[str, int] | None = None,
        each: tuple[str, ...] = (),
    ) -> str:
        """Add a linear layer over the last axis of ``x``.

        Args:
            name: name of the layer.
            x: name of its input.
            out: number of features of its output.
            bias: whether it has a bias.
            weight: weight of another layer, if the two layers share it (tied).
            parts: tensors that it writes side by side, with their features (q, k and v of one product).
            each: axes of ``x`` along which every place has its own layer (experts).
        """
        *leading, last = self.axes[x]
        inner = self.shape(x)[last]
        own = tuple(self.shape(x)[axis] for axis in each)
        weight = weight or self.tensor(f"{name}.weight", (*own, out, inner))
        reads: list[tuple[str, Axes]] = [(x, (*leading, "in")), (weight, (*each, "out", "in"))]
        if bias:
            reads.append((self.tensor(f"{name}.bias", (*own, out)), (*each, "out")))
        sizes = {axis: self.shape(x)[axis] for axis in leading}
        dims: dict[str, int | Dim] = {
            **sizes,
            "out": Dim("out", out, DimKind.OTHER),
            "in": Dim("in", inner, DimKind.REDUCE),
        }
        writes = [
            (tensor, (*leading, "out"), {**sizes, "features": features})
            for tensor, features in (parts or {name: out}).items()
        ]
        return self.add("linear", name, dims, reads, writes)

    def embedding(self, name: str, ids: str, rows: int, width: int, sequence: int) -> str:
        """Add an op that looks up rows of a table ``name.weight``, by ``ids`` (batch, sequence)."""
        weight = self.tensor(f"{name}.weight", (rows, width))
        dims: dict[str, int | Dim] = {
            "batch": 1,
            "sequence": sequence,
            "hidden": Dim("hidden", width, DimKind.OTHER),
            "vocab": Dim("vocab", rows, DimKind.REDUCE),
        }
        shape = {"batch": 1, "sequence": sequence, "features": width}
        writes = [(name, ("batch", "sequence", "hidden"), shape)]
        reads: list[tuple[str, Axes]] = [
            (ids, ("batch", "sequence")),
            (weight, ("vocab", "hidden")),
        ]
        return self.add("embedding", name, dims, reads, writes)

    def cross_entropy(self, logits: str, fused: bool, metrics: int) -> str:
        """Add the op that computes the loss of each sample (and position). The last dim of the op is
        ``classes``; the op sums over it."""
        *leading, last = self.axes[logits]
        sizes = {axis: self.shape(logits)[axis] for axis in leading}
        classes = Dim("classes", self.shape(logits)[last], DimKind.REDUCE)
        target = self.tensor("target", tuple(sizes.values()), "input", TOKEN_BYTES)
        dims: dict[str, int | Dim] = {**sizes, "classes": classes}
        reads: list[tuple[str, Axes]] = [(logits, (*leading, "classes")), (target, tuple(leading))]
        more: dict[str, Any] = {"fused": True} if fused else {}
        more |= {"metrics": metrics} if metrics else {}
        return self.add("cross_entropy", "cross_entropy", dims, reads, module="", **more)

    def graph(self, name: str) -> OpGraph:
        """Check the graph, and return it. It is for one sample."""
        return checked(OpGraph(name, tuple(self.ops), self.tensors, 1))
