"""The flows of a strategy: which groups of devices exchange data, through which ports, and what a byte costs.

Groups whose devices belong to the same classes are one flow. If devices are folded, one port stands for all
ports with the same load. Its load by a flow is the load that all groups of the flow together put on one of
these ports. So a class sees the network as busy as each of its devices would.
"""

from dataclasses import dataclass, replace

import numpy as np

from joulecast.runs.platforms import Cluster
from joulecast.simulate.collectives import (
    TREE_SHARE,
    Algorithm,
    Kind,
    hops_of,
    sent_share,
    steps_of,
    switch_share,
    tree_steps,
)
from joulecast.simulate.device_mesh import (
    DeviceMesh,
    Ints,
    numbered,
    scrambled,
    signatures,
    summed_by,
)
from joulecast.simulate.event_loop import Activity
from joulecast.simulate.shared_links import Usage, alone
from joulecast.simulate.topology import Hops, PortLoad, Topology

_ONE_FLOW = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Flow:
    """Groups that send in the same way: their classes, their ports, and what a byte costs."""

    number: int
    kind: Kind
    members: tuple[int, ...]
    usage: Usage
    bytes_per_s: float
    """Rate of the transfer, if it has its ports alone."""
    ways: tuple[tuple[float, float], ...]
    """For each algorithm that the library may take: bytes through a device's port for each byte of the
    buffer, and seconds of launch and latency. A tree has fewer steps than a ring, and sends more bytes."""
    group_bytes_per_s: float = 1.0
    """Rate of one group that has its ports for itself. The library does not know of other groups when it
    chooses."""

    def activity(self, label: str, size: float, gradient: bool) -> Activity:
        """The transfer of a buffer of ``size`` bytes."""
        share, latency = self.ways[0]
        if len(self.ways) > 1:
            rate = self.group_bytes_per_s
            share, latency = min(self.ways, key=lambda way: way[1] + size * way[0] / rate)
        return Activity(label, self.members, size * share, self.usage, latency, gradient)

    def seconds_alone(self, size: float, latency: bool = True) -> float:
        """Seconds of a transfer of ``size`` bytes that shares its ports with no other transfer, with or
        without its latency."""
        activity = self.activity("", size, False)
        return latency * activity.latency + activity.work / self.bytes_per_s


