"""The devices of a strategy: where each stands in the mesh, how fast it is, and which are alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.simulate.folding import Classes, Ints, fold, unfolded
from joulecast.simulate.mesh_axes import joined, size_along
from joulecast.simulate.placement import PlacedOp
from joulecast.simulate.strategy import Strategy


@dataclass(frozen=True)
class Fleet:
    """The devices of a strategy: where each stands in the mesh, and which are alike."""

    mesh: dict[str, int]
    place: dict[str, Ints]
    """Place of each device along each axis."""
    pace: np.ndarray
    """How many times as long a device computes (a straggler more than 1)."""
    classes: Classes

    @property
    def grid(self) -> Ints:
        """Devices by their places, axes in the mesh's order."""
        return np.arange(len(self.pace), dtype=np.int64).reshape(tuple(self.mesh.values()))

    def pace_of(self, number: int) -> float:
        """How many times as long the devices of a class compute."""
        return float(self.pace[self.classes.first[number]])

    def groups(self, axis: str) -> Ints:
        """Devices of every group along an axis (or two that are joined), shape ``(groups, size)``."""
        along = [list(self.mesh).index(part) for part in axis.split("+")]
        last = range(-len(along), 0)
        return np.moveaxis(self.grid, along, tuple(last)).reshape(-1, size_along(self.mesh, axis))

    def group_of(self, axis: str) -> Ints:
        """The group along an axis of each device."""
        groups = self.groups(axis)
        found = np.empty(groups.size, dtype=np.int64)
        found[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
        return found


_PADDED_FROM = 1000
"""Elements of a part from which a dim is padded to parts of one size, as Megatron pads vocabularies."""


def remainder(size: int, parts: int) -> int:
    """How many of the parts of a dim have one element more; 0 where it divides evenly or is padded."""
    return size % parts if size // parts < _PADDED_FROM else 0


def uneven(items: list[PlacedOp], mesh: Mapping[str, int]) -> list[tuple[str, int]]:
    """Axes and remainders of dims that do not divide evenly: the first places have one more."""
    found = set()
    for item in items:
        for axis, dim in item.placement.items():
            more = remainder(item.op.dim(dim).size, mesh[axis])
            if more:
                found.add((axis, more))
    return sorted(found)


def build_fleet(
    strategy: Strategy,
    items: list[PlacedOp],
    node_of: Ints,
    widths: tuple[int, ...],
    stragglers: Mapping[int, float],
    folded: bool,
    by_place: bool = False,
) -> Fleet:
    """Stand the devices of a strategy in its mesh, and fold those that are alike.

    Raises:
        JoulecastError: a straggler that is no device of it.
    """
    devices = strategy.devices
    pace = np.ones(devices)
    for device, factor in stragglers.items():
        if not 0 <= device < devices:
            raise JoulecastError(f"straggler {device}: the strategy has devices 0 to {devices - 1}")
        if not factor > 0:
            raise JoulecastError(f"straggler {device}: a factor of {factor} is not positive")
        pace[device] = factor
    mesh = dict(strategy.mesh)
    sizes = tuple(mesh.values())
    numbers = np.arange(devices, dtype=np.int64)
    place = dict(zip(mesh, np.unravel_index(numbers, sizes), strict=True)) if mesh else {}
    fleet = Fleet(mesh, place, pace, unfolded(devices))
    if not folded:
        return fleet
    own = [np.unique(pace, return_inverse=True)[1].reshape(-1)]
    if "pipeline" in place:
        own.append(place["pipeline"])
    own += [(place[axis] < more).astype(np.int64) for axis, more in uneven(items, mesh)]
    if by_place:
        # Exchanges among a number of ranks that is no power of two treat their places unlike.
        own += [place[axis] for axis, size in mesh.items() if size & (size - 1)]
    grouped = {axis: None for axis, size in mesh.items() if size > 1}
    grouped |= dict.fromkeys(joined(tuple(grouped)))
    groupings = [fleet.group_of(axis) for axis in grouped]
    groupings += [numbers // width for width in widths if 1 < width < devices]
    groupings.append(node_of)
    # A group across two nodes is unlike one within: what two groups have in common counts too.
    groupings += [first * devices + second for first, second in combinations(groupings, 2)]
    return Fleet(mesh, place, pace, fold(own, groupings))
