"""Times every operator of a network inside a real training step.

The export of the network runs operator by operator, and computes the same as the network. The forward time of
an operator is the time of its call. The call leaves nodes on autograd's tape. The backward of an op lasts
from the first of its nodes to the first node of the next op. If several gradients of one tensor are added,
the sum belongs to the op whose gradient comes last. Operators that only look at a tensor, or copy it to
another layout, belong to the op that wrote it.
"""

import operator
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from joulecast.errors import JoulecastError
from joulecast.graphs.capture import Capture, exported
from joulecast.graphs.capture_builder import TRACED_BATCH
from joulecast.graphs.opgraph import OpGraph

Times = dict[str, float]
"""Seconds by op. The key "" has the seconds that belong to no op."""
_LOSS = "cross_entropy"
_FREE = {
    str(operator.getitem),
    *(f"aten.{name}" for name in ("view.default", "transpose.int", "permute.default")),
    *(f"aten.{name}" for name in ("unflatten.int", "unsqueeze.default", "squeeze.dim")),
    *(f"aten.{name}" for name in ("flatten.using_ints", "t.default")),
}
"""Views whose backward moves nothing. Its short time counts for the op before it in the backward."""


def _loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, summed over samples (and positions)."""
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="sum")


@dataclass
class _Clock:
    """Times at which each op was at work."""

    forward: Times = field(default_factory=lambda: defaultdict(float))
    backward: Times = field(default_factory=lambda: defaultdict(float))
    known: set[Any] = field(default_factory=set)
    """Nodes of the tape. This set holds them, because autograd's references to them are weak."""
    events: list[tuple[str, float]] = field(default_factory=list)

    def claim(self, op: str, output: Any) -> None:
        """Claim for ``op`` the nodes on the tape before ``output`` that no other op has claimed.

        Autograd runs the nodes of one call one after the other. So it is enough to note when it arrives at
        the first one. A hook at each node would make the backward of a vision transformer slower by a tenth.
        """
        node = getattr(output, "grad_fn", None)
        if node is not None and node not in self.known:
            self.known.add(node)
            node.register_prehook(lambda _: self.events.append((op, time.perf_counter())))

    def close(self, stop: float) -> None:
        """Compute the backward time of each op from the arrivals, and drop the nodes."""
        ends = [start for _, start in self.events[1:]] + [stop]
        for (op, start), end in zip(self.events, ends, strict=True):
            self.backward[op] += end - start
        self.known.clear()


class _Timed(torch.fx.Interpreter):
    """Runs the export, and times each operator."""

    def __init__(self, module: torch.fx.GraphModule, ops: dict[str, str | None]) -> None:
        super().__init__(module)
        self.clock = _Clock()
        self._op_of = ops
        self._now = ""

    def run_node(self, n: torch.fx.Node) -> Any:
        self._now = self._op_of.get(n.name) or ""
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = time.perf_counter()
        result = target(*args, **kwargs)
        self.clock.forward[self._now] += time.perf_counter() - start
        if str(target) not in _FREE:
            for output in result if isinstance(result, list | tuple) else (result,):
                self.clock.claim(self._now, output)
        return result


class TimedNetwork:
    """A network, its graph, and its training step on one batch. The step is timed as a whole or op by op.

    Args:
        module: the network on the CPU (not on the meta device). It takes one tensor.
        inputs: a batch of inputs.
        classes: number of target classes.
        name: name of the graph.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, classes: int, name: str) -> None:
        self.module, self._inputs = module.train(), inputs
        batch = inputs.shape[0]
        traced = inputs.new_zeros((TRACED_BATCH, *inputs.shape[1:]))
        walk = Capture(module, exported(module, [traced]), name)
        self.graph: OpGraph = walk.graph().with_batch(batch)
        self._program = exported(module, [inputs])
        calls = [n.name for n in self._program.graph.nodes if n.op == "call_function"]
        if calls != list(walk.graph_ops):
            raise JoulecastError(f"network {name}: torch exports it otherwise with {batch} samples")
        self._ops = walk.graph_ops
        self._lifted = self._lifted_tensors()
        shape = self.graph.tensors["target"].shape
        self._target = torch.randint(classes, shape)
        self._losses = [op.name for op in self.graph.ops if op.kind == _LOSS]
        self._optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9, fused=True)

    def _lifted_tensors(self) -> list[Tensor]:
        """Parameters and buffers, in the order of the export's arguments."""
        signature = self._program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        tensors: dict[str, Tensor] = {}
        tensors |= dict(self.module.named_parameters(remove_duplicate=False))
        tensors |= dict(self.module.named_buffers(remove_duplicate=False))
        placeholders = self._program.graph.find_nodes(op="placeholder")
        return [tensors[names[node.name]] for node in placeholders if node.name in names]

    def _clear(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None

    def whole_step(self) -> float:
        """Seconds of forward, loss and backward of the network itself."""
        self._clear()
        start = time.perf_counter()
        outputs = self.module(self._inputs)
        # Inception has two outputs.
        logits = [outputs] if isinstance(outputs, Tensor) else outputs
        losses = [_loss(each, self._target) for each in logits]
        (sum(losses[1:], losses[0]) / len(self._inputs)).backward()
        return time.perf_counter() - start

    def step_by_op(self) -> tuple[Times, Times]:
        """Seconds of the forward and of the backward of every op."""
        self._clear()
        interpreter = _Timed(self._program.graph_module, self._ops)
        clock = interpreter.clock
        outputs: Sequence[Tensor] = interpreter.run(*self._lifted, self._inputs)
        losses = []
        for op, logits in zip(self._losses, outputs, strict=True):
            start = time.perf_counter()
            losses.append(_loss(logits, self._target))
            clock.forward[op] += time.perf_counter() - start
            clock.claim(op, losses[-1])
        total = sum(losses[1:], losses[0]) / len(self._inputs)
        clock.claim(self._losses[0], total)
        del outputs, losses
        total.backward()
        clock.close(time.perf_counter())
        return clock.forward, clock.backward

    def optimizer_step(self) -> float:
        """Seconds of SGD with momentum, fused as in training, with the gradients of the last step."""
        start = time.perf_counter()
        self._optimizer.step()
        return time.perf_counter() - start
