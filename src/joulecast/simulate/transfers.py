"""The flows of a strategy: which groups of devices exchange data, through which ports, and what a byte costs.

Groups whose devices belong to the same classes are one flow. If devices are folded, one port stands for all
ports with the same load. Its load by a flow is the load that all groups of the flow together put on one of
these ports. So a class sees the network as busy as each of its devices would.
"""

from dataclasses import dataclass

import numpy as np

from joulecast.runs.platforms import Cluster
from joulecast.simulate.collectives import (
    Algorithm,
    Kind,
    hops_of,
    sent_share,
    steps_of,
    tree_share,
    tree_steps,
)
from joulecast.simulate.device_mesh import DeviceMesh, Ints, scrambled, signatures, summed_by
from joulecast.simulate.event_loop import Activity
from joulecast.simulate.shared_links import Usage, alone
from joulecast.simulate.topology import Hops, PortLoad, Topology


@dataclass(frozen=True)
class Tree:
    """An all-reduce by trees. It has fewer steps than a ring, and sends more bytes."""

    bytes_per_byte: float
    launch_s: float
    bytes_per_s: float
    """Of one group that has its ports for itself: NCCL does not know of other groups when it chooses."""


@dataclass(frozen=True)
class Flow:
    """Groups that send in the same way: their classes, their ports, and what a byte costs."""

    number: int
    kind: Kind
    members: tuple[int, ...]
    usage: Usage
    bytes_per_s: float
    """Rate of the transfer, if it has its ports alone."""
    bytes_per_byte: float
    """Bytes through a device's port for each byte of the buffer."""
    launch_s: float
    tree: Tree | None = None
    """Tree of an all-reduce over several nodes, if the library may use one."""

    def activity(self, label: str, size: float, gradient: bool) -> Activity:
        """The transfer of a buffer of ``size`` bytes."""
        latency, sent = self.launch_s, size * self.bytes_per_byte
        if self.tree is not None:
            by_tree = size * self.tree.bytes_per_byte
            if (by_tree - sent) / self.tree.bytes_per_s < latency - self.tree.launch_s:
                latency, sent = self.tree.launch_s, by_tree
        return Activity(label, self.members, sent, self.usage, latency, gradient)


