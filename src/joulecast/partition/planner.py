"""The best pipeline, and the proof that no better one exists.

    problem = pipeline_problem(read_partitionable(path), devices=4)
    plan = best_plan(problem)
    plan.bottleneck, plan.lower_bound, plan.is_certified, [stage.nodes for stage in plan.stages]

First, a few linear orders of the nodes are cut. This is quick and nearly right. The bottleneck of this answer
shows which ideals a better pipeline could have (:mod:`joulecast.partition.dynamic_programme`). The search
looks at all of these ideals. It begins with bottlenecks near the lower bound, because they leave few ideals.
If there are too many ideals to list, the answer is not proven, and the gap is reported.
"""

import math
import random
import time
from dataclasses import dataclass

from joulecast.errors import JoulecastError
from joulecast.partition.contraction import Contraction, contracted
from joulecast.partition.dynamic_programme import (
    Chain,
    best_chain,
    first_chain,
    in_growing_order,
    lower_bound,
    orders_to_cut,
    prefixes,
    state_windows,
)
from joulecast.partition.order import TooManyIdeals, nodes_in_set
from joulecast.partition.problem import Problem
from joulecast.partition.stage_costs import Stage, described_stages

MOST_IDEALS = 60_000
"""Ideals that are listed at most; with more the answer is not certified."""
_RANDOM_ORDERS = 12
FEW_IDEALS = 1500
"""If there are at most this many ideals, all are searched at once, without a pipeline to start from."""
HANDFUL = 100
"""If at most this many ideals can lead to a better pipeline, all are searched at once. Bottlenecks nearer to
the bound are not tried before."""
_FIRST_SHARE, _MOST_FAILURES = 0.25, 2

_BY_WORK = (
    "the bottleneck equals the lower bound (heaviest node, average, or work that cannot be shared)"
)
_BY_SENDING = (
    "some outputs take as long to send as the bottleneck, so they are not sent. The bottleneck equals the "
    "bound of the nodes that are left (heaviest node, average, or work that cannot be shared)"
)
_BY_FEW_NODES = (
    "is infeasible: some outputs take as long to send, and if they are not sent, there are fewer nodes "
    "left than stages"
)
_BY_IDEALS = "is infeasible: a search of all possible ideals found no such pipeline"


@dataclass(frozen=True)
class Plan:
    """A pipeline and what is known of it.

    Attributes:
        bottleneck: time of the slowest stage, in us.
        lower_bound: no pipeline has a smaller bottleneck than this. If the plan is certified, it equals
            ``bottleneck``.
        is_certified: whether the plan is proven to be the best.
        proof: how this is proven, or why it is not.
        searched_ideals: number of ideals that were listed for the proof.
        cpu_s: CPU seconds of the planning, without reading the graph.
    """

    graph: str
    bottleneck: float
    lower_bound: float
    is_certified: bool
    proof: str
    stages: tuple[Stage, ...]
    work: float
    searched_ideals: int
    cpu_s: float

    @property
    def speedup_bound(self) -> float:
        """Work of all tasks, divided by the bottleneck: the speedup of a pipeline that is always full."""
        return self.work / self.bottleneck if self.bottleneck else 1.0

    @property
    def gap(self) -> float | None:
        """Share by which the bottleneck is above the lower bound; ``None`` if the bound is 0 and the
        bottleneck is not."""
        if not self.lower_bound:
            return None if self.bottleneck else 0.0
        return self.bottleneck / self.lower_bound - 1


