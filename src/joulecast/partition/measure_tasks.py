"""Makes a task graph of a network, for the partitioner. Every task is measured on one core.

    measured                   graph = measure_module("mine", module, [images], passes=5)
    one of the campaign's      graph = measure_tasks("resnet50", 4, None, 1000, 5)

What a task is: :mod:`joulecast.partition.tasks`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from joulecast.errors import JoulecastError
from joulecast.graphs.database import mean_of_fastest
from joulecast.measure.power.other_load import load_now
from joulecast.measure.workloads.networks import build_network, check_size, network_info
from joulecast.partition.taskgraph import Task, TaskGraph
from joulecast.partition.tasks import (
    Captured,
    capture_tasks,
    changes_its_input,
    left_as_it_was,
    reason_of,
    tensors_of,
    trained_tensors,
)
from joulecast.quantities import check_counts
from joulecast.runs.provenance import host_fingerprint, versions

_MOST = 10**6
"""Largest number of samples, of classes or of passes in a measurement."""

PATCH = 16
"""Pixels of a side of a vision transformer's patch."""


def _detached(value: Any) -> Any:
    return (
        value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
    )


def _sum(gradients: list[Tensor]) -> Tensor:
    """Sum of gradients as autograd makes it: a new tensor for the first two, which then takes the others."""
    if len(gradients) == 1:
        return gradients[0]
    total = gradients[0] + gradients[1]
    for each in gradients[2:]:
        total += each
    return total


@dataclass
class _OnTape:
    """A task after its forward pass: its output, its inputs from other tasks, and its parameters."""

    name: str
    outputs: list[Tensor]
    handed_on: list[Tensor]
    taken: list[Tensor]


@dataclass
class StepByTask:
    """The result of a training step that ran task by task: seconds of each forward and backward pass, and the
    gradient of each parameter, by the parameter's id."""

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)
    gradients: dict[int, Tensor] = field(default_factory=dict)


class _Timed(fx.Interpreter):
    """Runs a trace. Each task is timed, and has its own tape.

    The output of a task is detached from its tape, and shared by all its readers. So the activations of a
    step exist only once. The backward pass goes through the tasks in the opposite order, with the
    gradients of a training. If a task has several readers, it adds up their gradients, and this counts as
    its work.
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
        taken = {id(tensor): tensor for tensor in trained_tensors((args, kwargs))}
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
        elif n.op != "call_module" and changes_its_input(n, self._traced):
            # A tensor that was detached from its producer's tape must not be changed.
            args = (args[0].clone(), *args[1:])
        start = time.perf_counter()
        value = getattr(self, n.op)(n.target, args, kwargs)
        self._step.forward[n.name] = time.perf_counter() - start
        if n.op == "call_module":
            layer = self.fetch_attr(str(n.target))
            taken |= {id(each): each for each in layer.parameters() if each.requires_grad}
        handed_on = tree_map(_detached, value)
        pairs = zip(tensors_of(value), tensors_of(handed_on), strict=True)
        trained = [(mine, theirs) for mine, theirs in pairs if mine.requires_grad]
        if trained:
            outputs, theirs = map(list, zip(*trained, strict=True))
            self._tape.append(_OnTape(n.name, outputs, theirs, list(taken.values())))
        return handed_on

    def step(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> StepByTask:
        """Forward and backward of all tasks; ``gradients`` are those of the network's trained outputs."""
        self._step = StepByTask()
        arrived: dict[int, list[Tensor]] = {}
        for output, gradient in zip(trained_tensors(self.run(*inputs)), gradients, strict=True):
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


