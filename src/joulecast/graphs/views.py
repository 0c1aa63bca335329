"""Relations between the axes of a view and the axes of its tensor.

An axis of a tensor is an :class:`Atom`. A reshape that splits an axis splits its atom. A reshape that merges
axes puts several atoms on one axis. A transpose moves atoms, and a select drops one. So even after many
reshapes, a view knows which part of the stored tensor each of its axes is. The code never guesses this from
equal sizes. For example, an axis follows the batch if its atom came from the batch axis of the input.

This module needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from joulecast.errors import JoulecastError


@dataclass(eq=False)
class Atom:
    """An axis, or a part of an axis that a view has split off. Atoms are compared by identity."""

    size: int
    batch: bool = False
    spatial: bool = False
    """Whether the axis is the rows or columns of an image or feature map."""
    repeated: bool = False
    """Whether a view repeats the tensor along this axis (expand)."""
    parts: list[Atom] = field(default_factory=list)
    """The atoms that this one was split into, outermost first. A leaf has none."""
    narrowed: list[Atom] = field(default_factory=list)
    """Slices of this atom."""

    def leaves(self) -> list[Atom]:
        """The parts that no view has split, outermost first."""
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]

    def family(self) -> list[Atom]:
        """This atom and all atoms that were split or sliced from it, outermost first."""
        return [self, *(a for child in (*self.parts, *self.narrowed) for a in child.family())]

    def split(self, outer: int) -> tuple[Atom, Atom]:
        """Split this atom into an outer atom of size ``outer`` and an inner one."""
        first, second = (
            Atom(outer, spatial=self.spatial, repeated=self.repeated),
            Atom(self.size // outer, spatial=self.spatial, repeated=self.repeated),
        )
        self.parts = [first, second]
        return first, second


Axis = tuple[Atom, ...]
"""The atoms of one axis of a view, outermost first. An axis of size 1 has none."""


@dataclass(frozen=True)
class View:
    """An operand of an op: a stored tensor, seen through reshapes."""

    tensor: str
    axes: tuple[Axis, ...]
    wide: bool = False
    """Whether the code of the network has it at fp32 whatever the precision of the weights."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(prod(atom.size for atom in axis) for axis in self.axes)

    def leaves(self) -> tuple[Axis, ...]:
        """The axes as leaves, without leaves of size 1."""
        return tuple(
            tuple(leaf for atom in axis for leaf in atom.leaves() if leaf.size > 1)
            for axis in self.axes
        )


def regroup(atoms: Iterable[Atom], sizes: Sequence[int]) -> list[Axis]:
    """Put the atoms on axes of these sizes, in order. An atom is split if an axis ends inside it.

    Raises:
        JoulecastError: an axis would end inside the batch, or the sizes do not divide the sizes of the atoms.
    """
    left = [leaf for atom in atoms for leaf in atom.leaves() if leaf.size > 1][::-1]
    axes: list[Axis] = []
    for size in sizes:
        axis: list[Atom] = []
        while size > 1:
            atom = left.pop() if left else Atom(1)
            if atom.size > 1 and size % atom.size == 0:
                axis.append(atom)
                size //= atom.size
            elif atom.size % size == 0 and atom.size > 1 and not atom.batch:
                outer, inner = atom.split(size)
                axis.append(outer)
                left.append(inner)
                size = 1
            else:
                raise JoulecastError(
                    f"cannot follow a reshape to {tuple(sizes)}: it cuts through an axis of size {atom.size}"
                )
        axes.append(tuple(axis))
    return axes


def reshape(view: View, shape: Sequence[int]) -> View:
    """The view in another shape. The number of elements stays the same."""
    return replace(view, axes=tuple(regroup((a for axis in view.axes for a in axis), shape)))


def repeats(view: View) -> bool:
    """Whether a view repeats its tensor along an axis."""
    return any(atom.repeated for axis in view.leaves() for atom in axis)


