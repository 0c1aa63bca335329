"""The cost conventions of the original simulator, for parity with its outputs (``mode: proteus``).

They are conventions, not better knowledge: pooling reads its whole window for every value that it gives, the
optimizer moves a parameter four times, gradient buckets close at 25 MB (of 10^6), every op costs a launch of
2 us. Which of several conceivable conventions hold was told from its single-device outputs.
"""

import math
from dataclasses import dataclass

from joulecast.graphs.costs import Cost, Direction, Parts, Roofline, Work, work_of
from joulecast.graphs.opgraph import KINDS, Op, OpGraph

FIRST_BUCKET_BYTES = 1e6
BUCKET_BYTES = 25e6
_OPTIMIZER_PASSES = 4


def _pool_work(graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Work:
    plain = work_of(graph, op, parts, direction)
    window = math.prod(op.attributes.get("kernel", (1, 1)))
    written = graph.tensors[op.writes[0].tensor].bytes
    for dim in op.dims:
        written /= parts.get(dim.name, 1)
    return Work(plain.flops, (1 + window) * written)


@dataclass(frozen=True)
class ProteusRoofline(Roofline):
    """The roofline with the original's conventions."""

    launch_s: float = 2e-6

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        if KINDS[op.kind] != "pool":
            return super().cost(graph, op, parts, direction)
        work = _pool_work(graph, op, parts, direction)
        return Cost(work.bytes / self.bytes_per_s + self.launch_s, "roofline")

    def optimizer(self, parameter_bytes: float) -> Cost:
        return Cost(_OPTIMIZER_PASSES * parameter_bytes / self.bytes_per_s, "roofline")
