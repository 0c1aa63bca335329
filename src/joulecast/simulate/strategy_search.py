"""Ranks parallel strategies: all ways to divide devices, batch and training state that fit in memory.

Recomputation saves memory and costs time. Adding up gradients over micro-batches does the same. A strategy is
tried with these two only if it does not fit in memory without them. If only the best strategies are wanted,
they are simulated in the order of the least time that they can take (:mod:`joulecast.simulate.bounds`).
The search ends when no other strategy can be among the best.
"""

import bisect
import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import cached_property

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.quantities import steady
from joulecast.runs.platforms import Platform
from joulecast.runs.processes import workers
from joulecast.runs.provenance import usable_cores
from joulecast.simulate.bounds import Least, least_computing, least_time, stage_seconds
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.memory import least_state_bytes, memory_verdict, share_of_memory
from joulecast.simulate.simulate import (
    Assumptions,
    Prepared,
    Simulation,
    compiler_of,
    no_cycles,
    prepare,
    run_prepared,
)
from joulecast.simulate.strategy import Node, Strategy, text_of
from joulecast.simulate.strategy_space import (
    Recompute,
    StrategyAlternatives,
    candidates,
    recomputations,
    recomputing,
)

Value = Callable[[float, float], float]
"""A function of the seconds of a step and the seconds of computing in it. Its value ranks strategies, the
least first. If one of these times gets longer, the value does not become smaller."""
_ROUNDING = 1e-7
"""Largest share by which a least time may be above the time itself."""
_NOT_SENT = OpGraph("", (), {}, 0)
"""Placeholder for the network in a simulation that one process sends to another."""
WORTH_PROCESSES = 20_000
"""Least number of micro-batches, over all stages and strategies, for which several processes simulate."""


def _seconds(step_s: float, computing_s: float) -> float:
    """The time of a step."""
    return step_s


@dataclass(frozen=True)
class Ranking:
    """Simulated strategies, the best first, and the strategies that were left out, with reasons.

    The simulations have no activities. :func:`joulecast.simulate.simulate.simulate` gives a simulation with
    its activities.
    """

    feasible: list[Simulation]
    beaten: dict[str, float]
    """Strategies that are not among the best, and lower bounds of the time of their steps. Some may not fit
    in memory."""
    out_of_memory: dict[str, str]
    """Strategies that do not fit in memory, and the reason; the nearest to fit first. They are not timed."""
    impossible: dict[str, str]
    """Strategies that cannot be run at all, and why."""


Place = tuple[int, int]
"""The number of a candidate, and the number of a kind of recomputation."""
Task = tuple[Place, Strategy | Sequence[Strategy]]
"""A strategy to simulate, or strategies of which the first one that fits in memory is to be found."""


