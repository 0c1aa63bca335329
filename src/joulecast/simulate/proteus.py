"""The cost conventions of the original simulator, for parity with its outputs (``mode: proteus``).

They are conventions, not better knowledge: biases are added in a pass of their own, pooling reads its whole
window for every value that it gives, attention writes its scores and goes over them op by op, the optimizer
moves a parameter four times, gradient buckets close at 25 MB (of 10^6), every op costs a launch of 2 us.
Which of several conceivable conventions hold was found from its outputs without overlap: convolutional
networks on one device, GPT split by batch and by tensor over the 8 devices of a node.
"""

import math
from dataclasses import dataclass

from joulecast.graphs.costs import Cost, Direction, Parts, Roofline, part_of, roofline_of
from joulecast.graphs.opgraph import KINDS, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, Training
from joulecast.runs.platforms import Platform

FIRST_BUCKET_BYTES = 1e6
BUCKET_BYTES = 25e6
_OPTIMIZER_PASSES = 4


_PASSES: dict[str, float] = {"layer_norm": 5, "dropout": 3, "concat": 4, "cross_entropy": 4}
"""Passes over what an op writes, forward and as many backward, where they are not the roofline's."""

_SCORE_PASSES = 6.2
"""Passes over the scores of an attention, forward; backward twice as many."""


def _written(graph: OpGraph, op: Op, parts: Parts) -> float:
    return sum(graph.tensors[access.tensor].bytes * part_of(access, parts) for access in op.writes)


@dataclass(frozen=True)
class ProteusRoofline(Roofline):
    """The roofline with the original's conventions."""

    launch_s: float = 2e-6

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        seconds = self._seconds(graph, op, parts, direction)
        if seconds is None:
            return super().cost(graph, op, parts, direction)
        return Cost(seconds + self.launch_s, "roofline")

    def _seconds(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> float | None:
        written = _written(graph, op, parts) / self.bytes_per_s
        if op.kind == "cross_entropy":
            logits = graph.tensors[op.reads[0].tensor].bytes * part_of(op.reads[0], parts)
            return _PASSES[op.kind] * logits / self.bytes_per_s
        if KINDS[op.kind] == "pool":
            window: float = math.prod(op.attributes.get("kernel", (1, 1)))
            return (1 + window) * written
        if op.kind in _PASSES:
            return _PASSES[op.kind] * written
        times = 1 if direction == "forward" else 2
        if op.kind == "attention":
            scores = math.prod(
                dim.size / parts.get(dim.name, 1) for dim in op.dims if dim.name != "head_dim"
            )
            itemsize = graph.tensors[op.writes[0].tensor].itemsize
            size = op.dim("head_dim").size / parts.get("head_dim", 1)
            products = 4.0 * scores * size / self.flops_per_s
            return times * (products + _SCORE_PASSES * scores * itemsize / self.bytes_per_s)
        biased = sum(graph.tensors[a.tensor].role == "parameter" for a in op.reads) > 1
        if KINDS[op.kind] == "matmul" and biased:
            plain = super().cost(graph, op, parts, direction).seconds - self.launch_s
            return plain + written
        return None

    def optimizer(self, parameter_bytes: float, training: Training = DEFAULT_TRAINING) -> Cost:
        passes = _OPTIMIZER_PASSES if training.updates else 0
        return Cost(passes * parameter_bytes / self.bytes_per_s, "roofline")


def proteus_costs(platform: Platform, precision: str = "fp32") -> ProteusRoofline:
    """The original's roofline with a platform's peak rates.

    Raises:
        JoulecastError: its file does not tell them; names the key.
    """
    plain = roofline_of(platform, precision)
    return ProteusRoofline(plain.flops_per_s, plain.bytes_per_s)
