"""What a training gives to its network: only tensors with the samples of the others have a batch."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from joulecast.errors import JoulecastError
from joulecast.graphs.capture import capture_trained
from joulecast.graphs.opgraph import read_graph
from joulecast.graphs.precision import PRECISIONS, at_precision

SAMPLES = 3


class Adds(nn.Module):
    """A layer of the first input of whatever it is given, with the second added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, given, places=None):
        first, second = given.values() if isinstance(given, dict) else given
        return self.layer(first + second[0] if isinstance(second, list) else first + second)


WORDS = torch.zeros(SAMPLES, 5, 8)


@pytest.mark.parametrize(
    "given",
    [
        {"words": WORDS, "places": torch.zeros(5, 8)},
        [WORDS, [torch.zeros(SAMPLES, 5, 8)]],
        (WORDS, torch.zeros(())),
    ],
)
def test_all_samples_of_nested_inputs_are_in_the_graph(given):
    graph = capture_trained(Adds(), [given], {"places": None}).with_batch(2)
    (layer,) = (op for op in graph.ops if op.kind == "linear")
    assert graph.tensors[layer.writes[0].tensor].shape == (2, 5, 4)


class Compiled(nn.Module):
    """A network with a compiled layer, which counts how often it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.times = []
        self.layer = torch.compile(nn.Linear(8, 4), backend=self._compiled)

    def _compiled(self, graph, _):
        self.times.append(1)
        return graph.forward

    def forward(self, x):
        return self.layer(x)


def test_a_capture_compiles_nothing():
    network = Compiled()
    network(torch.zeros(SAMPLES, 8))
    graph = capture_trained(network, [torch.zeros(SAMPLES, 8)], {})
    assert [op.kind for op in graph.ops] == ["linear", "cross_entropy"]
    assert len(network.times) == 1


def test_a_list_of_hooks_is_no_dict_of_hooks():
    """Hugging Face's models keep such a list when they train with gradient checkpointing."""
    network = nn.Sequential(nn.Linear(8, 4))
    network._own_hooks = [network.register_forward_hook(lambda *_: None)]
    graph = capture_trained(network, [torch.zeros(SAMPLES, 8)], {})
    assert [op.kind for op in graph.ops] == ["linear", "cross_entropy"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_layers_that_are_computed_again_are_trained(use_reentrant):
    class Again(nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=use_reentrant)

    network = Again(nn.Linear(8, 8), nn.Linear(8, 4))
    graph = capture_trained(network, [torch.zeros(SAMPLES, 8)], {})
    assert {tensor.name for tensor in graph.parameters} == dict(network.named_parameters()).keys()
    assert all(graph.has_backward(op) for op in graph.ops)


class Fused(nn.Module):
    """A network that computes its loss itself, as networks that TRL trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, labels=None, fused_lm_head=False):
        scores = self.layer(x)
        return scores.logsumexp(-1) - scores.gather(-1, labels) if fused_lm_head else scores


def test_a_network_that_can_return_logits_has_no_loss_of_its_own_in_the_graph():
    labels = torch.zeros(SAMPLES, 1, dtype=torch.int64)
    named = {"labels": labels, "fused_lm_head": True}
    graph = capture_trained(Fused(), [torch.zeros(SAMPLES, 8)], named)
    assert [op.kind for op in graph.ops] == ["linear", "cross_entropy"]


class Packed(nn.Module):
    """A frozen layer with two weights in a byte, as of bitsandbytes: only its own kernel can read them."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = 8, 6, None
        packed = torch.zeros(8 * 6 // 2, 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, x):
        whole = torch.from_numpy(self.weight.numpy().repeat(2)).view(6, 8).to(x.dtype)
        return nn.functional.linear(x, whole)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_quantised_weights_are_layers_of_their_own_size(precision):
    network = nn.Sequential(Packed(), nn.Linear(6, 4))
    with pytest.warns(UserWarning, match="1 layer"):
        graph = capture_trained(network, [torch.zeros(SAMPLES, 8)], {})
    first, second = (op for op in graph.ops if op.kind == "linear")
    assert {dim.name: dim.size for dim in first.dims} == {"batch": 1, "out": 6, "in": 8}
    assert not graph.has_backward(first) and graph.has_backward(second)
    sized = at_precision(graph, PRECISIONS[precision])
    assert [weight.bytes for weight in sized.weights if weight.role == "frozen"] == [24]


class Own(torch.Tensor):
    """A tensor of another class, as libraries use for weights at 8 bits."""


class Index(nn.Module):
    """A layer that keeps indices, and has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.in_features = self.out_features = 8
        self.register_buffer("index", torch.arange(8).flip(0))

    def forward(self, x):
        return x[:, self.index]


def test_layers_with_trained_weights_or_indices_are_not_quantised(recwarn):
    layer = nn.Linear(8, 8, bias=False)
    layer.weight = nn.Parameter(torch.zeros(8, 8).as_subclass(Own))
    network = nn.Sequential(layer, Index(), nn.Linear(8, 4))
    graph = capture_trained(network, [torch.zeros(SAMPLES, 8)], {})
    assert [op.kind for op in graph.ops].count("linear") == 2
    assert {weight.name for weight in graph.parameters} == dict(network.named_parameters()).keys()
    assert not [each for each in recwarn if "quantised" in str(each.message)]


def test_a_network_reads_what_hooks_of_its_library_collect():
    class Reads(nn.Sequential):
        def forward(self, x):
            seen.clear()
            return super().forward(x) + seen[0]

    def hook(layer, given, output):
        seen.append(output)

    seen = []
    hook.__module__ = "transformers.utils.output_capturing"
    network = Reads(nn.Linear(8, 4), nn.Linear(4, 4))
    network[0].register_forward_hook(hook)
    graph = capture_trained(network, [torch.zeros(SAMPLES, 8)], {})
    assert [op.kind for op in graph.ops] == ["linear", "linear", "add", "cross_entropy"]


class Teaches(nn.Module):
    """A network of which one part learns to give what the other part gives, which gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.pupil, self.teacher = nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))

    def forward(self, x):
        given, right = self.pupil(x), self.teacher(x)
        return given + (right - given).detach(), right.detach()