def merges_repeats(view: View) -> bool:
    """Whether a view merges a repeated axis with another one. Torch copies the tensor for this."""
    return any(len(axis) > 1 and any(atom.repeated for atom in axis) for axis in view.leaves())


def stored(view: View) -> View:
    """A view of a new tensor. This tensor is a copy of what ``view`` shows."""
    return replace(
        view,
        axes=tuple(tuple(Atom(u.size, u.batch) for u in units(axis)) for axis in view.axes),
    )


def permute(view: View, order: Sequence[int]) -> View:
    """The view with its axes in another order."""
    return replace(view, axes=tuple(view.axes[i] for i in order))


def transpose(view: View, one: int, other: int) -> View:
    """The view with two axes exchanged."""
    order = list(range(len(view.axes)))
    order[one], order[other] = order[other], order[one]
    return permute(view, order)


def select(view: View, axis: int) -> View:
    """The view at one index of an axis, which disappears."""
    axis %= len(view.axes)
    return replace(view, axes=view.axes[:axis] + view.axes[axis + 1 :])


def expand(view: View, shape: Sequence[int], samples: int = 0) -> View:
    """The view repeated along its axes of size 1, and along new axes in front. One that is as long as the
    ``samples`` follows the batch."""
    axes: list[Axis] = [()] * (len(shape) - len(view.axes)) + list(view.axes)
    return replace(
        view,
        axes=tuple(
            axis
            if size == prod(a.size for a in axis)
            else (Atom(size, size == samples, repeated=True),)
            for axis, size in zip(axes, shape, strict=True)
        ),
    )


def narrow(view: View, axis: int, start: int, length: int, step: int = 1) -> View:
    """A view of ``length`` entries of an axis, from ``start`` on, each ``step`` after the last.

    There are three cases. First, the axis is one atom of equal slices, such as q, k and v: the atom is split,
    and the slice is the inner atom. Second, the slice consists of whole entries of the axis' outermost atom:
    it gets a new atom in place of the outermost one, which lists it in ``narrowed``. Third, any other slice:
    it gets a new atom that has no relation to the axis.

    Raises:
        JoulecastError: the slice divides the batch.
    """
    axis %= len(view.axes)
    atoms = view.leaves()[axis]
    whole = prod(atom.size for atom in atoms)
    if length == whole:
        return view
    inner = prod(atom.size for atom in atoms[1:])
    outer = atoms[0]
    if outer.batch:
        raise JoulecastError("cannot follow a slice of the batch")
    if not length or step > 1:
        cut: Axis = (Atom(length),)
    elif len(atoms) == 1 and whole % length == 0 and start % length == 0:
        cut = (outer.split(whole // length)[1],)
    elif start % inner == 0 and length % inner == 0:
        piece = Atom(length // inner, spatial=outer.spatial)
        outer.narrowed.append(piece)
        cut = ((piece,) if piece.size > 1 else ()) + atoms[1:]
    else:
        cut = (Atom(length),)
    return replace(view, axes=(*view.axes[:axis], cut, *view.axes[axis + 1 :]))


@dataclass(frozen=True)
class Unit:
    """Adjacent factors (:class:`Atom`) of one axis of a tensor, which together are one dim of an op."""

    atoms: Axis
    size: int
    batch: bool
    spatial: bool
    """Whether it is the rows or the columns of a map, not merged with another axis. Merged rows and columns
    are a sequence."""


def units(axis: Axis) -> list[Unit]:
    """The dims that an axis stands for. There is one, unless the batch is merged with something else."""
    leaves = [leaf for atom in axis for leaf in atom.leaves()]
    groups: list[list[Atom]] = []
    for leaf in leaves:
        if leaf.size == 1 and len(leaves) > 1:
            continue
        if groups and not leaf.batch and not groups[-1][0].batch:
            groups[-1].append(leaf)
        else:
            groups.append([leaf])
    return [
        Unit(tuple(g), prod(a.size for a in g), g[0].batch, len(g) == 1 and g[0].spatial)
        for g in groups
    ] or [Unit((), 1, False, False)]
