"""Modules cut into pipeline stages: in one process, by torchrun, and by an exported file."""

import os
import random
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from torch import nn
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.measure.workloads.networks import build_empty, build_network
from joulecast.partition.tasks import capture_tasks
from joulecast.partition.torch_stages import cut_into_stages

PROGRAM = ROOT / "tests/programs/pipeline_step.py"
SIZES = {
    # Small, but with batch statistics over more than two values wherever that is cheap.
    "alexnet": 63,
    "densenet121": 64,
    "inception_v3": 107,
    "lenet5": 8,
    "resnet101": 40,
    "resnet18": 40,
    "resnet50": 40,
    "resnext101": 40,
    "resnext50": 40,
    "squeezenet1_0": 40,
    "vgg16": 32,
    "vit_s": 8,
}
SAMPLES, MICRO_BATCHES, CLASSES = 4, 2, 4


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def kept(channels):
    return channels if channels in (3, CLASSES) else channels // 4


def make_thin(module):
    """Layers of a quarter of the channels: the same tasks with a sixteenth of the weights."""
    for name, layer in module.named_children():
        if isinstance(layer, nn.Conv2d):
            sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups)
            thin = nn.Conv2d(
                kept(layer.in_channels), kept(layer.out_channels), *sizes, layer.bias is not None
            )
        elif isinstance(layer, nn.BatchNorm2d):
            thin = nn.BatchNorm2d(kept(layer.num_features))
        elif isinstance(layer, nn.Linear):
            thin = nn.Linear(kept(layer.in_features), kept(layer.out_features))
        else:
            make_thin(layer)
            continue
        setattr(module, name, thin)


def small(name):
    """A network with few channels, no noise, and every weight random."""
    network = build_empty(name, SIZES[name], 4, CLASSES)
    if name == "inception_v3":
        # The auxiliary classifier wants 17x17 pixels for this; an image would have 299x299.
        network.AuxLogits.conv1.conv.padding = (2, 2)
    if name == "vit_s":
        network.to_empty(device="cpu")
    else:
        make_thin(network)
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    for parameter in network.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter)
        else:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return network.double().train()


def torchrun(ranks, *program, folder=None):
    """What the ranks print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={ranks}", *map(str, program)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def reads_of(network, *inputs):
    return {task.name: task.reads for task in capture_tasks(network, *inputs).tasks}


def random_stages(reads, count, seed):
    """A random order in which the tasks can run, cut at random places."""
    chance = random.Random(seed)
    waiting = {name: set(needed) for name, needed in reads.items()}
    order = []
    while waiting:
        name = chance.choice([name for name, needed in waiting.items() if not needed])
        del waiting[name]
        order.append(name)
        for needed in waiting.values():
            needed.discard(name)
    cuts = [0, *sorted(chance.sample(range(1, len(order)), count - 1)), len(order)]
    return [order[begin:end] for begin, end in pairwise(cuts)]


def step(stages, inputs):
    """The outputs, after each stage has had a forward and a backward of its own."""
    tape, entering = [], tuple(inputs)
    for stage in stages:
        leaving = stage(*entering)
        leaving = leaving if isinstance(leaving, tuple) else (leaving,)
        tape.append((entering, leaving))
        entering = tuple(each.detach().requires_grad_(each.requires_grad) for each in leaving)
    outputs = tape[-1][1]
    gradients = [torch.linspace(-1, 1, each.numel()).view_as(each).to(each) for each in outputs]
    for entered, left in reversed(tape):
        pairs = [pair for pair in zip(left, gradients, strict=True) if pair[0].requires_grad]
        torch.autograd.backward(*zip(*pairs, strict=True))
        gradients = [each.grad for each in entered]
    return outputs


def assert_same_step(network, stages, *inputs):
    """A step in stages gives and trains what the whole network does."""
    network.zero_grad()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    expected = tree_leaves(network(*[each.clone() for each in inputs]))
    wanted = [torch.linspace(-1, 1, each.numel()).view_as(each).to(each) for each in expected]
    torch.autograd.backward(expected, wanted)
    after = {name: value.clone() for name, value in network.state_dict().items()}
    gradients = [parameter.grad for parameter in network.parameters()]
    network.load_state_dict(state)
    network.zero_grad()
    modules = cut_into_stages(network, inputs, stages)
    for ours, theirs in zip(step(modules, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-8)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, after[name])
    return modules


@pytest.mark.long
def test_torch_trains_the_stages_as_the_module_by_every_schedule():
    torchrun(3, PROGRAM)


FEW = ("densenet121", "inception_v3", "vit_s")
"""Networks of which no two are built alike."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in SIZES]
)
def test_any_partition_trains_the_network(name):
    torch.manual_seed(5)
    network, images = small(name), torch.randn(4, 3, SIZES[name], SIZES[name]).double()
    reads = reads_of(network, images)
    for count in (2, 8):
        assert_same_step(network, random_stages(reads, count, count), images)


class Exported(nn.Module):
    """Only torch.export can follow it; of two inputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(9, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, tokens, scale):
        x = self.embed(tokens)
        for _ in range(len(tokens)):
            x = x * 1.5
        one, two = self.norm(x).chunk(2, 1)
        return self.out(torch.cat([two, one], 1) * scale + torch.arange(4, device=x.device))


def test_an_exported_network_of_two_inputs_is_cut_anywhere():
    torch.manual_seed(2)
    network = Exported().double()
    inputs = torch.arange(4), torch.rand(4, 1).double()
    for seed in range(3):
        assert_same_step(network, random_stages(reads_of(network, *inputs), 4, seed), *inputs)


class WithTemperature(nn.Module):
    """It returns one of its parameters as it is."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.two(torch.relu(self.one(x))), self.temperature


