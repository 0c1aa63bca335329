"""A network as a task graph, every task measured on one core: what a partitioner cuts.

    tasks of a module          captured = capture_tasks(module, example)
    measured                   graph = measure_module("mine", module, example, passes=5)
    one of the campaign's      graph = measure_tasks("resnet50", 4, None, 1000, 5)
    several, into a folder     measure_all(Path("profiles"), ["resnet18", "alexnet"], batch=4)

The trace is that of ``torch.fx.symbolic_trace`` in training mode, or where that cannot follow the forward
that of ``torch.export`` (which also knows what reads a tensor after it was changed in place). Every node
that calls something and gives a tensor (or several) is a task of the node's name. The others go along:

* Nodes without a tensor (sizes, attributes, arithmetic on them) and ``get_attr`` nodes are in the
  ``before`` of every task that needs them: a stage has its own copy. The tasks whose tensors they look at
  count among what the task reads, so that a stage that gets what its tasks read can run them.
* Nodes that pick one of the outputs of a task that gives several (``getitem`` of a tuple, say) are in that
  task's ``after``: they run with it, so that what crosses a cut is tensors and no tuples.
* A node that changes a buffer in place and that nobody reads (the batch counter of a batch norm, which the
  export leaves free-floating) is in the ``after`` of the first task that uses a parameter or buffer of the
  same module.
* Nodes without a tensor that no task needs (assertions on sizes) belong to nobody; a stage leaves them out.

The network's input is no task. A stage other than the first can need it too (a vision transformer's
``reshape`` looks at its size).
"""

import functools
import operator
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from joulecast.errors import JoulecastError
from joulecast.graphs.capture import exported
from joulecast.graphs.quiet import quiet_mean
from joulecast.graphs.taskgraph import Task, TaskGraph, read_task_graph
from joulecast.provenance import host_fingerprint, load_before, versions
from joulecast.workloads.networks import build_network, check_size, network_info

PATCH = 16
"""Pixels of a side of a vision transformer's patch."""
_CALLS = ("call_module", "call_function", "call_method")
_PICKS = (operator.getitem, getattr)


@dataclass(frozen=True)
class CapturedTask:
    """A task of a trace, unmeasured.

    ``before`` and ``after`` are the names of the other nodes of the trace that go where the task goes, as
    the module's documentation has it; the rest is as in :class:`~joulecast.graphs.taskgraph.Task`.
    """

    name: str
    description: str
    reads: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    activation_bytes: int
    parameter_bytes: int
    flops: int


@dataclass(frozen=True)
class Captured:
    """A module's trace and its tasks, in the trace's order.

    ``traced`` shares parameters and buffers with the module; ``tracer`` made it: ``torch.fx.symbolic_trace``
    or ``torch.export``.
    """

    traced: fx.GraphModule
    tracer: str
    tasks: tuple[CapturedTask, ...]


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _attribute(traced: fx.GraphModule, node: fx.Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), traced)


def _reason(error: Exception) -> str:
    if isinstance(error, JoulecastError):
        return str(error)
    return f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"


@contextmanager
def _left_as_it_was(module: nn.Module) -> Iterator[None]:
    """Let a block train: afterwards mode, buffers (running means) and random numbers are as before."""
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


# Capturing


def _changes_its_input(node: fx.Node, traced: fx.GraphModule) -> bool:
    """Whether a node works in place, as the network is written."""
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    if node.kwargs.get("inplace"):
        return True
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    return False


def _refuse_read_after_change(traced: fx.GraphModule) -> None:
    """A stage works on its own copy of what it is sent, so that it must not matter who changes it.

    Raises:
        JoulecastError: a node changes a tensor in place that is read after that; names the three.
    """
    position = {node: index for index, node in enumerate(traced.graph.nodes)}
    for node in traced.graph.nodes:
        if node.op not in _CALLS or not _changes_its_input(node, traced):
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
        """Of the nodes that give tensors."""
        self.flops: dict[fx.Node, int] = {}
        self._counter = FlopCounterMode(display=False)

    def walk(self, example: Tensor) -> None:
        with self._counter, torch.no_grad():
            self.run(example)

    def run_node(self, n: fx.Node) -> Any:
        before = self._counter.get_total_flops()
        value = super().run_node(n)
        self.flops[n] = self._counter.get_total_flops() - before
        tensors = _tensors(value)
        if tensors:
            self.bytes[n] = sum(tensor.nbytes for tensor in tensors)
            if not isinstance(value, Tensor):
                self.several.add(n)
        return value


