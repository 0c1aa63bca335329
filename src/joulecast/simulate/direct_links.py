"""Rings over links that join pairs of GPUs, where no switch joins them all (NVIDIA's DGX-1).

A ring takes one link in one direction from each of its GPUs to the next, and NCCL runs as many rings at once
as find links of their own. Where no ring goes through all GPUs, they make a tree, whose links carry the sum
up and the result down. With 22.4 GB/s a link this gives what was measured on 2 to 8 V100
(``allreduce_in_node.csv``) within 4 %.
"""

from functools import cache

Links = tuple[tuple[int, ...], ...]
"""Links between each two GPUs of a node; empty where a switch joins them."""
Way = tuple[tuple[int, int], ...]
"""The hops of a ring."""

_THROUGH_THE_HOST = 0.5
"""Links' worth of rate between GPUs that no links join: PCIe 3.0 through the host, 10 of 22 GB/s."""


def _ways(links: Links, places: tuple[int, ...]) -> list[Way]:
    """All rings through the GPUs at some places."""
    first, found = places[0], []

    def walk(path: tuple[int, ...]) -> None:
        if len(path) == len(places):
            if links[path[-1]][first]:
                found.append(tuple(zip(path, (*path[1:], first), strict=True)))
            return
        for place in places:
            if place not in path and links[path[-1]][place]:
                walk((*path, place))

    walk((first,))
    return found


def _most(ways: list[Way], left: dict[tuple[int, int], int], bound: int) -> int:
    """How many rings run at once, on links of their own; looks no further once ``bound`` do."""
    best = 0
    for place, way in enumerate(ways):
        if best == bound:
            break
        if all(left[hop] for hop in way):
            after = left | {hop: left[hop] - 1 for hop in way}
            best = max(best, 1 + _most(ways[place:], after, bound - 1))
    return best


def rings(links: Links, places: tuple[int, ...]) -> int:
    """Rings that run at once through the GPUs at some places of a node, each on links of its own."""
    left = {(a, b): links[a][b] for a in places for b in places}
    bound = min(sum(links[a][b] for b in places) for a in places)
    return _most(_ways(links, places), left, bound)


def _joined(links: Links, places: tuple[int, ...]) -> bool:
    reached, waiting = {places[0]}, [places[0]]
    while waiting:
        here = waiting.pop()
        new = {there for there in places if links[here][there]} - reached
        reached |= new
        waiting += new
    return len(reached) == len(places)


@cache
def rate_share(links: Links, places: tuple[int, ...]) -> float:
    """Share of what all links of a GPU carry that a collective among some GPUs of a node reaches."""
    if len(places) < 2:
        return 1.0
    everything = max(map(sum, links))
    count: float = rings(links, places)
    if not count:
        # A tree carries the buffer once each way, a ring all but a part of it twice.
        ranks = len(places)
        count = 2 * (ranks - 1) / ranks if _joined(links, places) else _THROUGH_THE_HOST
    return count / everything
