"""Sizes of numbers in training, and the bytes that an optimizer keeps and moves in addition.

``bf16`` and ``fp16`` mean mixed precision, as in training frameworks (Micikevicius et al. 2018): weights,
activations and gradients have 2 bytes, and the optimizer keeps a copy of the weights and its states at fp32.
With Adam (Kingma and Ba 2015), this is 16 bytes a parameter, the same as at fp32 without a copy.

``amp`` is plain PyTorch: weights and gradients have 4 bytes, and ``torch.autocast`` at bf16 is around the
forward pass (:mod:`joulecast.graphs.autocast`). ``bf16-true`` is plain PyTorch, too, but weights, gradients
and optimizer states are all bf16, as after ``model.to(torch.bfloat16)`` (the name is Lightning's).

``fp8``, ``mxfp8`` and ``nvfp4`` are bf16 with narrower operands in the products with weights, as in
Transformer Engine. Both operands are cast in front of the product. Activations, weights and gradients stay at
bf16 in memory. The product with the vocabulary and attention stay at bf16, too.
"""

from collections.abc import Container
from dataclasses import dataclass, replace

from joulecast.graphs.autocast import autocast
from joulecast.graphs.opgraph import Op, OpGraph

CAPTURED_BYTES = 4
"""Bytes of a number in a graph that has no precision yet. Graphs are captured and written at fp32."""
_STATE_BYTES = 4


@dataclass(frozen=True)
class Precision:
    """A precision, and the sizes of its numbers."""

    name: str
    tensor_bytes: int
    """Bytes of a number in weights, activations and gradients."""
    operand_bytes: float | None = None
    """Bytes of a number in the operands of products with weights, if they differ."""
    autocast: bool = False
    """Whether torch casts the operands for each op."""
    plain: bool = False
    """Whether plain PyTorch computes at 16 bits, one op at a time."""

    @property
    def half(self) -> bool:
        """Whether a framework with fused kernels computes at 16 bits or less; False for plain PyTorch."""
        return self.tensor_bytes < _STATE_BYTES and not self.plain

    def of_products(self, known: Container[str]) -> str:
        """The name of the precision at which products compute, except products with narrow operands (as in
        fp8).

        ``known`` has the precisions at which the device has rates.
        """
        if self.autocast and "bf16" not in known and "fp16" in known:
            return "fp16"
        return "bf16" if self.plain or self.operand_bytes is not None else self.name


