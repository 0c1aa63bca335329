"""Topology of the devices: their places, and the ports that a message between two of them crosses.

The network is a tree of levels. At the first level, a unit is one device. At a higher level, a unit is what
the level below joins. Each unit has one port, with one direction out and one in (full duplex). A message goes
up the tree through the out ports, as far as the level that joins sender and receiver. Then it goes down
through the in ports. Devices are numbered node after node.
"""

from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise, permutations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from joulecast.errors import JoulecastError
from joulecast.runs.platforms import Platform

Ints = NDArray[np.int64]


Links = tuple[tuple[int, ...], ...]
"""Number of links between each two GPUs of a node. It is empty if a switch joins them."""
Way = tuple[tuple[int, int], ...]
"""The hops of a ring."""

_THROUGH_THE_HOST = 0.5
"""Rate between two GPUs without a link, divided by the rate of a link. Without a link, bytes go through the
host over PCIe 3.0, at about 10 GB/s in place of 22."""


def _ways(links: Links, places: tuple[int, ...]) -> list[Way]:
    """All rings through the GPUs at these places."""
    first, *others = places
    ways = (tuple(pairwise((first, *path, first))) for path in permutations(others))
    return [way for way in ways if all(links[here][there] for here, there in way)]


def _most(ways: list[Way], left: dict[tuple[int, int], int], bound: int) -> int:
    """Largest number of rings that run at once on their own links. The search stops at ``bound``."""
    best = 0
    for place, way in enumerate(ways):
        if best == bound:
            break
        if all(left[hop] for hop in way):
            after = left | {hop: left[hop] - 1 for hop in way}
            best = max(best, 1 + _most(ways[place:], after, bound - 1))
    return best


def rings(links: Links, places: tuple[int, ...]) -> int:
    """Number of rings that can run at the same time through some GPUs of a node, each on its own links."""
    left = {(a, b): links[a][b] for a in places for b in places}
    bound = min(sum(links[a][b] for b in places) for a in places)
    return _most(_ways(links, places), left, bound)


@cache
def rate_share(links: Links, places: tuple[int, ...]) -> float:
    """Rate of a collective among some GPUs of a node, divided by the rate of all links of a GPU."""
    if len(places) < 2:
        return 1.0
    everything = max(map(sum, links))
    count: float = rings(links, places)
    if not count:
        # A tree sends the buffer once in each direction. A ring sends it twice, except one part.
        ranks = len(places)
        parts, _ = connected_components(np.array(links)[np.ix_(places, places)])
        count = 2 * (ranks - 1) / ranks if parts == 1 else _THROUGH_THE_HOST
    return count / everything


@dataclass(frozen=True)
class Hops:
    """Messages of flows: ``flow`` sends ``weight`` times its bytes from ``source`` to ``target``."""

    flow: Ints
    source: Ints
    target: Ints
    weight: NDArray[np.float64]


@dataclass(frozen=True)
class PortLoad:
    """The load of flows on ports, as parallel arrays. There is an entry for each pair of a flow and a port
    that it crosses."""

    flow: Ints
    port: Ints
    times: NDArray[np.float64]


