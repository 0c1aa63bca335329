"""Builds the op graph of a capture: names ops, makes their dims, and follows axes from views to tensors.

:mod:`joulecast.graphs.aten` knows what each operator does, and uses this module. An unknown operator of torch
becomes an op that reads its tensors and writes its results (:func:`any_operator`). So no operator ends a
capture. The cost of an unknown operator is only its memory traffic. Networks are traced with a number of
samples that is no usual size. So an axis of this size follows the batch. All other axes of an unknown
operator are taken whole. Tensors that depend on no input, parameter or activation (positions, masks) are
buffers, because frameworks make them only once, or very fast. This module needs no torch.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulecast.graphs.kernels import STRIDED
from joulecast.graphs.opgraph import KINDS, Access, Dim, DimKind, Op, Role, Tensor
from joulecast.graphs.views import Atom, Axis, Unit, View, regroup, units

BATCH, REDUCE, OTHER, OPAQUE = DimKind.BATCH, DimKind.REDUCE, DimKind.OTHER, DimKind.OPAQUE

Binding = tuple[Axis, str]
"""Atoms of an axis of a view (outermost first), and the name of their dim."""
Groups = list[list[Dim]]
"""The dims that each axis of a view merges."""


def unit_dim(unit: Unit, name: str, kind: DimKind) -> Dim:
    """The dim for a unit, which is a piece of an axis. A unit of the batch always gets the name ``batch``."""
    return Dim("batch", unit.size, BATCH) if unit.batch else Dim(name, unit.size, kind)


def rows(axes: Iterable[Axis], kind: DimKind = OTHER) -> Groups:
    """The dims of the axes in front of the last one: ``batch``, ``sequence``, ``axis2``, ``axis3``, ..."""
    groups: Groups = []
    others = 0
    for axis in axes:
        group = []
        for unit in units(axis):
            if not unit.batch:
                others += 1
            group.append(unit_dim(unit, "sequence" if others == 1 else f"axis{others}", kind))
        groups.append(group)
    return groups


def map_groups(axes: Sequence[Axis]) -> Groups:
    """For an element-wise op: the dims that are merged in each axis of a view.

    A feature map has ``batch``, ``channels``, ``h`` and ``w``. ``h`` and ``w`` may not be split. Any other
    tensor has ``batch``, ``sequence`` and ``features``.
    """
    found = [units(axis) for axis in axes]
    spatial = any(u.spatial for axis in found for u in axis)
    plain = sum(not u.batch and not u.spatial for axis in found for u in axis)
    names = ["channels"] if spatial else ["sequence"] * (plain > 1)
    names += [f"axis{i}" for i in range(len(names) + 1, plain + spatial)]
    names += [] if spatial else ["features"]
    spatials = ["h", "w", *(f"space{i}" for i in range(3, 9))]
    return [
        [
            unit_dim(u, spatials.pop(0), OPAQUE)
            if u.spatial
            else unit_dim(u, "" if u.batch else names.pop(0), OTHER)
            for u in axis
        ]
        for axis in found
    ]


def bindings(view: View, groups: Groups) -> list[Binding]:
    """The dim of each atom of a view. Axes of size 1 are broadcast and have no dim."""
    found: list[Binding] = []
    offset = len(groups) - len(view.axes)
    for axis, group in zip(view.axes, groups[offset:], strict=True):
        broadcast = not any(leaf.size > 1 for atom in axis for leaf in atom.leaves())
        if len(group) == 1 and (group[0].size == 1 or not broadcast):
            found.append((axis, group[0].name))
        elif not broadcast:
            pieces = regroup(axis, [dim.size for dim in group])
            found += [(piece, dim.name) for piece, dim in zip(pieces, group, strict=True)]
    return found


def grown(operands: Sequence[View]) -> list[Axis]:
    """The axes of a result of operands that are broadcast: axes of size 1 grow to the size of the others."""
    count = max(len(view.axes) for view in operands)
    axes: list[Axis] = [()] * count
    for view in operands:
        for place, axis in enumerate(view.axes, count - len(view.axes)):
            if not any(leaf.size > 1 for atom in axes[place] for leaf in atom.leaves()):
                axes[place] = axis
    return axes


class Builder:
    """The graph while it is built."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.tensors: dict[str, Tensor] = {}
        self._atoms: dict[str, tuple[Atom, ...]] = {}
        self._names: dict[str, int] = {}

    def add_tensor(
        self,
        name: str,
        shape: Sequence[int],
        itemsize: int,
        role: Role,
        batch: Sequence[int] = (),
        spatial: Sequence[int] = (),
    ) -> View:
        """Declare a tensor, with the numbers of its batch axes and of its spatial axes. Returns its view."""
        atoms = tuple(Atom(n, i in batch, i in spatial) for i, n in enumerate(shape))
        self.tensors[name] = Tensor(name, tuple(shape), itemsize, role)
        self._atoms[name] = atoms
        return View(name, tuple((atom,) for atom in atoms))

    def note_parts(self, view: View) -> None:
        """Note that a view is taken apart, so that the backward joins the gradients of its parts."""
        stored = [leaf for atom in self._atoms[view.tensor] for leaf in atom.leaves()]
        seen = [leaf for axis in view.leaves() for leaf in axis]
        joins = "plain" if seen == [leaf for leaf in stored if leaf in seen] else "turned"
        for place, op in enumerate(self.ops):
            if op.name == view.tensor:
                self.ops[place] = replace(op, attributes={**op.attributes, "joins": joins})

    def _unused(self, module: str, kind: str, leaf: bool) -> str:
        name = module if leaf else f"{module}/{kind}" if module else kind
        self._names[name] = count = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    def access(self, view: View, bound: list[Binding], dims: dict[str, Dim]) -> Access:
        """The access to the tensor of a view. An axis of the tensor may hold several dims: it follows the
        outermost one that can be split."""
        names: dict[Atom, str] = {}
        for axis, name in bound:
            outermost = [leaf for atom in axis for leaf in atom.leaves()]
            big = [leaf for leaf in outermost if leaf.size > 1] or outermost
            if big:
                names[big[0]] = name
        axes: list[str | None] = []
        for atom in self._atoms[view.tensor]:
            inside = [names[part] for part in atom.family() if part in names]
            splittable = [name for name in inside if dims[name].kind is not OPAQUE]
            axes.append(next(iter(splittable or inside), None))
        return Access(view.tensor, tuple(axes))

    def add_op(
        self,
        call: "Call",
        kind: str,
        reads: list[tuple[View, list[Binding]]],
        writes: Groups,
        inner: Sequence[Dim],
        shape: Sequence[int] | None,
        attributes: dict[str, Any],
    ) -> View:
        """Add an op. Its dims are the dims of its output, and then ``inner``. Returns the view of the output.

        The output has the sizes of its dims, unless ``shape`` gives others.
        """
        written = [dim for group in writes for dim in group]
        dims = {dim.name: dim for dim in (*written, *inner)}
        name = self._unused(call.module, kind, call.leaf)
        accesses = [self.access(view, bound, dims) for view, bound in reads]
        if kind != "matmul":
            # Both factors of a product count, also if they are one tensor.
            accesses = list(dict.fromkeys(accesses))
        self.add_tensor(
            name,
            shape or [dim.size for dim in written],
            call.itemsize,
            "activation",
            batch=[i for i, dim in enumerate(written) if dim.kind is BATCH],
            spatial=[i for i, dim in enumerate(written) if dim.name in ("d", "h", "w")],
        )
        self.ops.append(
            Op(
                name=name,
                kind=kind,
                module=call.module,
                dims=tuple(dims.values()),
                reads=tuple(accesses),
                writes=(Access(name, tuple(dim.name for dim in written)),),
                attributes=attributes,
            )
        )
        atoms = iter(self._atoms[name])
        return View(name, tuple(tuple(next(atoms) for _ in group) for group in writes))


