"""Reads device-placement graphs: the JSON of Tarnawski et al. (NeurIPS 2020), inference and training.

Top level: ``maxFPGAs`` accelerators, ``maxCPUs``, ``maxSizePerFPGA``; ``nodes`` with ``id``,
``supportedOnFpga``, ``cpuLatency``, ``fpgaLatency``, ``isBackwardNode``, ``colorClass``, ``size``; ``edges``
with ``sourceId``, ``destId``, ``cost`` (of the source's output). Nodes of one colour are on one device: a
backward node is where its forward node is, so what is placed are classes of nodes, ordered by their forward
parts. Edges between backward nodes may run either way (in the published layer graphs they run as the forward
ones do).

Backward nodes without a forward node of their colour, *orphans*, are classes of their own. No forward part
orders them. The paper's programme gives each a forward mate without cost, whose edges mirror those of the
backward nodes: that order is here in ``PlacementGraph.mirrored``, for searches that need an order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from joulecast.errors import JoulecastError
from joulecast.graphs.taskgraph import (
    Task,
    checked_name,
    checked_number,
    in_order,
    require_few_nodes,
)


@dataclass(frozen=True)
class PlacementClass:
    """Nodes that are placed together.

    ``name`` is the id of its first forward node (of an orphan: of its first node), ``nodes`` all ids;
    ``reads`` are the positions of the classes before it. Loads and size are sums over its nodes, in the
    file's units. ``is_orphan`` tells that all its nodes are backward ones.
    """

    name: str
    nodes: tuple[str, ...]
    reads: tuple[int, ...]
    accelerator_load: float
    cpu_load: float
    size: float
    runs_on_accelerator: bool
    is_orphan: bool = False


@dataclass(frozen=True)
class NodeOutput:
    """What one node hands on to other classes; each accelerator that it leaves or enters pays ``cost``.

    The format wants one cost for all edges of a node; where they differ, the dearest is paid.
    """

    producer: int
    consumers: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class PlacementGraph:
    """What a file asks to be placed: classes in an order in which they can run.

    ``mirrored`` are pairs of classes, the earlier first, at least one an orphan: the edges of the paper's
    artificial forward nodes. They may form circles, with each other and with what the classes read.
    """

    name: str
    accelerators: int
    cpus: int
    memory: float
    classes: tuple[PlacementClass, ...]
    outputs: tuple[NodeOutput, ...]
    mirrored: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class _Node:
    id: str
    is_backward: bool
    color: str | None
    accelerator_load: float
    cpu_load: float
    size: float
    runs_on_accelerator: bool

    @property
    def place(self) -> str:
        """Nodes with the same one are on the same device."""
        return f"node {self.id}" if self.color is None else f"color {self.color}"


def is_placement(content: Any) -> bool:
    """Whether a JSON file is of this format."""
    return isinstance(content, dict) and "maxFPGAs" in content


def _read_node(where: str, content: Any) -> _Node:
    if not isinstance(content, dict):
        raise JoulecastError(f"{where}: a node without an id: {content!r:.80}")
    name = checked_name(where, "a node", content.get("id"))
    here = f"{where}, node `{name}`"

    def number(key: str) -> float:
        if key not in content:
            raise JoulecastError(f"{here}: {key} is missing")
        return float(checked_number(here, key, content[key]))

    def flag(key: str, default: bool) -> bool:
        value = content.get(key, default)
        if value not in (0, 1):
            raise JoulecastError(f"{here}: {key} is {value!r:.50}, neither true nor false")
        return bool(value)

    supported = flag("supportedOnFpga", True)
    color = content.get("colorClass")
    return _Node(
        id=name,
        is_backward=flag("isBackwardNode", False),
        color=None if color is None else checked_name(here, "a colour", color),
        accelerator_load=number("fpgaLatency") if supported else 0.0,
        cpu_load=number("cpuLatency"),
        size=number("size") if "size" in content else 0.0,
        runs_on_accelerator=supported,
    )


def _read_edges(
    where: str, content: Any, nodes: Mapping[str, _Node]
) -> dict[str, dict[str, float]]:
    """Costs by source and destination."""
    edges: dict[str, dict[str, float]] = {name: {} for name in nodes}
    for number, edge in enumerate(content):
        here = f"{where}, edge {number}"
        if not isinstance(edge, dict):
            raise JoulecastError(f"{here}: is no edge: {edge!r:.80}")
        ends = []
        for key in ("sourceId", "destId"):
            if key not in edge:
                raise JoulecastError(f"{here}: {key} is missing")
            end = checked_name(here, key, edge[key])
            if end not in nodes:
                raise JoulecastError(f"{here}: {key} is the unknown node `{end}`")
            ends.append(end)
        cost = float(checked_number(here, "cost", edge.get("cost", 0)))
        edges[ends[0]][ends[1]] = max(cost, edges[ends[0]].get(ends[1], 0.0))
    return edges


def _class_of_nodes(
    where: str, nodes: Mapping[str, _Node], edges: Mapping[str, Mapping[str, float]]
) -> dict[str, int]:
    """A number for each node, the same for those that have to be on one device."""
    reads: dict[str, list[str]] = {name: [] for name in nodes}
    for source, targets in edges.items():
        for target in targets:
            if nodes[source].is_backward == nodes[target].is_backward:
                reads[target].append(source)
    # Tells of a cycle by name, among forward nodes or among backward ones.
    in_order(where, [Task(name, "", tuple(reads[name]), 0, 0, 0, 0) for name in nodes])
    places: dict[str, int] = {}
    found = {name: places.setdefault(node.place, len(places)) for name, node in nodes.items()}
    # Several forward nodes of a colour: with all that lies between them, as a device's part is contiguous.
    pairs = [
        (found[source], found[name])
        for name, node in nodes.items()
        if not node.is_backward
        for source in reads[name]
    ]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    links = csr_array(([1] * len(pairs), (rows, columns)), shape=(len(places), len(places)))
    _, together = connected_components(links, directed=True, connection="strong")
    return {name: int(together[number]) for name, number in found.items()}


def placement_graph(path: Path, content: Any) -> PlacementGraph:
    """The graph of a file's JSON.

    Raises:
        JoulecastError: a missing or negative number, an edge to an unknown node, a cycle,
            no nodes, a node larger than an accelerator where there is no CPU; names the file and the node.
    """
    where = str(path)
    for key in ("maxFPGAs", "maxCPUs", "maxSizePerFPGA"):
        most = 1e18 if key == "maxSizePerFPGA" else 10_000
        number = checked_number(where, key, content.get(key), 0, most)
        if key != "maxSizePerFPGA" and number != int(number):
            raise JoulecastError(f"{where}: {key} is {number}; devices are whole")
    for key in ("nodes", "edges"):
        if not isinstance(content.get(key), list):
            raise JoulecastError(f"{where}: {key} must be a list")
    require_few_nodes(where, len(content["nodes"]))
    nodes: dict[str, _Node] = {}
    for each in content["nodes"]:
        node = _read_node(where, each)
        if node.id in nodes:
            raise JoulecastError(f"{where}: node `{node.id}` is there twice")
        nodes[node.id] = node
    if not nodes:
        raise JoulecastError(f"{where}: the graph is empty")
    edges = _read_edges(where, content["edges"], nodes)
    classes, outputs, mirrored = _contracted(where, nodes, edges)
    graph = PlacementGraph(
        name=path.stem,
        accelerators=int(content["maxFPGAs"]),
        cpus=int(content["maxCPUs"]),
        memory=float(content["maxSizePerFPGA"]),
        classes=classes,
        outputs=outputs,
        mirrored=mirrored,
    )
    for each in classes:
        if not graph.cpus and each.size > graph.memory:
            raise JoulecastError(
                f"{where}: node `{each.name}` has a size of {each.size:g}, more than maxSizePerFPGA "
                f"({graph.memory:g}), and there is no CPU"
            )
        if not graph.cpus and not each.runs_on_accelerator:
            raise JoulecastError(f"{where}: node `{each.name}` needs a CPU, and maxCPUs is 0")
    return graph


def _contracted(
    where: str, nodes: Mapping[str, _Node], edges: Mapping[str, Mapping[str, float]]
) -> tuple[tuple[PlacementClass, ...], tuple[NodeOutput, ...], tuple[tuple[int, int], ...]]:
    """The classes, what crosses between them, and the mirrored edges of the orphans."""
    class_of = _class_of_nodes(where, nodes, edges)
    members: dict[int, list[_Node]] = {}
    for name, number in class_of.items():
        members.setdefault(number, []).append(nodes[name])
    # The first forward node, or the first of all where each is a backward one.
    first = {
        number: min(of_class, key=lambda each: each.is_backward)
        for number, of_class in members.items()
    }
    reads: dict[int, dict[str, None]] = {number: {} for number in members}
    for source, targets in edges.items():
        for target in targets:
            ends = class_of[source], class_of[target]
            if ends[0] != ends[1] and not (nodes[source].is_backward or nodes[target].is_backward):
                reads[ends[1]][first[ends[0]].id] = None
    tasks = [Task(first[number].id, "", tuple(reads[number]), 0, 0, 0, 0) for number in members]
    ordered = [class_of[task.name] for task in in_order(where, tasks)]
    position = {number: place for place, number in enumerate(ordered)}
    classes = tuple(
        PlacementClass(
            name=first[number].id,
            nodes=tuple(each.id for each in members[number]),
            reads=tuple(position[class_of[name]] for name in reads[number]),
            accelerator_load=sum(each.accelerator_load for each in members[number]),
            cpu_load=sum(each.cpu_load for each in members[number]),
            size=sum(each.size for each in members[number]),
            runs_on_accelerator=all(each.runs_on_accelerator for each in members[number]),
            is_orphan=first[number].is_backward,
        )
        for number in ordered
    )
    outputs = []
    mirrored: dict[tuple[int, int], None] = {}
    for source, targets in edges.items():
        producer = position[class_of[source]]
        consumers = {position[class_of[target]] for target in targets} - {producer}
        cost = max(targets.values(), default=0.0)
        if consumers and cost:
            outputs.append(NodeOutput(producer, tuple(sorted(consumers)), cost))
        for target in targets:
            earlier = position[class_of[target]]
            is_backward = nodes[source].is_backward and nodes[target].is_backward
            is_of_orphan = classes[producer].is_orphan or classes[earlier].is_orphan
            if is_backward and is_of_orphan and earlier != producer:
                mirrored[earlier, producer] = None
    return classes, tuple(outputs), tuple(mirrored)