@dataclass
class _Outcome:
    """The known facts about strategies."""

    least: dict[Place, tuple[Strategy, Least]] = field(default_factory=dict)
    """Strategies that fit in memory, and lower bounds of their time."""
    untried: dict[Place, tuple[Sequence[Strategy], Least]] = field(default_factory=dict)
    """Strategies that are left to try with more recomputation, and a lower bound of their time."""
    simulations: dict[Place, Simulation] = field(default_factory=dict)
    too_large: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Strategies that do not fit, the share of its memory that a device would need, and the reason."""
    impossible: dict[str, str] = field(default_factory=dict)


@dataclass
class _Search:
    """The question of a search, and how a strategy is judged."""

    graph: OpGraph
    platform: Platform
    costs: Costs
    assumed: Assumptions
    candidates: list[StrategyAlternatives]
    value: Value
    others: bool
    """Whether also the strategies that are not among the best are described."""
    _stages: dict[object, list[tuple[float, float]]] = field(default_factory=dict)
    """Cache: seconds of the ops of each stage. Without it, a plan takes a tenth longer."""

    @cached_property
    def _recomputations(self) -> list[Recompute]:
        return recomputations(self.graph, self.assumed.training.inference)

    def _prepared(self, strategy: Strategy, batch: int) -> Prepared:
        training = self.assumed.training
        return prepare(self.graph, self.platform, strategy, batch, self.costs, training)

    def _least_of(self, strategy: Strategy, batch: int) -> Least:
        """A lower bound of the time of a strategy, from its computing alone."""
        usual = strategy.schedule if strategy.virtual > 1 else "1f1b"
        # From 2 on, no gradients are added up over micro-batches, or copied.
        zero = min(strategy.tree.zero or 0, 2)
        tree = Node(zero=zero or None, recompute=strategy.tree.recompute)
        plain = strategy.model_copy(update={"tree": tree, "schedule": usual})
        key = text_of(plain), batch
        if key not in self._stages:
            self._stages[key] = stage_seconds(self._prepared(plain, batch))
        return least_computing(self._stages[key], strategy)

    def _least_of_all(self, strategies: Sequence[Strategy], batch: int) -> Least:
        """A lower bound of the times of several strategies."""
        each = [self._least_of(one, batch) for one in strategies]
        return Least(min(one.step_s for one in each), min(one.computing_s for one in each))

    def _fewest(self, tried: list[Strategy], batch: int, outcome: _Outcome) -> Prepared | None:
        """The strategy with the fewest micro-batches that fits. More micro-batches never need more memory."""
        smallest = self._prepared(tried[-1], batch)
        if not smallest.fits:
            if self.others:
                share = share_of_memory(smallest.memory, self.platform) or 0.0
                verdict = memory_verdict(smallest.memory, self.platform)
                outcome.too_large[text_of(tried[-1])] = share, verdict
            return None

        def fits(strategy: Strategy) -> bool:
            return self._prepared(strategy, batch).fits

        # On one device, a single micro-batch needs no buffers of gradients. So it is looked at alone.
        last = len(tried) - 1
        found = 0 if fits(tried[0]) else bisect.bisect_left(tried, True, 1, last, key=fits)
        return self._prepared(tried[found], batch)

    def _try(self, place: Place, strategies: Sequence[Strategy], outcome: _Outcome) -> None:
        """Find the strategy that fits with the fewest micro-batches, with one kind of recomputation.

        If it needs several micro-batches to fit, or none fits, the next kind is left to try. It computes
        more. So if only the best are described, its bound often shows that it need not be tried.
        """
        number, kind = place
        candidate = self.candidates[number]
        tried = [recomputing(one, self._recomputations[kind]) for one in strategies]
        try:
            found = self._fewest(tried, candidate.batch, outcome)
        except JoulecastError as error:
            outcome.impossible[text_of(tried[-1])] = str(error)
            return
        if found is not None:
            outcome.least[place] = found.strategy, least_time(compiler_of(found, self.assumed))
            fewest = 1 if found.strategy.pipeline > 1 else found.strategy.micro_batches
            strategies = [one for one in strategies if one.micro_batches < fewest]
        if strategies and kind + 1 < len(self._recomputations):
            more = [recomputing(one, self._recomputations[kind + 1]) for one in strategies]
            bounded = candidate.by_micro_batches if self.others else more
            least = self._least_of_all(bounded, candidate.batch)
            outcome.untried[number, kind + 1] = strategies, least

    def _bound(self, candidate: StrategyAlternatives, outcome: _Outcome) -> Least | None:
        """A lower bound for all strategies of a candidate; ``None`` if none can run or fits in memory."""
        last = candidate.by_micro_batches[-1]
        state = least_state_bytes(self.graph, last, self.assumed.training)
        device = self.platform.require_cluster().device
        if device.memory_bytes and state + device.reserved_bytes > device.memory_bytes:
            verdict = (
                f"out of memory: weights, gradients and optimizer state alone take {state / 1e9:.1f} GB or "
                f"more, a device of {self.platform.name} has {device.memory_bytes / 1e9:.1f}"
            )
            outcome.too_large[text_of(last)] = state / device.memory_bytes, verdict
            return None
        try:
            return self._least_of_all(candidate.by_micro_batches, candidate.batch)
        except JoulecastError as error:
            outcome.impossible[text_of(last)] = str(error)
            return None

    def outcome(self, task: Task) -> _Outcome:
        """Simulate a strategy; or find the strategy of several that fits in memory, and its bound."""
        (place, strategy), found = task, _Outcome()
        if not isinstance(strategy, Strategy):
            self._try(place, strategy, found)
        else:
            ready = self._prepared(strategy, self.candidates[place[0]].batch)
            simulation = run_prepared(ready, self.assumed)
            found.simulations[place] = replace(simulation.without_activities(), graph=_NOT_SENT)
        return found

    def best(self, top: int | None, processes: int) -> Ranking:
        """The best strategies that fit in memory, and the known facts of all others.

        A candidate first has a bound of its ops. Then its strategies that fit in memory have a bound that
        also contains their messages. Then they are simulated. The lowest bound is always next. The search
        ends when all remaining bounds are above the best values.

        More devices share the positions of a sample only if, with fewer of them, even fully sharded state
        (ZeRO-3) leaves too little memory for the activations.
        """
        found = _Outcome()
        waiting: list[tuple[float, Place, Strategy | Sequence[Strategy]]] = []
        beaten: dict[Place, tuple[str, float]] = {}
        running: dict[Future[_Outcome], Place] = {}
        values: list[float] = []

        def add(place: Place, work: Strategy | Sequence[Strategy], least: Least) -> None:
            first = work if isinstance(work, Strategy) else work[0]
            beaten[place] = text_of(first), least.step_s
            heapq.heappush(waiting, (steady(self.value(*least)), place, work))

        def may_be_best(bound: float) -> bool:
            return top is None or len(values) < top or bound <= values[top - 1] * (1 + _ROUNDING)

        def value_of(simulation: Simulation) -> float:
            return self.value(simulation.step_s, simulation.breakdown.computing_s)

        groups: dict[tuple[int, int], dict[int, list[int]]] = {}
        for number, candidate in enumerate(self.candidates):
            contexts = groups.setdefault(candidate.grid, {})
            contexts.setdefault(candidate.context, []).append(number)

        def add_next(grid: tuple[int, int], context: int = 0) -> None:
            """Add the candidates with the least context parallelism above ``context``."""
            contexts = groups[grid]
            above = min((other for other in contexts if other > context), default=None)
            for number in contexts.pop(above) if above else []:
                candidate = self.candidates[number]
                least = self._bound(candidate, found)
                if least is not None:
                    add((number, 0), candidate.by_micro_batches, least)

        for grid in groups:
            add_next(grid)
        with workers(self.outcome, processes) as submit:
            while True:
                while waiting and len(running) < processes and may_be_best(waiting[0][0]):
                    _, place, work = heapq.heappop(waiting)
                    running[submit((place, work))] = place
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome, done = future.result(), running.pop(future)
                    del beaten[done]
                    candidate = self.candidates[done[0]]
                    activations_too_large = candidate.by_micro_batches[0].tree.zero == 3 and not (
                        outcome.simulations or outcome.least or done[1]
                    )
                    if activations_too_large:
                        add_next(candidate.grid, candidate.context)
                    for place, (work, least) in (outcome.least | outcome.untried).items():
                        add(place, work, least)
                    for place, simulation in outcome.simulations.items():
                        bisect.insort(values, value_of(simulation))
                        found.simulations[place] = replace(simulation, graph=self.graph)
                    found.too_large |= outcome.too_large
                    found.impossible |= outcome.impossible
        # Equal strategies keep the order in which they were tried, the plainest first.
        ranked = sorted(
            found.simulations.items(), key=lambda item: (steady(value_of(item[1])), item[0])
        )
        for place, simulation in ranked[len(ranked) if top is None else top :]:
            beaten[place] = text_of(simulation.strategy), simulation.step_s
        too_large = sorted((share, text, why) for text, (share, why) in found.too_large.items())
        return Ranking(
            [simulation for _, simulation in ranked[:top]],
            dict(each for _, each in sorted(beaten.items())),
            {text: why for _, text, why in too_large},
            found.impossible,
        )


def search(
    graph: OpGraph,
    platform: Platform,
    devices: int,
    global_batch: int,
    costs: Costs | None = None,
    assumptions: Assumptions | None = None,
    top: int | None = None,
    value: Value = _seconds,
    processes: int | None = None,
    others: bool = True,
) -> Ranking:
    """Rank the candidates that fit in memory, by their step time or another value.

    Args:
        graph: the network.
        platform: devices and links.
        devices: number of devices to use.
        global_batch: samples in one step, of all devices together.
        costs: seconds of ops. By default, the platform's roofline gives them.
        assumptions: the same as for :func:`joulecast.simulate.simulate.simulate`.
        top: number of strategies that are wanted. A strategy that cannot be among them is not simulated.
            ``None``: all.
        value: function by which strategies are ranked, the least value first.
        processes: number of processes that share the work. By default, a large search uses all cores.
        others: whether the strategies that are not among the best are described. If not, fewer of them are
            looked at.

    Raises:
        JoulecastError: no strategy divides this batch over these devices; or a process was ended from
            outside.
    """
    known, assumed = cached(costs or roofline_of(platform)), assumptions or Assumptions()
    inference = assumed.training.inference
    tried = list(candidates(graph, platform, devices, global_batch, inference))
    if processes is None:
        plainest = [candidate.by_micro_batches[0] for candidate in tried]
        work = sum(each.pipeline * each.micro_batches for each in plainest)
        processes = usable_cores() if top is not None and work >= WORTH_PROCESSES else 1
    with no_cycles():
        asked = _Search(graph, platform, known, assumed, tried, value, others)
        found = asked.best(top, processes)
        if not (found.feasible or others):
            # The reasons are wanted.
            found = replace(asked, others=True).best(top, processes)
    if not (found.feasible or found.out_of_memory):
        why = next(iter(found.impossible.values()), "no data-parallel size divides the batch")
        raise JoulecastError(
            f"{graph.name}: no strategy divides a batch of {global_batch} over {devices} devices: {why}"
        )
    return found
