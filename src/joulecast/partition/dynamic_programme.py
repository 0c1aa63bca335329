"""The dynamic programme over ideals, and the proof that its answer is the best.

Any pipeline is a chain of ideals, from nothing done to everything done. For every ideal and every number of
used devices, the programme keeps the least bottleneck of the pipelines that lead to this ideal. Each
ideal comes after all ideals that it includes, so their values are final. The programme is exact on the ideals
that it gets.

A known pipeline with bottleneck B shows which ideals are needed. T is the work of all nodes. In a faster
pipeline on D devices, the first m devices do between T - (D - m) B and m B of the work. Only ideals of this
weight are listed (:meth:`~joulecast.partition.order.WeighedOrder.ideals_within`). If the programme finds no
faster pipeline among them, there is none. This is the certificate.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.partition.order import PartialOrder, WeightRange, membership, nodes_in_set
from joulecast.partition.problem import Problem
from joulecast.partition.stage_costs import StageCosts

_ALL_PAIRS = 500
"""Largest number of ideals whose pairs fit in the processor's caches."""


@dataclass(frozen=True)
class Chain:
    """A pipeline: the ideal after each stage, its number of devices, and the slowest stage's time."""

    bottleneck: float
    ideals: tuple[int, ...]
    replicas: tuple[int, ...]


def in_growing_order(weighed: Sequence[tuple[float, int]]) -> list[int]:
    """Ideals in an order in which every ideal comes after all ideals that it includes."""
    return [ideal for _, ideal in sorted(weighed, key=lambda each: (each[0], each[1].bit_count()))]


def best_chain(problem: Problem, ideals: Sequence[int], limit: float = math.inf) -> Chain | None:
    """The chain of ideals with the least bottleneck, if this bottleneck is below ``limit``.

    Args:
        problem: what stages cost, and the devices.
        ideals: ideals in growing order (:func:`in_growing_order`). The empty ideal and the ideal of all nodes
            must be among them.
        limit: the bottleneck has to be below this.
    """
    if problem.only_work_counts and len(ideals) <= _ALL_PAIRS:
        return _best_chain_by_work(problem, ideals, limit)
    costs = StageCosts(problem, ideals)
    devices = problem.devices
    best = np.full((devices + 1, len(costs.ideals)), limit)
    """Least bottleneck by devices used and ideal."""
    best[0, 0] = -math.inf
    came_from = np.zeros(best.shape, np.int32)
    came_by = np.zeros(best.shape, np.int32)
    windows = np.array([[w.least, w.most] for w in state_windows(problem, limit)])
    reach = [count * limit + problem.rounding for count in problem.replicas]
    lasts = [np.searchsorted(costs.weight, costs.weight + most, "right") for most in reach]
    farthest = np.max(lasts, axis=0).tolist()
    for begin in range(len(costs.ideals) - 1):
        alive = np.flatnonzero(best[:, begin] < limit)
        if not len(alive):
            continue
        all_ends = costs.stages_after(begin, farthest[begin])
        all_ends = all_ends[costs.may_take_less(limit, begin, all_ends)]
        if not len(all_ends):
            continue
        times = costs.times(begin, all_ends)
        for kind, replicas in enumerate(problem.replicas):
            used = alive[alive + replicas <= devices]
            if not len(used):
                continue
            reached = used + replicas
            count = np.searchsorted(all_ends, lasts[kind][begin])
            fast = np.flatnonzero(times[kind][:count] < limit)
            ends = all_ends[fast]
            value = np.maximum(best[used, begin][:, None], times[kind][fast])
            weight = costs.weight[ends]
            fits = (weight >= windows[reached, :1]) & (weight <= windows[reached, 1:])
            value = np.where(fits, value, math.inf)
            if problem.memory is not None:
                for row, first in enumerate(used.tolist()):
                    needed = costs.memory(begin, ends, first, replicas)
                    value[row, needed > problem.memory] = math.inf
            rows, columns = np.nonzero(value < best[reached[:, None], ends])
            where = reached[rows], ends[columns]
            best[where] = value[rows, columns]
            came_from[where] = begin
            came_by[where] = replicas
    if not best[devices, -1] < limit:
        return None
    chain, counts, position, used_by_then = [], [], len(costs.ideals) - 1, devices
    while position:
        chain.append(costs.ideals[position])
        counts.append(int(came_by[used_by_then, position]))
        position = int(came_from[used_by_then, position])
        used_by_then -= counts[-1]
    return Chain(float(best[devices, -1]), tuple(reversed(chain)), tuple(reversed(counts)))


