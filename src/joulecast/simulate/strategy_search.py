"""Ranks parallel strategies: all ways to divide devices, batch and training state that fit in memory.

Recomputation saves memory and costs time. Adding up gradients over micro-batches does the same. A strategy is
tried with these two only if it does not fit in memory without them. If only the best strategies are asked
for, they are simulated in the order of the least time that they can take (:mod:`joulecast.simulate.bounds`).
The search ends when no other strategy can be among the best.
"""

import bisect
import heapq
from collections.abc import Callable, Iterator
from ctypes import c_double
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.quantities import steady
from joulecast.runs.platforms import Platform
from joulecast.runs.processes import FORKING, mapped
from joulecast.runs.provenance import usable_cores
from joulecast.simulate.bounds import Least, least_computing, least_time, stage_seconds
from joulecast.simulate.compiler import Compiler
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.memory import (
    least_state_bytes,
    memory_verdict,
    share_of_memory,
)
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


class Found:
    """The ``top`` smallest values so far, shared by all processes of a search. ``None``: all values are
    wanted."""

    def __init__(self, top: int | None) -> None:
        self._least = None if top is None else FORKING.Array(c_double, [float("inf")] * top)

    @property
    def limit(self) -> float:
        """The largest of these values. A strategy with a larger value is not among the best."""
        return float("inf") if self._least is None else float(self._least[-1])

    def add(self, value: float) -> None:
        """Take the value, if it is among the smallest."""
        if self._least is None:
            return
        with self._least.get_lock():
            known = [self._least[place] for place in range(len(self._least))]
            bisect.insort(known, value)
            self._least[:] = known[:-1]


_SHARED: list[Any] = []
"""State for the next forked processes: the search, the number of processes, and the values so far."""


def _in_this_process(number: int) -> "_Outcome":
    search, processes, found = _SHARED
    outcome: _Outcome = search.simulated(number, processes, found)
    return outcome


Value = Callable[[float, float], float]
"""The value that ranks strategies, from the seconds of a step and of computing. It never falls with
either."""
_ROUNDING = 1e-7
"""Largest share by which a least time may be above the time itself."""
_WORTH_PROCESSES = 20_000
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


@dataclass(frozen=True)
class _Fitting:
    """A strategy that fits in memory."""

    ready: Prepared
    compiler: Compiler | None = None
    """The compiler, if the lower bound of the step time already contains all messages."""


Place = tuple[int, int]
"""The number of a candidate, and the number of a strategy of this candidate that fits in memory."""