def _members(groups: Ints, class_of: Ints, rows: Ints) -> list[tuple[int, ...]]:
    return [tuple(np.unique(class_of[groups[row]]).tolist()) for row in rows]


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
        self._flows: dict[tuple[object, ...], Flow] = {}
        self._class_flow: dict[tuple[object, int], int] = {}
        self._partners: dict[tuple[int, int], int] = {}
        self.loads: list[PortLoad] = []
        self.specs: list[tuple[Kind, Ints, tuple[int, ...]]] = []
        for kind, axis in sorted(kinds):
            self._add_axis(kind, axis)
        for source, target in sorted(cuts):
            self._add_cut(source, target)
        self.capacity: list[float] = []
        self.flows = self.priced()

    @property
    def seen_by(self) -> Ints:
        """The devices whose ports are counted: one device of each class, because all devices of a class are
        alike."""
        return self.device_mesh.classes.first

    def _add(self, kind: Kind, name: object, groups: Ints, devices: Ints, signature: Ints) -> None:
        """Add the flows of groups, one for each signature. ``devices`` find their flow by class."""
        class_of = self.device_mesh.classes.of_device
        _, rows, flow_of_group = np.unique(signature, return_index=True, return_inverse=True)
        base = len(self.specs)
        for members, row in zip(_members(groups, class_of, rows), rows, strict=True):
            self.specs.append((kind, groups[row], members))
        flows = base + flow_of_group.reshape(-1)
        if kind == "send":
            hops = Hops(flows, groups[:, 0], groups[:, 1], np.ones(len(groups)))
        else:
            hops = hops_of(kind, self.algorithm, groups, flows)
        if kind == "all_to_all":
            hops = self.once_a_node(hops, groups)
        if self.topology.pairs:
            hops = self.over_lines(hops, groups, flows)
        self.loads.append(self.topology.load(hops, self.seen_by))
        for row in rows:
            for number in np.unique(class_of[devices[row]]).tolist():
                self._class_flow[name, number] = int(flows[row])

    def once_a_node(self, hops: Hops, groups: Ints) -> Hops:
        """Hops of tokens to their experts. A node gets each token only once (DeepSeek-AI 2024, 3.2.2).

        Of ``k`` experts, evenly spread over ``n`` nodes, ``n (1 - (1 - 1 / n)^k)`` nodes have one or more.
        """
        nodes, chosen = len(np.unique(self.topology.node_of(groups[0]))), self.experts_of_token
        met = nodes * (1 - (1 - 1 / nodes) ** chosen)
        between = self.topology.levels_crossed(hops) > 0
        weight = hops.weight * np.where(between, met / chosen, 1.0)
        return Hops(hops.flow, hops.source, hops.target, weight)

    def over_lines(self, hops: Hops, groups: Ints, flows: Ints) -> Hops:
        """The hops, with changed weights: if a hop within a node can use only few lines of the device, it
        takes more of the port.

        Lines join devices directly, without a switch. A group can use only the lines between its own devices.
        If the groups of a flow have different shares of lines, the smallest share counts for all, because the
        others wait for the slowest group.
        """
        shares = np.ones(int(flows.max()) + 1)
        np.minimum.at(shares, flows, self.topology.share_of_lines(groups))
        within = self.topology.levels_crossed(hops) == 0
        weight = hops.weight / np.where(within, shares[hops.flow], 1.0)
        return Hops(hops.flow, hops.source, hops.target, weight)

    def _add_axis(self, kind: Kind, axis: str) -> None:
        groups = self.device_mesh.groups(axis)
        signature = signatures(self.device_mesh.group_of(axis), self.device_mesh.classes.of_device)
        self._add(kind, (kind, axis), groups, groups, signature[groups[:, 0]])

    def _add_cut(self, source: int, target: int) -> None:
        pipelines = self.device_mesh.groups("pipeline")
        signature = signatures(
            self.device_mesh.group_of("pipeline"), self.device_mesh.classes.of_device
        )
        pairs = pipelines[:, [source, target]]
        self._add("send", ("send", source, target), pairs, pairs[:, :1], signature[pipelines[:, 0]])

    def partner(self, number: int, stage: int) -> int:
        """The class of the devices at another stage of the same pipeline."""
        place = stage % self.device_mesh.mesh["pipeline"]
        if (number, place) not in self._partners:
            self._partners[number, place] = self._partner(number, place)
        return self._partners[number, place]

    def _partner(self, number: int, place: int) -> int:
        along = list(self.device_mesh.mesh).index("pipeline")
        places = [
            int(p[self.device_mesh.classes.first[number]]) for p in self.device_mesh.place.values()
        ]
        places[along] = place
        return int(self.device_mesh.classes.of_device[self.device_mesh.grid[tuple(places)]])

    def flow(self, kind: Kind, axis: str, number: int) -> Flow:
        """The flow of a class for collectives of a kind along an axis."""
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
        pair = group.reshape(1, -1)
        flow = np.zeros(1, dtype=np.int64)
        levels = self.topology.levels_crossed(hops_of("all_gather", "ring", pair, flow))
        hop_s = np.sort(np.array([*self.topology.latency_s, 0.0])[levels])
        along = hop_s[:-1] if len(hop_s) > 1 else hop_s
        ranks = len(group)
        return float(along.mean()) * steps_of(kind, self.algorithm, ranks)

    def priced(self) -> list[Flow]:
        """All flows: their members, ports and prices."""
        usage = self._port_usage()
        launch = self.cluster.collective_launch_s
        flows = []
        for number, (kind, group, members) in enumerate(self.specs):
            ranks = len(group)
            nodes = len(np.unique(self.topology.node_of(group)))
            share = sent_share(kind, self.algorithm, ranks)
            latency = launch + self._latency(kind, group)
            tree = None
            if self.trees and kind == "all_reduce" and nodes > 1:
                by_tree = launch + self._tree_latency(ranks, nodes)
                tree = Tree(tree_share(), by_tree, self._rate(group))
            rate = alone(usage[number], self.capacity)
            flows.append(Flow(number, kind, members, usage[number], rate, share, latency, tree))
        return flows

    def _rate(self, group: Ints) -> float:
        """Bytes per second of an all-reduce of one group. (If devices are folded, a flow may be several
        groups that share ports.)"""
        groups, flow = group.reshape(1, -1), np.zeros(1, dtype=np.int64)
        hops = hops_of("all_reduce", self.algorithm, groups, flow)
        if self.topology.pairs:
            hops = self.over_lines(hops, groups, flow)
        load = self.topology.load(hops, group)
        return float((self.topology.capacity()[load.port] / load.times).min())

    def _tree_latency(self, ranks: int, nodes: int) -> float:
        inner, outer = self.topology.latency_s[0], self.topology.latency_s[-1]
        within, between = tree_steps(ranks, nodes)
        return within * inner + between * outer

    def _port_usage(self) -> list[dict[int, float]]:
        """The usage of each port by each flow. Ports with the same load are one port."""
        usage: list[dict[int, float]] = [{} for _ in self.specs]
        if not self.loads:
            return usage
        load = PortLoad(
            *(
                np.concatenate([getattr(each, name) for each in self.loads])
                for name in ("flow", "port", "times")
            )
        )
        capacity = self.topology.capacity()
        ports, port = np.unique(load.port, return_inverse=True)
        stands_for = np.arange(len(ports))
        if self.device_mesh.classes.count < len(self.device_mesh.pace):
            # Ports are equal if they have the same rate, and carry the same flows in the same shares.
            loads = scrambled(load.flow) ^ scrambled(np.round(load.times * 2**20).astype(np.int64))
            rates = scrambled(np.unique(capacity[ports], return_inverse=True)[1].reshape(-1))
            _, first, stands_for = np.unique(
                summed_by(port, loads) + rates, return_index=True, return_inverse=True
            )
            ports, kept = ports[first], np.isin(port, first)
        else:
            kept = np.ones(len(port), dtype=bool)
        self.capacity = capacity[ports].tolist()
        for flow, number, times in zip(
            load.flow[kept].tolist(),
            stands_for[port[kept]].tolist(),
            load.times[kept].tolist(),
            strict=True,
        ):
            usage[flow][number] = times
        return usage
