"""Axes of a mesh that hold replicas, and two of them joined: what is summed and sharded over both at once.

Replicas lie along ``data``; with expert parallelism along ``data`` and ``expert``, where groups of replicas
share the experts of a mixture. All other weights are alike along both, so that their gradients are summed and
their training state is sharded along the joined axis ``data+expert``, as one group of devices.
"""

from collections.abc import Mapping

_SHARDED = ("data", "expert")
"""Axes along which ZeRO shards, in the mesh's order; ``replica`` holds copies of the shards."""
REPLICAS = ("replica", *_SHARDED)
"""Axes along which the batch is split."""


def shards_state(axis: str) -> bool:
    """Whether ZeRO shards along an axis."""
    return all(part in _SHARDED for part in axis.split("+"))


def joined(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes with those along which ZeRO shards joined into one, in front."""
    sharded = [axis for axis in axes if axis in _SHARDED]
    others = tuple(axis for axis in axes if axis not in _SHARDED)
    return ("+".join(sharded), *others) if sharded else others


def size_along(mesh: Mapping[str, int], axis: str) -> int:
    """Devices along an axis, or along two that are joined; 1 along one that the mesh lacks."""
    size = 1
    for part in axis.split("+"):
        size *= mesh.get(part, 1)
    return size