class _Search:
    """The state of one search: the best chain so far, what is proven, and how much was listed."""

    def __init__(self, problem: Problem, most_ideals: int) -> None:
        self.problem, self.most_ideals = problem, most_ideals
        self.bound = lower_bound(problem)
        self.bound_by = _BY_WORK
        """The reason why no pipeline has a bottleneck below the bound."""
        self.chain: Chain | None = None
        self.listed = 0
        self._contractions: list[Contraction] = []

    @property
    def best(self) -> float:
        return self.chain.bottleneck if self.chain else math.inf

    def keep(self, chain: Chain | None) -> None:
        if chain is not None and chain.bottleneck < self.best:
            ideals = chain.ideals
            for contraction in reversed(self._contractions):
                ideals = tuple(map(contraction.expanded, ideals))
            self.chain = Chain(chain.bottleneck, ideals, chain.replicas)

    def _raise_bound(self, bound: float, reason: str) -> None:
        if bound > self.bound:
            self.bound, self.bound_by = bound, reason

    @property
    def is_settled(self) -> bool:
        """Whether it is proven that no pipeline is faster than the best one so far."""
        return self.bound >= self.best

    def contract(self) -> None:
        """Make the problem smaller: nodes that a better pipeline cannot separate become one node."""
        while (smaller := contracted(self.problem, self.best)) is not None:
            self._contractions.append(smaller)
            self.problem = smaller.problem
            if self.problem.is_straight and self.problem.order.size < self.problem.devices:
                self._raise_bound(self.best, _BY_FEW_NODES)
                return
            self._raise_bound(min(self.best, lower_bound(self.problem)), _BY_SENDING)
            self.keep(first_chain(self.problem, cuts_by_work=False))

    def ideals_below(self, bottleneck: float, most_ideals: int) -> list[int]:
        """All ideals that a chain with a smaller bottleneck could go through."""
        order = self.problem.order
        most = bottleneck - 1 if self.problem.is_integer else bottleneck
        windows = state_windows(self.problem, most)
        if self.problem.is_straight and any(w.least > w.most for w in windows):
            return []
        found = dict.fromkeys(in_growing_order(order.ideals_within(windows, most_ideals)))
        self.listed = max(self.listed, len(found))
        return [0, *(i for i in found if i not in (0, order.everything)), order.everything]

    def settle(self, bottleneck: float, most_ideals: int) -> bool:
        """Find the best chain below a bottleneck, or prove that there is none; ``False``: too many ideals."""
        try:
            ideals = self.ideals_below(bottleneck, most_ideals)
        except TooManyIdeals:
            return False
        chain = best_chain(self.problem, ideals, bottleneck) if ideals else None
        # Where windows leave no ideals, it is by work alone: of all nodes, or of those that are left.
        without_ideals = _BY_SENDING if self._contractions else _BY_WORK
        reason = _BY_IDEALS if ideals else without_ideals
        if chain is None:
            self._raise_bound(min(bottleneck, self.best), reason)
        else:
            self.keep(chain)
            # All chains below were tried: it is the best of all.
            self._raise_bound(chain.bottleneck, reason)
        return True

    def sample(self) -> None:
        """Search the ideals of many orders together. The result is good, but not proven."""
        ideals: dict[int, None] = {}
        for nodes in [*orders_to_cut(self.problem.order), *self._random_orders()]:
            ideals.update(dict.fromkeys(prefixes(nodes)))
            if len(ideals) > self.most_ideals:
                break
        order = self.problem.order
        weighed = [(order.weight(ideal), ideal) for ideal in ideals]
        self.keep(best_chain(self.problem, in_growing_order(weighed), self.best))

    def _random_orders(self) -> list[list[int]]:
        chance, order = random.Random(0), self.problem.order
        found = []
        for _ in range(_RANDOM_ORDERS):
            ready = [node for node in range(order.size) if not order.before[node]]
            done, nodes = 0, []
            while ready:
                # Sometimes another branch is continued.
                place = chance.randrange(len(ready)) if chance.random() < 0.3 else -1
                node = ready.pop(place)
                done |= 1 << node
                nodes.append(node)
                ready += [n for n in nodes_in_set(order.after[node]) if not order.before[n] & ~done]
            found.append(nodes)
        return found

    def run(self) -> None:
        """Try bottlenecks, beginning just above the bound, because the nearest need the fewest ideals."""
        if self.bound < self.best and self.settle(self.best, min(HANDFUL, self.most_ideals)):
            return
        # Where a stage may be on several devices, nearer bottlenecks hardly need fewer.
        share, failures = _FIRST_SHARE if self.problem.is_straight else 1.0, 0
        while self.bound < self.best and failures < _MOST_FAILURES:
            limit = self.best
            if share < 1 and not math.isinf(limit):
                limit = self.bound + share * (self.best - self.bound)
                if self.problem.is_integer:
                    limit = float(math.ceil(limit))
            if self.settle(limit, self.most_ideals):
                share *= 2
            else:
                if not failures:
                    self.sample()
                failures += 1
                share = min(share, 1.0) / 4


def best_plan(problem: Problem, most_ideals: int = MOST_IDEALS) -> Plan:
    """The pipeline with the least bottleneck. If there are too many ideals to list, it is the best one that
    was found, without a certificate.

    Raises:
        JoulecastError: no pipeline fits the memory of the devices.
    """
    begin = time.process_time()
    search = _searched(problem, most_ideals)
    if search.chain is None:
        raise JoulecastError(_nothing_fits(problem, search.bound == math.inf))
    cpu_s = time.process_time() - begin
    return _plan_of(problem, search, cpu_s)


def _searched(problem: Problem, most_ideals: int) -> _Search:
    """Run the search for the best pipeline. Returns its state at the end."""
    search = _Search(problem, most_ideals)
    if problem.only_work_counts:
        search.keep(first_chain(problem, cuts_by_work=True))
    elif not search.settle(math.inf, min(FEW_IDEALS, most_ideals)):
        search.keep(first_chain(problem, cuts_by_work=False))
        search.contract()
    search.run()
    return search


def _nothing_fits(problem: Problem, is_settled: bool) -> str:
    limit = "" if problem.memory is None else f" of {problem.memory:.6g}"
    on = f"{problem.devices} devices"
    end = "there is none" if is_settled else "none was found (not all could be tried)"
    return (
        f"graph {problem.name}: no pipeline on {on} keeps within each one's memory{limit}: {end}; "
        "give more devices or more memory"
    )


def _proof(problem: Problem, search: _Search) -> str:
    if not search.is_settled:
        above = (
            f"at most {100 * (search.best / search.bound - 1):.3g} %"
            if search.bound
            else "somewhere"
        )
        return (
            f"not certified: more than {search.most_ideals} ideals; the best of those tried is {above} above "
            "the lower bound"
        )
    if search.bound_by in (_BY_WORK, _BY_SENDING):
        return search.bound_by
    below = f"{search.best - 1:g}" if problem.is_integer else f"less than {search.best:g}"
    listed = (
        f". It listed at most {search.listed} ideals at a time"
        if search.bound_by == _BY_IDEALS
        else ""
    )
    return f"{below} us {search.bound_by}{listed}"


def _plan_of(problem: Problem, search: _Search, cpu_s: float) -> Plan:
    chain = search.chain
    assert chain is not None
    return Plan(
        graph=problem.name,
        bottleneck=chain.bottleneck,
        lower_bound=min(search.bound, chain.bottleneck),
        is_certified=search.is_settled,
        proof=_proof(problem, search),
        stages=tuple(described_stages(problem, chain.ideals, chain.replicas)),
        work=problem.order.total,
        searched_ideals=search.listed,
        cpu_s=cpu_s,
    )
