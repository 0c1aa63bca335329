"""Nodes that nothing orders, where they are too many to try all their places.

Backward nodes of device placement that have no forward node of their colour may be on any device.
Each doubles the number of ideals. Three smaller problems still give bounds. Two of them have some of the
pipelines: their best one is a pipeline to start from. One has fewer nodes: its best one is a lower bound.
"""

from dataclasses import replace

from joulecast.partition.contraction import Contraction, fused
from joulecast.partition.order import WeighedOrder, bits_of, nodes_of
from joulecast.partition.problem import Output, Problem


def in_mirrored_order(problem: Problem) -> Contraction:
    """The problem where the unordered nodes keep the order of ``problem.mirrored``.

    It is what the source of device placement searches (Tarnawski et al., NeurIPS 2020, and its programme).
    """
    return fused(problem, problem.mirrored)


def beside_neighbours(problem: Problem) -> Contraction:
    """The problem where each unordered node is with the one that it has the dearest output in common with."""
    dearest: dict[int, tuple[float, int]] = {}
    for output in problem.outputs:
        for reader in nodes_of(output.consumers):
            for node, other in ((output.producer, reader), (reader, output.producer)):
                if problem.unordered >> node & 1:
                    dearest[node] = max(dearest.get(node, (0.0, other)), (output.cost, other))
    pairs = [
        pair for node, (_, other) in dearest.items() for pair in ((node, other), (other, node))
    ]
    return fused(problem, pairs)


def without_unordered(problem: Problem) -> Problem | None:
    """The problem without those nodes and what they send and read; ``None`` if no other node is there.

    Taken out of any pipeline they leave one that is no slower: a bound of this problem is one of the other.
    """
    kept = list(nodes_of(problem.order.everything & ~problem.unordered))
    if not kept:
        return None
    place = {node: position for position, node in enumerate(kept)}

    def places(bits: int) -> list[int]:
        return [place[node] for node in nodes_of(bits) if node in place]

    outputs = (
        Output(place[output.producer], bits_of(places(output.consumers)), output.cost)
        for output in problem.outputs
        if output.producer in place
    )
    return replace(
        problem,
        node_names=tuple(problem.node_names[node] for node in kept),
        members=tuple(problem.members[node] for node in kept),
        order=WeighedOrder(
            [places(problem.order.before[node]) for node in kept],
            problem.order.weights[kept].tolist(),
        ),
        work=problem.work[kept],
        cpu_work=None if problem.cpu_work is None else problem.cpu_work[kept],
        outputs=tuple(output for output in outputs if output.consumers),
        traffic=(),
        parameters=problem.parameters[kept],
        activations=problem.activations[kept],
        not_on_accelerators=bits_of(places(problem.not_on_accelerators)),
        unordered=0,
        mirrored=(),
    )
