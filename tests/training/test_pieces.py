"""Networks cut along random partitions of their tasks, all stages in one process, in float64."""

import random

import pytest
import torch
from torch import nn

from joulecast.errors import JoulecastError
from joulecast.graphs.schedules import timeline
from joulecast.training.loop import loss_sum
from joulecast.training.pieces import split_network, split_tasks
from joulecast.training.pipeline import Stage
from joulecast.training.pipeline_local import local_ranks, local_stages
from joulecast.training.pipeline_tasks import TASK_OPS, completed, traced
from joulecast.workloads.networks import build_empty, build_network


def tasks_of(network):
    """The tasks of a network in the order of the trace, and the tasks that each one reads."""
    return {
        node.name: tuple(read.name for read in node.all_input_nodes if read.op in TASK_OPS)
        for node in traced(network).nodes
        if node.op in TASK_OPS
    }


def local_step(stages, schedule, micro_batches, images, labels):
    """The batch's loss sum after a step of all stages, in the order of stages of equal times."""
    for stage in stages:
        stage.begin()
    equal = [1.0] * len(stages)
    for event in timeline(equal, equal, schedule, micro_batches).events:
        if event.phase == "forward":
            stages[event.stage].forward(event.micro_batch, images, labels)
        else:
            stages[event.stage].backward(event.micro_batch)
    return sum(stage.finish() for stage in stages)


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


def random_partition(network, stages, seed):
    """A random order in which the tasks can run, cut at random places."""
    chance, reads = random.Random(seed), tasks_of(network)
    waiting = {name: set(needed) for name, needed in reads.items()}
    order = []
    while waiting:
        name = chance.choice([name for name, needed in waiting.items() if not needed])
        del waiting[name]
        order.append(name)
        for needed in waiting.values():
            needed.discard(name)
    cuts = sorted(chance.sample(range(1, len(order)), stages - 1))
    return {name: sum(cut <= at for cut in cuts) for at, name in enumerate(order)}


def batch(size, dtype=torch.float64):
    images = torch.randn(SAMPLES, 3, size, size, dtype=dtype)
    return images, torch.arange(SAMPLES) % CLASSES


def accumulated(network, images, labels):
    """Loss sum and gradients of the whole network, micro-batch after micro-batch."""
    network.zero_grad(set_to_none=True)
    loss, each = 0.0, SAMPLES // MICRO_BATCHES
    for at in range(0, SAMPLES, each):
        mine = loss_sum(network(images[at : at + each]), labels[at : at + each])
        (mine / SAMPLES).backward()
        loss += float(mine.detach())
    return loss, [p.grad for p in network.parameters()]


def assert_same_step(network, stage_of, images, labels, expected, schedule):
    """A step in stages has the loss and the gradients of the whole network, and loses no message."""
    loss, gradients = expected
    pieces = split_tasks(network, stage_of)
    ranks = local_ranks(len(pieces))
    stages = [
        Stage(piece, rank, schedule, MICRO_BATCHES, SAMPLES, images.shape[1:])
        for piece, rank in zip(pieces, ranks, strict=True)
    ]
    assert local_step(stages, schedule, MICRO_BATCHES, images, labels) == pytest.approx(
        loss, rel=1e-10
    )
    assert not any(ranks[0]._boxes.values())
    assert sum(len(stage.parameters) for stage in stages) == len(gradients)
    largest = max(float(g.abs().max()) for g in gradients)
    for (name, parameter), gradient in zip(network.named_parameters(), gradients, strict=True):
        off = float((parameter.grad - gradient).abs().max())
        assert off <= 1e-8 * float(gradient.abs().max()) + 1e-13 * largest, (name, off)
    return pieces


@pytest.mark.parametrize("name", SIZES)
def test_any_partition_has_the_gradients_of_the_whole(name):
    torch.manual_seed(5)
    network = small(name)
    images, labels = batch(SIZES[name])
    expected = accumulated(network, images, labels)
    for stages, schedule in ((2, "1f1b"), (4, "gpipe"), (8, "1f1b")):
        stage_of = random_partition(network, stages, stages)
        assert_same_step(network, stage_of, images, labels, expected, schedule)


def test_tasks_without_tensors_may_be_left_out():
    torch.manual_seed(5)
    network = small("vit_s")
    images, labels = batch(SIZES["vit_s"])
    reads = tasks_of(network)
    kept_names = [
        name
        for name in reads
        if not name.startswith(("_assert", "eq", "getattr", "dim", "floordiv", "mul", "getitem"))
    ]
    kept_names.append("getitem_29")  # the class token of the encoder's output
    half = len(kept_names) // 2
    partition = {name: int(at >= half) for at, name in enumerate(kept_names)}
    whole = completed(network, partition, images[:1])
    assert set(whole) == set(reads)
    assert partition.items() <= whole.items()
    expected = accumulated(network, images, labels)
    assert_same_step(network, whole, images, labels, expected, "1f1b")
    # Tasks that compute are not made up for.
    del partition["encoder_ln"]
    with pytest.raises(JoulecastError, match="task `encoder_ln` is in no stage"):
        split_tasks(network, completed(network, partition, images[:1]))


