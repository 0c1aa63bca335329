"""Nodes that must be in one stage become one node.

A bottleneck is known, and a better pipeline is wanted. If sending an output takes as long as this bottleneck,
no better pipeline sends the output. So its producer, all its readers, and all nodes between them are in one
stage. This gives a smaller problem with the same better pipelines. It is often much smaller, because the
tensors early in a network are large.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from joulecast.partition.order import PartialOrder, WeighedOrder, nodes_in_set, set_of_nodes
from joulecast.partition.problem import Floats, Output, Problem


@dataclass(frozen=True)
class Contraction:
    """A smaller problem. For each of its nodes, it has the nodes of the larger problem that were joined."""

    problem: Problem
    members: tuple[int, ...]
    """A set of nodes for each node of the smaller problem."""

    def expanded(self, ideal: int) -> int:
        """An ideal of the smaller problem, as an ideal of the larger problem."""
        found = 0
        for node in nodes_in_set(ideal):
            found |= self.members[node]
        return found


def _groups(order: PartialOrder, pairs: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """Number of groups, and the group of each node, if the nodes of each pair become one with all nodes
    between them."""
    links = [
        (before, node) for node in range(order.size) for before in nodes_in_set(order.before[node])
    ]
    # A pair is a cycle, so that it is strongly connected.
    links += [*pairs, *((later, earlier) for earlier, later in pairs)]
    rows, columns = zip(*links, strict=True)
    matrix = csr_array(([True] * len(links), (rows, columns)), shape=(order.size, order.size))
    count, groups = connected_components(matrix, directed=True, connection="strong")
    return int(count), groups.tolist()


def _in_running_order(before: Sequence[set[int]], first: Sequence[int]) -> list[int]:
    """Groups in an order in which they can run, those with the earliest nodes first."""
    waiting = sorted(range(len(before)), key=first.__getitem__)
    done: set[int] = set()
    found: list[int] = []
    while waiting:
        ready = [group for group in waiting if before[group] <= done]
        done.update(ready)
        found += ready
        waiting = [group for group in waiting if group not in done]
    return found


def contracted(problem: Problem, bottleneck: float) -> Contraction | None:
    """The problem without the cuts that cost as much as ``bottleneck`` or more; ``None`` if there are no such
    cuts."""
    most = max(problem.replicas)
    pairs = [
        (output.producer, reader)
        for output in problem.outputs
        if output.cost / most >= bottleneck
        for reader in nodes_in_set(output.consumers)
    ]
    if not pairs:
        return None
    order = problem.order
    count, group_of = _groups(order, pairs)
    members, before = [0] * count, [set[int]() for _ in range(count)]
    for node, group in enumerate(group_of):
        members[group] |= 1 << node
        before[group] |= {group_of[n] for n in nodes_in_set(order.before[node])} - {group}
    first = [(bits & -bits).bit_length() for bits in members]
    running = _in_running_order(before, first)
    place = {group: position for position, group in enumerate(running)}
    position_of = [place[group] for group in group_of]

    def summed(column: Floats) -> Floats:
        return np.bincount(position_of, weights=column, minlength=count).astype(float)

    outputs = []
    for output in problem.outputs:
        producer = position_of[output.producer]
        readers = {position_of[node] for node in nodes_in_set(output.consumers)} - {producer}
        if readers:
            outputs.append(Output(producer, set_of_nodes(readers), output.cost))
    work = summed(problem.work)
    smaller = replace(
        problem,
        node_names=tuple(problem.node_names[first[group] - 1] for group in running),
        order=WeighedOrder([[place[g] for g in before[group]] for group in running], work.tolist()),
        work=work,
        outputs=tuple(outputs),
        traffic=(),
        parameters=summed(problem.parameters),
        activations=summed(problem.activations),
    )
    return Contraction(smaller, tuple(members[group] for group in running))
