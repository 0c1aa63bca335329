"""The tasks of a network, and partitions of them.

the stage of each task               numbered([["conv1", "bn1"], ["relu", ...]])
with tasks that a profile omits      completed(network, stage_of, images)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from joulecast.errors import JoulecastError

TASK_OPS = ("call_module", "call_function", "call_method")
"""The kinds of nodes of a trace that are tasks."""


@contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """Run a block with a network in evaluation mode: without noise, and without collecting statistics."""
    training = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, before in training:
            each.training = before


def traced(network: nn.Module) -> fx.Graph:
    """The trace of a network.

    Raises:
        JoulecastError: ``torch.fx`` cannot trace it, or it does not take one input.
    """
    name = type(network).__name__
    try:
        graph = fx.symbolic_trace(network).graph
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:
        raise JoulecastError(f"{name} cannot be traced by torch.fx: {error}") from error
    inputs = graph.find_nodes(op="placeholder")
    if len(inputs) != 1:
        raise JoulecastError(
            f"{name} takes {len(inputs)} inputs; a pipeline gives it one, the images"
        )
    return graph


def numbered(stages: Sequence[Sequence[str]]) -> dict[str, int]:
    """The stage of each task, from the list of tasks of each stage.

    Raises:
        JoulecastError: a task in two stages, or a stage without tasks.
    """
    stage_of: dict[str, int] = {}
    for stage, tasks in enumerate(stages):
        if not tasks:
            raise JoulecastError(f"partition: stage {stage} is empty, of {len(stages)} stages")
        for name in tasks:
            if name in stage_of:
                raise JoulecastError(
                    f"partition: task `{name}` is in stage {stage} and in stage {stage_of[name]}"
                )
            stage_of[name] = stage
    return stage_of


class _Values(fx.Interpreter):
    """Runs a trace, and notes which tasks return a tensor, and which return a value that contains tensors."""

    def __init__(self, network: nn.Module, graph: fx.Graph) -> None:
        super().__init__(fx.GraphModule(network, graph))
        self.is_tensor: dict[str, bool] = {}
        self.has_tensors: dict[str, bool] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.is_tensor[n.name] = isinstance(value, Tensor)
        self.has_tensors[n.name] = any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
        return value


def completed(network: nn.Module, stage_of: Mapping[str, int], images: Tensor) -> dict[str, int]:
    """A partition with the tasks added that a profile omits because they take no time.

    These are tasks without a tensor (sizes, and checks of them), and tasks that select one of several outputs
    of a task. Each is added to the latest stage that it reads from. No other task is added.

    Args:
        stage_of: stages for :func:`~joulecast.training.pieces.split_tasks`, without those tasks.
        images: any images that the network accepts.
    """
    graph = traced(network)
    values = _Values(network, graph)
    with at_rest(network), torch.random.fork_rng(devices=[]), torch.no_grad():
        values.run(images)
    found = dict(stage_of)
    for node in graph.nodes:
        if node.op not in TASK_OPS or node.name in found:
            continue
        read = [each.name for each in node.all_input_nodes if each.op in TASK_OPS]
        picks = len(read) == 1 and values.has_tensors[read[0]] and not values.is_tensor[read[0]]
        if picks or not values.has_tensors[node.name]:
            found[node.name] = max((found[name] for name in read if name in found), default=0)
    return found
