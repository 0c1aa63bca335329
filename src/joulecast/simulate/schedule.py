"""The schedule: the order of a device's work in a step, and the micro-batches that it holds meanwhile."""

from functools import lru_cache

from joulecast.graphs.opgraph import KINDS, Op, OpGraph
from joulecast.graphs.schedules import Turn, interleaved_order, work_order, zero_bubble_order
from joulecast.simulate.strategy import Strategy


def phases(strategy: Strategy, device: int) -> tuple[Turn, ...]:
    """Order of the work of a pipeline's device in a step."""
    kind = strategy.schedule if isinstance(strategy.schedule, str) else "1f1b"
    most = strategy.under_way(device) if kind == "1f1b" else None
    return _order(kind, strategy.pipeline, device, strategy.micro_batches, strategy.virtual, most)


def most_kept(strategy: Strategy, device: int) -> tuple[int, int]:
    """Micro-batches that a device holds at most before a forward, and before a backward.

    What is saved for a backward that is split in two is needed until its second half.
    """
    done = "weights" if strategy.schedule == "zb-h1" else "backward"
    return _most_kept(phases(strategy, device), done)


@lru_cache(maxsize=1024)
def _most_kept(order: tuple[Turn, ...], done: str) -> tuple[int, int]:
    kept = forward = backward = 0
    for phase, _, _ in order:
        if phase == "forward":
            forward = max(forward, kept)
            kept += 1
        else:
            backward = max(backward, kept)
            kept -= phase == done
    return forward, backward


# Strategies that differ in their sharding have the same order, which memory and time both ask for.
@lru_cache(maxsize=1024)
def _order(
    kind: str, pipeline: int, device: int, micro_batches: int, chunks: int, most: int | None
) -> tuple[Turn, ...]:
    if kind == "interleaved":
        return tuple(interleaved_order(pipeline, device, micro_batches, chunks))
    if kind == "zb-h1":
        return tuple(zero_bubble_order(pipeline, device, micro_batches))
    return tuple(Turn(phase, batch) for phase, batch in work_order(micro_batches, most))


def weights_share(graph: OpGraph, op: Op) -> float:
    """The share of an op's backward that gives the gradients of its weights.

    A matrix product has one product for its weights and one for its input, unless that is data; all that a
    lookup has is the gradient of its table. What else has weights (norms) gives both in one pass.
    """
    if op.kind == "timed":
        return float(op.attributes.get("weights_share", 0.0))
    roles = {graph.tensors[access.tensor].role for access in op.reads}
    if "parameter" not in roles:
        return 0.0
    if KINDS[op.kind] == "lookup" or "activation" not in roles:
        return 1.0
    return 0.5 if KINDS[op.kind] == "matmul" else 0.0
