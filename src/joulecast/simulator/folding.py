"""Ranks that do the same at the same time are simulated once.

Devices start with the colour of what they do themselves: stage, size of their part, pace. Colours are then
split until any two devices of a colour meet the same colours in every group that they belong to (replicas,
shards, pipelines, nodes and units behind a port): an equitable partition, so that, step by step, whatever
happens to one of them happens to all. A straggler has a colour of its own, and splits those that wait for it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def _signatures(group: Ints, colour: Ints) -> Ints:
    """A number for the colours in each device's group: equal where the colours of the groups are."""
    order = np.lexsort((colour, group))
    _, starts, sizes = np.unique(group[order], return_index=True, return_counts=True)
    widest = int(sizes.max())
    # Groups of unequal size are padded with a colour that no device has.
    table = np.full((len(starts), widest), -1, dtype=np.int64)
    row = np.repeat(np.arange(len(starts)), sizes)
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    table[row, place] = colour[order]
    signature = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    found = np.empty(len(order), dtype=np.int64)
    found[order] = np.repeat(signature, sizes)
    return found


def _renumbered(columns: list[Ints]) -> Ints:
    """One number for each distinct row of the columns, in the order in which devices show them."""
    _, first, inverse = np.unique(
        np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True
    )
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbers: Ints = rank[inverse.reshape(-1)]
    return numbers


@dataclass(frozen=True)
class Classes:
    """Classes of devices that have the same timeline."""

    of_device: Ints
    """The class of each device."""
    first: Ints
    """A device of each class, which stands for all of it."""
    size: Ints
    """Devices in each class."""

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first)


def _classes(colour: Ints) -> Classes:
    _, first, inverse, size = np.unique(
        colour, return_index=True, return_inverse=True, return_counts=True
    )
    return Classes(inverse.reshape(-1), first, size)


def fold(own: list[Ints], groupings: list[Ints]) -> Classes:
    """Fold devices into classes.

    Args:
        own: what a device does by itself, each a number for every device.
        groupings: the group of every device, in each way in which devices depend on each other.
    """
    colour = _renumbered(own)
    while True:
        finer = _renumbered([colour, *(_signatures(group, colour) for group in groupings)])
        if finer.max() == colour.max():
            return _classes(colour)
        colour = finer


def unfolded(devices: int) -> Classes:
    """Every device a class of its own."""
    return _classes(np.arange(devices, dtype=np.int64))