def _sorts(traced: fx.GraphModule, walk: _Walk) -> dict[fx.Node, str]:
    """What each node is: ``task``, ``pick``, ``counter`` or ``folded``; the input and the output nothing."""
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
            if changes and _changes_its_input(node, traced):
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
    before: dict[fx.Node, list[fx.Node]] = {}
    """The folded nodes that a node needs; for a folded one, with itself."""
    after: dict[str, list[str]] = {}
    seen: set[int] = set()
    found: list[CapturedTask] = []
    counters: list[fx.Node] = []
    first_of: dict[str, str] = {}
    for node in traced.graph.nodes:
        inputs = node.all_input_nodes
        reads = [*dict.fromkeys(name for each in inputs for name in sources[each])]
        needs = [*dict.fromkeys(other for each in inputs for other in before[each])]
        sources[node], before[node] = reads, []
        sort = sorts.get(node)
        if sort == "folded":
            before[node] = [*needs, node]
        elif sort == "pick":
            after[reads[0]].append(node.name)
        elif sort == "counter":
            counters.append(node)
        elif sort == "task":
            parameters, owners = _parameters(node, needs, traced)
            for owner in owners:
                first_of.setdefault(owner, node.name)
            own = {id(each): each.nbytes for each in parameters if id(each) not in seen}
            seen |= own.keys()
            sources[node], after[node.name] = [node.name], []
            found.append(
                CapturedTask(
                    name=node.name,
                    description=_described(node, traced),
                    reads=tuple(reads),
                    before=tuple(each.name for each in needs),
                    after=(),
                    activation_bytes=walk.bytes[node],
                    parameter_bytes=sum(own.values()),
                    flops=walk.flops[node],
                )
            )
    for node in counters:
        attributes = node.all_input_nodes
        after[first_of[_owner(attributes[0])]] += [*(each.name for each in attributes), node.name]
    return tuple(replace(task, after=tuple(after[task.name])) for task in found)


def _parameters(
    node: fx.Node, needs: Sequence[fx.Node], traced: fx.GraphModule
) -> tuple[list[nn.Parameter], list[str]]:
    """A task's parameters, and the paths of the modules of which it uses any parameter or buffer."""
    attributes = [each for each in needs if each.op == "get_attr"]
    values = [_attribute(traced, each) for each in attributes]
    parameters = [value for value in values if isinstance(value, nn.Parameter)]
    owners = [_owner(each) for each in attributes]
    if node.op == "call_module":
        parameters += traced.get_submodule(str(node.target)).parameters()
        owners.append(str(node.target))
    return parameters, owners


def _captured(traced: fx.GraphModule, tracer: str, example: Tensor) -> Captured:
    walk = _Walk(traced)
    walk.walk(example)
    _refuse_read_after_change(traced)
    return Captured(traced, tracer, _tasks(traced, walk))


def capture_tasks(module: nn.Module, example: Tensor) -> Captured:
    """Trace a module's training forward and fold it into tasks; the module stays as it was.

    Args:
        module: on the CPU, or on ``meta`` (then so must be the example).
        example: a batch of its inputs; sizes and FLOPs are those of it.

    A parameter that two tasks use counts with the first of them.

    Raises:
        JoulecastError: the module cannot go forward on the example; or neither tracer can follow it (with
            both reasons), as when it changes a tensor in place that is read afterwards.
    """
    with _left_as_it_was(module):
        try:
            return _captured(fx.symbolic_trace(module), "torch.fx.symbolic_trace", example)
        except Exception as error:
            first = error
        try:
            with torch.no_grad():
                module(example)
        except Exception as error:
            raise JoulecastError(
                f"{type(module).__name__} cannot train on a batch of shape {tuple(example.shape)}: "
                f"{_reason(error)}"
            ) from error
        try:
            traced = exported(module, [example]).module()
            assert isinstance(traced, fx.GraphModule)
            return _captured(traced, "torch.export", example)
        except Exception as error:
            raise JoulecastError(
                f"{type(module).__name__} cannot be made a task graph. torch.fx.symbolic_trace: "
                f"{_reason(first)}. torch.export: {_reason(error)}"
            ) from error


# Measuring


def _detached(value: Any) -> Any:
    return (
        value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
    )


def _sum(gradients: list[Tensor]) -> Tensor:
    """As autograd does it: a new tensor for the first two, which then takes the others."""
    if len(gradients) == 1:
        return gradients[0]
    total = gradients[0] + gradients[1]
    for each in gradients[2:]:
        total += each
    return total