class Transfers:
    """All flows of a strategy, built once, and the capacities of the ports that they use."""

    def __init__(
        self,
        device_mesh: DeviceMesh,
        topology: Topology,
        cluster: Cluster,
        kinds: set[tuple[Kind, str]],
        cuts: set[tuple[int, int]],
        experts_of_token: int = 1,
    ) -> None:
        self.device_mesh = device_mesh
        self.topology = topology
        self.cluster = cluster
        self.experts_of_token = experts_of_token
        chosen = cluster.collective_algorithm
        self.trees = chosen == "nccl"
        self.algorithm: Algorithm = "ring" if chosen == "nccl" else chosen
        self._class_flow: dict[tuple[object, int], int] = {}
        self._partners: dict[tuple[int, int], int] = {}
        self.loads: list[PortLoad] = []
        self.specs: list[tuple[Kind, Ints, tuple[int, ...]]] = []
        """For each flow, its kind, one of its groups, and the classes of its devices."""
        for kind, axis in sorted(kinds):
            groups = device_mesh.groups(axis)
            self._add(kind, (kind, axis), groups, groups, self._signature(axis, groups))
        for source, target in sorted(cuts):
            pipelines = device_mesh.groups("pipeline")
            pairs, signature = (
                pipelines[:, [source, target]],
                self._signature("pipeline", pipelines),
            )
            self._add("send", ("send", source, target), pairs, pairs[:, :1], signature)
        self.flows, self.capacity = self.priced()

    @property
    def seen_by(self) -> Ints:
        """The devices whose ports are counted: one device of each class, because all devices of a class do
        the same."""
        return self.device_mesh.classes.first

    def _signature(self, axis: str, groups: Ints) -> Ints:
        of_device = self.device_mesh.classes.of_device
        return signatures(self.device_mesh.group_of(axis), of_device)[groups[:, 0]]

    def _add(self, kind: Kind, name: object, groups: Ints, devices: Ints, signature: Ints) -> None:
        """Add the flows of groups, one for each signature. The classes of ``devices`` (a row for each group)
        get the flow of their group under ``name``."""
        class_of = self.device_mesh.classes.of_device
        _, rows, flow_of_group = np.unique(signature, return_index=True, return_inverse=True)
        base = len(self.specs)
        for row in rows:
            members = tuple(np.unique(class_of[groups[row]]).tolist())
            self.specs.append((kind, groups[row], members))
        flows = base + flow_of_group.reshape(-1)
        if kind == "send":
            hops = Hops(flows, groups[:, 0], groups[:, 1], np.ones(len(groups)))
        else:
            hops = hops_of(kind, self.algorithm, groups, flows)
        if kind == "all_to_all":
            hops = self._once_a_node(hops, groups)
        hops = self._over_lines(hops, groups, flows)
        self.loads.append(self.topology.load(hops, self.seen_by))
        for row in rows:
            for number in np.unique(class_of[devices[row]]).tolist():
                self._class_flow[name, number] = int(flows[row])

    def _once_a_node(self, hops: Hops, groups: Ints) -> Hops:
        """Hops of tokens to their experts. A node gets each token only once (DeepSeek-AI 2024, 3.2.2).

        Of ``k`` experts, evenly spread over ``n`` nodes, ``n (1 - (1 - 1 / n)^k)`` nodes have one or more.
        """
        nodes, chosen = self.topology.nodes_of(groups[0]), self.experts_of_token
        met = nodes * (1 - (1 - 1 / nodes) ** chosen)
        between = self.topology.levels_crossed(hops) > 0
        return replace(hops, weight=hops.weight * np.where(between, met / chosen, 1.0))

    def _over_lines(self, hops: Hops, groups: Ints, flows: Ints) -> Hops:
        """The hops, with changed weights: if a hop within a node can use only few lines of the device, it
        takes more of the port.

        Lines join devices directly, without a switch. A group can use only the lines between its own devices.
        If the groups of a flow have different shares of lines, the smallest share counts for all, because the
        others wait for the slowest group.
        """
        if not self.topology.pairs:
            return hops
        shares = np.ones(int(flows.max()) + 1)
        np.minimum.at(shares, flows, self.topology.share_of_lines(groups))
        within = self.topology.levels_crossed(hops) == 0
        return replace(hops, weight=hops.weight / np.where(within, shares[hops.flow], 1.0))

    def partner(self, number: int, stage: int) -> int:
        """The class of the devices at another stage of the same pipeline."""
        place = stage % self.device_mesh.mesh["pipeline"]
        if (number, place) not in self._partners:
            places = self.device_mesh.places_of(number) | {"pipeline": place}
            device = self.device_mesh.grid[tuple(places.values())]
            self._partners[number, place] = int(self.device_mesh.classes.of_device[device])
        return self._partners[number, place]

    def flow(self, kind: Kind, axis: str, number: int) -> Flow:
        """The flow of a class of devices, for one kind of collective along one axis."""
        return self.flows[self._class_flow[(kind, axis), number]]

    def send(self, number: int, source: int, target: int) -> Flow:
        """The flow of messages that a class at stage ``source`` sends to stage ``target``."""
        places = self.device_mesh.mesh["pipeline"]
        return self.flows[self._class_flow[("send", source % places, target % places), number]]

    def _latency(self, kind: Kind, group: Ints) -> float:
        """Seconds of latency: each hop along the ring has a step.

        A message takes all hops except the costliest one. So a ring over N nodes crosses N - 1 times between
        them (as NCCL counts).
        """
        if not self.topology.latency_s:
            return 0.0
        levels = self.topology.levels_crossed(hops_of("all_gather", "ring", group[None], _ONE_FLOW))
        hop_s = np.sort(np.array([*self.topology.latency_s, 0.0])[levels])
        along = hop_s[:-1] if len(hop_s) > 1 else hop_s
        return float(along.mean()) * steps_of(kind, self.algorithm, len(group))

    def priced(self) -> tuple[list[Flow], list[float]]:
        """All flows, each with its members, its ports, and what its bytes cost. Also the bytes/s of each
        port."""
        flows, launch = [], self.cluster.collective_launch_s
        usages, capacity = self._port_usage()
        for number, usage in enumerate(usages):
            kind, group, members = self.specs[number]
            ranks, nodes = len(group), self.topology.nodes_of(group)
            share = sent_share(kind, self.algorithm, ranks)
            sums = self.cluster.links[0].switch_sums
            if self.trees and kind == "all_reduce" and nodes == 1 and sums:
                share = min(share, switch_share(ranks) / sums)
            ways, group_rate = [(share, launch + self._latency(kind, group))], 1.0
            if self.trees and kind == "all_reduce" and nodes > 1:
                within, between = tree_steps(ranks, nodes)
                latencies = self.topology.latency_s
                latency = within * latencies[0] + between * latencies[-1]
                ways.append((TREE_SHARE, launch + latency))
                group_rate = self._rate(group)
            rate = alone(usage, capacity)
            flows.append(Flow(number, kind, members, usage, rate, tuple(ways), group_rate))
        return flows, capacity

    def _rate(self, group: Ints) -> float:
        """Bytes per second of an all-reduce of one group. (If devices are folded, a flow may be several
        groups that share ports.)"""
        hops = hops_of("all_reduce", self.algorithm, group[None], _ONE_FLOW)
        load = self.topology.load(self._over_lines(hops, group[None], _ONE_FLOW), group)
        return float((self.topology.capacity()[load.port] / load.times).min())

    def _port_usage(self) -> tuple[list[dict[int, float]], list[float]]:
        """The usage of each port by each flow, and the bytes/s of each port. Ports with the same load are one
        port."""
        usage: list[dict[int, float]] = [{} for _ in self.specs]
        if not self.loads:
            return usage, []
        flows, crossed, times = (
            np.concatenate([getattr(each, name) for each in self.loads])
            for name in ("flow", "port", "times")
        )
        capacity = self.topology.capacity()
        ports, port = np.unique(crossed, return_inverse=True)
        stands_for, kept = np.arange(len(ports)), np.ones(len(port), dtype=bool)
        if self.device_mesh.classes.count < len(self.device_mesh.pace):
            # Ports are equal if they have the same rate, and carry the same flows in the same shares.
            loads = scrambled(flows) ^ scrambled(np.round(times * 2**20).astype(np.int64))
            rates = scrambled(numbered(capacity[ports]))
            _, first, stands_for = np.unique(
                summed_by(port, loads) + rates, return_index=True, return_inverse=True
            )
            ports, kept = ports[first], np.isin(port, first)
        each_use = zip(flows[kept], stands_for[port[kept]], times[kept], strict=True)
        for flow, number, share in each_use:
            usage[int(flow)][int(number)] = float(share)
        return usage, capacity[ports].tolist()