@dataclass(frozen=True)
class Topology:
    """The ports between ``devices`` devices of a cluster."""

    devices: int
    devices_per_node: int
    widths: tuple[int, ...]
    """Number of devices behind one port, by level."""
    bytes_per_s: tuple[float, ...]
    latency_s: tuple[float, ...]
    pairs: Links = ()
    """Number of links between each two devices of a node, if no switch joins them."""

    def node_of(self, devices: Ints) -> Ints:
        """The node of each device."""
        return devices // self.devices_per_node

    def nodes_of(self, devices: Ints) -> int:
        """Number of nodes on which the devices are."""
        return len(np.unique(self.node_of(devices)))

    def share_of_lines(self, groups: Ints) -> NDArray[np.float64]:
        """If lines join devices directly (NVLink without a switch): the share of a device's lines that it can
        use within its group. There is one number for each group."""
        # Groups at the same places of their nodes are computed once.
        first = groups[:, :1] // self.devices_per_node * self.devices_per_node
        alike, where = np.unique(groups - first, axis=0, return_inverse=True)
        shares = []
        for row in alike:
            of_nodes = groupby(sorted(row.tolist()), lambda device: device // self.devices_per_node)
            ways = {tuple(d % self.devices_per_node for d in devices) for _, devices in of_nodes}
            shares.append(min(rate_share(self.pairs, places) for places in ways))
        found: NDArray[np.float64] = np.array(shares)[where.reshape(-1)]
        return found

    @property
    def _counts(self) -> list[int]:
        """Number of ports of each level. Each direction counts as a port."""
        return [2 * -(-self.devices // width) for width in self.widths]

    def capacity(self) -> NDArray[np.float64]:
        """Bytes/s of every port."""
        return np.repeat(np.array(self.bytes_per_s, float), self._counts)

    def load(self, hops: Hops, seen_by: Ints) -> PortLoad:
        """The load of each flow on each port that it crosses: the sum over its hops.

        Only the ports of the given devices count, and the ports of the units that contain these devices.
        """
        flows, ports, times, base = [], [], [], 0
        for width, count in zip(self.widths, self._counts, strict=True):
            leaves, enters = hops.source // width, hops.target // width
            seen = np.zeros(count // 2, dtype=bool)
            seen[seen_by // width] = True
            crosses = leaves != enters
            for unit, direction in ((leaves, 0), (enters, 1)):
                counted = np.flatnonzero(crosses & seen[unit])
                flows.append(hops.flow[counted])
                ports.append(base + 2 * unit[counted] + direction)
                times.append(hops.weight[counted])
            base += count
        flow, port = np.concatenate(flows), np.concatenate(ports)
        key, where = np.unique(flow * base + port, return_inverse=True)
        summed = np.zeros(len(key))
        np.add.at(summed, where, np.concatenate(times))
        return PortLoad(key // base, key % base, summed)

    def levels_crossed(self, hops: Hops) -> Ints:
        """Outermost level that each hop crosses; -1 if sender and receiver are the same."""
        outermost = np.full(len(hops.source), -1)
        for level, width in enumerate(self.widths):
            outermost[hops.source // width != hops.target // width] = level
        return outermost


def topology_of(platform: Platform, devices: int) -> Topology:
    """The ports that join the first ``devices`` devices of a platform.

    Raises:
        JoulecastError: the platform has fewer devices, or a link that they need has no rate. The error names
            the key.
    """
    cluster = platform.require_cluster()
    if cluster.nodes is not None and devices > cluster.nodes * cluster.devices_per_node:
        raise JoulecastError(
            f"platform {platform.name}: {devices} devices, but it has {cluster.nodes} nodes of "
            f"{cluster.devices_per_node} (key cluster.nodes)"
        )
    widths, rates, latencies = [], [], []
    width = 1
    for level, link in enumerate(cluster.links):
        if devices <= width:
            break
        if link.bytes_per_s is None:
            raise JoulecastError(
                f"platform {platform.name}: cluster.links.{level}.bytes_per_s (`{link.name}`) is not "
                f"known, and {devices} devices need it; measure it, or give an assumption with "
                f"--link {link.name}=BYTES_PER_S"
            )
        widths.append(width)
        rates.append(link.bytes_per_s)
        latencies.append(link.latency_s or 0.0)
        width = link.joins or devices
    if devices > width:
        raise JoulecastError(
            f"platform {platform.name}: cluster.links join {width} devices at most, {devices} are requested"
        )
    pairs = cluster.links[0].pairs if widths else ()
    return Topology(
        devices, cluster.devices_per_node, tuple(widths), tuple(rates), tuple(latencies), pairs
    )


def with_links(platform: Platform, rates: dict[str, float]) -> Platform:
    """The platform with other link rates (bytes/s by the link's name).

    Raises:
        JoulecastError: there is no link of this name, or a rate is not positive.
    """
    cluster = platform.require_cluster()
    known = {link.name for link in cluster.links}
    for name, rate in rates.items():
        if name not in known:
            raise JoulecastError(
                f"platform {platform.name}: no link `{name}` (known: {', '.join(sorted(known)) or 'none'})"
            )
        if not rate > 0:
            raise JoulecastError(f"link {name}: a rate of {rate} bytes/s is not positive")
    links = tuple(
        link.model_copy(update={"bytes_per_s": rates[link.name]}) if link.name in rates else link
        for link in cluster.links
    )
    return platform.model_copy(update={"cluster": cluster.model_copy(update={"links": links})})