@dataclass
class _Outcome:
    """The results of one process."""

    least_s: dict[Place, tuple[str, float]] = field(default_factory=dict)
    """Strategies, and lower bounds of the time of their steps."""
    simulations: dict[Place, Simulation] = field(default_factory=dict)
    too_large: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Strategies that do not fit, the share of its memory that a device would need, and the reason."""
    impossible: dict[str, str] = field(default_factory=dict)


@dataclass
class _Search:
    """A search while it runs: its question, and its results so far."""

    graph: OpGraph
    platform: Platform
    costs: Costs
    assumed: Assumptions
    top: int | None
    value: Value
    candidates: list[StrategyAlternatives]
    found: _Outcome = field(default_factory=_Outcome)
    _stages: dict[object, list[tuple[float, float]]] = field(default_factory=dict)
    """Seconds of the stages of strategies without recomputation, which does not change them."""

    @cached_property
    def _recomputations(self) -> list[Recompute]:
        return recomputations(self.graph, self.assumed.training.inference)

    def _prepared(self, strategy: Strategy, batch: int) -> Prepared:
        training = self.assumed.training
        return prepare(self.graph, self.platform, strategy, batch, self.costs, training)

    def _least_of(self, strategy: Strategy, batch: int) -> Least:
        """A lower bound of the computing time of a strategy."""
        usual = strategy.schedule if strategy.virtual > 1 else "1f1b"
        # From 2 on, no gradients are added up over micro-batches, or copied.
        zero = min(strategy.tree.zero or 0, 2)
        plain = strategy.model_copy(update={"tree": Node(zero=zero or None), "schedule": usual})
        key = text_of(plain), batch
        if key not in self._stages:
            self._stages[key] = stage_seconds(self._prepared(plain, batch))
        return least_computing(self._stages[key], strategy)

    def fewest(self, tried: list[Strategy], batch: int) -> Prepared | None:
        """The strategy with the fewest micro-batches that fits. More micro-batches never need more memory."""

        def share(ready: Prepared) -> float:
            return share_of_memory(ready.memory, self.platform) or 0.0

        smallest = self._prepared(tried[-1], batch)
        if share(smallest) > 1:
            verdict = memory_verdict(smallest.memory, self.platform)
            self.found.too_large[text_of(tried[-1])] = share(smallest), verdict
            return None
        fewer = (self._prepared(strategy, batch) for strategy in tried[:-1])
        return next((ready for ready in fewer if share(ready) <= 1), smallest)

    def fitting(self, candidate: StrategyAlternatives) -> Iterator[_Fitting]:
        """The strategy that fits with the fewest micro-batches.

        If it needs several micro-batches to fit, or none fits, recomputation is tried, too.
        """
        strategies = list(candidate.by_micro_batches)
        for recompute in self._recomputations:
            tried = [recomputing(strategy, recompute) for strategy in strategies]
            try:
                found = self.fewest(tried, candidate.batch)
            except JoulecastError as error:
                self.found.impossible[text_of(tried[-1])] = str(error)
                return
            if found is not None:
                yield _Fitting(found)
                fewer = [s for s in strategies if s.micro_batches < found.strategy.micro_batches]
                if not fewer or found.strategy.pipeline > 1:
                    return
                strategies = fewer

    def bounded(self, candidate: StrategyAlternatives) -> Least | None:
        """The lowest bound of all alternatives; ``None`` if none of them can run or fits in memory."""
        last = candidate.by_micro_batches[-1]
        state = least_state_bytes(self.graph, last, self.assumed.training)
        device = self.platform.require_cluster().device
        if device.memory_bytes and state + device.reserved_bytes > device.memory_bytes:
            verdict = (
                f"out of memory: weights, gradients and optimizer state alone take {state / 1e9:.1f} GB or "
                f"more, a device of {self.platform.name} has {device.memory_bytes / 1e9:.1f}"
            )
            self.found.too_large[text_of(last)] = state / device.memory_bytes, verdict
            return None
        try:
            each = [self._least_of(one, candidate.batch) for one in candidate.by_micro_batches]
        except JoulecastError as error:
            self.found.impossible[text_of(last)] = str(error)
            return None
        return Least(min(one.step_s for one in each), min(one.computing_s for one in each))

    def value_of(self, simulation: Simulation) -> float:
        return self.value(simulation.step_s, simulation.breakdown.computing_s)

    def simulated(self, number: int, processes: int, found: Found) -> _Outcome:
        """The outcomes of this process's candidates.

        The candidate with the lowest bound is always next. Its first bound contains only its ops. Then its
        memory is checked, and it gets a second bound, which also contains its messages. Then it is simulated.
        The search ends when all remaining bounds are above the best values.
        """
        done = self.found
        waiting: list[tuple[float, Place, StrategyAlternatives | _Fitting]] = []

        def wait(least: Least, place: Place, each: StrategyAlternatives | _Fitting) -> None:
            one = each.ready.strategy if isinstance(each, _Fitting) else each.by_micro_batches[0]
            done.least_s[place] = text_of(one), least.step_s
            value = steady(self.value(least.step_s, least.computing_s))
            heapq.heappush(waiting, (value, place, each))

        for place in range(number, len(self.candidates), processes):
            least = self.bounded(self.candidates[place])
            if least is not None:
                wait(least, (place, 0), self.candidates[place])
        while waiting:
            value, at, each = heapq.heappop(waiting)
            if value > found.limit * (1 + _ROUNDING):
                break
            if isinstance(each, StrategyAlternatives):
                del done.least_s[at]
                for one, fits in enumerate(self.fitting(each)):
                    wait(self._least_of(fits.ready.strategy, each.batch), (at[0], one), fits)
            elif each.compiler is None:
                compiler = compiler_of(each.ready, self.assumed)
                wait(least_time(compiler), at, replace(each, compiler=compiler))
            else:
                simulation = run_prepared(each.ready, self.assumed, each.compiler)
                done.simulations[at] = simulation.without_activities()
                found.add(self.value_of(simulation))
        return done

    def best(self, processes: int | None) -> Ranking:
        """The best strategies that fit in memory, and the known facts of all others."""
        top = self.top
        if processes is None:
            tried = [candidate.by_micro_batches[0] for candidate in self.candidates]
            work = sum(each.pipeline * each.micro_batches for each in tried)
            processes = usable_cores() if top is not None and work >= _WORTH_PROCESSES else 1
        _SHARED[:] = self, processes, Found(top)
        try:
            outcomes = mapped(_in_this_process, range(processes), processes)
        finally:
            _SHARED.clear()
        # Equals stay in the order in which they were tried: the plainer first.
        ranked = sorted(
            (item for one in outcomes for item in one.simulations.items()),
            key=lambda item: (steady(self.value_of(item[1])), item[0]),
        )[:top]
        among = {place for place, _ in ranked}
        too_large = sorted(
            (share, text, why) for one in outcomes for text, (share, why) in one.too_large.items()
        )
        least_s = dict(sorted(item for one in outcomes for item in one.least_s.items()))
        return Ranking(
            # A simulation that comes from another process has a copy of the network.
            [replace(simulation, graph=self.graph) for _, simulation in ranked],
            {text: seconds for place, (text, seconds) in least_s.items() if place not in among},
            {text: why for _, text, why in too_large},
            {text: why for one in outcomes for text, why in one.impossible.items()},
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

    Raises:
        JoulecastError: no strategy divides this batch over these devices; or a process was ended from
            outside.
    """
    known, assumed = cached(costs or roofline_of(platform)), assumptions or Assumptions()
    inference = assumed.training.inference
    tried = list(candidates(graph, platform, devices, global_batch, inference))
    with no_cycles():
        found = _Search(graph, platform, known, assumed, top, value, tried).best(processes)
    if not (found.feasible or found.out_of_memory):
        why = next(iter(found.impossible.values()), "no data-parallel size divides the batch")
        raise JoulecastError(
            f"{graph.name}: no strategy divides a batch of {global_batch} over {devices} devices: {why}"
        )
    return found
