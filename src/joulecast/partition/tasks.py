"""The tasks of a module, without times. A partitioner cuts them.

    captured = capture_tasks(module, *inputs)

``torch.fx.symbolic_trace`` traces the module in training mode. If it cannot follow the forward pass,
``torch.export`` does. (``torch.export`` also knows which node reads a tensor after it was changed in place.)
Every node that calls something and gives one or more tensors is a task, with the name of the node. These
nodes are no tasks:

* Nodes without a tensor (sizes, attributes, arithmetic on them) and ``get_attr`` nodes. Every stage that
  needs them has its own copy. A task that needs such a node also reads the tensors that the node looks at. So
  every stage has what it needs to run the node.
* Nodes that pick one of several outputs of a task (for example, ``getitem`` of a tuple). They run with this
  task. So only tensors cross a cut, and no tuples.
* A node that changes a buffer in place and that no node reads, such as the batch counter of a batch norm in
  an export.
* Nodes without a tensor that no task needs (assertions on sizes). Stages leave them out.

The network's input is no task. Not only the first stage may need it: a vision transformer's ``reshape`` looks
at its size.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from joulecast.errors import JoulecastError
from joulecast.graphs.capture import exported

_CALLS = ("call_module", "call_function", "call_method")
_PICKS = (operator.getitem, getattr)


@dataclass(frozen=True)
class CapturedTask:
    """A task of a trace, without times. The fields are the same as in
    :class:`~joulecast.partition.taskgraph.Task`."""

    name: str
    description: str
    reads: tuple[str, ...]
    activation_bytes: int
    parameter_bytes: int
    flops: int


@dataclass(frozen=True)
class Captured:
    """A module's trace, and its tasks in the order of the trace.

    ``traced`` shares parameters and buffers with the module. ``tracer`` says what made it:
    ``torch.fx.symbolic_trace`` or ``torch.export``.
    """

    traced: fx.GraphModule
    tracer: str
    tasks: tuple[CapturedTask, ...]


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors in a value."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def trained_tensors(value: Any) -> list[Tensor]:
    """The tensors in a value through which gradients go back."""
    return [tensor for tensor in tensors_of(value) if tensor.requires_grad]


def _attribute(traced: fx.GraphModule, node: fx.Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), traced)


def reason_of(error: Exception) -> str:
    """One line that gives the reason of an error, for a message."""
    if isinstance(error, JoulecastError):
        return str(error)
    return f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"


@contextmanager
def left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Let a ``with`` block train the network. After the block, mode, buffers (running means) and random
    numbers are as before."""
    modes = {each: each.training for each in module.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[]):
        try:
            module.train()
            yield
        finally:
            for each, training in modes.items():
                each.training = training
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)


