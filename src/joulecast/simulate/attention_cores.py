"""The core of attention, from the scores to what is summed by them: what selective recomputation does again.

Its activations grow with the square of the sequence and cost little to compute (Korthikanti et al. 2022,
section 5). A fused kernel is a core by itself; one that is written out has its products, scaling, mask,
softmax and dropout around the softmax.
"""

from joulecast.graphs.opgraph import Op, OpGraph
from joulecast.simulate.cutting import unit_of

_SEEDS = ("attention", "softmax")
_CORE = ("matmul", "scale", "mask", "softmax", "dropout", "attention")


def attention_cores(graph: OpGraph) -> dict[str, str]:
    """The core that each op of one belongs to, by the op's name; others are not in it."""
    found: dict[str, str] = {}
    for seed in graph.ops:
        if seed.kind not in _SEEDS or seed.name in found:
            continue
        name = f"{unit_of(seed.module) or seed.name} core of {seed.name}"
        waiting = [seed]
        while waiting:
            op = waiting.pop()
            if op.name in found:
                continue
            found[op.name] = name
            near = [graph.producer[a.tensor] for a in op.reads if a.tensor in graph.producer]
            near += [reader for access in op.writes for reader in graph.readers[access.tensor]]
            waiting += [other for other in near if _belongs(graph, other, op)]
    return found


def _belongs(graph: OpGraph, other: Op, op: Op) -> bool:
    """Whether a neighbour of a core's op is in the core: a kernel that is fused has none."""
    parameters = {a.tensor for a in other.reads if graph.tensors[a.tensor].role == "parameter"}
    return (
        op.kind != "attention"
        and other.kind in _CORE
        and other.kind != "attention"
        and not parameters
        and unit_of(other.module) == unit_of(op.module)
    )