def _best_chain_by_work(problem: Problem, ideals: Sequence[int], limit: float) -> Chain | None:
    """The best chain if only work counts, for few ideals: all pairs of ideals are compared at once."""
    inside = membership(problem.order, ideals).astype(float)
    work = inside @ problem.work
    is_within = inside @ (1 - inside).T == 0
    np.fill_diagonal(is_within, False)
    times = np.where(is_within, work[None, :] - work[:, None], math.inf)
    best = np.where(np.arange(len(ideals)) == 0, -math.inf, math.inf)
    came_from = []
    for _ in range(problem.devices):
        values = np.maximum(best[:, None], times)
        came_from.append(values.argmin(axis=0))
        best = values[came_from[-1], np.arange(len(ideals))]
    if not best[-1] < limit:
        return None
    chain, position = [], len(ideals) - 1
    for earlier in reversed(came_from):
        chain.append(ideals[position])
        position = int(earlier[position])
    return Chain(float(best[-1]), tuple(reversed(chain)), (1,) * problem.devices)


def weightless_gaps(problem: Problem) -> tuple[list[float], list[float]]:
    """Gaps: open intervals of weights that no ideal has, in order. The result has their lower ends and their
    upper ends.

    There is a gap at a node if every other node comes either before it or after it. The reason: an ideal with
    this node has all nodes before it, and an ideal without this node has no node after it.
    """
    order = problem.order
    below, above = [], []
    for node in range(order.size):
        if order.down[node] | order.up[node] == order.everything and order.weights[node] > 0:
            weight = order.weight(order.down[node])
            below.append(weight - float(order.weights[node]))
            above.append(weight)
    return below, above


def _most_done(gaps: tuple[list[float], list[float]], weight: float) -> float:
    """The largest weight up to this one that is in no gap."""
    below, above = gaps
    place = bisect_right(below, weight) - 1
    return below[place] if place >= 0 and weight < above[place] else weight


def _least_done(gaps: tuple[list[float], list[float]], weight: float) -> float:
    """The least weight that is in no gap, among those of at least ``weight``."""
    below, above = gaps
    place = bisect_right(below, weight) - 1
    return above[place] if place >= 0 and below[place] < weight < above[place] else weight


def state_windows(problem: Problem, bottleneck: float) -> list[WeightRange]:
    """For 0, 1, ... used devices, the range of work that they can have done, if no stage takes longer than
    ``bottleneck``."""
    total, devices = problem.order.total, problem.devices
    if math.isinf(bottleneck):
        return [WeightRange(-math.inf, math.inf) for _ in range(devices + 1)]
    slack = problem.rounding
    gaps = weightless_gaps(problem)
    if problem.is_straight:
        windows = _straight_windows(problem, bottleneck + slack, gaps)
        return [WeightRange(w.least - slack, w.most + slack) for w in windows]
    each = bottleneck + slack
    windows = []
    for used in range(devices + 1):
        least = _least_done(gaps, max(0.0, total - each * (devices - used)) - slack)
        most = _most_done(gaps, min(total, each * used) + slack)
        windows.append(WeightRange(least - slack, most + slack))
    return windows


def _straight_windows(
    problem: Problem, bottleneck: float, gaps: tuple[list[float], list[float]]
) -> list[WeightRange]:
    """The ranges of :func:`state_windows`, if each device has one stage. Then a stage ends at the edge of
    every range, so the edge is in no gap."""
    total, devices = problem.order.total, problem.devices
    least, most = [0.0] * (devices + 1), [total] * (devices + 1)
    most[0], least[devices] = 0.0, total
    for used in range(1, devices + 1):
        most[used] = _most_done(gaps, min(total, most[used - 1] + bottleneck))
    for used in reversed(range(devices)):
        least[used] = _least_done(gaps, max(0.0, least[used + 1] - bottleneck))
    return [WeightRange(*each) for each in zip(least, most, strict=True)]