def changes_its_input(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Whether the network's code lets a node work in place."""
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    if node.kwargs.get("inplace"):
        return True
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    if getattr(node.target, "__module__", None) == "_operator":
        return False  # `and_` and `or_` are no methods that work in place
    name = str(getattr(node.target, "__name__", node.target))
    return name.endswith("_") and not name.endswith("__")


def _refuse_read_after_change(traced: fx.GraphModule) -> None:
    """Refuse a trace in which a tensor is read after it was changed in place. A stage changes only its
    own copy of what it gets.

    Raises:
        JoulecastError: a node changes a tensor in place that is read after that. The error names this node,
            the changed one and the reader.
    """
    position = {node: index for index, node in enumerate(traced.graph.nodes)}
    for node in traced.graph.nodes:
        if node.op not in _CALLS or not changes_its_input(node, traced):
            continue
        changed = node.args[0] if node.args else None
        if not isinstance(changed, fx.Node) or changed.op == "get_attr":
            continue
        for reader in changed.users:
            if position[reader] > position[node]:
                raise JoulecastError(
                    f"node `{node.name}` changes `{changed.name}` in place, and `{reader.name}` reads it "
                    "afterwards: such a network cannot be cut"
                )


class _Walk(fx.Interpreter):
    """Runs a trace once, and keeps what sort of value each node gives, its bytes and FLOPs."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced)
        self.several: set[fx.Node] = set()
        """Nodes that give tensors in a tuple or the like."""
        self.bytes: dict[fx.Node, int] = {}
        """Bytes of the tensors that a node gives. Nodes that give no tensors are left out."""
        self.flops: dict[fx.Node, int] = {}
        self._counter = FlopCounterMode(display=False)

    def walk(self, inputs: Sequence[Tensor]) -> None:
        with self._counter, torch.no_grad():
            self.run(*inputs)

    def run_node(self, n: fx.Node) -> Any:
        before = self._counter.get_total_flops()
        value = super().run_node(n)
        self.flops[n] = self._counter.get_total_flops() - before
        tensors = tensors_of(value)
        if tensors:
            self.bytes[n] = sum(tensor.nbytes for tensor in tensors)
            if not isinstance(value, Tensor):
                self.several.add(n)
        return value


def _sorts(traced: fx.GraphModule, walk: _Walk) -> dict[fx.Node, str]:
    """What each node is: ``task``, ``pick``, ``counter`` or ``folded``. Input and output are left out."""
    sorts: dict[fx.Node, str] = {}
    alone: list[fx.Node] = []
    owners: set[str] = set()
    for node in traced.graph.nodes:
        inputs = node.all_input_nodes
        attributes = [each for each in inputs if each.op == "get_attr"]
        if node.op in ("placeholder", "output"):
            continue
        if node.target in _PICKS and len(inputs) == 1 and inputs[0] in walk.several:
            sorts[node] = "pick"
        elif node.op not in _CALLS or node not in walk.bytes:
            sorts[node] = "folded"
        else:
            sorts[node] = "task"
            changes = bool(inputs) and len(attributes) == len(inputs) and not node.users
            if changes and changes_its_input(node, traced):
                alone.append(node)
            else:
                owners |= {_owner(each) for each in attributes}
    return sorts | {node: "counter" for node in alone if _owner(node.all_input_nodes[0]) in owners}


def _owner(attribute: fx.Node) -> str:
    """Path of the module whose parameter or buffer a node gets."""
    return str(attribute.target).rpartition(".")[0]


def _described(node: fx.Node, traced: fx.GraphModule) -> str:
    if node.op == "call_module":
        layer = traced.get_submodule(str(node.target))
        return f"{type(layer).__name__}({layer.extra_repr()})"
    return str(getattr(node.target, "__name__", node.target))


def _tasks(traced: fx.GraphModule, walk: _Walk) -> tuple[CapturedTask, ...]:
    sorts = _sorts(traced, walk)
    sources: dict[fx.Node, list[str]] = {}
    """The tasks whose tensors a node has, or was computed from."""
    folded: dict[fx.Node, list[fx.Node]] = {}
    """The folded nodes that a node needs. For a folded node, the node itself is among them."""
    seen: set[int] = set()
    found: list[CapturedTask] = []
    for node in traced.graph.nodes:
        inputs = node.all_input_nodes
        reads = [*dict.fromkeys(name for each in inputs for name in sources[each])]
        needs = [*dict.fromkeys(other for each in inputs for other in folded[each])]
        sources[node], folded[node] = reads, []
        sort = sorts.get(node)
        if sort == "folded":
            folded[node] = [*needs, node]
        elif sort == "task":
            parameters = _parameters(node, needs, traced)
            own = {id(each): each.nbytes for each in parameters if id(each) not in seen}
            seen |= own.keys()
            sources[node] = [node.name]
            found.append(
                CapturedTask(
                    name=node.name,
                    description=_described(node, traced),
                    reads=tuple(reads),
                    activation_bytes=walk.bytes[node],
                    parameter_bytes=sum(own.values()),
                    flops=walk.flops[node],
                )
            )
    return tuple(found)


def _parameters(
    node: fx.Node, needs: Sequence[fx.Node], traced: fx.GraphModule
) -> list[nn.Parameter]:
    """A task's parameters."""
    values = [_attribute(traced, each) for each in needs if each.op == "get_attr"]
    parameters = [value for value in values if isinstance(value, nn.Parameter)]
    if node.op == "call_module":
        parameters += traced.get_submodule(str(node.target)).parameters()
    return parameters


def _captured(traced: fx.GraphModule, tracer: str, inputs: Sequence[Tensor]) -> Captured:
    walk = _Walk(traced)
    walk.walk(inputs)
    _refuse_read_after_change(traced)
    return Captured(traced, tracer, _tasks(traced, walk))


def capture_tasks(module: nn.Module, *inputs: Tensor) -> Captured:
    """Trace a module's forward pass in training mode, and divide it into tasks. The module is not changed.

    Args:
        module: the module, on the CPU or on ``meta``. The inputs must be on the same device.
        inputs: a batch of inputs. Sizes and FLOPs are for this batch.

    A parameter that two tasks use counts for the first of them.

    Raises:
        JoulecastError: the module's forward pass fails on the inputs; or neither tracer can follow it, for
            example because it changes a tensor in place that is read afterwards. The error has the reasons of
            both tracers.
    """
    with left_as_it_was(module):
        try:
            return _captured(fx.symbolic_trace(module), "torch.fx.symbolic_trace", inputs)
        except Exception as error:
            first = error
        try:
            with torch.no_grad():
                module(*inputs)
        except Exception as error:
            shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
            raise JoulecastError(
                f"{type(module).__name__} cannot train on a batch of shape {shapes}: "
                f"{reason_of(error)}"
            ) from error
        try:
            traced = exported(module, inputs).module()
            assert isinstance(traced, fx.GraphModule)
            return _captured(traced, "torch.export", inputs)
        except Exception as error:
            raise JoulecastError(
                f"{type(module).__name__} cannot be made a task graph. torch.fx.symbolic_trace: "
                f"{reason_of(first)}. torch.export: {reason_of(error)}"
            ) from error
