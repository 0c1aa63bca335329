"""Task graphs of networks: what is a task, what goes along with it, and that the tasks make up a step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from joulecast.errors import JoulecastError
from joulecast.measure.workloads.networks import NETWORKS, build_empty, build_network
from joulecast.partition.measure_tasks import measure_module, measure_tasks, step_by_task
from joulecast.partition.task_graph_files import read_partitionable
from joulecast.partition.tasks import Captured, capture_tasks

TASKS = {
    "vgg16": 40,
    "resnet18": 69,
    "resnet50": 175,
    "resnet101": 345,
    "alexnet": 22,
    "resnext50": 175,
    "resnext101": 345,
    "inception_v3": 325,
    "densenet121": 431,
    "squeezenet1_0": 66,
    "lenet5": 12,
    "vit_s": 142,
}
"""Calls in the trace of each network; of vit_s those that give tensors, attention's two outputs as one."""
IN_TRAINING = {"inception_v3": 299, "resnet18": 32}
"""Pixels where the smallest image will not do: Inception's second classifier needs them all."""


class Skipping(nn.Module):
    """Skips, in-place work, several outputs, attention, a parameter of its own, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.shift = nn.Parameter(torch.randn(8, 1, 1))
        self.tied = nn.Conv2d(4, 4, 1)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(x)))
        skipped = y + self.shift
        left, right = skipped.chunk(2, 1)[0], skipped.chunk(2, 1)[1]
        y = (
            torch.cat([self.tied(left), self.tied(right)], 1)
            + functional.relu(y * 2, inplace=True)
            + y
        )
        words = y.view(y.size(0), y.size(1), -1).transpose(1, 2)
        attended, _ = self.attend(words, words, words, need_weights=False)
        return self.head(self.drop(attended + words).mean(1))


class OnlyExported(nn.Module):
    """Its control flow depends on a size, which symbolic tracing refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] > 4:
            x = functional.avg_pool2d(x, 2)
        x = self.second(self.relu(self.norm(self.conv(x))))
        first, second = x.split([2, 2], 1)
        return self.head(torch.cat([second, first], 1).mean((2, 3)))


class Neither(nn.Module):
    """Its control flow depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y * 2 if bool(y.sum() > 0) else y


class ReadAfterChange(nn.Module):
    """A tensor is read after it was changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.relu(y) + y


def check_sound(captured: Captured) -> None:
    """What a task reads comes before it, and the tasks' names are nodes."""
    nodes = {node.name: node for node in captured.traced.graph.nodes}
    done: set[str] = set()
    for task in captured.tasks:
        assert set(task.reads) <= done
        done.add(task.name)
        assert nodes[task.name].op in ("call_module", "call_function", "call_method")


def parameter_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@pytest.mark.parametrize("name", TASKS)
def test_every_network_is_captured_as_the_trace_has_it(name: str) -> None:
    size = IN_TRAINING.get(name, NETWORKS[name].smallest_image)
    network = build_empty(name, size, 8, 4)
    captured = capture_tasks(network, torch.empty(2, 3, size, size, device="meta"))
    assert captured.tracer == "torch.fx.symbolic_trace"
    assert [n.name for n in captured.traced.graph.nodes] == [
        n.name for n in torch.fx.symbolic_trace(network.train()).graph.nodes
    ]
    assert len(captured.tasks) == TASKS[name]
    check_sound(captured)
    assert sum(task.parameter_bytes for task in captured.tasks) == parameter_bytes(network)


def test_flops_are_those_of_torchs_counter_and_sizes_those_of_the_tensors() -> None:
    network, images = build_network("resnet18", 32, 8, 4), torch.randn(2, 3, 32, 32)
    tasks = {task.name: task for task in capture_tasks(network, images).tasks}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(images)
    assert sum(task.flops for task in tasks.values()) == counter.get_total_flops() > 0
    assert tasks["conv1"].flops == 2 * 2 * 64 * 16 * 16 * 3 * 7 * 7
    assert tasks["bn1"].flops == tasks["add"].flops == 0
    assert tasks["conv1"].activation_bytes == 4 * 2 * 64 * 16 * 16
    assert tasks["conv1"].parameter_bytes == 4 * 64 * 3 * 7 * 7
    assert tasks["conv1"].description.startswith("Conv2d(3, 64, kernel_size=(7, 7)")
    assert tasks["add"].description == "add"
    assert tasks["add_2"].reads == ("layer2_0_bn2", "layer2_0_downsample_1")