def step_by_task(
    captured: Captured, inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> StepByTask:
    """Do one training step, task by task. During the step, layers with ``inplace=True`` work on copies.

    Args:
        captured: the tasks of the module.
        inputs: a batch of inputs.
        gradients: gradients of the module's outputs, one for each tensor that is trained.
    """
    layers: list[Any] = [
        each for each in captured.traced.modules() if getattr(each, "inplace", False)
    ]
    try:
        for layer in layers:
            layer.inplace = False
        return _Timed(captured).step(inputs, gradients)
    finally:
        for layer in layers:
            layer.inplace = True


def _without_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def _whole_step(module: nn.Module, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    torch.autograd.backward(trained_tensors(module(*inputs)), gradients)
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


def measure_module(
    name: str, module: nn.Module, inputs: Sequence[Tensor], passes: int
) -> TaskGraph:
    """Measure every task of a module on one thread. Steps that are measured task by task alternate with whole
    steps.

    ``passes`` + 1 steps of each kind are made. The first one of each kind is dropped. A time is the mean of
    the fastest quarter of the steps (:func:`.mean_of_fastest`). The provenance has ``step_s``, the time of a
    whole step of the unchanged module, next to ``tasks_s``, the sum of all tasks. Gradients of the module's
    parameters are dropped.

    Args:
        name: name of the graph.
        module: the network, on the CPU.
        inputs: a batch of inputs. The first dimension of each tensor is the batch.
        passes: number of timed steps.

    Raises:
        JoulecastError: there is no pass, the module cannot be captured, or it cannot train on the inputs.
    """
    check_counts("passes", [passes], _MOST)
    captured = capture_tasks(module, *inputs)
    whole: list[float] = []
    steps: list[StepByTask] = []
    with _one_thread(), left_as_it_was(module):
        _without_gradients(module)
        try:
            gradients = [torch.randn_like(output) for output in trained_tensors(module(*inputs))]
            for _ in range(passes + 1):
                whole.append(_whole_step(module, inputs, gradients))
                step = step_by_task(captured, inputs, gradients)
                step.gradients.clear()
                steps.append(step)
        except RuntimeError as error:
            raise JoulecastError(
                f"{name} cannot train on this batch: {reason_of(error)}"
            ) from error

    def microseconds(of_steps: list[dict[str, float]], task: str) -> int:
        return round(1e6 * mean_of_fastest([times.get(task, 0.0) for times in of_steps[1:]]))

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
        "source": "measured",
        "threads": 1,
        "passes": passes,
        "tracer": captured.tracer,
        "step_s": round(mean_of_fastest(whole[1:]), 6),
        "tasks_s": round(sum(task.work_us for task in tasks) / 1e6, 6),
    }
    return TaskGraph(name, tasks, batch=len(inputs[0]), provenance=provenance)


def _pixels(network: str, image_size: int | None) -> int:
    return image_size or (299 if network == "inception_v3" else 224)


def measure_tasks(
    network: str, batch: int, image_size: int | None, classes: int, passes: int
) -> TaskGraph:
    """Measure every task of one of the campaign's networks, with random weights and images.

    Args:
        network: a name in :data:`joulecast.measure.workloads.networks.NETWORKS`.
        batch: samples of a step.
        image_size: height and width in pixels. ``None``: 224, or 299 for Inception.
        classes: number of classes of the data set.
        passes: number of timed steps.

    Raises:
        JoulecastError: the network is not known, does not take this size, or a count is below 1; or an error
            of :func:`measure_module`.
    """
    network_info(network)
    pixels = _pixels(network, image_size)
    check_size(network, pixels, PATCH)
    for name, count in (("batch", batch), ("classes", classes), ("passes", passes)):
        check_counts(name, [count], _MOST)
    load = load_now()
    start = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build_network(network, pixels, PATCH, classes)
        example = torch.randn(batch, 3, pixels, pixels)
        graph = measure_module(network, module, [example], passes)
    provenance = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_fingerprint(),
        "load_before": {"busy_cores": load.busy_cores},
        "versions": versions(),
        "network": network,
        "batch": batch,
        "image_size": pixels,
        "classes": classes,
        **graph.provenance,
        "wall_s": round(time.monotonic() - start, 1),
    }
    return replace(graph, provenance=provenance)
