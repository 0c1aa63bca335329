"""Layouts of a tensor on a mesh, and the collectives that turn one layout into another.

Along each mesh axis a tensor is sharded over one of its own axes, held in copies, or a partial sum. A sum
that is wanted whole is all-reduced, one that is wanted in shards is reduce-scattered, shards that are wanted
whole are all-gathered, shards of another axis go all to all; a copy is cut where it lies (Duan et al. 2024,
section 4.3).
"""

from collections.abc import Mapping
from typing import Literal

from joulecast.graphs.opgraph import Access, Op, Tensor
from joulecast.simulate.collectives import Kind

Place = int | Literal["copies", "partial"]
"""Sharded over this axis of the tensor, held in copies, or a partial sum."""
Layout = tuple[tuple[str, Place], ...]
"""By mesh axis, in the mesh's order; every axis is named."""


def _place(access: Access, dim: str | None, absent: Place) -> Place:
    if dim is None:
        return "copies"
    return access.axes.index(dim) if dim in access.axes else absent


def read_layout(access: Access, split: Mapping[str, str], mesh: Mapping[str, int]) -> Layout:
    """Layout in which an op that splits these dims reads a tensor."""
    return tuple((axis, _place(access, split.get(axis), "copies")) for axis in mesh)


def written_layout(
    op: Op, access: Access, split: Mapping[str, str], mesh: Mapping[str, int]
) -> Layout:
    """Layout in which it writes one: a split dim that the tensor lacks leaves partial sums."""
    return tuple((axis, _place(access, split.get(axis), "partial")) for axis in mesh)


def gradient_layout(access: Access, split: Mapping[str, str], mesh: Mapping[str, int]) -> Layout:
    """Layout of the gradient that its backward gives of a tensor that it read."""
    return tuple((axis, _place(access, split.get(axis), "partial")) for axis in mesh)


def whole(layout: Layout) -> Layout:
    """The layout with sums in place of partial sums: that of a written tensor's own gradient."""
    return tuple((axis, "copies" if place == "partial" else place) for axis, place in layout)


def local_bytes(tensor: Tensor, layout: Layout, mesh: Mapping[str, int]) -> float:
    """Bytes that one device holds."""
    size = float(tensor.bytes)
    for axis, place in layout:
        if isinstance(place, int):
            size /= mesh[axis]
    return size


def conversion(
    tensor: Tensor, have: Layout, want: Layout, mesh: Mapping[str, int]
) -> list[tuple[Kind, str, float]]:
    """Collectives that turn one layout into another: kind, mesh axis, bytes of the whole buffer."""
    steps: list[tuple[Kind, str, float]] = []
    now = dict(have)
    # Sums come first, and those that leave less behind first of all: what follows moves fewer bytes.
    changes = [(axis, now[axis], place) for axis, place in want if now[axis] != place]
    changes.sort(key=lambda c: (c[1] != "partial", c[2] == "copies"))
    for axis, before, after in changes:
        size = local_bytes(tensor, tuple(now.items()), mesh)
        now[axis] = after
        if mesh[axis] == 1:
            continue
        if before == "partial":
            steps.append(("all_reduce" if after == "copies" else "reduce_scatter", axis, size))
        elif isinstance(before, int) and after == "copies":
            steps.append(("all_gather", axis, size * mesh[axis]))
        elif isinstance(before, int):
            steps.append(("all_to_all", axis, size))
    return steps