def test_nodes_without_a_tensor_are_no_tasks() -> None:
    network = build_network("vit_s", 8, 8, 4)
    captured = capture_tasks(network, torch.randn(2, 3, 8, 8))
    tasks = {task.name: task for task in captured.tasks}
    # The class token is expanded to as many samples as the patches have: to know, it reads them.
    assert tasks["expand"].reads == ("permute",)
    assert tasks["expand"].parameter_bytes == 4 * 384
    assert tasks["reshape"].reads == ("conv_proj",)
    attention = tasks["encoder_layers_encoder_layer_0_self_attention"]
    assert attention.activation_bytes == 4 * 2 * 2 * 384
    assert tasks["encoder_layers_encoder_layer_0_dropout"].reads == (attention.name,)
    gone = {"getitem_5", "dim", "eq", "_assert", "getattr_1", "class_token"}
    assert not gone & tasks.keys()


def gradients_of_both(module: nn.Module, example: Tensor) -> tuple[Captured, list[Any], list[Any]]:
    """Gradients of the parameters from the module itself, and from its tasks one by one."""
    captured = capture_tasks(module, example)
    module.train()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    torch.manual_seed(3)
    output = module(example)
    wanted = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    output.backward(wanted)
    module.load_state_dict(state)
    torch.manual_seed(3)
    step = step_by_task(captured, [example], [wanted])
    parameters = list(module.parameters())
    return captured, [p.grad for p in parameters], [step.gradients.get(id(p)) for p in parameters]


def test_tasks_one_by_one_are_the_training_step() -> None:
    torch.manual_seed(0)
    module = Skipping().double()
    captured, whole, by_task = gradients_of_both(module, torch.randn(2, 3, 6, 6).double())
    assert captured.tracer == "torch.fx.symbolic_trace"
    check_sound(captured)
    for of_whole, of_tasks in zip(whole, by_task, strict=True):
        assert of_whole is not None and of_whole.abs().max() > 0
        torch.testing.assert_close(of_tasks, of_whole, rtol=1e-12, atol=1e-12)
    # In-place layers are as they were.
    assert module.relu.inplace and module.drop.inplace
    tasks = {task.name: task for task in captured.tasks}
    assert sum(task.parameter_bytes for task in captured.tasks) == parameter_bytes(module)
    assert tasks["tied"].parameter_bytes == 8 * 20 and tasks["tied_1"].parameter_bytes == 0
    assert tasks["chunk"].activation_bytes == 8 * 2 * 8 * 36
    assert tasks["tied"].reads == ("chunk",)


def test_what_symbolic_tracing_refuses_is_exported_and_counters_are_no_tasks() -> None:
    torch.manual_seed(0)
    module = OnlyExported().double()
    captured, whole, by_task = gradients_of_both(module, torch.randn(2, 3, 8, 8).double())
    assert captured.tracer == "torch.export"
    check_sound(captured)
    for of_whole, of_tasks in zip(whole, by_task, strict=True):
        torch.testing.assert_close(of_tasks, of_whole, rtol=1e-12, atol=1e-12)
    assert sum(task.parameter_bytes for task in captured.tasks) == parameter_bytes(module)
    tasks = {task.name: task for task in captured.tasks}
    assert not [name for name in tasks if name.startswith("add_")]
    # The step counted the batch once, as the module's own did before its state was put back.
    assert module.norm.num_batches_tracked == module.second.num_batches_tracked == 1


def test_what_is_read_after_it_was_changed_is_exported_as_only_that_follows_it() -> None:
    torch.manual_seed(0)
    captured, whole, by_task = gradients_of_both(
        ReadAfterChange().double(), torch.randn(4, 3).double()
    )
    assert captured.tracer == "torch.export"
    check_sound(captured)
    for of_whole, of_tasks in zip(whole, by_task, strict=True):
        assert of_whole.abs().max() > 0
        torch.testing.assert_close(of_tasks, of_whole, rtol=1e-12, atol=1e-12)


def test_capturing_leaves_the_module_as_it_was() -> None:
    module = OnlyExported().eval()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    torch.manual_seed(5)
    capture_tasks(module, torch.randn(2, 3, 8, 8))
    drawn = torch.rand(1)
    torch.manual_seed(5)
    torch.randn(2, 3, 8, 8)
    assert torch.equal(drawn, torch.rand(1))
    assert not any(each.training for each in module.modules())
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())


