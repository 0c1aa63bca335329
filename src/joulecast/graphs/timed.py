"""Chains of layers of given duration, for cases worked out by hand and for emulated networks."""

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.graphs.costs import Cost, Direction, Parts
from joulecast.graphs.opgraph import Access, Dim, DimKind, Op, OpGraph, Tensor, checked


@dataclass(frozen=True)
class TimedLayer:
    """A layer as one device sees it, for one micro-batch of one sample."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int
    """Of the weights that a device holds."""
    activation_bytes: int
    """Of what the layer writes for a micro-batch of a replica."""


def timed_chain(name: str, layers: Sequence[TimedLayer], shards: int = 1) -> OpGraph:
    """A chain of layers; along the dim ``shard`` their weights are split and what they write is summed.

    Args:
        name: of the graph.
        layers: in order.
        shards: tensor-parallel group that the layers' bytes are given for.
    """
    tensors = [Tensor("input", (1, 1), 1, "input")]
    ops = []
    read = "input"
    for layer in layers:
        weight = Tensor(f"{layer.name}.weight", (shards, layer.gradient_bytes), 1, "parameter")
        written = Tensor(layer.name, (1, layer.activation_bytes), 1, "activation")
        tensors += [weight, written]
        ops.append(
            Op(
                name=layer.name,
                kind="timed",
                module=layer.name,
                dims=(
                    Dim("batch", 1, DimKind.BATCH),
                    Dim("shard", shards, DimKind.REDUCE),
                ),
                reads=(Access(read, ("batch", None)), Access(weight.name, ("shard", None))),
                writes=(Access(written.name, ("batch", None)),),
                attributes={"forward_s": layer.forward_s, "backward_s": layer.backward_s},
            )
        )
        read = layer.name
    return checked(OpGraph(name, tuple(ops), {t.name: t for t in tensors}, 1))


@dataclass(frozen=True)
class GivenCosts:
    """Costs of timed layers: what they say, and nothing for the optimizer."""

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        return Cost(float(op.attributes[f"{direction}_s"]), "given")

    def optimizer(self, parameter_bytes: float) -> Cost:
        return Cost(0.0, "given")
