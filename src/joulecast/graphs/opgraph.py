"""The op graph of a network: its operators, the spaces they iterate over, and the tensors between them.

An op computes one value for each point of its iteration space. Every axis of a tensor that it reads or
writes follows one dim of this space. (It follows none if the op always takes the axis whole.) So if a dim is
split, it is known how the tensors are split. For example, a linear layer ``y[b, o] = x[b, h] w[o, h]`` has
the dims ``b`` (batch), ``o`` (other) and ``h`` (reduce). If ``h`` is split, each part gives a partial sum of
``y``. The same rule holds for the backward op: the gradient of a tensor is summed over each dim that the
tensor does not have. So if the batch is split, the gradients of the weights are partial sums (Duan et al.
2024, section 4).

Views are no ops. If a reshape only renames axes, its readers read the tensor before it. An axis that merges
several dims follows the outermost of them. For example, the hidden axis merges heads and head size.

This module needs no torch.
"""

import json
import math
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, Strict, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.files.writing import written_aside

T = TypeVar("T")


class DimKind(StrEnum):
    """What it means to split a dim."""

    BATCH = "batch"
    """Samples. Tensors with a part for each sample have this dim. Weights do not have it."""
    REDUCE = "reduce"
    """The op sums over this dim. If it is split, each part writes a partial sum."""
    OTHER = "other"
    """Any other dim that may be split: output channels, features, heads, positions."""
    OPAQUE = "opaque"
    """A dim that may not be split: neighbouring values depend on each other (image rows, kernels)."""


MAX_SIZE = 10**12
"""Largest size of a dim."""
_MAX_ELEMENTS = 10**15
_MAX_POINTS = 10**24
"""Largest number of points in an op's iteration space: about 10^10 times that of the largest known op."""

Role = Literal["input", "activation", "parameter", "frozen", "buffer"]


@dataclass(frozen=True)
class Dim:
    """One dim of an op's iteration space."""

    name: str
    size: Annotated[int, Field(ge=1, le=MAX_SIZE)]
    kind: DimKind


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph; ``itemsize`` is the bytes of one element."""

    name: str
    shape: tuple[Annotated[int, Field(ge=0, le=MAX_SIZE)], ...]
    itemsize: Annotated[int, Field(ge=1, le=1024)]
    role: Role
    packed_bytes: Annotated[int, Field(ge=0)] | None = None
    """Size of a quantised weight with its scales."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        whole = self.elements * self.itemsize
        return whole if self.packed_bytes is None else self.packed_bytes

    @property
    def is_weight(self) -> bool:
        """Whether the tensor is a weight, trained or frozen."""
        return self.role in ("parameter", "frozen")


@dataclass(frozen=True)
class Access:
    """A tensor that an op reads or writes, and the dim that each of its axes follows."""

    tensor: str
    axes: tuple[str | None, ...]


