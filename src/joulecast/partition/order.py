"""The partial order of a graph's nodes, its ideals and antichains, and the antichain DAG. Sets of nodes are
bit sets.

An *ideal* (down-set) is a set of nodes that has all ancestors of its nodes: the nodes that are done at some
moment of the forward pass. Its maximal nodes are an *antichain*, which determines the ideal. A stage of a
pipeline is the difference of two ideals, so a pipeline is a chain of ideals (Harlap et al. 2018).

Bit i of a set stands for node i. Nodes are numbered in an order in which they can run.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_EXACT_BITS = 50
"""Largest number of bits of the sum of all weights, as a multiple of their unit. A float has 53 bits, so such
sums are exact."""
_FEW_NODES = 12
"""Up to this number of nodes, adding weights node by node is faster than byte by byte."""
_VISITS_PER_IDEAL = 4
"""Largest number of intervals that the search may visit, for each ideal of its limit. If every visited
interval has an ideal of a window, the search visits at most 2 for each ideal."""


class TooManyIdeals(Exception):
    """There are more ideals than the caller can hold."""


def nodes_in_set(bits: int) -> Iterator[int]:
    """The nodes of a set, in order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def set_of_nodes(nodes: Iterable[int]) -> int:
    """The set of some nodes."""
    bits = 0
    for node in nodes:
        bits |= 1 << node
    return bits


@dataclass(frozen=True)
class WeightRange:
    """Weights from ``least`` to ``most``, both included."""

    least: float
    most: float


def merged_windows(windows: Iterable[WeightRange]) -> list[WeightRange]:
    """Windows that cover the same weights, in order, without overlaps."""
    found: list[WeightRange] = []
    for window in sorted(windows, key=lambda w: w.least):
        if window.most < window.least:
            continue
        if found and window.least <= found[-1].most:
            found[-1] = WeightRange(found[-1].least, max(found[-1].most, window.most))
        else:
            found.append(window)
    return found


class PartialOrder:
    """Partial order of a graph's nodes.

    Args:
        before: for each node, the nodes that it directly needs. They have smaller numbers.
    """

    def __init__(self, before: Sequence[Iterable[int]]) -> None:
        self.before = [set_of_nodes(nodes) for nodes in before]
        """Direct predecessors of each node."""
        self.size = size = len(before)
        self.everything = (1 << size) - 1
        self.after = [0] * size
        """Direct successors of each node."""
        self.down = [0] * size
        """Each node with all its ancestors."""
        for node, bits in enumerate(self.before):
            down = own = 1 << node
            for earlier in nodes_in_set(bits):
                down |= self.down[earlier]
                self.after[earlier] |= own
            self.down[node] = down
        self.up = [0] * size
        """Each node with all its descendants."""
        for node in reversed(range(size)):
            up = 1 << node
            for later in nodes_in_set(self.after[node]):
                up |= self.up[later]
            self.up[node] = up

    def antichain(self, ideal: int) -> list[int]:
        """The maximal nodes of an ideal."""
        return [node for node in nodes_in_set(ideal) if not self.after[node] & ideal]

    def crossing(self, ideal: int) -> list[int]:
        """The nodes of an ideal whose output a node outside of the ideal reads."""
        return [node for node in nodes_in_set(ideal) if self.after[node] & ~ideal]

    def larger_by_one(self, ideal: int) -> list[int]:
        """The ideals that have one node more: the successors of a state in the antichain DAG."""
        outside = self.everything & ~ideal
        return [
            ideal | 1 << node for node in nodes_in_set(outside) if not self.before[node] & outside
        ]

    def ideals_from(self, ideal: int, limit: int) -> list[int]:
        """All ideals that include ``ideal``, the smallest first: the states of the antichain DAG from
        ``ideal`` on.

        Raises:
            TooManyIdeals: there are more than ``limit``.
        """
        found = {ideal: None}
        level = [ideal]
        while level:
            grown: dict[int, None] = {}
            for each in level:
                grown.update(dict.fromkeys(self.larger_by_one(each)))
            found.update(grown)
            if len(found) > limit:
                raise TooManyIdeals
            level = list(grown)
        return list(found)