@dataclass
class _OnTape:
    """A task that has gone forward: what it gave, what of others it took, what it trains."""

    name: str
    outputs: list[Tensor]
    handed_on: list[Tensor]
    taken: list[Tensor]


@dataclass
class StepByTask:
    """One training step, task by task: seconds of each forward and backward, gradients by parameter's id."""

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)


class _Timed(fx.Interpreter):
    """Runs a trace, each task on the clock and with a tape of its own.

    What a task hands on is detached from its tape and shared by those who read it, so that the activations
    of a step are there once. Backward goes through the tasks in the opposite order, with the gradients that
    training would have; where several readers' meet, their sum is their producer's work.
    """

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.traced)
        self._traced = captured.traced
        self._names = {task.name for task in captured.tasks}
        self._step = StepByTask()
        self._tape: list[_OnTape] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.name not in self._names:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        taken = {id(tensor): tensor for tensor in _tensors((args, kwargs)) if tensor.requires_grad}
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
        elif n.op != "call_module" and _changes_its_input(n, self._traced):
            # A tensor that was detached from its producer's tape must not be changed.
            args = (args[0].clone(), *args[1:])
        start = time.perf_counter()
        value = getattr(self, n.op)(n.target, args, kwargs)
        self._step.forward[n.name] = time.perf_counter() - start
        if n.op == "call_module":
            layer = self.fetch_attr(str(n.target))
            taken |= {id(each): each for each in layer.parameters() if each.requires_grad}
        handed_on = tree_map(_detached, value)
        pairs = zip(_tensors(value), _tensors(handed_on), strict=True)
        trained = [(mine, theirs) for mine, theirs in pairs if mine.requires_grad]
        if trained:
            outputs, theirs = map(list, zip(*trained, strict=True))
            self._tape.append(_OnTape(n.name, outputs, theirs, list(taken.values())))
        return handed_on

    def step(self, example: Tensor, gradients: Sequence[Tensor]) -> StepByTask:
        """Forward and backward of all tasks; ``gradients`` are those of the network's outputs."""
        self._step = StepByTask()
        arrived: dict[int, list[Tensor]] = {}
        for output, gradient in zip(_tensors(self.run(example)), gradients, strict=True):
            arrived.setdefault(id(output), []).append(gradient)
        while self._tape:
            task = self._tape.pop()
            start = time.perf_counter()
            pairs = [
                (output, _sum(arrived.pop(id(theirs))))
                for output, theirs in zip(task.outputs, task.handed_on, strict=True)
                if id(theirs) in arrived
            ]
            if not pairs:  # nothing that the network gives depends on it
                continue
            outputs, wanted = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, task.taken, wanted, allow_unused=True)
            self._step.backward[task.name] = time.perf_counter() - start
            for tensor, gradient in zip(task.taken, found, strict=True):
                if gradient is not None:
                    arrived.setdefault(id(tensor), []).append(gradient)
        self._step.gradients = {key: _sum(gradients) for key, gradients in arrived.items()}
        return self._step


def step_by_task(captured: Captured, example: Tensor, gradients: Sequence[Tensor]) -> StepByTask:
    """One training step task by task, ``inplace=True`` off while it lasts.

    Args:
        captured: tasks of the module.
        example: a batch of its inputs.
        gradients: of the module's outputs, one for each tensor among them.
    """
    layers: list[Any] = [
        each for each in captured.traced.modules() if getattr(each, "inplace", False)
    ]
    try:
        for layer in layers:
            layer.inplace = False
        return _Timed(captured).step(example, gradients)
    finally:
        for layer in layers:
            layer.inplace = True


