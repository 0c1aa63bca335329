"""The best pipeline, and the proof that there is none better.

    problem = pipeline_problem(read_task_graph(path), devices=4)
    plan = best_plan(problem)
    plan.bottleneck, plan.lower_bound, plan.is_certified, [stage.nodes for stage in plan.stages]

First a few linear orders of the nodes are cut, which is quick and nearly right. That answer's bottleneck says
which ideals a better one could go through (:mod:`joulecast.partition.search`); those are searched, all of
them, for bottlenecks near the lower bound first, which leave few. Where there are too many of them to list,
what cannot be proven is a gap that is reported.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.partition.contraction import Contraction, contracted
from joulecast.partition.order import TooManyIdeals, nodes_of
from joulecast.partition.problem import Move, Problem
from joulecast.partition.search import (
    Chain,
    best_chain,
    first_chain,
    in_growing_order,
    lower_bound,
    orders_to_cut,
    prefixes,
    state_windows,
)
from joulecast.partition.stage_costs import StageCosts

MOST_IDEALS = 60_000
"""Ideals that are listed at most; with more the answer is not certified."""
_RANDOM_ORDERS = 12
_FEW_IDEALS = 1500
"""So many are searched at once, without a pipeline to start from."""
_HANDFUL = 100
"""So many are searched at once, without trying nearer bottlenecks before."""
_FIRST_SHARE, _MOST_FAILURES = 0.25, 2


@dataclass(frozen=True)
class Stage:
    """One stage: its nodes, what it is put on, and what it costs there.

    ``time`` is what counts for the bottleneck, ``work`` its nodes' own time on one device; ``enters`` and
    ``leaves`` are times to send what crosses its edges (of both ways), ``None`` where they do not count;
    ``bytes_in`` and ``bytes_out`` are the activations that cross (as much comes back), ``None`` where a file
    has costs instead;
    ``memory`` in bytes (sizes of the file), with the activations of ``stashed`` micro-batches.
    """

    nodes: tuple[str, ...]
    move: Move
    time: float
    work: float
    enters: float | None
    leaves: float | None
    bytes_in: float | None
    bytes_out: float | None
    parameters: float
    activations: float
    memory: float
    stashed: int


@dataclass(frozen=True)
class Plan:
    """A pipeline and what is known of it.

    Attributes:
        bottleneck: time of the slowest stage, in ``unit``.
        lower_bound: no pipeline has a smaller bottleneck; equal to it when the plan is certified.
        is_certified: whether the plan is proven to be the best.
        proof: how, or why not.
        searched_ideals: that were listed for it.
        cpu_s: what the planning took, without reading the graph.
    """

    graph: str
    unit: str
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
        """Work of all nodes over the bottleneck: what a pipeline that is always full gains."""
        return self.work / self.bottleneck if self.bottleneck else 1.0

    @property
    def gap(self) -> float:
        """Share by which the bottleneck is above the lower bound."""
        return self.bottleneck / self.lower_bound - 1 if self.lower_bound else 0.0


class _Search:
    """The state of one search: the best chain so far, what is proven, and how much was listed."""

    def __init__(self, problem: Problem, most_ideals: int) -> None:
        self.problem, self.most_ideals = problem, most_ideals
        self.bound = lower_bound(problem)
        self.chain: Chain | None = None
        self.listed = 0
        self.is_all_contracted = False
        self._contractions: list[Contraction] = []

    @property
    def best(self) -> float:
        return self.chain.bottleneck if self.chain else math.inf

    def keep(self, chain: Chain | None) -> None:
        if chain is not None and chain.bottleneck < self.best:
            ideals = chain.ideals
            for contraction in reversed(self._contractions):
                ideals = tuple(map(contraction.expanded, ideals))
            self.chain = Chain(chain.bottleneck, ideals, chain.moves)

    def contract(self) -> None:
        """Go on with what a better pipeline may still separate."""
        while (smaller := contracted(self.problem, self.best)) is not None:
            self._contractions.append(smaller)
            self.problem = smaller.problem
            devices = self.problem.devices + self.problem.cpus
            if (
                self.problem.uses_all
                and self.problem.is_straight
                and self.problem.order.size < devices
            ):
                self.bound = self.best
                return
            self.bound = min(self.best, max(self.bound, lower_bound(self.problem)))
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
        if chain is None:
            self.bound = max(self.bound, min(bottleneck, self.best))
        else:
            self.keep(chain)
            # All chains below were tried: it is the best of all.
            self.bound = max(self.bound, chain.bottleneck)
        return True

    def sample(self) -> None:
        """Search the ideals of many orders together: good, and no proof."""
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
                # Now and then another branch goes on.
                place = chance.randrange(len(ready)) if chance.random() < 0.3 else -1
                node = ready.pop(place)
                done |= 1 << node
                nodes.append(node)
                ready += [n for n in nodes_of(order.after[node]) if not order.before[n] & ~done]
            found.append(nodes)
        return found

    def run(self) -> None:
        """Try bottlenecks from just above the bound on: the nearer, the fewer ideals they need."""
        if self.bound < self.best and self.settle(self.best, min(_HANDFUL, self.most_ideals)):
            return
        # Where a stage may be of several devices or kinds, nearer bottlenecks hardly need fewer.
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
    """The pipeline with the least bottleneck, certified unless there are more ideals than there is room for.

    Raises:
        JoulecastError: no pipeline fits the memory of the devices.
    """
    begin = time.process_time()
    search = _Search(problem, most_ideals)
    if problem.only_work_counts:
        search.keep(first_chain(problem, cuts_by_work=True))
    elif not search.settle(math.inf, min(_FEW_IDEALS, most_ideals)):
        search.keep(first_chain(problem, cuts_by_work=False))
        search.contract()
    search.run()
    if search.chain is None:
        raise JoulecastError(_nothing_fits(problem, search.bound == math.inf))
    cpu_s = time.process_time() - begin
    return _plan_of(problem, search, cpu_s)


def _nothing_fits(problem: Problem, is_settled: bool) -> str:
    devices = f"{problem.devices} devices" + (f" and {problem.cpus} CPUs" if problem.cpus else "")
    limit = f" of {problem.memory:.6g}" if problem.memory is not None else ""
    end = "there is none" if is_settled else "none was found (not all could be tried)"
    return (
        f"graph {problem.name}: no pipeline on {devices} keeps within each one's memory{limit}: {end}; "
        "give more devices or more memory"
    )


def _plan_of(problem: Problem, search: _Search, cpu_s: float) -> Plan:
    chain = search.chain
    assert chain is not None
    is_certified = search.bound >= chain.bottleneck
    unit = f" {problem.unit}" if problem.unit == "us" else ""
    if not is_certified:
        above = chain.bottleneck / search.bound - 1 if search.bound else math.inf
        proof = (
            f"not certified: more than {search.most_ideals} ideals; the best of those tried is at most "
            f"{100 * above:.3g} % above the lower bound"
        )
    elif search.is_all_contracted:
        proof = (
            f"less than {chain.bottleneck:g}{unit} is infeasible: without the outputs that take as long to "
            "send there are fewer nodes left than stages"
        )
    elif search.listed:
        below = f"less than {chain.bottleneck:g}"
        below = f"{chain.bottleneck - 1:g}" if problem.is_integer else below
        proof = (
            f"{below}{unit} is infeasible: all ideals that such a pipeline could go through were searched, "
            f"{search.listed} at most at a time"
        )
    else:
        proof = "the bottleneck is the lower bound: heaviest node, average, or work that cannot be shared"
    return Plan(
        graph=problem.name,
        unit=problem.unit,
        bottleneck=chain.bottleneck,
        lower_bound=min(search.bound, chain.bottleneck),
        is_certified=is_certified,
        proof=proof,
        stages=tuple(described_stages(problem, chain.ideals, chain.moves)),
        work=problem.order.total,
        searched_ideals=search.listed,
        cpu_s=cpu_s,
    )


def described_stages(problem: Problem, ideals: Sequence[int], moves: Sequence[Move]) -> list[Stage]:
    """What each stage of a chain of ideals has and costs."""
    chain = [0, *ideals]
    costs = StageCosts(problem, chain)
    used, found = 0, []
    has_transfers = bool(problem.outputs)
    for begin, ((before, after), move) in enumerate(zip(pairwise(chain), moves, strict=True)):
        ends = np.array([begin + 1])
        inside = list(nodes_of(after & ~before))
        pays = has_transfers and move.kind != "cpu"
        enters, leaves = costs.transfers(begin, ends) if pays else (None, None)
        work = costs.work[begin + 1] - costs.work[begin]
        if move.kind == "cpu":
            assert problem.cpu_work is not None
            work = problem.cpu_work[inside].sum()
        parameters = float(problem.parameters[inside].sum())
        activations = float(problem.activations[inside].sum())
        found.append(
            Stage(
                nodes=tuple(name for node in inside for name in problem.members[node]),
                move=move,
                time=float(costs.times(begin, ends)[problem.moves.index(move)][0]),
                work=float(work),
                enters=None if enters is None else float(enters[0]),
                leaves=None if leaves is None else float(leaves[0]),
                bytes_in=_crossing(problem, before, after, into=True),
                bytes_out=_crossing(problem, before, after, into=False),
                parameters=parameters,
                activations=activations,
                memory=float(problem.stage_memory(parameters, activations, used, move)),
                stashed=problem.stashed(used, move),
            )
        )
        used += move.devices if move.kind != "cpu" else 0
    return found


def _crossing(problem: Problem, before: int, after: int, into: bool) -> float | None:
    """Bytes of activations that enter or leave the stage between two ideals; each counts once."""
    if not problem.traffic:
        return None
    stage = after & ~before
    crossing = 0.0
    for output in problem.traffic:
        if stage >> output.producer & 1:
            crosses = not into and output.consumers & ~stage
        else:
            crosses = into and output.consumers & stage
        crossing += output.cost if crosses else 0.0
    return crossing
