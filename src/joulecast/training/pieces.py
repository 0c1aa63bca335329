"""A network cut into the pieces of a pipeline's stages.

    along any partition of its tasks    split_tasks(network, {"conv1": 0, "bn1": 0, "relu": 1, ...})
    where modules begin                 split_network(network, ["layer3"])

A task is a call in the ``torch.fx`` trace of the network, named like its node there: a layer, a function or a
method. Values go directly from the piece that makes them to all pieces that read them, across any number of
stages. Every piece may read the network's input; the last one has the network's outputs.
"""

import inspect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from joulecast.errors import JoulecastError
from joulecast.training.pipeline_tasks import TASK_OPS, traced

_IN_PLACE_OPERATORS = tuple(
    getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul")
)
_GIVES_ITS_INPUT = (nn.Identity, nn.Flatten, nn.Unflatten, nn.modules.dropout._DropoutNd)
_MAKES_ANEW = (operator.add, operator.sub, operator.mul, torch.add, torch.mul, torch.cat)


@dataclass(frozen=True, eq=False)
class Piece:
    """One stage's part of a network.

    Attributes:
        module: has the network's own parameters, under their names there.
        stage: number of the stage, from 0; there are ``stages``.
        tasks: names in the order in which they run.
        reads_images: whether a task reads the network's input.
        entering: tasks of earlier stages whose values this piece reads, and their stages.
        leaving: tasks whose values later stages read, and these stages.
        dtype: type of the network's parameters, and of the images that it accepts.
    """

    module: fx.GraphModule
    stage: int
    stages: int
    tasks: tuple[str, ...]
    reads_images: bool
    entering: Mapping[str, int]
    leaving: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype

    def __call__(self, images: Any, entering: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """The leaving values by name, and the network's outputs (of the last piece)."""
        left, outputs = self.module(images, *(entering[name] for name in self.entering))
        return dict(zip(self.leaving, left, strict=True)), outputs

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of this piece's tasks."""
        return self.module.parameters()


class _Cut:
    """A trace, and the stage of each of its tasks."""

    def __init__(self, network: nn.Module, graph: fx.Graph, stage_of: Mapping[str, int]) -> None:
        self.network, self.graph = network, graph
        self.name = type(network).__name__
        (self.images,) = graph.find_nodes(op="placeholder")
        (self.output,) = graph.find_nodes(op="output")
        self.stages = self._checked_stages(stage_of)
        self.count = 1 + max(self.stages.values())
        self.position = {node: position for position, node in enumerate(graph.nodes)}
        self.readers = {node: self._stages_of(node.users) for node in graph.nodes}
        self._check_order()
        self._check_parameters()
        self.copying = self._tasks_to_copy_for()

    def _stages_of(self, nodes: Iterable[fx.Node]) -> tuple[int, ...]:
        # Outputs are read by the last stage, which computes the loss.
        found = {self.count - 1 if node.op == "output" else self.stages[node] for node in nodes}
        return tuple(sorted(found))

    def _checked_stages(self, stage_of: Mapping[str, int]) -> dict[fx.Node, int]:
        tasks = {node.name: node for node in self.graph.nodes if node.op in TASK_OPS}
        for name, stage in stage_of.items():
            if name not in tasks:
                raise JoulecastError(f"partition of {self.name}: it has no task `{name}`")
            if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
                raise JoulecastError(
                    f"partition of {self.name}: task `{name}` is in stage {stage!r}; stages are numbered "
                    "from 0 on"
                )
        for name in tasks:
            if name not in stage_of:
                raise JoulecastError(f"partition of {self.name}: task `{name}` is in no stage")
        if not tasks:
            raise JoulecastError(f"partition of {self.name}: it has no tasks")
        used = set(stage_of.values())
        for stage in range(max(used)):
            if stage not in used:
                raise JoulecastError(
                    f"partition of {self.name}: stage {stage} is empty, of {max(used) + 1} stages"
                )
        return {node: stage_of[name] for name, node in tasks.items()}

    def _check_order(self) -> None:
        for node, stage in self.stages.items():
            for read in node.all_input_nodes:
                if self.stages.get(read, 0) > stage:
                    raise JoulecastError(
                        f"partition of {self.name}: task `{node.name}` in stage {stage} reads `{read.name}` "
                        f"of stage {self.stages[read]}, a later one"
                    )

    def _check_parameters(self) -> None:
        """Raise an error where a parameter, or the state of a layer, is in two stages."""
        held: dict[str, tuple[Any, tuple[int, ...]]] = {}
        for node in self.graph.nodes:
            if node.op == "get_attr":
                value = _attribute(self.network, str(node.target))
                if isinstance(value, nn.Parameter):
                    held[str(node.target)] = (value, self.readers[node])
            elif node.op == "call_module":
                layer = self.network.get_submodule(str(node.target))
                for name, value in (*layer.named_parameters(), *layer.named_buffers()):
                    path = f"{node.target}.{name}"
                    _, before = held.get(path, (None, ()))
                    held[path] = (value, (*before, self.stages[node]))
        stage_and_path: dict[int, tuple[int, str]] = {}
        for path, (value, stages) in held.items():
            for stage in stages:
                first, its_path = stage_and_path.setdefault(id(value), (stage, path))
                if first != stage:
                    also = "" if path == its_path else f" (there as `{its_path}`)"
                    raise JoulecastError(
                        f"partition of {self.name}: `{path}` is used in stage {stage} and in stage "
                        f"{first}{also}; tasks that share a parameter must be in one stage"
                    )

    def _writes(self, node: fx.Node) -> bool:
        """Whether a task changes its input in place."""
        if node.op == "call_module":
            return bool(getattr(self.network.get_submodule(str(node.target)), "inplace", False))
        if node.op == "call_method":
            return str(node.target).endswith("_") and not str(node.target).endswith("__")
        if node.op != "call_function" or not callable(node.target):
            return False
        name = getattr(node.target, "__name__", "")
        if node.target in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
            return True
        try:
            given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
        except (TypeError, ValueError):  # a built-in without a known signature
            given = dict(node.kwargs)
        return given.get("inplace") is True

    def _may_share(self, node: fx.Node) -> bool:
        """Whether a task may return a view of its input, or the input itself."""
        if node.op == "call_module":
            layer = self.network.get_submodule(str(node.target))
            return isinstance(layer, _GIVES_ITS_INPUT) or self._writes(node)
        return node.op in TASK_OPS and node.target not in _MAKES_ANEW

    def _sharing(self, task: fx.Node, copied: set[fx.Node]) -> set[fx.Node]:
        """The other tasks whose values may share the memory that a task writes to."""
        found: set[fx.Node] = set()
        to_do = [task.all_input_nodes[0]]
        while to_do:
            node = to_do.pop()
            if node in found or node is task:
                continue
            found.add(node)
            if node not in copied and self._may_share(node):
                to_do += node.all_input_nodes
            to_do += [user for user in node.users if user not in copied and self._may_share(user)]
        return found

    def _tasks_to_copy_for(self) -> set[fx.Node]:
        """The tasks that would change in place a value that enters or leaves their stage.

        Autograd forbids changes of a received leaf, and a value must not change while it is sent. So these
        tasks get a copy to change.
        """
        copied: set[fx.Node] = set()
        for task, stage in self.stages.items():
            if not task.all_input_nodes or not self._writes(task):
                continue
            sharing = self._sharing(task, copied)
            if all(self.stages.get(n) == stage and self.readers[n] == (stage,) for n in sharing):
                continue
            copied.add(task)
            for node in sharing:
                for user in node.users:
                    if self.position[user] > self.position[task]:
                        raise JoulecastError(
                            f"partition of {self.name}: task `{task.name}` changes `{node.name}` in place, "
                            f"and `{user.name}` reads that afterwards; across stages they cannot share "
                            "memory, so build the network without that in-place operation"
                        )
        return copied

    def piece(self, stage: int) -> Piece:
        """The piece of one stage."""
        graph = fx.Graph()
        entering = [n for n, own in self.stages.items() if own < stage and stage in self.readers[n]]
        copies = {node: graph.placeholder(node.name) for node in (self.images, *entering)}
        tasks, leaving = [], {}
        for node in self.graph.nodes:
            if node.op == "get_attr" and stage in self.readers[node]:
                # Parameters outside of layers are at the start of the trace, wherever they are used.
                copies[node] = graph.node_copy(node)
            elif self.stages.get(node) == stage:
                read = dict(copies)
                if node in self.copying:
                    written = node.all_input_nodes[0]
                    read[written] = graph.call_method("clone", (copies[written],))
                copies[node] = graph.node_copy(node, read.__getitem__)
                tasks.append(node.name)
                if later := tuple(reader for reader in self.readers[node] if reader > stage):
                    leaving[node] = later
        outputs = None
        if stage == self.count - 1:
            outputs = fx.map_arg(self.output.args[0], copies.__getitem__)
        graph.output((tuple(copies[node] for node in leaving), outputs))
        return Piece(
            module=fx.GraphModule(self.network, graph),
            stage=stage,
            stages=self.count,
            tasks=tuple(tasks),
            reads_images=stage in self.readers[self.images],
            entering={node.name: self.stages[node] for node in entering},
            leaving={node.name: readers for node, readers in leaving.items()},
            dtype=next((p.dtype for p in self.network.parameters()), torch.get_default_dtype()),
        )


def _attribute(network: nn.Module, path: str) -> Any:
    value: Any = network
    for name in path.split("."):
        value = getattr(value, name)
    return value


def split_tasks(network: nn.Module, stage_of: Mapping[str, int]) -> list[Piece]:
    """Pieces of a network along any partition of its tasks; they share the network's parameters.

    Together the pieces compute the network's outputs, bit by bit.

    Args:
        network: one that ``torch.fx`` can trace and that has one input, as all of torchvision's classifiers;
            in the mode, training or evaluation, in which it is to run.
        stage_of: stage of every task; no task reads from a later stage.

    Raises:
        JoulecastError: a task is unknown, in no stage, or reads from a later stage; a stage is empty; a
            parameter would be in two stages; or a task changes in place a value that another stage reads.
            Names the task, stage or parameter.
    """
    cut = _Cut(network, traced(network), stage_of)
    return [cut.piece(stage) for stage in range(cut.count)]


def _module_path(node: fx.Node) -> str:
    """Path of the module that a node of the trace belongs to ("" for the network itself)."""
    stack = list(node.meta.get("nn_module_stack") or {})
    return str(stack[-1]).split("@")[0] if stack else ""


def split_network(network: nn.Module, cuts: Sequence[str]) -> list[Piece]:
    """Pieces of a network that is cut before modules, in the order of its trace.

    Args:
        network: see :func:`split_tasks`.
        cuts: path of the module at which each piece but the first begins, in order; may be inside a block.

    Raises:
        JoulecastError: no such module, or not in that order.
    """
    graph = traced(network)
    stage_of: dict[str, int] = {}
    begun = 0
    for node in graph.nodes:
        path = _module_path(node)
        while begun < len(cuts) and (path == cuts[begun] or path.startswith(f"{cuts[begun]}.")):
            begun += 1
        if node.op in TASK_OPS:
            stage_of[node.name] = begun
    if begun < len(cuts):
        raise JoulecastError(
            f"{type(network).__name__} cannot be cut before `{cuts[begun]}`: it has no such module, or not "
            f"after the cuts before it ({', '.join(cuts[:begun]) or 'none'})"
        )
    cut = _Cut(network, graph, stage_of)
    return [cut.piece(stage) for stage in range(cut.count)]