class Skipping(nn.Module):
    """Four convolutions; what the first one gives is read by the second and by the last task."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

    def forward(self, x):
        first = self.a(x)
        deep = self.c(self.b(first))
        return (first + deep).mean((2, 3))


def test_a_skip_goes_straight_to_the_stages_that_read_it():
    torch.manual_seed(1)
    network = Skipping().double().train()
    stage_of = {"a": 0, "b": 1, "c": 2, "add": 3, "mean": 3}
    images, labels = batch(4)
    labels %= 3
    expected = accumulated(network, images, labels)
    pieces = assert_same_step(network, stage_of, images, labels, expected, "1f1b")
    assert [piece.leaving for piece in pieces] == [{"a": (1, 3)}, {"b": (2,)}, {"c": (3,)}, {}]
    assert pieces[3].entering == {"a": 0, "c": 2}
    assert [piece.tasks for piece in pieces] == [("a",), ("b",), ("c",), ("add", "mean")]
    assert [piece.reads_images for piece in pieces] == [True, False, False, False]


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
    network = InPlace(how).double()
    changing = {"layer": "layer", "method": "relu_"}.get(how, "relu")
    changing = "layer" if how == "view" else changing
    reads = tasks_of(network)
    stage_of = dict.fromkeys(reads, 1) | {"conv": 0}
    if in_stage == 0:
        stage_of |= {changing: 0} | dict.fromkeys(reads[changing], 0)
    images, labels = batch(4)
    expected = accumulated(network, images, labels % 3)
    assert_same_step(network, stage_of, images, labels % 3, expected, "gpipe")


def test_a_change_in_place_that_others_must_see_cannot_be_cut():
    torch.manual_seed(1)
    network = InPlace("layer", reads_after=True).double()
    stage_of = dict.fromkeys(tasks_of(network), 0)
    images, labels = batch(4)
    expected = accumulated(network, images, labels % 3)
    last = list(stage_of)[-1]
    assert_same_step(network, stage_of | {last: 1}, images, labels % 3, expected, "gpipe")
    with pytest.raises(
        JoulecastError, match="`layer` changes `conv` in place, and `add` reads that"
    ):
        split_tasks(network, dict.fromkeys(stage_of, 1) | {"conv": 0, "layer": 0})


class Sharing(nn.Module):
    """One parameter, one tied weight and one constant, each used twice."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.free = nn.Linear(3, 3), nn.Linear(3, 3), nn.Parameter(torch.ones(3))
        self.b.weight = self.a.weight
        self.register_buffer("constant", torch.full((3,), 2.0))

    def forward(self, x):
        x = x.mean((2, 3)) * self.constant
        x = self.b(self.a(x)) * self.free
        return (x + self.free) * self.constant


@pytest.mark.parametrize(
    ("first_of_stage_1", "message"),
    [
        (
            "b",
            "`b.weight` is used in stage 1 and in stage 0 .there as `a.weight`.; tasks that share",
        ),
        ("add", "`free` is used in stage 1 and in stage 0; tasks that share a parameter"),
    ],
)
def test_a_parameter_of_two_stages(first_of_stage_1, message):
    network = Sharing()
    names = list(tasks_of(network))
    stage_of = {name: int(at >= names.index(first_of_stage_1)) for at, name in enumerate(names)}
    with pytest.raises(JoulecastError, match=message):
        split_tasks(network, stage_of)


def test_a_constant_may_be_in_two_stages():
    torch.manual_seed(1)
    network = Sharing().double()
    names = list(tasks_of(network))
    images, labels = batch(4)
    network.constant = network.constant.double()
    expected = accumulated(network, images, labels % 3)
    pieces = assert_same_step(
        network,
        dict.fromkeys(names, 1) | {names[0]: 0, names[1]: 0},
        images,
        labels % 3,
        expected,
        "1f1b",
    )
    assert all("constant" in dict(piece.module.named_buffers()) for piece in pieces)


def test_a_plain_number_that_depends_on_the_data_cannot_cross():
    class Scaling(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) * x.sum().item()

    names = list(tasks_of(Scaling()))
    stage_of = dict.fromkeys(names, 0) | {names[-1]: 1}
    images, labels = batch(4)
    stages = local_stages(split_tasks(Scaling().double(), stage_of), "gpipe", 2, 4, (3, 4, 4))
    with pytest.raises(
        JoulecastError, match="task `item` gives to another stage is not what was agreed"
    ):
        local_step(stages, "gpipe", 2, images.float(), labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv9": 0}, "has no task `conv9`"),
        ({"fc": -1}, "task `fc` is in stage -1"),
        ({"relu": 0}, "task `relu` in stage 0 reads `bn1` of stage 1, a later one"),
        ({"fc": 3}, "stage 2 is empty, of 4 stages"),
    ],
)
def test_what_is_no_partition(changes, message):
    network = build_network("resnet18", 8, 4, CLASSES)
    stage_of = dict.fromkeys(tasks_of(network), 1) | {"conv1": 0}
    assert len(split_tasks(network, stage_of)) == 2
    with pytest.raises(JoulecastError, match=message):
        split_tasks(network, stage_of | changes)


def test_every_task_is_in_a_stage():
    network = build_network("resnet18", 8, 4, CLASSES)
    stage_of = dict.fromkeys(tasks_of(network), 0)
    del stage_of["fc"]
    with pytest.raises(JoulecastError, match="task `fc` is in no stage"):
        split_tasks(network, stage_of)


def test_what_cannot_be_traced_or_fed():
    class Choosing(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    class Counting(nn.Module):
        def forward(self, x):
            return x * len(x)

    for network in (Choosing(), Counting()):
        with pytest.raises(JoulecastError, match=f"{type(network).__name__} cannot be traced"):
            tasks_of(network)
    with pytest.raises(JoulecastError, match="Two takes 2 inputs"):
        tasks_of(Two())


def test_a_rank_has_the_stage_of_its_number():
    pieces = split_network(build_network("resnet18", 8, 4, CLASSES), ["layer3"])
    with pytest.raises(JoulecastError, match="rank 1 of 2 was given stage 0 of 2"):
        Stage(pieces[0], local_ranks(2)[1], "gpipe", 1, 2, (3, 8, 8))