def test_a_module_is_measured_on_one_thread_and_read_back(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        module = Skipping()
        graph = measure_module("mine", module, [torch.randn(4, 3, 32, 32)], passes=4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert graph.batch == 4 and graph.provenance["passes"] == 4
    assert all(parameter.grad is None for parameter in module.parameters())
    tasks = {task.name: task for task in graph.tasks}
    # A convolution and an addition without parameters take time both ways; a view takes next to none.
    for name in ("conv", "add_1"):
        assert tasks[name].forward_us > 0 and tasks[name].backward_us > 0
    assert tasks["conv"].work_us > tasks["view"].work_us
    assert tasks["add_1"].parameter_bytes == 0 and len(tasks["add_1"].reads) == 2
    tasks_s, step_s = graph.provenance["tasks_s"], graph.provenance["step_s"]
    assert tasks_s == pytest.approx(graph.work_us / 1e6)
    assert 0.2 < tasks_s / step_s < 5  # a smoke test: the machine may be busy with other things
    graph.write(tmp_path / "mine.json")
    read = read_partitionable(tmp_path / "mine.json")
    assert read.tasks == graph.tasks and read.provenance == graph.provenance
    assert (read.name, read.batch) == ("mine", 4)


def test_a_network_is_measured_with_what_was_asked_for() -> None:
    graph = measure_tasks("alexnet", 1, 63, 3, 1)
    assert len(graph.tasks) == TASKS["alexnet"]
    provenance = graph.provenance
    wanted = {
        "source": "measured",
        "threads": 1,
        "network": "alexnet",
        "batch": 1,
        "image_size": 63,
    }
    wanted |= {"classes": 3, "passes": 1, "tracer": "torch.fx.symbolic_trace"}
    assert {key: provenance[key] for key in wanted} == wanted
    assert {"date", "host", "versions", "load_before", "wall_s"} <= provenance.keys()
    last = graph.tasks[-1]
    assert last.activation_bytes == 4 * 3 and last.parameter_bytes == 4 * (4096 * 3 + 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resnet19", 4, 32, 4, 3), "unknown network `resnet19`; did you mean `resnet1"),
        (("resnet18", 0, 32, 4, 3), "batch 0: must be"),
        (("resnet18", 4, 32, 0, 3), "classes 0: must be"),
        (("resnet18", 4, 32, 4, 0), "passes 0: must be"),
        (("alexnet", 4, 32, 4, 3), "image_size 32 is too small"),
        (("vit_s", 4, 40, 4, 3), "no multiple of patch_size 16"),
        (
            ("resnet18", 1, 32, 4, 3),
            r"cannot train on a batch of shape \(1, 3, 32, 32\): ValueError",
        ),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[str, int, int, int, int], said: str) -> None:
    with pytest.raises(JoulecastError, match=said):
        measure_tasks(*arguments)


def test_a_module_that_cannot_be_cut_gives_the_reasons() -> None:
    with pytest.raises(JoulecastError) as raised:
        capture_tasks(Neither(), torch.randn(2, 3))
    message = str(raised.value)
    assert "Neither cannot be made a task graph" in message
    assert (
        "torch.fx.symbolic_trace: TraceError" in message and "torch.export cannot follow" in message
    )


class AlsoWithoutGradient(nn.Module):
    """Changes in place by a function of torch, and also returns the classes it chose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.second(torch.relu_(self.first(x)))
        return y, y.argmax(1)


def test_a_network_that_also_gives_classes_is_measured() -> None:
    graph = measure_module("mine", AlsoWithoutGradient(), [torch.randn(4, 3)], passes=1)
    assert [task.name for task in graph.tasks] == ["first", "relu_", "second", "argmax"]
    assert graph.tasks[-1].backward_us == 0 < graph.tasks[0].backward_us


class Masked(nn.Module):
    """Reads a mask again behind an `and`, which makes a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, above = self.only(x), x[:, :1] > 0
        return y * (above & (x[:, 1:2] > 0)) + y * above


def test_an_and_of_masks_changes_neither_of_them() -> None:
    graph = measure_module("mine", Masked(), [torch.randn(4, 3)], passes=1)
    assert "only" in [task.name for task in graph.tasks]