def test_a_parameter_that_is_an_output_is_given_and_trained():
    network, images = WithTemperature().double(), torch.randn(4, 3).double()
    assert_same_step(network, [["one"], ["relu", "two"]], images)


def test_a_skip_passes_through_the_stages_between():
    network = build_network("resnet18", 16, 8, CLASSES).double()
    images = torch.randn(4, 3, 16, 16).double()
    tasks = [*reads_of(network, images)]
    edges = [0, *(tasks.index(f"layer1_1_{name}") for name in ("conv1", "conv2", "bn2")), None]
    stages = [tasks[begin:end] for begin, end in pairwise(edges)]
    modules = assert_same_step(network, stages, images)
    entering = [[n.name for n in stage.graph.nodes if n.op == "placeholder"] for stage in modules]
    assert entering[1:] == [
        ["layer1_0_relu_1"],
        ["layer1_0_relu_1", "layer1_1_relu"],
        ["layer1_0_relu_1", "layer1_1_conv2"],
    ]


class Masked(nn.Sequential):
    def forward(self, x, mask=None):
        return super().forward(x)


def test_inputs_that_are_not_given_keep_their_defaults():
    network = Masked(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    assert_same_step(network, [["_0"], ["_1"]], torch.rand(2, 3).double())


class InPlace(nn.Module):
    """``how`` changes a convolution's output in place, before or after another task reads it."""

    def __init__(self, how, reads_after=False):
        super().__init__()
        self.conv, self.how, self.reads_after = nn.Conv2d(3, 3, 3), how, reads_after
        self.layer = nn.ReLU(inplace=True)

    def changed(self, x):
        changing = {
            "layer": self.layer,
            "function": lambda x: nn.functional.relu(x, inplace=True),
            "positional": lambda x: nn.functional.relu(x, True),
            "method": lambda x: x.relu_(),
            "view": lambda x: self.layer(torch.flatten(x, 1)),
        }
        return torch.flatten(changing[self.how](x), 1)

    def forward(self, x):
        values = self.conv(x)
        if self.reads_after:
            changed = self.changed(values)
            other = values + 1
        else:
            other = values + 1
            changed = self.changed(values)
        return (torch.flatten(other, 1) * 2 + changed)[:, ::4]


@pytest.mark.parametrize("how", ["layer", "function", "positional", "method", "view"])
@pytest.mark.parametrize("in_stage", [0, 1])
def test_what_crosses_is_not_changed_in_place(how, in_stage):
    """The task that changes it stands before the cut, with the maker, or behind it, with the other reader."""
    torch.manual_seed(1)
    network, images = InPlace(how).double(), torch.randn(4, 3, 4, 4).double()
    reads = reads_of(network, images)
    changing = {"layer": "layer", "view": "layer", "method": "relu_"}.get(how, "relu")
    first = ["conv"]
    if in_stage == 0:
        first += [*(name for name in reads[changing] if name != "conv"), changing]
    assert_same_step(network, [first, [name for name in reads if name not in first]], images)


class Sharing(nn.Module):
    """One parameter and one tied weight, each used twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.free = nn.Linear(3, 3), nn.Linear(3, 3), nn.Parameter(torch.ones(3))
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x)) * self.free + self.free


class Scaling(nn.Module):
    def forward(self, x):
        return x.mean(1) * x.sum().item()


@pytest.mark.parametrize(
    ("network", "stages", "message"),
    [
        (Sharing(), [["a"], ["b", "mul", "add"]], "`b` shares a parameter with another stage"),
        (Sharing(), [["a", "b", "mul"], ["add"]], "`add` shares a parameter"),
        (Sharing(), [["a", "b", "add"], ["mul"]], "`add` of stage 0 reads `mul`, of a later one"),
        (Sharing(), [["a", "b"], ["mul"]], r"each task once, and none empty \(\['add'\]\)"),
        (Sharing(), [["a", "b", "mul", "add"], []], "none empty"),
        (Scaling(), [["mean"], ["sum_1", "mul"]], "`item` makes a number of the elements"),
    ],
)
def test_what_cannot_be_cut(network, stages, message):
    with pytest.raises(JoulecastError, match=message):
        cut_into_stages(network, [torch.randn(2, 3)], stages)


def shown(title):
    """What the page of the documentation shows under a title."""
    page = (ROOT / "docs/how-to/cut-into-stages.md").read_text()
    (text,) = re.findall(rf'^```\w+ title="{title}"\n(.*?)^```$', page, re.M | re.S)
    return text


@pytest.mark.long
def test_the_exported_file_of_the_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("blocks.py").write_text(shown("blocks.py"))
    cut, run = map(shlex.split, shown("in the folder of blocks.py").splitlines())
    done = CliRunner().invoke(app, cut[1:])
    assert done.exit_code == 0, done.output
    assert " ".join(run) in done.output and run[:2] == ["torchrun", "--nproc-per-node"]
    printed = torchrun(int(run[2]), *run[3:], folder=tmp_path)
    losses = [float(line.split()[-1]) for line in printed.splitlines()]
    assert len(losses) == 3 and losses[-1] < losses[0]


FLAT = """import torch

def main():
    layers = torch.nn.Linear(4, 2), torch.nn.Flatten(0)
    return torch.nn.Sequential(*layers), [torch.randn(3, 4)]
"""


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    for graph, said in (
        (str(ROOT / "recorded/pipedream-profiles/vgg16.txt"), "give MODULE:FUNCTION"),
        ("flat:main", "shape [6]"),
    ):
        monkeypatch.chdir(tmp_path)
        Path("flat.py").write_text(FLAT)
        given = ["partition", graph, "--devices", "2", "--export", "stages.py"]
        refused = CliRunner().invoke(app, given)
        assert refused.exit_code == 2 and said in refused.output
