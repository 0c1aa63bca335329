"""The messages of a collective: hops, bytes and steps, by its algorithm.

``bytes`` of a collective is the size of the whole buffer, as NCCL counts it. Every rank has this buffer after
an all-gather or all-reduce, and before a reduce-scatter (Thakur, Rabenseifner and Gropp 2005).
"""

import math
from collections.abc import Mapping
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulecast.graphs.opgraph import Access, Tensor
from joulecast.simulate.topology import Hops

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
Algorithm = Literal["ring", "recursive_doubling", "rabenseifner"]
Ints = NDArray[np.int64]


Count = TypeVar("Count", float, NDArray[np.float64])
"""A number of ranks, or an array of numbers of ranks."""


def allreduce_steps(algorithm: Algorithm, ranks: Count) -> Count:
    """Number of messages that a rank sends in an all-reduce, one after the other."""
    if algorithm == "ring":
        return 2 * (ranks - 1)
    doublings: Count = np.ceil(np.log2(np.maximum(ranks, 1)))
    return 2 * doublings if algorithm == "rabenseifner" else doublings


def allreduce_share(algorithm: Algorithm, ranks: Count) -> Count:
    """Bytes that a rank sends in an all-reduce, divided by the bytes of the buffer."""
    if algorithm == "recursive_doubling":
        return allreduce_steps(algorithm, ranks)
    return 2 * (ranks - 1) / ranks


TREE_SHARE = 2 / 0.9
"""Bytes that a rank sends in an all-reduce over NCCL's double tree (up and down), divided by the bytes of the
buffer. A tree has 0.9 of the rate of a ring (NCCL's own tuning constant)."""


def switch_share(ranks: int) -> float:
    """Bytes that a rank sends in an all-reduce that the switches sum, divided by the bytes of the buffer.

    Each rank sends its buffer to the switches, and one part of the sum to all ranks.
    """
    return 1 + 1 / ranks


def tree_steps(ranks: int, nodes: int) -> tuple[float, float]:
    """Number of steps of an all-reduce over NCCL's double tree, within nodes and between nodes. There is a
    chain in each node, and a tree over the nodes."""
    return 2.0 * (math.ceil(ranks / nodes) - 1), 2.0 * math.ceil(math.log2(nodes))


def steps_of(kind: Kind, algorithm: Algorithm, ranks: int) -> float:
    """Number of messages that a rank sends in a collective, one after the other."""
    if kind == "all_reduce":
        return float(allreduce_steps(algorithm, float(ranks)))
    return 1.0 if kind == "send" else ranks - 1.0


def sent_share(kind: Kind, algorithm: Algorithm, ranks: int) -> float:
    """Bytes that a rank sends in total, divided by the bytes of the collective."""
    if kind == "all_reduce":
        return float(allreduce_share(algorithm, float(ranks)))
    return 1.0 if kind == "send" else (ranks - 1) / ranks


def _exchanges(groups: Ints, flow: Ints, shares: list[float]) -> Hops:
    """Hops in which each rank exchanges with the ranks whose place differs in one bit. ``shares`` has, for
    each bit, the share that is sent to the rank with this other bit."""
    ranks = groups.shape[1]
    places, targets = np.arange(ranks), []
    for bit in range(len(shares)):
        partners = places ^ (1 << bit)
        # Ranks beyond the last power of two first send to the other ranks, as in MPICH.
        targets.append(groups[:, np.where(partners < ranks, partners, places - (1 << bit))].ravel())
    return Hops(
        np.tile(np.repeat(flow, ranks), len(shares)),
        np.tile(groups.ravel(), len(shares)),
        np.concatenate(targets),
        np.repeat(shares, groups.size),
    )


def hops_of(kind: Kind, algorithm: Algorithm, groups: Ints, flow: Ints) -> Hops:
    """Messages of a collective. Each has its sender, its receiver, and its share of all bytes that the sender
    sends.

    Args:
        kind: kind of collective.
        algorithm: algorithm of an all-reduce. An all-to-all sends to every rank. All other collectives go
            around a ring.
        groups: devices in ring order, shape ``(groups, ranks)``.
        flow: the flow of each group, shape ``(groups,)``.
    """
    ranks = groups.shape[1]
    doublings = int(np.ceil(np.log2(ranks)))
    if kind == "all_reduce" and algorithm == "recursive_doubling":
        return _exchanges(groups, flow, [1 / doublings] * doublings)
    if kind == "all_reduce" and algorithm == "rabenseifner":
        halves = [0.5 ** (bit + 1) for bit in range(doublings)]
        return _exchanges(groups, flow, [half / sum(halves) for half in halves])
    distances = range(1, ranks) if kind == "all_to_all" else range(1, 2)
    targets = [np.roll(groups, -distance, axis=1) for distance in distances]
    count = len(targets)
    return Hops(
        np.tile(np.repeat(flow, ranks), count),
        np.tile(groups.ravel(), count),
        np.concatenate([target.ravel() for target in targets]),
        np.full(groups.size * count, 1 / count),
    )


Place = int | Literal["copies", "partial"]
"""How a mesh axis holds a tensor: sharded over this axis of the tensor, in copies, or as a partial sum."""
Layout = tuple[tuple[str, Place], ...]
"""Place by mesh axis, in the order of the mesh. Every axis is named."""


def layout_of(
    access: Access, split: Mapping[str, str], mesh: Mapping[str, int], absent: Place
) -> Layout:
    """Layout in which an op that splits these dims reads or writes a tensor.

    Args:
        absent: what the devices along an axis of the mesh hold if this axis splits no dim of the tensor. Of a
            tensor that is read, they hold ``copies``. Of a tensor that is written, such as a gradient, they
            hold ``partial`` sums.
    """
    places: list[tuple[str, Place]] = []
    for axis in mesh:
        dim = split.get(axis)
        if dim is None:
            places.append((axis, "copies"))
        else:
            places.append((axis, access.axes.index(dim) if dim in access.axes else absent))
    return tuple(places)


def whole(layout: Layout) -> Layout:
    """The layout, with sums in place of partial sums. The gradient of a written tensor has this layout."""
    return tuple((axis, "copies" if place == "partial" else place) for axis, place in layout)


def local_bytes(tensor: Tensor, layout: Layout, mesh: Mapping[str, int]) -> float:
    """Bytes of a tensor that one device holds."""
    size = float(tensor.bytes)
    for axis, place in layout:
        if isinstance(place, int):
            size /= mesh[axis]
    return size


def conversion(
    tensor: Tensor, have: Layout, want: Layout, mesh: Mapping[str, int]
) -> list[tuple[Kind, str, float]]:
    """Collectives that turn one layout into another. Each has its kind, its mesh axis, and the bytes of the
    whole buffer."""
    steps: list[tuple[Kind, str, float]] = []
    if have == want:
        return steps
    now = dict(have)
    # Sums come first, and sums that leave fewer bytes before the others, so that the rest moves fewer bytes.
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
