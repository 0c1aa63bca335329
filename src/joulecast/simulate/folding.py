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


def scrambled(numbers: Ints) -> NDArray[np.uint64]:
    """Each number as 64 bits that look random, so that sums of them tell multisets apart (splitmix64)."""
    bits = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled_bits: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return scrambled_bits


def summed_by(group: Ints, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sum of the values of each group (modulo 2^64), groups numbered from 0 without gaps."""
    sums = np.zeros(int(group.max()) + 1, dtype=np.uint64)
    np.add.at(sums, group, values)
    return sums


def signatures(group: Ints, colour: Ints) -> Ints:
    """A number for the colours in each device's group: equal where the colours of the groups are."""
    numbered = np.unique(group, return_inverse=True)[1].reshape(-1)
    return summed_by(numbered, scrambled(colour))[numbered].astype(np.int64)


def _renumbered(columns: list[Ints]) -> Ints:
    """One number for each distinct row of the columns, in the order in which devices show them."""
    row = np.zeros(len(columns[0]), dtype=np.uint64)
    for place, column in enumerate(columns):
        row += scrambled(column + (place << 40))
    _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
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
        finer = _renumbered([colour, *(signatures(group, colour) for group in groupings)])
        if finer.max() == colour.max():
            return _classes(colour)
        colour = finer


def unfolded(devices: int) -> Classes:
    """Every device a class of its own."""
    return _classes(np.arange(devices, dtype=np.int64))