@dataclass
class Call:
    """One call of an operator in the exported graph."""

    builder: Builder
    arguments: dict[str, Any]
    """Arguments, by their names in the operator's schema. Tensors are :class:`View`."""
    shape: tuple[int, ...]
    """Shape of the first result."""
    itemsize: int
    shapes: list[tuple[int, ...]]
    """Shapes of all results."""
    module: str
    leaf: bool
    """Whether the op is the only one of its module, and has the module's name."""
    inplace: bool = False
    wide: bool | None = None
    """Whether the results have 4 bytes in a module at 16 bits; ``None`` if the module has 32 bits."""
    strided: bool = False
    """Whether the operands of an element-wise operation lie in memory in different orders."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def emit(
        self,
        kind: str,
        reads: list[tuple[View, list[Binding]]],
        writes: Groups,
        inner: tuple[Dim, ...] = (),
        shape: Sequence[int] | None = None,
        **attributes: Any,
    ) -> View:
        """Add an op of this kind. Returns the view that it writes."""
        if self.inplace:
            attributes["inplace"] = True
        if self.strided and KINDS[kind] in ("elementwise", "copy"):
            attributes[STRIDED] = True
        tensors = self.builder.tensors
        # An op at fp32 has all its operands at fp32. A module at 32 bits does not show it otherwise: there,
        # a conversion to fp32 changes nothing.
        known = [v.wide for v, _ in reads if tensors[v.tensor].role not in ("input", "buffer")]
        wide = bool(known) and all(known) if self.wide is None else self.wide
        if wide:
            attributes["wide"] = True
        written = self.builder.add_op(self, kind, reads, writes, inner, shape, attributes)
        return replace(written, wide=wide)


def copied(call: Call, view: View) -> View:
    """Add an op that copies what a view shows. Its dims are those of an element-wise op."""
    written = map_groups(view.axes)
    return call.emit("copy", [(view, bindings(view, written))], written)


_ZEROS_BYTES = 1
TRACED_BATCH = 29
"""Number of samples in a trace. It is no usual size of another axis. (13 would be that of AlexNet's images,
and of the relative positions in a window of 7.) It is not 1, because axes of size 1 cannot be followed. It is
small, because the inputs of a trace take memory."""


def operands_of(call: Call) -> list[View]:
    """All tensors among the arguments."""
    found: list[View] = []

    def look(value: object) -> None:
        if isinstance(value, View):
            found.append(value)
        elif isinstance(value, list | tuple):
            for part in value:
                look(part)

    for value in call.arguments.values():
        look(value)
    return found


_LIKE = re.compile(r"new_(empty|full|ones|zeros)\b|(empty|full|ones|rand|randn|zeros)_like\b")
"""Operators that take the shape of a tensor, and none of its values."""


def is_constant(call: Call, target: str) -> bool:
    """Whether the results of an operator depend on no data and no weight."""
    tensors = call.builder.tensors
    return bool(_LIKE.match(target)) or all(
        tensors[view.tensor].role == "buffer" for view in operands_of(call)
    )


def constants(call: Call, name: str) -> list[View]:
    """Add the results of a call as buffers. The call depends on no data.

    Random zeros and ones have the type of what they are multiplied by, whatever that is. Each of them counts
    as one byte, so that it does not make a result wider.
    """
    itemsize = call.itemsize
    if name.startswith("bernoulli"):
        itemsize = _ZEROS_BYTES
    elif call.inplace and (held := operands_of(call)):
        itemsize = call.builder.tensors[held[0].tensor].itemsize
    return [
        call.builder.add_tensor(
            f"constant.{name}.{place}" if place else f"constant.{name}",
            shape,
            itemsize,
            "buffer",
            batch=[shape.index(TRACED_BATCH)] if TRACED_BATCH in shape else (),
        )
        for place, shape in enumerate(call.shapes)
    ]


def has_batch(view: View) -> bool:
    """Whether an axis of a view follows the batch."""
    return any(unit.batch for axis in view.axes for unit in units(axis))


def _batch_merged(operands: Sequence[View], size: int) -> list[int] | None:
    """If an operand has an axis of this size in which the batch is merged with other axes: the sizes of the
    batch and of these other axes. Otherwise ``None``."""
    for view in operands:
        for axis, length in zip(view.axes, view.shape, strict=True):
            sizes = [unit.size for unit in units(axis)]
            if length == size and units(axis)[0].batch and len(sizes) > 1:
                return sizes
    return None


def _batch_at(shape: Sequence[int], operands: Sequence[View]) -> tuple[int, list[int]] | None:
    """The axis of a result that has the batch, and the sizes of the batch and of what is merged with it.

    It is the first axis that has the size of the batch, or of an operand's axis in which the batch is merged
    with others. If there is none, it is the first axis whose size is a multiple of the batch. The operands
    may have no batch, for example if learnt queries are repeated for each sample. ``None``: no axis has the
    batch.
    """
    if not any(has_batch(view) for view in operands) and any(
        size % TRACED_BATCH == 0 for view in operands for size in view.shape
    ):
        return None
    for place, size in enumerate(shape):
        merged = [size] if size == TRACED_BATCH else _batch_merged(operands, size)
        if merged:
            return place, merged
    for place, size in enumerate(shape):
        if size and size % TRACED_BATCH == 0:
            return place, [TRACED_BATCH, size // TRACED_BATCH]
    return None


def _written(shape: Sequence[int], operands: Sequence[View]) -> Groups:
    """Dims of a result."""
    groups: Groups = [[Dim(f"axis{place}", size, OPAQUE)] for place, size in enumerate(shape)]
    found = _batch_at(shape, operands)
    if found is not None:
        place, (batch, *rest) = found
        inner = [Dim(f"axis{place}_{i}", n, OPAQUE) for i, n in enumerate(rest, 1)]
        groups[place] = [Dim("batch", batch, BATCH), *inner]
    return groups


def any_operator(call: Call, kind: str = "other", **attributes: Any) -> list[View]:
    """Add an op that reads all operands and writes the first result, and an op for each further result that
    is not empty."""
    operands = operands_of(call)
    results: list[View] = []
    for shape in call.shapes:
        if not all(shape):
            empty = f"empty.{len(call.builder.tensors)}"
            results.append(call.builder.add_tensor(empty, shape, call.itemsize, "buffer"))
            continue
        written = _written(shape, operands)
        there = {dim.name for group in written for dim in group}
        batched = any(has_batch(view) for view in operands)
        # An op that sums over the batch has the batch as a dim, too.
        inner = () if "batch" in there or not batched else (Dim("batch", TRACED_BATCH, BATCH),)
        reads = [
            (
                view,
                [
                    (unit.atoms, "batch")
                    for axis in view.axes
                    for unit in units(axis)
                    if unit.batch and (inner or "batch" in there)
                ],
            )
            for view in operands
        ]
        results.append(call.emit(kind, reads, written, inner, **attributes))
        operands = results[:1]
    return results