def _without_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _whole_step(module: nn.Module, example: Tensor, gradients: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    torch.autograd.backward(_tensors(module(example)), gradients)
    seconds = time.perf_counter() - start
    _without_gradients(module)
    return seconds


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise JoulecastError(f"{name} is {count}; measuring tasks needs 1 at least")


def measure_module(name: str, module: nn.Module, example: Tensor, passes: int) -> TaskGraph:
    """Measure every task of a module on one thread, whole steps of the module in between.

    Both sorts of steps are taken once more than ``passes`` says; the first is dropped. A time is the mean of
    its fastest quarter (:func:`~joulecast.graphs.quiet.quiet_mean`). The provenance has ``step_s``, the
    time of a whole step as the module has it (in place and all), beside ``tasks_s``, the sum of all tasks.
    Gradients of the module's parameters are dropped.

    Args:
        name: of the graph.
        module: the network, on the CPU; it takes one tensor.
        example: a batch of its inputs.
        passes: timed steps.

    Raises:
        JoulecastError: no pass, a module that cannot be captured, or one that cannot train on the example.
    """
    _check_counts(passes=passes)
    captured = capture_tasks(module, example)
    whole: list[float] = []
    steps: list[StepByTask] = []
    with _one_thread(), _left_as_it_was(module):
        _without_gradients(module)
        try:
            with torch.no_grad():
                gradients = [torch.randn_like(output) for output in _tensors(module(example))]
            for _ in range(passes + 1):
                whole.append(_whole_step(module, example, gradients))
                step = step_by_task(captured, example, gradients)
                step.gradients.clear()
                steps.append(step)
        except RuntimeError as error:
            raise JoulecastError(f"{name} cannot train on this batch: {_reason(error)}") from error

    def microseconds(of_steps: list[dict[str, float]], task: str) -> int:
        return round(1e6 * quiet_mean([times.get(task, 0.0) for times in of_steps[1:]]))

    forward, backward = [step.forward for step in steps], [step.backward for step in steps]
    tasks = tuple(
        Task(
            name=task.name,
            description=task.description,
            reads=task.reads,
            forward_us=microseconds(forward, task.name),
            backward_us=microseconds(backward, task.name),
            activation_bytes=task.activation_bytes,
            parameter_bytes=task.parameter_bytes,
            flops=task.flops,
        )
        for task in captured.tasks
    )
    provenance = {
        "threads": 1,
        "passes": passes,
        "tracer": captured.tracer,
        "step_s": round(quiet_mean(whole[1:]), 6),
        "tasks_s": round(sum(task.work_us for task in tasks) / 1e6, 6),
    }
    return TaskGraph(name, tasks, batch=len(example), provenance=provenance)


def _pixels(network: str, image_size: int | None) -> int:
    return image_size or (299 if network == "inception_v3" else 224)


def measure_tasks(
    network: str, batch: int, image_size: int | None, classes: int, passes: int
) -> TaskGraph:
    """Measure every task of one of the campaign's networks, with random weights and images.

    Args:
        network: a name of :data:`joulecast.workloads.networks.NETWORKS`.
        batch: samples of a step.
        image_size: pixels of a side; ``None`` is 224, and Inception's 299.
        classes: of the data set.
        passes: timed steps.

    Raises:
        JoulecastError: unknown network, a size it does not take, counts below 1, or as
            :func:`measure_module`.
    """
    network_info(network)
    pixels = _pixels(network, image_size)
    check_size(network, pixels, PATCH)
    _check_counts(batch=batch, classes=classes, passes=passes)
    load = load_before()
    start = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build_network(network, pixels, PATCH, classes)
        example = torch.randn(batch, 3, pixels, pixels)
        graph = measure_module(network, module, example, passes)
    provenance = {
        "source": "measured",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_fingerprint(),
        "load_before": load,
        "versions": versions(),
        "network": network,
        "batch": batch,
        "image_size": pixels,
        "classes": classes,
        **graph.provenance,
        "wall_s": round(time.monotonic() - start, 1),
    }
    return replace(graph, provenance=provenance)


def measure_all(
    folder: Path,
    networks: Sequence[str],
    batch: int,
    image_size: int | None = None,
    classes: int = 1000,
    passes: int = 5,
) -> list[Path]:
    """Measure networks into ``folder``/NETWORK.json; those that are there already are left as they are.

    So an interrupted measuring goes on where it stopped. Arguments are those of :func:`measure_tasks`.

    Returns:
        The files that were written now.

    Raises:
        JoulecastError: as :func:`measure_tasks`; a file that is there was measured with other arguments;
            or ``folder`` is none.
    """
    if folder.exists() and not folder.is_dir():
        raise JoulecastError(f"{folder}: is no folder")
    written: list[Path] = []
    for network in networks:
        path = folder / f"{network}.json"
        if not path.exists():
            measure_tasks(network, batch, image_size, classes, passes).write(path)
            written.append(path)
            continue
        had = read_task_graph(path).provenance
        wanted = {"batch": batch, "image_size": _pixels(network, image_size)}
        wanted |= {"classes": classes, "passes": passes}
        for key, value in wanted.items():
            if had.get(key) != value:
                raise JoulecastError(
                    f"{path}: was measured with {key} {had.get(key)}, not {value}; remove it, or measure "
                    "into another folder"
                )
    return written
