"""The ops that recomputation runs again before a backward pass: a whole block, or only the core of its
attention.

The core computes the attention scores, and the sum of the values weighted by the scores. Its activations grow
with the square of the sequence, and cost little to compute (selective recomputation; Korthikanti et al. 2022,
section 5). A fused attention is a core of one kernel. Otherwise the core has several ops: the two products,
scaling, mask, softmax and dropout.
"""

from collections.abc import Sequence

from joulecast.graphs.costs import extra_kept, kept_for_backward
from joulecast.graphs.opgraph import Op, OpGraph
from joulecast.simulate.pipeline_stages import unit_of


def recomputed_ops(graph: OpGraph, block: Sequence[Op]) -> int:
    """Number of ops of a block that recomputation runs again: the ops up to the last tensor that the backward
    pass needs.

    No later op makes a tensor that is kept. torch's checkpoints stop there, too ("early stop").
    """
    made = {a.tensor: place for place, op in enumerate(block) for a in op.writes}
    last = -1
    for place, op in enumerate(block):
        if extra_kept(graph, op):
            last = place
        needed = (made[a.tensor] for a in kept_for_backward(graph, op) if a.tensor in made)
        last = max(last, *needed, -1)
    return last + 1


_SEEDS = ("attention", "softmax")
_CORE = ("matmul", "scale", "mask", "softmax", "dropout")


def attention_cores(graph: OpGraph) -> dict[str, str]:
    """The name of the attention core to which an op belongs, by the name of the op. Ops outside of these
    cores are not in the result."""
    found: dict[str, str] = {}
    for seed in graph.ops:
        if seed.kind not in _SEEDS or seed.name in found:
            continue
        name = f"{unit_of(seed.module) or seed.name} core of {seed.name}"
        core: dict[str, str] = {}
        waiting = [seed]
        while waiting:
            op = waiting.pop()
            if op.name in core:
                continue
            core[op.name] = op.kind
            if op.kind == "attention":
                # A fused kernel is a core alone.
                continue
            near = [graph.producer[a.tensor] for a in op.reads if a.tensor in graph.producer]
            near += [reader for access in op.writes for reader in graph.readers[access.tensor]]
            waiting += [
                other
                for other in near
                if other.kind in _CORE
                and unit_of(other.module) == unit_of(op.module)
                and not any(graph.tensors[access.tensor].is_weight for access in other.reads)
            ]
        # The softmax of a router weights experts. It has no product.
        if not {"attention", "matmul"}.isdisjoint(core.values()):
            found |= dict.fromkeys(core, name)
    return found