def test_what_is_detached_has_neither_loss_nor_backward():
    graph = capture_trained(Teaches(), [torch.zeros(SAMPLES, 8)], {})
    assert [op.kind for op in graph.ops].count("cross_entropy") == 1
    first, *others = (op for op in graph.ops if op.kind == "linear")
    assert graph.has_backward(first) and not any(map(graph.has_backward, others))
    assert {tensor.name for tensor in graph.parameters} == {"pupil.weight", "pupil.bias"}


class Norm(nn.BatchNorm2d):
    """Batch norm by the operator that an export by torch 2.5 has."""

    def forward(self, x):
        norm = torch.ops.aten._native_batch_norm_legit_functional
        statistics = (self.running_mean, self.running_var)
        return norm(x, self.weight, self.bias, *statistics, True, 0.1, 1e-5)[0]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, Norm])
def test_batch_norm_is_known_in_all_versions_of_torch(norm, recwarn):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU())
    graph = capture_trained(network, [torch.zeros(SAMPLES, 3, 8, 8)], {})
    assert [op.kind for op in graph.ops] == ["conv2d", "batch_norm", "relu", "cross_entropy"]
    assert not [each for each in recwarn if "memory traffic" in str(each.message)]


class Turns(nn.Module):
    """A network that puts small squares together, as diffusion transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4 * 3)

    def forward(self, x):
        squares = self.layer(x).unflatten(1, (5, 5)).unflatten(-1, (2, 2, 3))
        return torch.einsum("nhwpqc->nchpwq", squares).reshape(len(x), 3, 10, 10)


def test_a_sum_over_no_axis_is_no_product():
    graph = capture_trained(Turns(), [torch.zeros(SAMPLES, 25, 8)], {})
    assert [op.kind for op in graph.ops] == ["linear", "cross_entropy"]


class Bags(nn.Module):
    """A sum of what is looked up, as in networks that recommend."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.EmbeddingBag(9, 8), nn.Linear(8, 4)

    def forward(self, words):
        return self.layer(self.words(words))


class Holds(nn.Linear):
    """A network whose export shows its weights as numbers, as that of a network of Keras."""

    def forward(self, x):
        return x @ torch.ones(8, 4)


def test_a_network_without_its_trained_weights_is_not_captured():
    with pytest.raises(JoulecastError, match="trained weights"):
        capture_trained(Holds(8, 4), [torch.zeros(SAMPLES, 8)], {})


def test_the_sum_of_a_bag_is_captured(tmp_path, recwarn):
    capture_trained(Bags(), [torch.zeros(SAMPLES, 5, dtype=torch.int64)], {}).write(tmp_path / "it")
    graph = read_graph(tmp_path / "it").with_batch(2)
    assert [op.kind for op in graph.ops] == ["embedding", "other", "linear", "cross_entropy"]
    assert graph.tensors["words"].shape == (2, 5, 8)
    assert not [each for each in recwarn if "memory traffic" in str(each.message)]
