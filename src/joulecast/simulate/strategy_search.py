"""Ranking parallel strategies: every way to divide devices, batch and training state that fits in memory.

Strategies that differ only in what fits are not all timed: recomputation and gradients that add up over
micro-batches cost time for memory, so that they are tried where the same strategy without them does not fit.
Where only the best are asked for, strategies are simulated in the order of the least time that they can take
(:mod:`joulecast.simulate.bounds`), until what is left cannot be among them.
"""

import bisect
import heapq
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_double
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from typing import Any, TypeVar

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.quantities import steady
from joulecast.runs.platforms import Platform
from joulecast.runs.provenance import usable_cores
from joulecast.simulate.bounds import Least, least_computing, least_time
from joulecast.simulate.compiler import Compiler
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.memory import (
    exceeds,
    least_state_bytes,
    memory_verdict,
    state_verdict,
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
from joulecast.simulate.strategy import Strategy, text_of
from joulecast.simulate.strategy_space import (
    Recompute,
    StrategyAlternatives,
    candidates,
    recomputations,
    recomputing,
)

_FORKING = get_context("fork")
R = TypeVar("R")


class Found:
    """The least values that all processes have found so far.

    Args:
        top: how many of them are wanted; ``None``: all, so that no value is too large.
    """

    def __init__(self, top: int | None) -> None:
        self._least = None if top is None else _FORKING.Array(c_double, [float("inf")] * top)

    @property
    def limit(self) -> float:
        """The largest of the least values: what is above it is not among them."""
        return float("inf") if self._least is None else float(self._least[-1])

    def add(self, value: float) -> None:
        """Note a value."""
        if self._least is None:
            return
        with self._least.get_lock():
            known = [self._least[place] for place in range(len(self._least))]
            bisect.insort(known, value)
            self._least[:] = known[:-1]


_SHARED: list[Any] = []
"""What processes find that are forked next: the function, how many they are, and what has been found."""


def _in_this_process(number: int) -> Any:
    work, processes, found = _SHARED
    return work(number, processes, found)


def in_processes(
    work: Callable[[int, int, Found], dict[int, R]], processes: int, top: int | None
) -> dict[int, R]:
    """The results of ``work`` in all processes.

    Args:
        work: gets the number of its process, how many there are, and what all have found; returns results by
            number, which are pickled.
        processes: how many; with one, the work is done here.
        top: how many of the least values are wanted.

    Raises:
        JoulecastError: a process was ended from outside, or could not start.
    """
    found = Found(top)
    if processes <= 1:
        return work(0, 1, found)
    _SHARED[:] = work, processes, found
    results: dict[int, R] = {}
    try:
        with ProcessPoolExecutor(processes, mp_context=_FORKING) as pool:
            for part in pool.map(_in_this_process, range(processes)):
                results |= part
    except (OSError, BrokenProcessPool) as error:
        raise JoulecastError(f"a process of the search ended before its work: {error}") from None
    finally:
        _SHARED.clear()
    return results


@dataclass(frozen=True)
class SearchedStrategy:
    """The least seconds that a strategy's step can take, and its simulation unless it cannot be among the
    best. Which of the others are simulated depends on what several processes find first."""

    least_s: float
    simulation: Simulation | None = None


Value = Callable[[float, float], float]
"""What strategies are ranked by, of the seconds of a step and those that a device computes; never falls with
either."""
_ROUNDING = 1e-7
"""Share of a time by which its least may be above it."""
_WORTH_PROCESSES = 20_000
"""Micro-batches in all stages of all strategies from which on several processes simulate them."""


def _seconds(step_s: float, computing_s: float) -> float:
    """The time of a step."""
    return step_s


@dataclass(frozen=True)
class Ranking:
    """Simulated strategies, the best first, and what was left out and why.

    Simulations have no timeline; :func:`joulecast.simulate.simulate.simulate` gives one with it.
    """

    feasible: list[Simulation]
    beaten: dict[str, float]
    """Strategies that fit and are no better than those, and the seconds that their step takes at least."""
    out_of_memory: dict[str, str]
    """Strategies that do not fit, and what does not; they are not timed."""
    impossible: dict[str, str]
    """Strategies that cannot be run at all, and why."""


@dataclass(frozen=True)
class _Fitting:
    """A strategy that fits in memory."""

    strategy: Strategy
    ready: Prepared


@dataclass
class _Search:
    """What a search has found so far."""

    graph: OpGraph
    platform: Platform
    costs: Costs
    assumed: Assumptions
    top: int | None
    value: Value
    fits: list[_Fitting] = field(default_factory=list)
    too_large: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _recomputations(self) -> list[Recompute]:
        return recomputations(self.graph, self.assumed.training.inference)

    def _prepared(self, strategy: Strategy, batch: int) -> Prepared:
        training = self.assumed.training
        return prepare(self.graph, self.platform, strategy, batch, self.costs, training)

    def fewest(self, tried: list[Strategy], batch: int) -> tuple[Strategy, Prepared] | None:
        """The strategy with the fewest micro-batches that fits; more of them never need more memory."""
        smallest = self._prepared(tried[-1], batch)
        memory = smallest.memory(tried[-1])
        if exceeds(memory, self.platform):
            self.too_large[text_of(tried[-1])] = memory_verdict(memory, self.platform)
            return None
        found, below = (tried[-1], smallest), tried[:-1]
        while below:
            # The fewest first, as one micro-batch is most often enough; then by halves.
            place = 0 if len(below) == len(tried) - 1 else (len(below) - 1) // 2
            ready = self._prepared(below[place], batch)
            if exceeds(ready.memory(below[place]), self.platform):
                below = below[place + 1 :]
            else:
                found, below = (below[place], ready), below[:place]
        return found

    def look_at(self, candidate: StrategyAlternatives) -> None:
        """Note the strategy that fits with the fewest micro-batches.

        Where that takes several for want of memory, or none fits, the same with recomputation is looked at
        too.
        """
        strategies = list(candidate.by_micro_batches)
        least = least_state_bytes(self.graph, strategies[-1], self.assumed.training)
        verdict = state_verdict(least, self.platform)
        if verdict is not None:
            self.too_large[text_of(strategies[-1])] = verdict
            return
        for recompute in self._recomputations:
            tried = [recomputing(strategy, recompute) for strategy in strategies]
            try:
                found = self.fewest(tried, candidate.batch)
                if found is not None:
                    self.fits.append(_Fitting(*found))
            except JoulecastError as error:
                self.impossible[text_of(tried[-1])] = str(error)
                return
            if found is not None:
                fewer = [s for s in strategies if s.micro_batches < found[0].micro_batches]
                if not fewer or found[0].pipeline > 1:
                    return
                strategies = fewer

    def _compiled(self, each: _Fitting) -> Compiler:
        return compiler_of(each.ready, self.platform, each.strategy, self.assumed)

    def _simulated(self, each: _Fitting, compiler: Compiler) -> Simulation:
        done = run_prepared(
            each.ready, self.graph, self.platform, each.strategy, self.assumed, compiler
        )
        compiler.forget()
        return done.without_timeline()

    def of(self, simulation: Simulation) -> float:
        """What a simulation is ranked by."""
        return self.value(simulation.step_s, simulation.breakdown.computing_s)

    def simulated(self, number: int, processes: int, found: Found) -> dict[int, SearchedStrategy]:
        """Outcomes of the strategies that are this process's, by their places.

        The one with the least bound is always next: it gets the least time that it can take as its bound,
        then it is simulated; until no bound that is left can be among the best.
        """
        done: dict[int, SearchedStrategy] = {}
        waiting: list[tuple[float, int, Compiler | None]] = []
        for place in range(number, len(self.fits), processes):
            each = self.fits[place]
            least = least_computing(each.ready, each.strategy)
            done[place] = SearchedStrategy(least.step_s)
            waiting.append((self._bound(least), place, None))
        heapq.heapify(waiting)
        while waiting:
            value, place, compiler = heapq.heappop(waiting)
            if value > found.limit * (1 + _ROUNDING):
                break
            if compiler is None:
                compiler = self._compiled(self.fits[place])
                least = least_time(compiler)
                done[place] = SearchedStrategy(least.step_s)
                heapq.heappush(waiting, (self._bound(least), place, compiler))
                continue
            simulation = self._simulated(self.fits[place], compiler)
            done[place] = SearchedStrategy(done[place].least_s, simulation)
            found.add(self.of(simulation))
        return done

    def _bound(self, least: Least) -> float:
        return steady(self.value(least.step_s, least.computing_s))

    def best(self, processes: int | None) -> tuple[list[Simulation], dict[str, float]]:
        """The best of what fits, and the least seconds of all others."""
        top = self.top
        work = sum(each.strategy.pipeline * each.strategy.micro_batches for each in self.fits)
        if processes is None:
            processes = usable_cores() if top is not None and work >= _WORTH_PROCESSES else 1
        done = in_processes(self.simulated, processes, top)
        # Equals stay in the order in which they were tried: the plainer first.
        ranked = [
            (one.simulation, place)
            for place, one in sorted(done.items())
            if one.simulation is not None
        ]
        ranked.sort(key=lambda each: steady(self.of(each[0])))
        among = {place for _, place in ranked[:top]}
        beaten = {
            text_of(self.fits[place].strategy): one.least_s
            for place, one in sorted(done.items())
            if place not in among
        }
        # A simulation that comes from another process has a copy of the network.
        return [replace(one, graph=self.graph) for one, _ in ranked[:top]], beaten


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
        devices: how many are used.
        global_batch: samples of a step over all devices.
        costs: seconds of ops; the platform's roofline by default.
        assumptions: as for :func:`joulecast.simulate.simulate.simulate`.
        top: how many are wanted: those that cannot be among them are not simulated. ``None``: all.
        value: what they are ranked by, the least first.
        processes: that share the work; by default all cores, where there is enough of it.

    Raises:
        JoulecastError: no strategy divides this batch over these devices.
    """
    known = cached(costs or roofline_of(platform))
    found = _Search(graph, platform, known, assumptions or Assumptions(), top, value)
    with no_cycles():
        inference = found.assumed.training.inference
        for candidate in candidates(graph, platform, devices, global_batch, inference):
            found.look_at(candidate)
        ranked, beaten = found.best(processes)
    if not found.fits and not found.too_large:
        why = next(iter(found.impossible.values()), "no data-parallel size divides the batch")
        raise JoulecastError(
            f"{graph.name}: no strategy divides a batch of {global_batch} over {devices} devices: {why}"
        )
    return Ranking(ranked, beaten, found.too_large, found.impossible)
