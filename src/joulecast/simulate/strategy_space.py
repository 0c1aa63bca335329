"""The strategies that a search tries: ways to divide devices, batch, training state and the pipeline's work.

No other module lists strategies. A strategy that is of no use for a network or a cluster is left out:
sequence parallelism without a sequence, chunks of less than one block, or groups of shards as large as all
replicas.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from joulecast.graphs.opgraph import OpGraph
from joulecast.runs.platforms import Platform
from joulecast.simulate.inferred_splits import experts_in, sequence_length
from joulecast.simulate.pipeline_stages import block_count
from joulecast.simulate.recomputation import attention_cores
from joulecast.simulate.strategy import MOST_MICRO_BATCHES, Node, Strategy, divided_replicas

_ZERO_LEVELS: tuple[Literal[0, 1, 2, 3], ...] = (0, 1, 2, 3)
"""Levels of ZeRO to try."""
_CHUNKS = 2
"""Number of chunks of a device in an interleaved schedule."""
Recompute = bool | Literal["selective"] | None


@dataclass(frozen=True)
class StrategyAlternatives:
    """Strategies in order. The first one that fits in memory is taken."""

    by_micro_batches: tuple[Strategy, ...]
    """Strategies that differ only in their number of micro-batches. The fewest come first."""
    batch: int
    """Number of samples of a replica."""

    @property
    def context(self) -> int:
        """Number of devices that share the positions of a sample."""
        return self.by_micro_batches[0].mesh.get("context", 1)

    @property
    def grid(self) -> tuple[int, int]:
        """The number of pipeline stages, and the number of tensor-parallel devices."""
        mesh = self.by_micro_batches[0].mesh
        return mesh["pipeline"], mesh["tensor"]


def _divisors(number: int) -> list[int]:
    smaller = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*smaller, *(number // d for d in smaller)})


def _meshes(devices: int, blocks: int, per_node: int) -> Iterator[dict[str, int]]:
    """Ways to divide devices. A tensor-parallel group stays in a node, because its messages delay compute."""
    for tensor in _divisors(devices):
        if tensor > 1 and (tensor > per_node or per_node % tensor):
            continue
        for stages in _divisors(devices // tensor):
            if stages <= blocks:
                yield {"pipeline": stages, "data": devices // tensor // stages, "tensor": tensor}


def _sharing_samples(
    mesh: Mapping[str, int], global_batch: int, splits_sequence: bool
) -> Iterator[dict[str, int]]:
    """Meshes with at least one sample for each replica. Devices may also share the positions of a sample
    (context parallelism), which saves memory. The fewest such devices come first."""
    data = mesh["data"]
    for shared in _divisors(data) if splits_sequence else [1]:
        if global_batch % (data // shared) == 0:
            context = {"context": shared} if shared > 1 else {}
            rest = {"data": data // shared, **context, "tensor": mesh["tensor"]}
            yield {"pipeline": mesh["pipeline"], **rest}


def _micro_batches(stages: int, batch: int) -> list[int]:
    """Numbers of micro-batches to try. The fewest that fit in memory are taken.

    A pipeline gets four micro-batches for each stage, or the next larger number that divides the batch. With
    more, the bubble is shorter; with four, it is a fifth of the step. If they do not fit, each sample is a
    micro-batch, up to the largest allowed number. Without a pipeline, micro-batches only save memory.
    """
    divisors = [count for count in _divisors(batch) if count <= MOST_MICRO_BATCHES]
    if stages == 1:
        return divisors
    enough = next((d for d in divisors if d >= 4 * stages), divisors[-1])
    return sorted({enough, divisors[-1]})


def _shardings(
    mesh: Mapping[str, int], per_node: int, experts: int, inference: bool
) -> Iterator[tuple[dict[str, int], Node]]:
    """Levels of ZeRO. Without a pipeline, also full shards within a node, with copies between nodes.

    A mixture of experts also gets each level with its experts on as many replicas as can share them.
    """
    data = mesh["data"]
    fits = [d for d in _divisors(data) if experts % (d * mesh["tensor"]) == 0] if experts else []
    share = max(fits, default=1)
    # Without gradients and optimizer, there are only weights to shard.
    levels = tuple(level for level in _ZERO_LEVELS if level in (0, 3) or not inference)
    for zero in levels if data * mesh.get("context", 1) > 1 else levels[:1]:
        yield dict(mesh), Node(zero=zero)
        if share > 1:
            yield divided_replicas(mesh, "ep", share), Node(zero=zero)
    shard = per_node // mesh["tensor"]
    if mesh["pipeline"] == 1 and 1 < shard < data and data % shard == 0:
        yield divided_replicas(mesh, "shard", shard), Node(zero=3)


def _schedules(
    stages: int, micro_batches: int, blocks: int, inference: bool
) -> Iterator[dict[str, Any]]:
    """Orders of a pipeline's work. Without a backward, no order divides the backward."""
    yield {}
    if stages == 1:
        return
    if micro_batches % stages == 0 and _CHUNKS * stages <= blocks:
        yield {"schedule": "interleaved", "virtual": _CHUNKS}
    if not inference:
        yield {"schedule": "zb-h1"}


def candidates(
    graph: OpGraph, platform: Platform, devices: int, global_batch: int, inference: bool = False
) -> Iterator[StrategyAlternatives]:
    """All strategies that a search tries, without recomputation (see :func:`recomputations`). Plainer
    strategies come first.

    A pipeline with sharded weights (ZeRO-3) is tried only with 1F1B, because every micro-batch gathers the
    weights.
    """
    blocks = block_count(graph)
    per_node = platform.require_cluster().devices_per_node
    splits_sequence, experts = sequence_length(graph) is not None, experts_in(graph)
    meshes = (
        mesh
        for divided in _meshes(devices, blocks, per_node)
        for mesh in _sharing_samples(divided, global_batch, splits_sequence)
    )
    for mesh in meshes:
        batch = global_batch // mesh["data"]
        counts = _micro_batches(mesh["pipeline"], batch)
        ways = [False, True] if mesh["tensor"] > 1 and splits_sequence else [False]
        for axes, node in _shardings(mesh, per_node, experts, inference):
            for schedule in _schedules(mesh["pipeline"], counts[0], blocks, inference):
                if schedule and node.zero == 3:
                    continue
                for split in ways:
                    tried = tuple(
                        Strategy(
                            mesh=axes,
                            micro_batches=count,
                            tree=node,
                            sequence_parallel=split,
                            **schedule,
                        )
                        for count in counts
                        if not schedule.get("virtual") or count % mesh["pipeline"] == 0
                    )
                    yield StrategyAlternatives(tried, batch)


def recomputations(graph: OpGraph, inference: bool = False) -> list[Recompute]:
    """The kinds of recomputation to try, the smallest first. For ``inference`` there is none.

    The core of a fused attention keeps very little. So selective recomputation is only tried if attention
    consists of single ops.
    """
    if inference:
        return [None]
    cores = attention_cores(graph)
    written_out = any(op.kind == "softmax" and op.name in cores for op in graph.ops)
    return [None, "selective", True] if written_out else [None, True]


def recomputing(strategy: Strategy, recompute: Recompute) -> Strategy:
    """The strategy, with this kind of recomputation."""
    if recompute is None:
        return strategy
    tree = strategy.tree.model_copy(update={"recompute": recompute})
    return strategy.model_copy(update={"tree": tree})
