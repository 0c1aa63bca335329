"""Cuts a network into pipeline stages of about the same time."""

from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.graphs.opgraph import OpGraph
from joulecast.simulate.strategy import Strategy


@cache
def unit_of(module: str) -> str:
    """The outermost numbered block of a module path: ``encoder.layers.3.mlp`` -> ``encoder.layers.3``."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if part[-1:].isdigit():
            return ".".join(parts[: place + 1])
    return module


def even_cut(
    weights: tuple[float, ...], parts: int, cut: tuple[float, ...] | None = None
) -> tuple[int, ...]:
    """The part of each item, if a sequence is cut into parts so that the largest sum is as small as possible.

    It uses dynamic programming over cuts. There must be at least as many items as parts.

    Args:
        weights: weights of the items.
        parts: number of parts.
        cut: for each item, the weight that a cut before it adds to the part that ends there. (There is no cut
            before the first item.)
    """
    count = len(weights)
    before = np.concatenate([[0.0], np.cumsum(weights)])
    added = np.concatenate([np.zeros(count) if cut is None else np.array(cut), [0.0]])
    # Time of a part, by the item that it begins with and the one that it ends before.
    lasts = before[None] - before[:, None] + added[None]
    lasts[np.tril_indices(count + 1)] = np.inf
    best = before + added
    best[0] = np.inf
    choice = np.zeros((parts, count + 1), dtype=int)
    for part in range(1, parts):
        worst = np.maximum(best[:, None], lasts)
        choice[part] = worst.argmin(axis=0)
        best = worst.min(axis=0)
    owner, end = np.zeros(count, dtype=int), count
    for part in range(parts - 1, 0, -1):
        start = int(choice[part, end])
        owner[start:end], end = part, start
    return tuple(owner.tolist())


def block_count(graph: OpGraph) -> int:
    """Number of blocks of a network: the largest number of stages. If the network has numbered blocks, only
    these count."""
    units = {unit_of(op.module) for op in graph.ops}
    return len({unit for unit in units if unit[-1:].isdigit()} or units)


def blocks_of(graph: OpGraph) -> tuple[list[int], list[int]]:
    """The blocks between which a network is cut: the block of each op, and the bytes of the activations that
    must be sent for a cut before each block. A block is a sequence of ops of the same unit."""
    units = [unit_of(op.module) for op in graph.ops]
    of_op = list(accumulate((one != other for one, other in pairwise(units)), initial=0))
    block_of = dict(zip((op.name for op in graph.ops), of_op, strict=True))
    # Bytes that begin to cross at a cut, less the bytes that crossed only cuts before it.
    change = [0] * (of_op[-1] + 2)
    for name, op in graph.producer.items():
        last = max((block_of[reader.name] for reader in graph.readers[name]), default=-1)
        if last > block_of[op.name]:
            change[block_of[op.name] + 1] += graph.tensors[name].bytes
            change[last + 1] -= graph.tensors[name].bytes
    return of_op, list(accumulate(change[:-1]))


def cut_stages(
    graph: OpGraph,
    of_op: list[int],
    crossing_bytes: list[int],
    seconds: list[float],
    strategy: Strategy,
    send_s_per_byte: float,
) -> list[int]:
    """Stages of about the same time. If there are enough blocks, the cuts are between blocks.

    Args:
        of_op, crossing_bytes: result of :func:`blocks_of`.
        seconds: seconds of each op, forward and backward.
        send_s_per_byte: seconds that a byte takes between stages.
    """
    # The embedding and the head may be stages of their own.
    has, count = block_count(graph), len(crossing_bytes)
    most = min(has + 2, count)
    if strategy.stages > most:
        stages = f"{strategy.stages} pipeline stages"
        if strategy.virtual > 1:
            stages = f"{strategy.pipeline} x {strategy.virtual} (pp x virtual) = {strategy.stages} stages"
        raise JoulecastError(
            f"strategy: {stages}, but {graph.name} has {has} blocks; take {most} stages or fewer"
        )
    # An activation that crosses a cut is sent forward, and its gradient back.
    per_byte = 2 * send_s_per_byte / strategy.replicas
    # In whole picoseconds, sums are exact. So no rounding decides between cuts that are equally good.
    weights, sends = (
        tuple(np.rint(1e12 * each).tolist())
        for each in (np.bincount(of_op, seconds, count), per_byte * np.array(crossing_bytes))
    )
    owner = even_cut(weights, strategy.stages, sends)
    return [owner[block] for block in of_op]
