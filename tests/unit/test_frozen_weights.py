"""Fine-tuning: weights that are frozen have no gradient, no optimizer state, and send nothing."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import joulecast
from joulecast.graphs.capture import capture
from joulecast.graphs.costs import kept_for_backward, op_work
from joulecast.graphs.opgraph import KINDS as OP_KINDS

ROWS, WIDTH = 32, 64


class Adapter(nn.Module):
    """A frozen layer with a trained bypass of low rank, as LoRA has it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        self.frozen.requires_grad_(False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.frozen(rows) + self.up(self.down(rows)))


class Gate(nn.Module):
    """Functions whose gradient follows from their output."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(rows).sqrt().exp() * rows


def network(kind: str) -> nn.Sequential:
    """A network of three layers and a head, with some weights frozen."""
    layers = [Adapter() if kind == "adapters" else nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    module = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    if kind in ("head", "last two"):
        module[: 3 if kind == "head" else 2].requires_grad_(False)
    for layer in module if kind == "biases" else ():
        layer.weight.requires_grad_(False)
    return module.insert(1, Gate()) if kind == "gated" else module


KINDS = ("all", "adapters", "head", "last two", "biases", "gated")


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_has_the_products_and_tensors_of_torch(kind: str) -> None:
    module, rows = network(kind), torch.randn(ROWS, WIDTH)
    graph = capture(module, [rows], kind).with_batch(ROWS)
    target = torch.zeros(ROWS, dtype=torch.long)
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = module(rows)
    own = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    saved = sum(each.untyped_storage().nbytes() for place, each in kept.items() if place not in own)
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(logits, target).backward()
    products = [op for op in graph.ops if OP_KINDS[op.kind] == "matmul"]
    backward = [op for op in products if any(a.tensor in graph.trained for a in op.reads)]
    flops = sum(op_work(graph, op, {}, "backward").flops for op in backward)
    assert flops == pytest.approx(counter.get_total_flops())
    loss = {access.tensor for op in graph.ops[-1:] for access in op.reads}
    ours = {a.tensor for op in graph.ops for a in kept_for_backward(graph, op)} - loss
    assert sum(graph.tensors[name].bytes for name in ours) == pytest.approx(saved)


class Teacher(nn.Module):
    """A student that learns from a teacher whose code runs under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.student = nn.Linear(WIDTH, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.shared(rows))
        with torch.no_grad():
            share = torch.softmax(self.teacher(hidden), -1)
        return self.student(hidden) * share


def test_code_under_no_grad_is_captured_and_has_no_backward() -> None:
    graph = capture(Teacher(), [torch.randn(2, WIDTH)], "teacher")
    roles = {tensor.name.partition(".")[0]: tensor.role for tensor in graph.weights}
    assert roles == {"shared": "parameter", "student": "parameter", "teacher": "frozen"}
    backward = {op.module: graph.has_backward(op) for op in graph.ops if op.kind == "linear"}
    assert backward == {"shared": True, "teacher": False, "student": True}


class OwnTeacher(nn.Module):
    """A head that learns from what it says itself."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.shared(rows))
        with torch.no_grad():
            share = self.head(hidden)
        return self.head(hidden) * share


def test_a_pipeline_sends_no_gradients_back_from_code_under_no_grad(tmp_path: Path) -> None:
    file = tmp_path / "teacher.json"
    capture(OwnTeacher(), [torch.randn(2, WIDTH)], "teacher").write(file)
    step = joulecast.simulate_step(str(file), "h100-sxm", "pp=2,micro=2", batch=4)
    assert step["exposed_communication_s"] > 0


@pytest.mark.parametrize("strategy", ["dp=1", "dp=4", "dp=4,zero=3", "dp=2,pp=2,micro=2"])
def test_frozen_weights_take_memory_and_no_more(tmp_path: Path, strategy: str) -> None:
    found = {}
    for kind in ("all", "head"):
        file = tmp_path / f"{kind}.json"
        module = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(6)))
        if kind == "head":
            module[:5].requires_grad_(False)
        capture(module, [torch.empty(1, 2048)], kind).write(file)
        found[kind] = joulecast.simulate_step(
            str(file), "h100-sxm", strategy, batch=4096, precision="bf16"
        )
    everything, head = found["all"], found["head"]
    assert head["parameters"] == everything["parameters"]
    assert head["step_s"] < 0.7 * everything["step_s"]
    assert head["peak_memory_bytes"] < everything["peak_memory_bytes"]
    assert head["exposed_communication_s"] <= everything["exposed_communication_s"]
