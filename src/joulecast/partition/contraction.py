"""Nodes that are in one stage for a reason, made one.

An output whose sending alone takes as long as the bottleneck to beat is sent by no better pipeline: its
producer and all its readers are in one stage, with all that lies between them. What is left is a smaller
problem with the same better pipelines, often a much smaller one: early in a network the tensors are large.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from joulecast.partition.order import PartialOrder, WeighedOrder, bits_of, nodes_of
from joulecast.partition.problem import Floats, Output, Problem, fastest_work


@dataclass(frozen=True)
class Contraction:
    """A smaller problem, and the nodes of the larger one that each of its nodes is."""

    problem: Problem
    members: tuple[int, ...]
    """A set of nodes for each node of the smaller problem."""

    def expanded(self, ideal: int) -> int:
        """The larger problem's ideal that is one of the smaller."""
        found = 0
        for node in nodes_of(ideal):
            found |= self.members[node]
        return found


def _groups(order: PartialOrder, pairs: Iterable[tuple[int, int]]) -> tuple[int, list[int]]:
    """Number of groups, and each node's group, if the first of each pair precedes the second, too."""
    links = [
        *(
            (earlier, node)
            for node in range(order.size)
            for earlier in nodes_of(order.before[node])
        ),
        *pairs,
    ]
    rows, columns = zip(*links, strict=True) if links else ((), ())
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
    """The problem without the cuts that cost as much as ``bottleneck``; ``None`` if there are none.

    Only where every device pays for transfers: a CPU of a device-placement graph does not.
    """
    if problem.cpus:
        return None
    most = max(move.devices for move in problem.moves)
    pairs = []
    for output in problem.outputs:
        if output.cost / most >= bottleneck:
            # A cycle, so that they are strongly connected, with all between them.
            for reader in nodes_of(output.consumers):
                pairs += [(output.producer, reader), (reader, output.producer)]
    return fused(problem, pairs) if pairs else None


def fused(problem: Problem, pairs: Sequence[tuple[int, int]]) -> Contraction:
    """The problem whose pipelines keep the order of these pairs, too, the earlier first.

    Nodes that would come before each other are one. All its pipelines are pipelines of ``problem``.
    """
    order = problem.order
    count, group_of = _groups(order, pairs)
    members, before = [0] * count, [set[int]() for _ in range(count)]
    for node, group in enumerate(group_of):
        members[group] |= 1 << node
        before[group] |= {group_of[n] for n in nodes_of(order.before[node])} - {group}
    for earlier, later in pairs:
        before[group_of[later]] |= {group_of[earlier]} - {group_of[later]}
    first = [(bits & -bits).bit_length() for bits in members]
    running = _in_running_order(before, first)
    place = {group: position for position, group in enumerate(running)}
    position_of = [place[group] for group in group_of]

    def summed(column: Floats) -> Floats:
        return np.bincount(position_of, weights=column, minlength=count).astype(float)

    outputs = []
    for output in problem.outputs:
        producer = position_of[output.producer]
        readers = {position_of[node] for node in nodes_of(output.consumers)} - {producer}
        if readers:
            outputs.append(Output(producer, bits_of(readers), output.cost))
    on_cpus = {position_of[n] for n in nodes_of(problem.not_on_accelerators)}
    work = summed(problem.work)
    cpu_work = None if problem.cpu_work is None else summed(problem.cpu_work)
    is_cpu_only = np.array([not problem.devices or n in on_cpus for n in range(count)])
    weights = fastest_work(work, cpu_work, is_cpu_only)
    smaller = replace(
        problem,
        node_names=tuple(problem.node_names[first[group] - 1] for group in running),
        members=(),
        order=WeighedOrder(
            [[place[g] for g in before[group]] for group in running], weights.tolist()
        ),
        work=work,
        cpu_work=cpu_work,
        outputs=tuple(outputs),
        traffic=(),
        parameters=summed(problem.parameters),
        activations=summed(problem.activations),
        not_on_accelerators=bits_of(on_cpus),
        unordered=0,
        mirrored=(),
    )
    return Contraction(smaller, tuple(members[group] for group in running))
