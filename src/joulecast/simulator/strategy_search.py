"""Ranking parallel strategies: every way to divide devices, batch and training state that fits in memory.

Strategies that differ only in what fits are not all timed: recomputation costs time for memory, so that it
is tried where the same strategy without it does not fit; ZeRO-2 sends what ZeRO-1 sends and keeps no more,
so that it takes its place.
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
from joulecast.simulator.simulate import Assumptions, Simulation, prepare, run_prepared
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


def _micro_batches(stages: int, batch: int) -> int:
    """One without a pipeline; with it four a stage, or as near below as the batch divides.

    More of them leave a shorter bubble: at four a stage it is a fifth of the step.
    """
    return max(d for d in _divisors(batch) if d <= 4 * stages) if stages > 1 else 1


def candidates(
    graph: OpGraph, platform: Platform, devices: int, global_batch: int
) -> Iterator[tuple[Strategy, int]]:
    """Strategies without recomputation, and the batch of a replica of each."""
    blocks = len({unit_of(op.module) for op in graph.ops})
    per_node = platform.require_cluster().devices_per_node
    for mesh in _meshes(devices, blocks, per_node):
        batch, rest = divmod(global_batch, mesh["data"])
        if rest or not batch:
            continue
        count = _micro_batches(mesh["pipeline"], batch)
        for zero in _ZERO_LEVELS if mesh["data"] > 1 else (0,):
            yield Strategy(mesh=mesh, micro_batches=count, tree=Node(zero=zero)), batch


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
    assumed = assumptions or Assumptions()
    known = remembered(costs or roofline_of(platform))
    fits: list[Simulation] = []
    too_large: dict[str, str] = {}
    impossible: dict[str, str] = {}
    for strategy, batch in candidates(graph, platform, devices, global_batch):
        for recompute in (False, True):
            tree = strategy.tree.model_copy(update={"recompute": recompute})
            tried = strategy.model_copy(update={"tree": tree})
            try:
                ready = prepare(graph, platform, tried, batch, known, assumed.training)
            except JoulecastError as error:
                impossible[text_of(tried)] = str(error)
                break
            memory = ready.memory(tried)
            if not exceeds(memory, platform):
                fits.append(run_prepared(ready, graph, platform, tried, assumed).without_timeline())
                break
            too_large[text_of(tried)] = memory_verdict(memory, platform)
    if not fits and not too_large:
        why = next(iter(impossible.values()), "no data-parallel size divides the batch")
        raise JoulecastError(
            f"{graph.name}: no strategy divides a batch of {global_batch} over {devices} devices: {why}"
        )
    # Equals stay in the order in which they were tried: the plainer first.
    return Ranking(sorted(fits, key=lambda s: steady(s.step_s)), too_large, impossible)