class WeighedOrder(PartialOrder):
    """A partial order whose nodes have weights (their work).

    Args:
        before: as in :class:`PartialOrder`.
        weights: weights of the nodes, not negative. They are kept as whole multiples of one small unit. So
            sums are exact in any order, and no ideal weighs less than an ideal that it includes.
    """

    def __init__(self, before: Sequence[Iterable[int]], weights: Sequence[float]) -> None:
        super().__init__(before)
        self.weights = np.asarray(weights, float)
        if (self.weights != np.floor(self.weights)).any():
            unit = 2.0 ** (math.ceil(math.log2(self.weights.sum())) - _EXACT_BITS)
            self.weights = np.round(self.weights / unit) * unit
        self._node_weights: list[float] = self.weights.tolist()
        self._bytes = (self.size + 7) // 8
        # The weight of each possible byte of a set at each place.
        places = np.zeros(8 * self._bytes)
        places[: self.size] = self.weights
        eight_bits = np.unpackbits(
            np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"
        )
        self._byte_weights: list[list[float]] = (places.reshape(-1, 8) @ eight_bits.T).tolist()
        self.total = self.weight(self.everything)

    def weight(self, bits: int) -> float:
        """Weight of a set of nodes."""
        total = 0.0
        if bits.bit_count() <= _FEW_NODES:
            for node in nodes_in_set(bits):
                total += self._node_weights[node]
            return total
        for place, byte in zip(
            self._byte_weights, bits.to_bytes(self._bytes, "little"), strict=True
        ):
            if byte:
                total += place[byte]
        return total

    def ideals_within(self, windows: Sequence[WeightRange], limit: int) -> list[tuple[float, int]]:
        """All ideals whose weight is in one of the windows, with their weights, in no order.

        The search divides intervals of ideals. An interval has all ideals between two ideals. One half has
        the ideals with some node, the other half has the ideals without it. An interval whose weights lie in
        no window is skipped. So the time is about in proportion to the number of ideals that are found. If
        windows are narrow and hardly any ideal is in one, this does not hold. Then the search stops, as if
        there were too many ideals.

        Raises:
            TooManyIdeals: there are more than ``limit``.
        """
        found: list[tuple[float, int]] = []
        visits_left = _VISITS_PER_IDEAL * (limit + 1)
        for window in merged_windows(windows):
            lightest, heaviest = window.least, window.most
            intervals = [(0, self.everything, 0.0, self.total)]
            while intervals:
                visits_left -= 1
                smallest, largest, least, most = intervals.pop()
                if least > heaviest or most < lightest:
                    continue
                between = largest & ~smallest
                if not between:
                    found.append((least, smallest))
                    if len(found) > limit:
                        raise TooManyIdeals
                    continue
                if visits_left < 0:
                    raise TooManyIdeals
                middle = (between.bit_length() + (between & -between).bit_length()) // 2 - 1
                upper = between >> middle
                node = middle + (upper & -upper).bit_length() - 1
                into, out = self.down[node] & between, self.up[node] & between
                intervals.append((smallest | into, largest, least + self.weight(into), most))
                intervals.append((smallest, largest & ~out, least, most - self.weight(out)))
        return found


def membership(order: PartialOrder, ideals: Sequence[int]) -> NDArray[np.bool_]:
    """Membership of nodes in ideals. Each row is an ideal, each column a node."""
    size = (order.size + 7) // 8
    packed = np.frombuffer(b"".join(i.to_bytes(size, "little") for i in ideals), np.uint8)
    bits = np.unpackbits(packed.reshape(-1, size), axis=1, bitorder="little", count=order.size)
    return bits.view(np.bool_)