def lower_bound(problem: Problem) -> float:
    """A lower bound of the bottleneck of all pipelines. It follows from the heaviest node, the average, and
    the gaps.

    Transfers and memory limits are left out, because they only make stages slower. If a stage may have
    replicas, they share the work of a node. Then the heaviest node gives no bound.
    """
    average = problem.order.total / problem.devices
    if not problem.is_straight:
        return average
    bound = max(float(problem.order.weights.max()), average)
    if problem.is_integer:
        bound = math.ceil(bound)
    gaps = weightless_gaps(problem)

    def is_possible(bottleneck: float) -> bool:
        done = 0.0
        for _ in range(problem.devices):
            done = _most_done(gaps, done + bottleneck + problem.rounding)
        return done >= problem.order.total - problem.rounding

    if is_possible(bound):
        return bound
    total = problem.order.total
    step = 1.0 if problem.is_integer else 1e-9 * total
    impossible, possible = _bisected(bound, total, step, problem.is_integer, is_possible)
    return possible if problem.is_integer else impossible


def _bisected(
    impossible: float,
    possible: float,
    step: float,
    is_integer: bool,
    is_possible: Callable[[float], bool],
) -> tuple[float, float]:
    """The largest number that is impossible, and the smallest that is possible. They differ by at most a
    step."""
    while possible - impossible > step:
        middle = (impossible + possible) / 2
        if is_integer:
            middle = float(math.floor(middle))
        if not impossible < middle < possible:
            # Neighbours: above 2^53 numbers are further apart than a step of 1.
            break
        if is_possible(middle):
            possible = middle
        else:
            impossible = middle
    return impossible, possible


def orders_to_cut(order: PartialOrder) -> list[list[int]]:
    """Some orders in which the nodes can run: by their numbers, and two orders that go through one branch
    after the other."""
    given = list(range(order.size))

    def by_branch(largest_first: bool) -> list[int]:
        ready = [node for node in given if not order.before[node]]
        done, found = 0, []
        while ready:
            # What became ready last comes first: branches are followed to their end.
            node = ready.pop()
            done |= 1 << node
            found.append(node)
            fresh = [n for n in nodes_in_set(order.after[node]) if not order.before[n] & ~done]
            ready += sorted(fresh, reverse=largest_first)
        return found

    return [given, by_branch(True), by_branch(False)]


def prefixes(order: Sequence[int]) -> list[int]:
    """The ideals of an order of the nodes: its first node, its first two nodes, and so on."""
    found = [0]
    for node in order:
        found.append(found[-1] | 1 << node)
    return found


def cut_order_by_work(problem: Problem, nodes: Sequence[int]) -> Chain:
    """The best cut of one order, if only work counts. The bottleneck is found by bisection. For a trial
    bottleneck, stages are filled one after the other."""
    done = [0.0, *np.cumsum(problem.order.weights[list(nodes)]).tolist()]
    stages = problem.devices

    def ends(bottleneck: float) -> list[int] | None:
        found = [0]
        for stage in range(1, stages + 1):
            # Every stage behind this one needs a node, too.
            most = len(nodes) - (stages - stage)
            end = min(most, bisect_right(done, done[found[-1]] + bottleneck) - 1)
            if end <= found[-1]:
                return None
            found.append(end)
        return found if found[-1] == len(nodes) else None

    step = 1.0 if problem.is_integer else 1e-12 * done[-1]
    _, most = _bisected(
        0.0, done[-1], step, problem.is_integer, lambda bottleneck: ends(bottleneck) is not None
    )
    cuts = ends(most)
    assert cuts is not None
    through = prefixes(nodes)
    bottleneck = max(done[b] - done[a] for a, b in pairwise(cuts))
    return Chain(bottleneck, tuple(through[c] for c in cuts[1:]), (1,) * stages)


def first_chain(problem: Problem, cuts_by_work: bool) -> Chain | None:
    """A pipeline to start from: the best cut of a few orders."""
    found: Chain | None = None
    for nodes in orders_to_cut(problem.order):
        if cuts_by_work:
            chain: Chain | None = cut_order_by_work(problem, nodes)
        else:
            limit = math.inf if found is None else found.bottleneck
            chain = best_chain(problem, prefixes(nodes), limit)
        if chain is not None and (found is None or chain.bottleneck < found.bottleneck):
            found = chain
    return found
