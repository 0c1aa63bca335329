"""Ranking parallel strategies: every way to divide devices, batch and training state that fits in memory.

Strategies that differ only in what fits are not all timed: recomputation and gradients that add up over
micro-batches cost time for memory, so that they are tried where the same strategy without them does not fit.
Where only the best are asked for, strategies are simulated in the order of the least time that they can take
(:mod:`joulecast.simulate.bounds`), until what is left cannot be among them.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.quantities import steady
from joulecast.runs.platforms import Platform
from joulecast.runs.provenance import usable_cores
from joulecast.simulate.bounds import Least, least_time
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

InOrder = Callable[..., Iterator[Any]]
"""``map``, of this process or of several."""

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

    def compiled(self, place: int) -> Compiler:
        """What compiles the step of the strategy at a place."""
        each = self.fits[place]
        return compiler_of(each.ready, self.platform, each.strategy, self.assumed)

    def simulated(self, place: int) -> Simulation:
        """The step of the strategy at a place, without its timeline."""
        each = self.fits[place]
        settings = (each.ready, self.graph, self.platform, each.strategy, self.assumed)
        return run_prepared(*settings, self.compiled(place)).without_timeline()

    def of(self, simulation: Simulation) -> float:
        """What a simulation is ranked by."""
        return steady(self.value(simulation.step_s, simulation.breakdown.computing_s))

    def best(self) -> tuple[list[Simulation], dict[str, float]]:
        """The best of what fits, and the least seconds of all others.

        Raises:
            JoulecastError: a process was ended from outside, or could not start.
        """
        work = sum(each.strategy.pipeline * each.strategy.micro_batches for each in self.fits)
        is_long = self.top is not None and work >= _WORTH_PROCESSES
        processes = usable_cores() if is_long else 1
        _SEARCH[:] = [self]
        try:
            if processes == 1:
                return self._best(map, 1)
            # What is forked has all that was prepared.
            with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
                return self._best(pool.map, processes)
        except (OSError, BrokenProcessPool) as error:
            raise JoulecastError(
                f"a process of the search ended before its work: {error}"
            ) from None
        finally:
            _SEARCH.clear()

    def _best(self, in_order: InOrder, together: int) -> tuple[list[Simulation], dict[str, float]]:
        places, done = range(len(self.fits)), dict[int, Simulation]()
        least = [Least(0.0, 0.0)] * len(places)
        if self.top is not None:
            least = list(in_order(_least, places))
        values = [steady(self.value(each.step_s, each.computing_s)) for each in least]
        waiting = sorted(places, key=lambda place: values[place])
        while waiting:
            known = sorted(self.of(one) for one in done.values())
            limit = math.inf
            if self.top is not None and len(known) >= self.top:
                limit = known[self.top - 1] * (1 + _ROUNDING)
            taken = [place for place in waiting[:together] if values[place] <= limit]
            if not taken:
                break
            done.update(zip(taken, in_order(_simulated, taken), strict=True))
            waiting = waiting[together:]
        # Equals stay in the order in which they were tried: the plainer first.
        ranked = sorted(sorted(done), key=lambda place: self.of(done[place]))[: self.top]
        beaten = {
            text_of(self.fits[place].strategy): least[place].step_s
            for place in places
            if place not in ranked
        }
        # A simulation that comes from another process has a copy of the network.
        return [replace(done[place], graph=self.graph) for place in ranked], beaten


_SEARCH: list[_Search] = []
"""The search that is going on, which processes find that are forked from it."""


def _least(place: int) -> Least:
    return least_time(_SEARCH[0].compiled(place))


def _simulated(place: int) -> Simulation:
    return _SEARCH[0].simulated(place)


def search(
    graph: OpGraph,
    platform: Platform,
    devices: int,
    global_batch: int,
    costs: Costs | None = None,
    assumptions: Assumptions | None = None,
    top: int | None = None,
    value: Value = _seconds,
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

    Raises:
        JoulecastError: no strategy divides this batch over these devices.
    """
    known = cached(costs or roofline_of(platform))
    found = _Search(graph, platform, known, assumptions or Assumptions(), top, value)
    with no_cycles():
        inference = found.assumed.training.inference
        for candidate in candidates(graph, platform, devices, global_batch, inference):
            found.look_at(candidate)
        ranked, beaten = found.best()
    if not found.fits and not found.too_large:
        why = next(iter(found.impossible.values()), "no data-parallel size divides the batch")
        raise JoulecastError(
            f"{graph.name}: no strategy divides a batch of {global_batch} over {devices} devices: {why}"
        )
    return Ranking(ranked, beaten, found.too_large, found.impossible)