@dataclass(frozen=True)
class Op:
    """One operator of the forward pass.

    ``kind`` is a key of :data:`KINDS`. ``module`` is the dotted path of the layer that has the op ("" is the
    network itself). ``attributes`` has what its cost needs in addition to the dims (stride, groups, ...).
    """

    name: str
    kind: str
    module: str
    dims: tuple[Dim, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    attributes: dict[str, Any] = field(default_factory=dict)

    def dim(self, name: str) -> Dim:
        """The dim with this name; ``KeyError`` if there is none."""
        for dim in self.dims:
            if dim.name == name:
                return dim
        raise KeyError(name)


KINDS: dict[str, str] = {
    "conv2d": "matmul",
    "linear": "matmul",
    "matmul": "matmul",
    "attention": "matmul",
    "embedding": "lookup",
    "batch_norm": "normalise",
    "layer_norm": "normalise",
    "rms_norm": "normalise",
    "softmax": "normalise",
    "cross_entropy": "normalise",
    "max_pool": "pool",
    "avg_pool": "pool",
    "relu": "elementwise",
    "gelu": "elementwise",
    "silu": "elementwise",
    # Also sigmoid, exp and roots: their gradient follows from their output.
    "tanh": "elementwise",
    "pow": "elementwise",
    "dropout": "elementwise",
    "add": "elementwise",
    "multiply": "elementwise",
    # Multiplies by a number that is the same for all elements, or adds it.
    "scale": "elementwise",
    # Sets scores that must not be seen to the least number.
    "mask": "elementwise",
    # Rotary positions in one kernel.
    "rotary": "elementwise",
    # An unknown operator of torch. It reads and writes its tensors.
    "other": "elementwise",
    "concat": "copy",
    "copy": "copy",
    # An op with given times (attributes forward_s and backward_s): only the emulated network has such ops.
    "timed": "timed",
}
"""Kinds of ops, and the family of each kind. All kinds of a family have the same cost formula."""


@dataclass(frozen=True)
class OpGraph:
    """A network's forward pass: ops in an order in which they can run, and their tensors by name."""

    name: str
    ops: tuple[Op, ...]
    tensors: dict[str, Tensor]
    batch: int
    """Number of samples in the shapes."""

    @cached_property
    def producer(self) -> dict[str, Op]:
        """The op that writes each activation."""
        return {access.tensor: op for op in self.ops for access in op.writes}

    @cached_property
    def readers(self) -> dict[str, tuple[Op, ...]]:
        """The ops that read each tensor, in order; every tensor is a key."""
        found: dict[str, list[Op]] = {name: [] for name in self.tensors}
        for op in self.ops:
            for name in dict.fromkeys(access.tensor for access in op.reads):
                found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The weights that are trained."""
        return tuple(t for t in self.tensors.values() if t.role == "parameter")

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        """All weights, also those that are frozen, as under LoRA."""
        return tuple(t for t in self.tensors.values() if t.is_weight)

    @cached_property
    def trained(self) -> frozenset[str]:
        """Tensors that have a gradient: parameters, and what depends on them."""
        found = {tensor.name for tensor in self.parameters}
        for op in self.ops:
            if not op.attributes.get("no_grad") and any(a.tensor in found for a in op.reads):
                found |= {access.tensor for access in op.writes}
        return frozenset(found)

    def has_backward(self, op: Op) -> bool:
        """Whether an op has a backward: it reads something that has a gradient, outside of ``no_grad``."""
        return any(a.tensor in self.trained for a in op.reads) and not op.attributes.get("no_grad")

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    def once(self, key: Hashable, work: Callable[[], T]) -> T:
        """The result of some work on the graph. The work is done once for each key."""
        if key not in self._known:
            self._known[key] = work()
        found: T = self._known[key]
        return found

    @cached_property
    def _other_batches(self) -> dict[int, "OpGraph"]:
        return {self.batch: self}

    def with_batch(self, batch: int) -> "OpGraph":
        """The same network for another number of samples."""
        if batch not in self._other_batches:
            self._other_batches[batch] = self._scaled(batch)
        return self._other_batches[batch]

    def _scaled(self, batch: int) -> "OpGraph":
        follows: dict[str, set[int]] = {}
        ops = []
        for op in self.ops:
            batched = {dim.name for dim in op.dims if dim.kind is DimKind.BATCH}
            for access in (*op.reads, *op.writes):
                axes = {i for i, axis in enumerate(access.axes) if axis in batched}
                follows.setdefault(access.tensor, set()).update(axes)
            dims = tuple(
                replace(dim, size=dim.size * batch // self.batch) if dim.name in batched else dim
                for dim in op.dims
            )
            ops.append(replace(op, dims=dims))
        tensors = {
            name: replace(
                tensor,
                shape=tuple(
                    size * batch // self.batch if i in follows.get(name, ()) else size
                    for i, size in enumerate(tensor.shape)
                ),
            )
            for name, tensor in self.tensors.items()
        }
        return replace(self, ops=tuple(ops), tensors=tensors, batch=batch)

    def write(self, path: Path) -> None:
        """Write the graph as JSON, one op and one tensor a line."""
        head = {"name": self.name, "batch": self.batch}
        lines = [json.dumps(head)[:-1] + ', "tensors": [']
        tensors = (
            {k: v for k, v in asdict(t).items() if v is not None} for t in self.tensors.values()
        )
        lines.append(",\n".join(map(json.dumps, tensors)))
        lines.append('], "ops": [')
        lines.append(",\n".join(json.dumps(asdict(op)) for op in self.ops))
        lines.append("]}\n")
        with written_aside(path) as partial:
            partial.write_text("\n".join(lines))


class _Attributes(BaseModel):
    """Attributes that the code computes with. All others are kept unchanged."""

    groups: Annotated[int, Strict(), Field(ge=1, le=MAX_SIZE)] = 1
    steps: Annotated[int, Strict(), Field(ge=1, le=1_000_000)] = 1
    kernel: tuple[Annotated[int, Strict(), Field(ge=1, le=MAX_SIZE)], ...] = ()
    roles: dict[str, Literal["count", "m", "n", "k"]] = {}


_ATTRIBUTES = TypeAdapter(_Attributes)


def _check_op(name: str, op: Op, tensors: dict[str, Tensor]) -> None:
    if op.kind not in KINDS:
        raise JoulecastError(
            f"graph {name}: op `{op.name}` is of the unknown kind `{op.kind}` "
            f"(known: {', '.join(sorted(KINDS))})"
        )
    if not op.writes:
        raise JoulecastError(f"graph {name}: op `{op.name}` writes no tensor")
    validated(_ATTRIBUTES, op.attributes, f"graph {name}: op `{op.name}`: attributes")
    if math.prod(dim.size for dim in op.dims) > _MAX_POINTS:
        raise JoulecastError(f"graph {name}: op `{op.name}` has more than {_MAX_POINTS:g} points")
    sizes = {dim.name: dim.size for dim in op.dims}
    if len(sizes) != len(op.dims):
        raise JoulecastError(f"graph {name}: op `{op.name}` has a dim twice")
    for access in (*op.reads, *op.writes):
        tensor = tensors.get(access.tensor)
        if tensor is None:
            raise JoulecastError(
                f"graph {name}: op `{op.name}` names the unknown tensor `{access.tensor}`"
            )
        if len(access.axes) != len(tensor.shape):
            raise JoulecastError(
                f"graph {name}: op `{op.name}` maps {len(access.axes)} axes of tensor "
                f"`{tensor.name}`, which has {len(tensor.shape)}"
            )
        for axis in access.axes:
            if axis is not None and axis not in sizes:
                raise JoulecastError(
                    f"graph {name}: op `{op.name}` maps an axis of `{tensor.name}` to `{axis}`, "
                    f"which is no dim of it (dims: {', '.join(sizes) or 'none'})"
                )


def checked(graph: OpGraph) -> OpGraph:
    """Check a graph, and return it.

    Raises:
        JoulecastError: the graph has a cycle (or an op stands before an op whose tensor it reads), an unknown
            kind of op, a tensor that is not declared, two writers of a tensor, or axes that do not match. The
            error names the op and the tensor.
    """
    if graph.batch < 1 or not graph.ops:
        raise JoulecastError(f"graph {graph.name}: it needs ops, and a batch above 0")
    for tensor in graph.tensors.values():
        if tensor.elements > _MAX_ELEMENTS:
            raise JoulecastError(
                f"graph {graph.name}: tensor `{tensor.name}` has more than {_MAX_ELEMENTS:g} elements"
            )
    if len({op.name for op in graph.ops}) < len(graph.ops):
        raise JoulecastError(f"graph {graph.name}: two ops have the same name")
    writers: dict[str, str] = {}
    for op in graph.ops:
        _check_op(graph.name, op, graph.tensors)
        for access in op.reads:
            if access.tensor in graph.producer and access.tensor not in writers:
                raise JoulecastError(
                    f"graph {graph.name}: the graph has a cycle or its ops are out of order: op `{op.name}` "
                    f"reads `{access.tensor}` before op `{graph.producer[access.tensor].name}` has written it"
                )
        for access in op.writes:
            if access.tensor in writers:
                raise JoulecastError(
                    f"graph {graph.name}: tensor `{access.tensor}` is written by op "
                    f"`{writers[access.tensor]}` and by op `{op.name}`"
                )
            writers[access.tensor] = op.name
    return graph


class _Content(BaseModel):
    """Content of the file of a graph."""

    name: str
    batch: Annotated[int, Field(ge=1, le=1_000_000_000)]
    tensors: list[Tensor]
    ops: list[Op]


def read_graph(path: Path) -> OpGraph:
    """Read a graph from JSON.

    Raises:
        JoulecastError: the file is missing or has no graph, or :func:`checked` refuses the graph.
    """
    given = read_json_object(path, "op graph")
    if "model_type" in given:
        raise JoulecastError(
            f"{path}: is a configuration from the Hugging Face hub; give it as hf:{path}"
        )
    found = validated(TypeAdapter(_Content), given, f"{path}: is no op graph")
    tensors = {tensor.name: tensor for tensor in found.tensors}
    try:
        return checked(OpGraph(found.name, tuple(found.ops), tensors, found.batch))
    except JoulecastError as error:
        raise JoulecastError(f"{path}: {error}") from None
