"""Chains of layers of given duration, for cases worked out by hand and for emulated networks."""

from collections.abc import Sequence
from dataclasses import dataclass

from joulecast.graphs.costs import Cost, Direction, Parts
from joulecast.graphs.opgraph import Access, Dim, DimKind, Op, OpGraph, Tensor, checked
from joulecast.graphs.precision import DEFAULT_TRAINING, Training


@dataclass(frozen=True)
class TimedLayer:
    """A layer as one device sees it, for one micro-batch of one sample."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int
    """Of the weights that a device holds."""
    activation_bytes: int
    """Of what the layer reads and writes for a micro-batch of a replica."""
    weights_share: float = 0.0
    """Of the backward: the gradients of weights, which a zero-bubble schedule does later."""


def timed_chain(name: str, layers: Sequence[TimedLayer], shards: int = 1) -> OpGraph:
    """A chain of layers; along the dim ``shard`` their work is split and what they write is summed.

    A layer reads its weights first, so that their gradient is complete when its backward is, with the
    gradient of its input summed over the shards.

    Args:
        name: of the graph.
        layers: in order.
        shards: tensor-parallel group that the layers' bytes are given for.
    """
    tensors = [Tensor("input", (1, 1), 1, "input")]
    ops = []

    def add(
        module: str,
        suffix: str,
        reads: Sequence[Access],
        size: int,
        seconds: tuple[float, float] = (0.0, 0.0),
        shard: Sequence[Dim] = (),
        weights_share: float = 0.0,
    ) -> Access:
        written = Tensor(module + suffix, (1, size), 1, "activation")
        tensors.append(written)
        attributes = {"forward_s": seconds[0], "backward_s": seconds[1]}
        if weights_share:
            attributes["weights_share"] = weights_share
        dims = (Dim("batch", 1, DimKind.BATCH), *shard)
        access = Access(written.name, ("batch", None))
        ops.append(Op(written.name, "timed", module, dims, tuple(reads), (access,), attributes))
        return access

    read = Access("input", ("batch", None))
    shard = Dim("shard", shards, DimKind.REDUCE)
    for layer in layers:
        weight = Tensor(f"{layer.name}.weight", (layer.gradient_bytes,), 1, "parameter")
        tensors.append(weight)
        size = layer.activation_bytes
        entered = add(layer.name, "/weights", [read, Access(weight.name, (None,))], size)
        seconds = (layer.forward_s, layer.backward_s)
        read = add(layer.name, "", [entered], size, seconds, [shard], layer.weights_share)
    add(layers[-1].name, "/loss", [read], 1)
    return checked(OpGraph(name, tuple(ops), {t.name: t for t in tensors}, 1))


@dataclass(frozen=True)
class GivenCosts:
    """Costs of timed layers: what they say, and nothing for the optimizer."""

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        return Cost(float(op.attributes[f"{direction}_s"]), "given")

    def optimizer(self, parameter_bytes: float, training: Training = DEFAULT_TRAINING) -> Cost:
        return Cost(0.0, "given")
