"""Ranking parallel strategies: every way to divide devices, batch and training state that fits in memory.

Strategies that differ only in what fits are not all timed: recomputation and gradients that add up over
micro-batches cost time for memory, so that they are tried where the same strategy without them does not fit;
ZeRO-2 sends what ZeRO-1 sends and keeps no more, so that it takes its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.platforms import Platform
from joulecast.quantities import steady
from joulecast.simulator.alike import remembered
from joulecast.simulator.cutting import unit_of
from joulecast.simulator.memory import exceeds, memory_verdict
from joulecast.simulator.simulate import (
    Assumptions,
    Prepared,
    Simulation,
    prepare,
    run_prepared,
)
from joulecast.simulator.strategy import Node, Strategy, text_of

_ZERO_LEVELS = (0, 2, 3)


@dataclass(frozen=True)
class Ranking:
    """Simulated strategies, the fastest first, and what was left out and why.

    Simulations have no timeline; :func:`joulecast.simulator.simulate.simulate` gives one with it.
    """

    feasible: list[Simulation]
    out_of_memory: dict[str, str]
    """Strategies that do not fit, and what does not; they are not timed."""
    impossible: dict[str, str]
    """Strategies that cannot be run at all, and why."""


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _meshes(devices: int, blocks: int, per_node: int) -> Iterator[dict[str, int]]:
    """Ways to divide devices; a tensor-parallel group stays within a node, as its messages are in line."""
    for tensor in _divisors(devices):
        if tensor > 1 and (tensor > per_node or per_node % tensor):
            continue
        for stages in _divisors(devices // tensor):
            if stages <= blocks:
                yield {"pipeline": stages, "data": devices // tensor // stages, "tensor": tensor}


def _micro_batches(stages: int, batch: int) -> list[int]:
    """Numbers of micro-batches to try, the fewest that fit in memory are taken.

    With a pipeline four a stage, or as near below as the batch divides: more of them leave a shorter bubble,
    and at four a stage it is a fifth of the step. Without one, micro-batches only save memory.
    """
    divisors = _divisors(batch)
    return [max(d for d in divisors if d <= 4 * stages)] if stages > 1 else divisors


def candidates(
    graph: OpGraph, platform: Platform, devices: int, global_batch: int
) -> Iterator[tuple[list[Strategy], int]]:
    """Strategies without recomputation, by numbers of micro-batches; and the batch of a replica of each."""
    blocks = len({unit_of(op.module) for op in graph.ops})
    per_node = platform.require_cluster().devices_per_node
    for mesh in _meshes(devices, blocks, per_node):
        batch, rest = divmod(global_batch, mesh["data"])
        if rest or not batch:
            continue
        counts = _micro_batches(mesh["pipeline"], batch)
        for zero in _ZERO_LEVELS if mesh["data"] > 1 else (0,):
            node = Node(zero=zero)
            yield [Strategy(mesh=mesh, micro_batches=n, tree=node) for n in counts], batch


class _Search:
    """What a search has found so far."""

    def __init__(
        self, graph: OpGraph, platform: Platform, costs: Costs, assumed: Assumptions
    ) -> None:
        self.graph, self.platform, self.costs, self.assumed = graph, platform, costs, assumed
        self.fits: list[Simulation] = []
        self.too_large: dict[str, str] = {}
        self.impossible: dict[str, str] = {}

    def fewest(self, tried: list[Strategy], batch: int) -> tuple[Strategy, Prepared] | None:
        """The strategy with the fewest micro-batches that fits; more of them never need more memory."""
        smallest = prepare(
            self.graph, self.platform, tried[-1], batch, self.costs, self.assumed.training
        )
        memory = smallest.memory(tried[-1])
        if exceeds(memory, self.platform):
            self.too_large[text_of(tried[-1])] = memory_verdict(memory, self.platform)
            return None
        found, below = (tried[-1], smallest), tried[:-1]
        while below:
            # The fewest first, as one micro-batch is most often enough; then by halves.
            place = 0 if len(below) == len(tried) - 1 else (len(below) - 1) // 2
            ready = prepare(
                self.graph, self.platform, below[place], batch, self.costs, self.assumed.training
            )
            if exceeds(ready.memory(below[place]), self.platform):
                below = below[place + 1 :]
            else:
                found, below = (below[place], ready), below[:place]
        return found

    def try_all(self, strategies: list[Strategy], batch: int) -> None:
        """Simulate the one that fits with the fewest micro-batches.

        Where that takes several for want of memory, or none fits, the same with recomputation is tried too.
        """
        for recompute in (False, True):
            tried = [_recomputing(strategy) if recompute else strategy for strategy in strategies]
            try:
                found = self.fewest(tried, batch)
                if found is not None:
                    self._simulate(*found)
            except JoulecastError as error:
                self.impossible[text_of(tried[-1])] = str(error)
                return
            if found is not None:
                fewer = [s for s in strategies if s.micro_batches < found[0].micro_batches]
                if not fewer or found[0].pipeline > 1:
                    return
                strategies = fewer

    def _simulate(self, strategy: Strategy, ready: Prepared) -> None:
        done = run_prepared(ready, self.graph, self.platform, strategy, self.assumed)
        self.fits.append(done.without_timeline())


def _recomputing(strategy: Strategy) -> Strategy:
    tree = strategy.tree.model_copy(update={"recompute": True})
    return strategy.model_copy(update={"tree": tree})


def search(
    graph: OpGraph,
    platform: Platform,
    devices: int,
    global_batch: int,
    costs: Costs | None = None,
    assumptions: Assumptions | None = None,
) -> Ranking:
    """Simulate every candidate and rank those that fit by their step time.

    Args:
        graph: the network.
        platform: devices and links.
        devices: how many are used.
        global_batch: samples of a step over all devices.
        costs: seconds of ops; the platform's roofline by default.
        assumptions: as for :func:`joulecast.simulator.simulate.simulate`.

    Raises:
        JoulecastError: no strategy divides this batch over these devices.
    """
    known = remembered(costs or roofline_of(platform))
    found = _Search(graph, platform, known, assumptions or Assumptions())
    for strategies, batch in candidates(graph, platform, devices, global_batch):
        found.try_all(strategies, batch)
    if not found.fits and not found.too_large:
        why = next(iter(found.impossible.values()), "no data-parallel size divides the batch")
        raise JoulecastError(
            f"{graph.name}: no strategy divides a batch of {global_batch} over {devices} devices: {why}"
        )
    # Equals stay in the order in which they were tried: the plainer first.
    ranked = sorted(found.fits, key=lambda simulation: steady(simulation.step_s))
    return Ranking(ranked, found.too_large, found.impossible)