PRECISIONS = {
    name: Precision(name, size)
    for name, size in {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp64": 8}.items()
} | {
    "amp": Precision("amp", 4, autocast=True, plain=True),
    "bf16-true": Precision("bf16-true", 2, plain=True),
    "fp8": Precision("fp8", 2, 1.0),
    # There is a scale of 8 bits for each 32 numbers (mxfp8) or 16 numbers (nvfp4).
    "mxfp8": Precision("mxfp8", 2, 1 + 1 / 32),
    "nvfp4": Precision("nvfp4", 2, 0.5 + 1 / 16),
}


FUSED_PRECISIONS = ("bf16", "fp16")
FUSED = (
    "at bf16 and fp16, the code has fused kernels, as in Megatron-LM. Plain PyTorch with autocast, as in "
    "Hugging Face's Trainer, takes longer: --precision amp"
)
"""Remark in an answer that chose one of ``FUSED_PRECISIONS``, because no precision was requested."""


OPTIMIZERS = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""Numbers that an optimizer keeps for each parameter, in addition to weight and gradient."""


@dataclass(frozen=True)
class TrainingSetup:
    """What a step does with the weights. By default it is SGD with momentum at fp32."""

    precision: Precision = PRECISIONS["fp32"]
    optimizer: str = "momentum"
    inference: bool = False
    """Whether a step is only a forward pass, which keeps nothing for a backward and updates nothing."""
    fp32_gradients: bool = False
    """Whether gradients are added up and sent at fp32, as Megatron does with bf16."""

    @property
    def updates(self) -> bool:
        """Whether the weights are updated."""
        return not self.inference and self.optimizer != "none"

    @property
    def gradient_share(self) -> float:
        """Bytes of a gradient over the bytes of its weight."""
        return self._gradient_size / self.precision.tensor_bytes

    @property
    def _gradient_size(self) -> int:
        return self._state_size if self.fp32_gradients else self.precision.tensor_bytes

    def gradient_bytes(self, weight_bytes: float) -> float:
        """Bytes of the gradients of weights of this size."""
        return 0.0 if self.inference else self.gradient_share * weight_bytes

    def state_bytes(self, weight_bytes: float) -> float:
        """Bytes that the optimizer keeps for weights of this size."""
        if not self.updates:
            return 0.0
        copies = OPTIMIZERS[self.optimizer] + self.precision.half
        return copies * weight_bytes / self.precision.tensor_bytes * self._state_size

    @property
    def _state_size(self) -> int:
        return max(_STATE_BYTES if self.precision.half else 0, self.precision.tensor_bytes)

    def update_bytes(self, weight_bytes: float) -> float:
        """Bytes that an update of weights of this size reads and writes.

        It reads gradients, weights (or their copy) and states. It writes weights, states, and also the
        weights at half precision, if there are any.
        """
        if not self.updates:
            return 0.0
        written = self._state_size * (1 + OPTIMIZERS[self.optimizer])
        read = self._gradient_size + written
        if self.precision.half:
            written += self.precision.tensor_bytes
        return (read + written) * weight_bytes / self.precision.tensor_bytes


DEFAULT_TRAINING = TrainingSetup()


def training_of(
    precision: str = "fp32",
    optimizer: str = "momentum",
    inference: bool = False,
    gradients: str | None = None,
) -> TrainingSetup:
    """What a step does with the weights, by the names of precision and optimizer.

    Args:
        precision: name of the precision of weights and activations.
        optimizer: name of the optimizer.
        inference: whether a step is only a forward pass.
        gradients: with ``fp32``, gradients are added up and sent at fp32, whatever the precision.
    """
    return TrainingSetup(PRECISIONS[precision], optimizer, inference, gradients is not None)


def at_precision(graph: OpGraph, precision: Precision) -> OpGraph:
    """The graph with its floating-point tensors at a precision. Ids, labels, masks and losses stay unchanged.

    Products with narrower operands get the attribute ``operand_bytes``, the bytes of a number in an operand.
    """
    if precision.autocast:
        return autocast(graph)
    kept = {
        access.tensor
        for op in graph.ops
        if op.kind == "cross_entropy" or (precision.plain and op.attributes.get("wide"))
        for access in op.writes
    }
    tensors = {
        name: replace(tensor, itemsize=precision.tensor_bytes)
        if tensor.itemsize == CAPTURED_BYTES and name not in kept
        else tensor
        for name, tensor in graph.tensors.items()
    }
    if precision.operand_bytes is None:
        return replace(graph, tensors=tensors)
    ops = tuple(
        replace(op, attributes={**op.attributes, "operand_bytes": precision.operand_bytes})
        if op.kind == "linear" and not _gives_scores(graph, op)
        else op
        for op in graph.ops
    )
    return replace(graph, ops=ops, tensors=tensors)


def _gives_scores(graph: OpGraph, op: Op) -> bool:
    """Whether a product is the last one of the network, or a router. These keep wide operands."""
    readers = {reader.kind for access in op.writes for reader in graph.readers[access.tensor]}
    return not readers or bool(readers & {"cross_entropy", "softmax"})


def for_inference(graph: OpGraph) -> OpGraph:
    """The graph without dropout, statistics of batches and the loss at its end, which only training has."""
    other_name: dict[str, str] = {}
    ops = []
    for op in graph.ops:
        reads = tuple(replace(a, tensor=other_name.get(a.tensor, a.tensor)) for a in op.reads)
        if op.kind == "dropout":
            other_name[op.writes[0].tensor] = reads[0].tensor
        elif op.kind != "cross_entropy":
            # Batch norm multiplies by what the training left.
            kind = "multiply" if op.kind == "batch_norm" else op.kind
            ops.append(replace(op, kind=kind, reads=tuple(dict.fromkeys(reads))))
    used = {a.tensor for op in ops for a in (*op.reads, *op.writes)}
    tensors = {n: t for n, t in graph.tensors.items() if n in used or t.role == "parameter"}
    return replace(graph, ops=tuple(ops), tensors=tensors)
