"""The devices of a strategy: the place of each in the mesh, and which devices do the same at the same time.

Devices that do the same are one class, and a class is simulated once. To find the classes, each device gets a
colour. At first, the colour stands for what the device does itself: its stage, the size of its part, its
pace. Then colours are split, until any two devices of one colour have the same colours in all of their
groups. Groups are replicas, shards, pipelines, nodes and units behind a port. The result is an equitable
partition: in each step of the simulation, all devices of a colour do the same. A straggler has a colour of
its own. It also splits the colours of the devices that wait for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.simulate.placement import PlacedOp
from joulecast.simulate.strategy import Strategy, joined, size_along
from joulecast.simulate.topology import Topology

Ints = NDArray[np.int64]


def scrambled(numbers: Ints) -> NDArray[np.uint64]:
    """Each number as 64 bits that look random (splitmix64). Different multisets then have different sums."""
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
    """A number for each device that stands for the colours in its group. Two groups with the same colours
    have the same number. Groups are numbered from 0 without gaps."""
    return summed_by(group, scrambled(colour))[group].astype(np.int64)


def numbered(values: NDArray[Any]) -> Ints:
    """The values, as numbers from 0: equal values have the same number. The value that occurs first has
    number 0, the next new value number 1."""
    numbers: Ints = pd.factorize(values)[0]
    return numbers


def _one_of(columns: list[Ints]) -> Ints:
    """Number the distinct rows of the columns, in the order of their first devices."""
    row = np.zeros(len(columns[0]), dtype=np.uint64)
    for place, column in enumerate(columns):
        row += scrambled(column + (place << 40))
    return numbered(row)


@dataclass(frozen=True)
class Classes:
    """Classes of devices that have the same timeline."""

    of_device: Ints
    """The class of each device."""
    first: Ints
    """A device of each class, which represents the whole class."""
    size: Ints
    """Number of devices in each class."""

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.first)


def fold(own: list[Ints], groupings: list[Ints]) -> Classes:
    """Fold devices into classes.

    Args:
        own: arrays with a number for every device. They describe what a device does by itself.
        groupings: arrays with the group of every device, one array for each way in which devices depend on
            each other. Groups are numbered from 0 without gaps.
    """
    colour = _one_of(own)
    while True:
        finer = _one_of([colour, *(signatures(group, colour) for group in groupings)])
        if finer.max() == colour.max():
            return _classes(colour)
        colour = finer


def _classes(colour: Ints) -> Classes:
    _, first, inverse, size = np.unique(
        colour, return_index=True, return_inverse=True, return_counts=True
    )
    return Classes(inverse.reshape(-1), first, size)


@dataclass(frozen=True)
class DeviceMesh:
    """The devices of a strategy: the place of each in the mesh, and which devices do the same."""

    mesh: dict[str, int]
    place: dict[str, Ints]
    """Place of each device along each axis."""
    pace: np.ndarray
    """Factor on the time that each device computes. It is above 1 for a straggler."""
    classes: Classes

    @property
    def grid(self) -> Ints:
        """The numbers of the devices, in an array with an axis for each axis of the mesh."""
        return np.arange(len(self.pace), dtype=np.int64).reshape(tuple(self.mesh.values()))

    def places_of(self, number: int) -> dict[str, int]:
        """The place of a class of devices (which do the same, and are simulated as one) along each axis."""
        first = self.classes.first[number]
        return {axis: int(places[first]) for axis, places in self.place.items()}

    def stage_of(self, number: int) -> int:
        """The place of a class of devices in the pipeline."""
        return self.places_of(number).get("pipeline", 0)

    def pace_of(self, number: int) -> float:
        """Factor by which the devices of a class compute longer. It is 1 if they are no stragglers."""
        return float(self.pace[self.classes.first[number]])

    def groups(self, axis: str) -> Ints:
        """Devices of every group along an axis, or along two joined axes. The shape is ``(groups, size)``."""
        along = [list(self.mesh).index(part) for part in axis.split("+")]
        last = range(-len(along), 0)
        return np.moveaxis(self.grid, along, tuple(last)).reshape(-1, size_along(self.mesh, axis))

    def group_of(self, axis: str) -> Ints:
        """For each device, its group along an axis."""
        groups = self.groups(axis)
        found = np.empty(groups.size, dtype=np.int64)
        found[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
        return found


def uneven(items: list[PlacedOp]) -> list[tuple[str, int]]:
    """Axes along which a dim does not divide evenly, with the remainders. The parts of the first devices have
    one element more."""
    splits = {item.split for item in items}
    return sorted({each for split in splits for each in split.uneven})


def _telling(groupings: list[Ints]) -> list[Ints]:
    """The groupings that differ, without those in which every device is alone or all are together."""
    found: list[Ints] = []
    for group in groupings:
        parts = int(group.max()) + 1
        if 1 < parts < len(group) and not any(np.array_equal(group, other) for other in found):
            found.append(group)
    return found


def build_device_mesh(
    strategy: Strategy,
    items: list[PlacedOp],
    topology: Topology,
    stragglers: Mapping[int, float],
    folded: bool,
    by_place: bool = False,
) -> DeviceMesh:
    """Give each device of a strategy its place in the mesh, and fold devices that do the same.

    Raises:
        JoulecastError: a straggler is not among the devices of the strategy.
    """
    devices = strategy.devices
    pace = np.ones(devices)
    for device, factor in stragglers.items():
        if not 0 <= device < devices:
            raise JoulecastError(f"straggler {device}: the strategy has devices 0 to {devices - 1}")
        if not factor > 0:
            raise JoulecastError(f"straggler {device}: a factor of {factor} is not positive")
        pace[device] = factor
    mesh, numbers = dict(strategy.mesh), np.arange(devices, dtype=np.int64)
    places = np.unravel_index(numbers, tuple(mesh.values())) if mesh else ()
    place = dict(zip(mesh, places, strict=True))
    device_mesh = DeviceMesh(mesh, place, pace, _classes(numbers))
    if not folded:
        return device_mesh
    own = [numbered(pace)]
    if "pipeline" in place:
        own.append(place["pipeline"])
    own += [(place[axis] < more).astype(np.int64) for axis, more in uneven(items)]
    if by_place:
        # Exchanges by halves treat places differently if the number of ranks is no power of two. They also do
        # so if nodes whose size is no power of two cut the halves.
        cut = any(width & (width - 1) for width in topology.widths if width < devices)
        own += [place[axis] for axis, size in mesh.items() if cut or size & (size - 1)]
    grouped = {axis: None for axis, size in mesh.items() if size > 1}
    grouped |= dict.fromkeys(joined(tuple(grouped)))
    along = _telling([device_mesh.group_of(axis) for axis in grouped])
    node_of = topology.node_of(numbers)
    behind = _telling([*(numbers // width for width in topology.widths), node_of])
    # A group across two nodes differs from a group in one node. So the intersection of two groups counts,
    # too. For groups along two axes, the intersection is a single device, or one of the groups.
    pairs = [*product(along, behind), *combinations(behind, 2)]
    common = [numbered(one * devices + other) for one, other in pairs]
    return replace(device_mesh, classes=fold(own, _telling([*along, *behind, *common])))
