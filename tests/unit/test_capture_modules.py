"""Capturing modules written as Hugging Face's are: positions, masks, LayerDrop, all forms of products."""

import math
import sys
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.graphs.capture import capture
from joulecast.graphs.costs import kept_for_backward, op_work
from joulecast.graphs.kernels import STRIDED, TURN, kernels_of, product_of
from joulecast.graphs.network_graphs import network_for, op_graph
from joulecast.graphs.opgraph import read_graph
from joulecast.graphs.precision import training_of
from joulecast.runs.platforms import Cluster, Device, Link, Platform
from joulecast.simulate.inferred_splits import sequence_length, split_context
from joulecast.simulate.simulate import simulate
from joulecast.simulate.strategy import parse_strategy

HIDDEN, HEADS, LENGTH, WORDS = 64, 4, 32, 100


def heads(x):
    batch, length, _ = x.shape
    return x.view(batch, length, HEADS, HIDDEN // HEADS).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], HIDDEN)


class Gpt(nn.Module):
    """As GPT-2's code: positions by arange, a mask by where, GELU an operation at a time, LayerDrop."""

    def __init__(self, layerdrop=0.0):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.register_buffer("seen", torch.tril(torch.ones(LENGTH, LENGTH, dtype=torch.bool)))
        self.ln, self.layerdrop = nn.LayerNorm(HIDDEN), layerdrop
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def attention(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).split(HIDDEN, dim=2))
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / torch.full([], v.size(-1) ** 0.5, device=x.device)
        least = torch.full([], torch.finfo(x.dtype).min, device=x.device)
        scores = torch.where(self.seen[None, None], scores, least)
        shares = functional.dropout(functional.softmax(scores, dim=-1), 0.1, self.training)
        return self.out(joined(torch.matmul(shares, v)))

    def forward(self, ids):
        ids = ids.view(-1, ids.shape[-1])
        places = torch.arange(0, ids.shape[-1], dtype=torch.long, device=ids.device)
        x = self.wte(ids) + self.wpe(places.unsqueeze(0))
        drawn = torch.rand([])
        if self.training and drawn < self.layerdrop:
            return self.head(x)
        x = x + self.attention(self.ln_1(x))
        y = self.up(self.ln_2(x))
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * torch.pow(y, 3))))
        return self.head(self.ln(x + self.down(y)))


class Llama(nn.Module):
    """Rotary positions made in the forward, RMSNorm written out, grouped keys repeated, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.token, self.weight = nn.Embedding(WORDS, HIDDEN), nn.Parameter(torch.ones(HIDDEN))
        self.q, self.kv = nn.Linear(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN)
        self.gate, self.up = nn.Linear(HIDDEN, 128), nn.Linear(HIDDEN, 128)
        self.down, self.head = nn.Linear(128, HIDDEN), nn.Linear(HIDDEN, WORDS)
        self.register_buffer("inverse", 1e-4 ** (torch.arange(0, 16, 2).float() / 16))

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rotated(self, x, cos, sin):
        one, other = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-other, one), dim=-1) * sin

    def forward(self, ids):
        x = self.token(ids)
        batch, length, _ = x.shape
        with torch.no_grad():
            places = torch.arange(length, device=ids.device)[None, :].float()
            angles = (self.inverse[None, :, None].expand(batch, -1, 1) @ places[:, None]).mT
            angles = torch.cat((angles, angles), dim=-1)[:, None]
        q = heads(self.q(self.norm(x)))
        k, v = (
            part.view(batch, length, 2, 16).transpose(1, 2) for part in self.kv(x).chunk(2, dim=-1)
        )
        q, k = (self.rotated(part, angles.cos(), angles.sin()) for part in (q, k))
        k, v = (
            part[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, HEADS, length, 16)
            for part in (k, v)
        )
        hidden = torch.triu(torch.full((length, length), -1e9, device=x.device), diagonal=1)
        scores = q @ k.transpose(2, 3) / 4.0 + hidden[None, None]
        x = x + joined(scores.softmax(-1, dtype=torch.float32) @ v)
        y = self.norm(x)
        return self.head(x + self.down(functional.silu(self.gate(y)) * self.up(y)))


class Opt(nn.Module):
    """Positions by a running sum of ones, heads merged with the batch for bmm, scores limited."""

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(WORDS, HIDDEN), nn.Embedding(LENGTH + 2, HIDDEN)
        self.qkv, self.head = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, WORDS)

    def forward(self, ids):
        seen = torch.ones(ids.shape, device=ids.device)
        x = self.token(ids) + self.place((torch.cumsum(seen, dim=1) * seen).long() + 1)
        batch, length, _ = x.shape
        q, k, v = (
            heads(part).contiguous().view(batch * HEADS, length, -1)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, HEADS, length, length)
        mask = torch.full((length, length), -1e9, device=ids.device)
        later = torch.arange(length, device=ids.device)
        mask = mask.masked_fill(later < (later + 1).view(length, 1), 0)
        scores = torch.max(scores + mask[None, None], torch.tensor(-1e9, device=ids.device))
        shares = functional.softmax(scores.view(batch * HEADS, length, length), dim=-1)
        return self.head(joined(torch.bmm(shares, v).view(batch, HEADS, length, -1)))


class Odd(nn.Module):
    """Operators that nobody has heard of, and shapes that cannot be followed."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(8, 8), nn.Parameter(torch.ones(8, 8))

    def forward(self, x):
        y = torch.sort(self.layer(x), dim=-1)[0].roll(1, 1)
        y = torch.stack((y, y), 1).sum(1)[:, torch.tensor([1, 0, 2])]
        y = torch.baddbmm(y, y @ y.transpose(1, 2), y)
        y = torch.einsum("bij,jk->bik", y, self.weight)
        y = y.masked_fill(y > 0, 0.0).cumsum(1)[:, ::2]
        return functional.normalize(y.flatten().view(-1, 2, 8), dim=-1) + y.mean()


def tokens():
    return torch.zeros(1, LENGTH, dtype=torch.int64, device="meta")


def on_meta(kind, *arguments):
    with torch.device("meta"):
        return kind(*arguments)


def products(graph):
    return sum(
        op_work(graph, op, {}, "forward").flops
        for op in graph.ops
        if op.kind in ("linear", "matmul", "attention", "conv2d")
    )


@pytest.mark.parametrize("layerdrop", [0.0, 0.1])
def test_gpt_is_as_it_is_by_numbers(layerdrop, recwarn) -> None:
    graph = capture(on_meta(Gpt, layerdrop), [tokens()], "gpt")
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
    numbers = f"gpt:layers=1,hidden={HIDDEN},heads={HEADS},sequence={LENGTH},vocabulary={WORDS}"
    expected = op_graph(numbers, "eager")
    assert products(graph) == products(expected)
    assert sum(t.elements for t in graph.parameters) == sum(t.elements for t in expected.parameters)
    kinds, same = (Counter(op.kind for op in g.ops) for g in (graph, expected))
    for kind in ("matmul", "softmax", "mask", "pow", "tanh", "layer_norm", "scale", "linear"):
        assert kinds[kind] == same[kind], kind


def shapes(graph):
    """Sizes of the products of two activations, forward."""
    found = (product_of(graph, op, {}) for op in graph.ops if op.kind == "matmul")
    return [(each.count, each.m, each.n, each.k) for each in found]


@pytest.mark.parametrize("module", [Gpt, Llama, Opt])
def test_products_of_attention_have_their_sizes(module) -> None:
    """Whatever axes of q, k and v are merged in the tensors that they are views of."""
    graph = capture(on_meta(module), [tokens()], "network")
    size = HIDDEN // HEADS
    assert shapes(graph) == [(HEADS, LENGTH, LENGTH, size), (HEADS, LENGTH, size, LENGTH)]


@pytest.mark.parametrize(
    ("equation", "operands", "size"),
    [
        ("bij,bjk->bik", ((1, 3, 5), (1, 5, 7)), (1, 3, 7, 5)),
        ("bij,jk->bik", ((1, 3, 5), (5, 7)), (1, 3, 7, 5)),
        ("bhid,bhjd->bhij", ((1, 2, 3, 5), (1, 2, 4, 5)), (2, 3, 4, 5)),
        ("bihd,bjhd->bhij", ((1, 3, 2, 5), (1, 4, 2, 5)), (2, 3, 4, 5)),
        ("...id,...jd->...ij", ((1, 2, 3, 5), (1, 2, 4, 5)), (2, 3, 4, 5)),
        ("... d, d f -> ... f", ((1, 3, 5), (5, 7)), (1, 3, 7, 5)),
    ],
)
def test_sums_over_named_axes_have_their_sizes(equation, operands, size) -> None:
    class Sum(nn.Module):
        def forward(self, one, other):
            other = other[0] if len(operands[1]) == 2 else other
            return torch.einsum(equation, one, other)

    given = [torch.zeros(shape if len(shape) > 2 else (1, *shape)) for shape in operands]
    assert shapes(capture(Sum(), given, "sum")) == [size]


def test_a_product_of_a_tensor_with_itself_has_two_factors(tmp_path) -> None:
    class Norm(nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            return torch.einsum("bd,bd->b", x, x)[:, None]

    file = tmp_path / "norm.json"
    capture(Norm(8, 8), [torch.zeros(2, 8)], "norm").write(file)
    assert joulecast.simulate_step(str(file), "h100-sxm", "dp=1", batch=8)["step_s"] > 0


class GroupedLlama(nn.Module):
    """As Hugging Face's code: RMSNorm at fp32 and back, grouped queries in one kernel."""

    def __init__(self, layers=4):
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.token, self.head = nn.Embedding(1000, 256), linear(256, 1000)
        self.norms = nn.ParameterList([torch.ones(256) for _ in range(2 * layers + 1)])
        self.parts = nn.ModuleList(
            nn.ModuleDict(
                {"q": linear(256, 256), "k": linear(256, 64), "v": linear(256, 64)}
                | {"o": linear(256, 256), "gate": linear(256, 512), "up": linear(256, 512)}
                | {"down": linear(512, 256)}
            )
            for _ in range(layers)
        )
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.zeros(1, 1, 128, 32))

    def norm(self, x, place):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.norms[place] * wide.to(x.dtype)

    def rotated(self, x):
        one, other = x.chunk(2, -1)
        return x * self.cos + torch.cat((-other, one), -1) * self.sin

    def forward(self, ids):
        x = self.token(ids)
        for place, part in enumerate(self.parts):
            y = self.norm(x, 2 * place)
            q, k, v = (part[n](y).unflatten(-1, (-1, 32)).transpose(1, 2) for n in "qkv")
            y = functional.scaled_dot_product_attention(
                self.rotated(q), self.rotated(k), v, is_causal=True, enable_gqa=True
            )
            x = x + part["o"](y.transpose(1, 2).reshape(x.shape))
            y = self.norm(x, 2 * place + 1)
            x = x + part["down"](functional.silu(part["gate"](y)) * part["up"](y))
        return self.head(self.norm(x, -1))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "bf16-true"])
def test_a_module_and_its_numbers_give_the_same_step(kind, precision, tmp_path) -> None:
    module = on_meta(GroupedLlama).to(kind)
    ids = torch.zeros(1, 128, dtype=torch.int64, device="meta")
    capture(module, [ids], "net").write(tmp_path / "net.json")
    numbers = "layers=4,hidden=256,heads=8,kv_heads=2,ffn=512,sequence=128,vocabulary=1000"
    one, other = (
        joulecast.simulate_step(
            network=network, platform="h100-sxm", strategy="dp=1", batch=256, precision=precision
        )
        for network in (str(tmp_path / "net.json"), f"llama:{numbers}")
    )
    assert one["step_s"] == pytest.approx(other["step_s"], rel=0.08)
    assert one["peak_memory_bytes"] == pytest.approx(other["peak_memory_bytes"], rel=0.02)


@pytest.mark.parametrize("strategy", ["tp=2", "tp=2,sp", "cp=2"])
def test_a_module_and_its_numbers_send_the_same(strategy, tmp_path) -> None:
    ids = torch.zeros(1, 128, dtype=torch.int64, device="meta")
    capture(on_meta(GroupedLlama), [ids], "net").write(tmp_path / "net.json")
    numbers = "layers=4,hidden=256,heads=8,kv_heads=2,ffn=512,sequence=128,vocabulary=1000"
    one, other = (
        joulecast.simulate_step(network, "h100-sxm", strategy, batch=256, precision="amp")
        for network in (str(tmp_path / "net.json"), f"llama:{numbers}")
    )
    assert one["communication_s"] == pytest.approx(other["communication_s"], rel=0.01)


class Positions(nn.Module):
    """Learnt positions that are looked up for one sample, as in GPT-2's code."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(LENGTH, HIDDEN), nn.Linear(HIDDEN, WORDS)

    def forward(self, x):
        x = (x + self.table(torch.arange(LENGTH, device=x.device)[None]))[:, None]
        return self.out(functional.scaled_dot_product_attention(x, x, x)[:, 0])


def test_positions_of_one_sample_can_be_divided(tmp_path) -> None:
    x = torch.zeros(1, LENGTH, HIDDEN, device="meta")
    capture(on_meta(Positions), [x], "net").write(tmp_path / "net.json")
    one, two = (
        joulecast.simulate_step(str(tmp_path / "net.json"), "h100-sxm", strategy, batch=65536)
        for strategy in ("cp=1", "cp=2")
    )
    assert two["computing_s"] < 0.6 * one["computing_s"]


class Sound(nn.Module):
    """As Whisper's and wav2vec2's first layers: convolutions along time."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(8, 16, 3, padding=1)
        self.two = nn.Conv1d(16, 16, 4, stride=2, groups=4, padding="valid")
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(functional.gelu(self.two(self.one(x))).transpose(1, 2))


class UNet(nn.Module):
    """Down and up again, in two or three dimensions."""

    def __init__(self, axes):
        super().__init__()
        conv, norm, pool, up = (
            getattr(nn, f"{name}{axes}d")
            for name in ("Conv", "BatchNorm", "MaxPool", "ConvTranspose")
        )
        self.down = nn.Sequential(conv(3, 8, 3, padding=1), norm(8), nn.ReLU())
        self.deep = nn.Sequential(pool(2), conv(8, 16, 3, padding=1, bias=False), nn.ReLU())
        self.up, self.wide = up(16, 8, 2, stride=2), up(8, 8, 4, 2, 1, groups=2)
        self.out = conv(16, 5, 1)

    def forward(self, x):
        first = self.down(x)
        joined = torch.cat([self.up(self.deep(first)), first], 1)
        return (
            self.wide(joined[:, :8]).flatten(2).mean(-1)
            + self.out(joined).flatten(2).mean(-1)[:, :1]
        )


class Film(nn.Module):
    """A convolution over each picture of a film."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x):
        maps = self.conv(x.flatten(0, 1)).mean((2, 3))
        return self.head(maps.unflatten(0, (-1, x.shape[1])).mean(1))


class Patches(nn.Module):
    """Attention as timm and Phi-3 write it, over a map that diffusers would make."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 4, stride=4), nn.GroupNorm(4, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Parameter(torch.zeros(10, 16))

    def forward(self, x):
        maps = functional.interpolate(self.norm(self.conv(x)), scale_factor=2.0)
        batch, width, length = maps.flatten(2).shape
        tokens = maps.flatten(2).transpose(1, 2)
        heads = self.qkv(tokens).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        turned = torch.stack((-q[..., 1::2], q[..., ::2]), -1).flatten(-2)
        q = torch.cat([turned, q[..., width:]], -1)
        joined_heads = functional.scaled_dot_product_attention(q, k, v).swapaxes(1, 2).flatten(2)
        return functional.hardswish(joined_heads) @ self.out.T


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Sound, (8, 30)),
        (Patches, (3, 16, 16)),
        (lambda: UNet(2), (3, 16, 24)),
        (lambda: UNet(3), (3, 8, 16, 12)),
        (Film, (6, 3, 16, 16)),
    ],
    ids=["sound", "patches", "pictures", "volumes", "film"],
)
def test_convolutions_have_all_their_products(module, shape, recwarn) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network = on_meta(module)
    graph = capture(network, [torch.zeros(1, *shape, device="meta")], "network")
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, *shape, device="meta"))
    assert products(graph) == pytest.approx(counter.get_total_flops())
    eight = graph.with_batch(8)
    for tensor in graph.tensors.values():
        if tensor.role == "activation":
            assert eight.tensors[tensor.name].elements == 8 * tensor.elements


class Experts(nn.Module):
    """As Mixtral's code: tokens sorted by their expert, one product for all experts."""

    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 10)
        self.up = nn.Parameter(torch.zeros(4, 16, 32, dtype=torch.bfloat16))
        self.down = nn.Parameter(torch.zeros(4, 32, 16, dtype=torch.bfloat16))

    def forward(self, x):
        batch, length, width = x.shape
        chosen = torch.topk(self.router(x).softmax(-1), 2, dim=-1)[1].view(-1)
        order = torch.argsort(chosen)
        given = x.reshape(-1, width)[order // 2]
        ends = torch.histc(chosen.float(), 4, 0, 3).cumsum(0).to(torch.int32)
        inner = functional.grouped_mm(given.bfloat16(), self.up, offs=ends)
        outer = functional.grouped_mm(functional.relu(inner), self.down, offs=ends)
        return self.head(outer.float().view(batch, length, 2, width).sum(2))


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="torch has no grouped_mm yet")
def test_experts_are_products_and_can_be_divided() -> None:
    with pytest.warns(UserWarning, match="topk"):
        graph = capture(on_meta(Experts), [torch.zeros(1, 8, 16, device="meta")], "experts")
    found = [op for op in graph.ops if any(d.name == "experts" for d in op.dims)]
    assert [op.kind for op in found] == ["linear", "linear"]
    flops = 2 * (8 * 2) * 16 * 32
    assert op_work(graph, found[0], {}, "forward").flops == flops
    platform = Platform(
        name="test",
        cluster=Cluster(
            nodes=None,
            devices_per_node=4,
            device=Device(name="device", peak_flops={"fp32": 1e12}, memory_bytes_per_s=1e11),
            links=(Link(name="nic", bytes_per_s=1e9, latency_s=0.0),),
        ),
    )
    step = simulate(graph, platform, parse_strategy("dp=4,ep=2"), 2)
    sent = Counter(h.label.split()[0] for h in step.activities if 0 in h.devices)
    # To the experts and back, forward and backward; what stands between their products stays there.
    assert sent["all_to_all"] == 4


class Mixture(Experts):
    """Attention, and then experts."""

    def forward(self, x):
        x = x[:, None]
        return super().forward(functional.scaled_dot_product_attention(x, x, x)[:, 0])


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="torch has no grouped_mm yet")
@pytest.mark.filterwarnings("ignore:mixture")
def test_devices_that_share_a_sample_have_all_experts(tmp_path) -> None:
    file = tmp_path / "mixture.json"
    capture(on_meta(Mixture), [torch.zeros(1, 8, 16, device="meta")], "mixture").write(file)
    one, two = (
        joulecast.simulate_step(str(file), "h100-sxm", strategy, batch=4)["memory"][0]
        for strategy in ("dp=2", "cp=2")
    )
    assert one["weights_bytes"] == two["weights_bytes"]


class Asks(nn.Module):
    """As Hugging Face's code: another kernel where it is exported than where it is trained."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        mask = None
        if torch.compiler.is_exporting():
            mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).tril()
        return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)


def test_autocast_inside_the_forward_hides_nothing() -> None:
    """As Hugging Face's Trainer and accelerate put it there."""
    module, tokens = Gpt(), torch.zeros(2, LENGTH, dtype=torch.int64)
    plain = capture(module, [tokens], "gpt")
    module.forward = torch.autocast("cpu", dtype=torch.bfloat16)(module.forward)  # type: ignore[method-assign]
    assert capture(module, [tokens], "gpt") == plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert capture(module, [tokens], "gpt") == plain
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp", "bf16-true"])
def test_norms_need_no_weights(precision, tmp_path) -> None:
    steps = []
    for affine in (False, True):
        module = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8, affine=affine),
            nn.LayerNorm(14, elementwise_affine=affine),
            nn.Flatten(),
            nn.Linear(8 * 14 * 14, 10),
        )
        path = tmp_path / f"{affine}.json"
        capture(module, [torch.zeros(2, 3, 16, 16)], "norms").write(path)
        found = joulecast.simulate_step(
            network=str(path), platform="h100-sxm", strategy="dp=1", batch=256, precision=precision
        )
        steps.append(found["step_s"])
    assert 0 < steps[0] < 1.1 * steps[1]


class Labelled(Gpt):
    """As a network of Hugging Face that is given labels: it computes its loss of all words but the first."""

    def forward(self, tokens, labels):
        logits = super().forward(tokens)
        shifted = logits[:, :-1].reshape(-1, WORDS)
        return functional.cross_entropy(shifted, labels[:, 1:].reshape(-1)), logits


class Biased(nn.Module):
    """Attention as T5's (a learnt bias for each pair of positions) or as Falcon's (one head of keys)."""

    def __init__(self, learnt: bool, kv_heads: int) -> None:
        super().__init__()
        self.kv = kv_heads * HIDDEN // HEADS
        self.qkv = nn.Linear(HIDDEN, HIDDEN + 2 * self.kv)
        self.bias = nn.Parameter(torch.zeros(HEADS, LENGTH, LENGTH), requires_grad=learnt)
        self.out, self.learnt, self.kv_heads = nn.Linear(HIDDEN, WORDS), learnt, kv_heads

    def forward(self, x):
        q, *kv = self.qkv(x).split((HIDDEN, self.kv, self.kv), dim=2)
        k, v = (y.view(*x.shape[:2], self.kv_heads, -1).transpose(1, 2) for y in kv)
        mask = self.bias[None] * 2 if self.learnt else None
        values = functional.scaled_dot_product_attention(heads(q), k, v, attn_mask=mask)
        return self.out(joined(values))


@pytest.mark.parametrize(
    ("learnt", "kv_heads", "fused"), [(False, HEADS, True), (True, HEADS, False), (False, 1, False)]
)
def test_attention_that_torch_does_not_fuse_is_computed_at_32_bits(
    learnt, kv_heads, fused, tmp_path
) -> None:
    graph = capture(Biased(learnt, kv_heads), [torch.zeros(2, LENGTH, HIDDEN)], "biased")
    graph.write(tmp_path / "biased.json")
    for precision in ("amp", "bf16-true"):
        training = training_of(precision)
        found = network_for(str(tmp_path / "biased.json"), training)
        kinds = Counter(op.kind for op in found.ops)
        assert (kinds["attention"], kinds["matmul"]) == ((1, 0) if fused else (0, 2))
        for op in found.ops:
            size = found.tensors[op.writes[0].tensor].itemsize
            if op.kind in ("matmul", "softmax"):
                assert size == 4
            elif op.kind == "linear":
                assert size == 2


def test_a_loss_inside_the_forward_is_the_only_one() -> None:
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    plain = Counter(op.kind for op in capture(Gpt(), [tokens], "gpt").ops)
    labelled = capture(Labelled(), [tokens, tokens], "gpt")
    assert Counter(op.kind for op in labelled.ops) == plain
    (loss,) = (op for op in labelled.ops if op.kind == "cross_entropy")
    assert loss.dim("sequence").size == LENGTH - 1


def test_a_capture_is_of_a_training_and_not_of_an_export() -> None:
    graph = capture(on_meta(Asks), [torch.zeros(1, LENGTH, HIDDEN, device="meta")], "asks")
    (attention,) = (op for op in graph.ops if op.kind == "attention")
    assert attention.attributes["causal"] is True


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_hugging_faces_own_code_is_as_by_numbers(attention) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=HIDDEN, n_head=HEADS, vocab_size=WORDS, n_positions=LENGTH
    )
    config._attn_implementation = attention
    graph = capture(on_meta(transformers.GPT2LMHeadModel, config), [tokens()], "gpt2")
    assert config.use_cache
    numbers = f"gpt:layers=2,hidden={HIDDEN},heads={HEADS},sequence={LENGTH},vocabulary={WORDS}"
    by_numbers = op_graph(f"{numbers},gelu=written", "eager" if attention == "eager" else "fused")
    assert products(graph) == products(by_numbers)
    assert shapes(graph) == shapes(by_numbers)
    assert sum(t.elements for t in graph.parameters) == sum(
        t.elements for t in by_numbers.parameters
    )
    causal = [op.attributes["causal"] for op in graph.ops if op.kind == "attention"]
    assert causal == ([] if attention == "eager" else [True, True])


@pytest.mark.parametrize("module", [Llama, Opt])
def test_other_decoders_have_all_their_products(module) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network = on_meta(module)
    graph = capture(network, [tokens()], "network")
    with FlopCounterMode(display=False) as counter:
        network(tokens())
    # Those that make positions depend on no data, and are none of the graph's.
    assert products(graph) == pytest.approx(counter.get_total_flops(), rel=0.01)
    eight = graph.with_batch(8)
    for tensor in graph.tensors.values():
        if tensor.role == "activation":
            assert eight.tensors[tensor.name].elements == 8 * tensor.elements


class DropsPaths(nn.Module):
    """Stochastic depth as timm writes it: a mask of the shape of a tensor, without its values."""

    def __init__(self, drops):
        super().__init__()
        self.one, self.two, self.drops = nn.Linear(8, 8), nn.Linear(8, 8), drops

    def forward(self, x):
        y = self.one(x)
        if self.drops:
            y = y * y.new_empty((y.shape[0], 1, 1)).bernoulli_(0.9).div_(0.9)
        return self.two(functional.dropout(y, 0.0, self.training, inplace=True))


def test_a_mask_of_a_tensors_shape_reads_none_of_its_values() -> None:
    with_mask, without = (
        capture(DropsPaths(drops), [torch.zeros(1, 5, 8)], "drops") for drops in (True, False)
    )
    more = Counter(op.kind for op in with_mask.ops) - Counter(op.kind for op in without.ops)
    assert more == {"multiply": 1}
    assert len(with_mask.readers["one"]) == 1


def test_a_random_mask_widens_nothing_under_autocast(tmp_path) -> None:
    capture(DropsPaths(True), [torch.zeros(1, 5, 8)], "drops").write(tmp_path / "drops.json")
    graph = network_for(str(tmp_path / "drops.json"), training_of("amp"))
    (masked,) = (op for op in graph.ops if op.kind == "multiply")
    assert graph.tensors[masked.writes[0].tensor].itemsize == 2


def test_images_of_a_depthwise_convolution_are_not_turned(tmp_path) -> None:
    for groups in (1, 8):
        module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=groups), nn.Flatten())
        capture(module, [torch.zeros(1, 3, 16, 16)], "images").write(tmp_path / "images.json")
        graph = network_for(str(tmp_path / "images.json"), training_of("amp"))
        kernels = kernels_of(graph, graph.ops[1], {}, "backward")
        assert any(getattr(each, "kind", None) == TURN for each in kernels) == (groups == 1)


class NormOfPixels(nn.Module):
    """A convolution, and a norm over the channels of each pixel, as in ConvNeXt."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.conv(x).permute(0, 2, 3, 1)).mean((1, 2))


def test_rows_of_images_are_no_sequence() -> None:
    graph = capture(NormOfPixels(), [torch.zeros(1, 3, 32, 32)], "images")
    assert sequence_length(graph) is None
    assert sequence_length(op_graph("vit_b")) == 197
    with pytest.raises(JoulecastError, match="images has no attention"):
        split_context(graph, [{} for _ in graph.ops], "context", 3)


class Sums(nn.Module):
    """A sum with another tensor, with one in another order, or with one that is repeated."""

    def __init__(self, other):
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), other

    def forward(self, x):
        y = self.one(x)
        return y + self.other(y)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (torch.tanh, "elementwise"),
        (lambda y: y.mT, STRIDED),
        (lambda y: y[..., :1], STRIDED),
    ],
)
def test_sums_across_the_order_of_memory_have_a_slower_kernel(other, kind, recwarn) -> None:
    graph = capture(Sums(other), [torch.zeros(2, 64, 64)], "sums")
    op = next(op for op in graph.ops if op.kind == "add")
    assert [kernel.kind for kernel in kernels_of(graph, op, {}, "forward")] == [kind]
    assert not recwarn.list


class TakenApart(nn.Module):
    """Queries, keys and values out of one product: by unbind, as in timm, or by chunk."""

    def __init__(self, unbinds):
        super().__init__()
        self.qkv, self.unbinds = nn.Linear(HIDDEN, 3 * HIDDEN), unbinds

    def forward(self, x):
        if self.unbinds:
            parts = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            q, k, v = parts.unbind(0)
        else:
            q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        return joined(functional.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(("unbinds", "kinds"), [(True, [STRIDED, STRIDED]), (False, ["copy"])])
def test_gradients_of_parts_are_joined_by_copies(unbinds, kinds, tmp_path) -> None:
    x = torch.zeros(1, LENGTH, HIDDEN)
    capture(TakenApart(unbinds), [x], "parts").write(tmp_path / "parts.json")
    graph = network_for(str(tmp_path / "parts.json"), training_of("bf16-true"))
    kernels = kernels_of(graph, graph.ops[0], {}, "backward")
    written = graph.tensors[graph.ops[0].writes[0].tensor].bytes
    found = [each for each in kernels if getattr(each, "kind", None) in (STRIDED, "copy")]
    assert [each.kind for each in found] == kinds
    assert all(each.bytes == 2 * written for each in found)


class Repeated(nn.Module):
    """Keys repeated for groups of queries, as Hugging Face's ``repeat_kv``, and a cyclic shift as in Swin."""

    def __init__(self, kv_heads):
        super().__init__()
        width = HIDDEN + kv_heads * HIDDEN // HEADS
        self.qk, self.kv_heads = nn.Linear(HIDDEN, width), kv_heads

    def forward(self, x):
        batch, length, _ = x.shape
        q, k = self.qk(x).split([HIDDEN, self.kv_heads * HIDDEN // HEADS], -1)
        k = k.view(batch, length, self.kv_heads, -1).transpose(1, 2)
        repeated = k[:, :, None].expand(-1, -1, HEADS // self.kv_heads, -1, -1)
        k = repeated.reshape(batch, HEADS, length, -1)
        return (heads(q) @ k.transpose(2, 3)).roll(1, 2)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_repeated_keys_are_copied_and_a_shift_keeps_nothing(kv_heads) -> None:
    x = torch.zeros(1, LENGTH, HIDDEN, device="meta")
    graph = capture(on_meta(Repeated, kv_heads), [x], "repeated")
    product = next(op for op in graph.ops if op.kind == "matmul")
    _, keys = kept_for_backward(graph, product)
    assert graph.tensors[keys.tensor].elements == LENGTH * HIDDEN
    assert kept_for_backward(graph, graph.producer[keys.tensor]) == []
    shift = graph.ops[-2]
    assert shift.reads[0].tensor == product.name
    assert kept_for_backward(graph, shift) == []


class Windows(nn.Module):
    """Attention within windows, as Twins has it, or with one head and no axis for it."""

    def __init__(self, axes):
        super().__init__()
        self.qkv, self.axes = nn.Linear(HIDDEN, 3 * HIDDEN), axes

    def forward(self, x):
        batch, length, _ = x.shape
        front = {3: (batch,), 5: (batch, HEADS, 2)}[self.axes]
        q, k, v = (
            part.reshape(*front, length // math.prod(front[2:]), -1)
            for part in self.qkv(x).chunk(3, -1)
        )
        return functional.scaled_dot_product_attention(q, k, v).reshape(x.shape)


class AllExperts(nn.Module):
    """As Llama 4: each expert takes all tokens of all samples, the samples merged with other axes."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.zeros(4, HIDDEN, 2 * HIDDEN))
        self.down = nn.Parameter(torch.zeros(4, 2 * HIDDEN, HIDDEN))

    def forward(self, x):
        tokens = x.reshape(-1, HIDDEN).repeat(4, 1).view(4, -1, HIDDEN)
        done = functional.silu(tokens @ self.up) @ self.down
        return done.sum(0).view(x.shape)


class Pair(nn.Module):
    """Two views of each sample beside each other, as contrastive and optical-flow networks have them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(HIDDEN, 32), nn.Linear(32, 8)

    def forward(self, x):
        first, second = self.one(torch.cat([x, x.flip(1)], 0)).relu().chunk(2, 0)
        return self.two(first - second)


class Grid(nn.Module):
    """Windows that are put back and cut again in another place, as MaxViT has them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 8)

    def forward(self, x):
        windows = self.one(x.view(x.shape[0], 4, 8, HIDDEN)).transpose(1, 2)
        back = windows.reshape(x.shape[0], LENGTH, HIDDEN)
        return self.two(back.view(x.shape[0], 4, 8, HIDDEN).transpose(1, 2))


class Patches(nn.Module):
    """Attention between the same pixels of all patches: samples and pixels are one axis, as in MobileViT."""

    def __init__(self):
        super().__init__()
        self.qkv, self.one = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        patches = x.reshape(x.shape[0] * 4, LENGTH // 4, HIDDEN)
        q, k, v = (heads(part) for part in self.qkv(patches).chunk(3, -1))
        values = functional.scaled_dot_product_attention(q, k, v)
        patches = patches + self.one(joined(values))
        return (patches + self.one(patches)).view(x.shape)


class Turned(nn.Module):
    """Positions that are made once for each sample, with the samples as second axis, as in XLNet."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(HIDDEN, 8), nn.Linear(HIDDEN, 8)

    def forward(self, x):
        x = x.transpose(0, 1)
        places = torch.arange(LENGTH, device=x.device)[:, None, None].float()
        return self.one(x) + self.two(places.expand(-1, x.shape[1], HIDDEN))


class Outer(nn.Module):
    """A weight times the steps of a sequence, and a product of each number with each, as Mamba's code."""

    def __init__(self):
        super().__init__()
        self.steps, self.decay = nn.Linear(HIDDEN, 8), nn.Parameter(torch.zeros(24, 16))
        self.out = nn.Linear(16, 8)

    def forward(self, x):
        steps = self.decay.T[:8, :8] @ self.steps(x).transpose(1, 2)
        return self.out(functional.softplus(self.decay[None, :, None] * steps[:, None, 0, :, None]))


class Queries(nn.Module):
    """Learnt queries that look at a sequence, as in DETR and Perceiver. Each sample has its own copy."""

    def __init__(self, copies):
        super().__init__()
        self.queries, self.copies = nn.Parameter(torch.zeros(8, HIDDEN)), copies
        self.first, self.out = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 8)

    def forward(self, x):
        queries = self.first(self.copies(self.queries, x.shape[0]))
        return self.out(functional.scaled_dot_product_attention(queries, x, x))


@pytest.mark.parametrize(
    "module",
    [
        *(lambda: Windows(3), lambda: Windows(5), AllExperts, Pair, Grid, Patches, Turned, Outer),
        lambda: Queries(lambda queries, batch: queries.expand(batch, -1, -1)),
        lambda: Queries(lambda queries, batch: queries.repeat(batch, 1, 1)),
    ],
    ids=[
        *("3", "5", "experts", "pair", "grid", "patches", "turned", "outer"),
        *("queries", "repeated queries"),
    ],
)
def test_products_follow_the_batch_whatever_axes_stand_beside_it(module) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network, x = on_meta(module), torch.zeros(1, LENGTH, HIDDEN, device="meta")
    graph = capture(network, [x], "network")
    for batch in (1, 3, 8):
        with FlopCounterMode(display=False) as counter:
            network(x.expand(batch, -1, -1))
        assert products(graph.with_batch(batch)) == counter.get_total_flops()


@pytest.mark.parametrize("module", [Grid, Patches, Outer])
@pytest.mark.filterwarnings("error:.*only the memory traffic")
def test_axes_that_are_merged_cut_and_grown_are_known(module) -> None:
    x = torch.zeros(1, LENGTH, HIDDEN, device="meta")
    assert capture(on_meta(module), [x], "network").ops


class Recurrent(nn.Module):
    """A network of two recurrent layers, which gives its last states too."""

    def __init__(self, kind, length, both):
        super().__init__()
        self.token = nn.Embedding(WORDS, HIDDEN)
        facts = {"batch_first": length % 2 == 0, "bidirectional": both, "dropout": 0.1}
        self.rnn = getattr(nn, kind)(HIDDEN, 2 * HIDDEN, 2, **facts)
        self.head = nn.Linear((1 + both) * 2 * HIDDEN, WORDS)

    def forward(self, tokens):
        x = self.token(tokens)
        done, last = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1))
        last = last[0] if isinstance(last, tuple) else last
        return self.head(done), last[-1]


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind",
    [
        "LSTM",
        pytest.param("GRU", marks=pytest.mark.long),
        pytest.param("RNN", marks=pytest.mark.long),
    ],
)
def test_recurrent_layers_have_their_products_a_step_after_the_other(kind, both, tmp_path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    times = []
    for length, batch in ((15, 64), (120, 8)):
        network = on_meta(Recurrent, kind, length, both)
        tokens = torch.zeros(2, length, dtype=torch.int64, device="meta")
        graph = capture(network, [tokens], "network")
        with FlopCounterMode(display=False) as counter:
            network(tokens)
        assert products(graph.with_batch(2)) == counter.get_total_flops()
        graph.write(tmp_path / "network.json")
        found = joulecast.simulate_step(
            network=str(tmp_path / "network.json"),
            platform="h100-sxm",
            strategy="dp=1",
            batch=batch,
            precision="amp",
        )
        times.append(found["step_s"])
    # As many numbers in eight times as many steps.
    assert times[1] > 1.5 * times[0]


class Cells(nn.Module):
    """A decoder that calls a recurrent cell for each step itself."""

    def __init__(self, kind):
        super().__init__()
        self.cell, self.out = getattr(nn, kind)(HIDDEN, 24), nn.Linear(24, 8)

    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.filterwarnings("error:.*only the memory traffic")
def test_recurrent_cells_have_their_products(kind) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network, x = on_meta(lambda: Cells(kind)), torch.zeros(3, 5, HIDDEN, device="meta")
    graph = capture(network, [x], "network")
    with FlopCounterMode(display=False) as counter:
        network(x)
    assert products(graph.with_batch(3)) == counter.get_total_flops()


def test_no_operator_ends_a_capture() -> None:
    with pytest.warns(UserWarning, match=r"odd: only the memory traffic.*sort.default \(1\)"):
        graph = capture(Odd(), [torch.zeros(1, 3, 8)], "odd")
    assert Counter(op.kind for op in graph.ops)["matmul"] >= 2
    assert all(op.dims for op in graph.ops)


NET = """
import torch
from torch import nn
def build():
    frozen = nn.Linear(8, 1).requires_grad_(False)
    return nn.Sequential(nn.Linear(4, 8), nn.Softshrink(), frozen), [torch.zeros(1, 4)]
def wrong():
    return 3

def failing():
    sizes = {}
    return sizes["hidden"]

class ByValue(nn.Module):
    def forward(self, x):
        return x if float(x.sum()) > 0 else -x

def by_value():
    return ByValue(), [torch.zeros(1, 4)]

def graph_of_nodes():
    return nn.Linear(16, 4), [torch.zeros(1000, 16), torch.zeros(2, 40000)]
"""


class Clamps(nn.Linear):
    """Values are clamped only if they are not finite, as in DETR, and may not be NaN."""

    def forward(self, x):
        assert not torch.isnan(x).any()
        return super().forward(x if torch.isfinite(x).all() else x.clamp(-1, 1))


def test_values_count_as_finite() -> None:
    assert capture(Clamps(4, 4), [torch.zeros(1, 4)], "network").ops


def test_the_command_captures_a_function(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_network.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["capture", "own_network:build", "--out", "net.json"])
    assert done.exit_code == 0, done.output
    assert "4 ops, 49 parameters" in done.output
    assert "softshrink" in done.output
    assert read_graph(tmp_path / "net.json").name == "build"
    for given, said in (
        ("own_network:wrong", "must give (module, example inputs)"),
        ("own_network:failing", "own_network.py, line 12: KeyError: 'hidden'"),
        ("own_network:by_value", "cannot follow its forward: "),
        ("own_network:graph_of_nodes", "the batch, but these have 1000 and 2"),
        ("own_network:none", "has no function none"),
        ("no_such_network:build", "No module named"),
        ("own_network", "give it as MODULE:FUNCTION"),
    ):
        failed = CliRunner().invoke(app, ["capture", given])
        assert failed.exit_code != 0
        text = str(failed.exception) if isinstance(failed.exception, JoulecastError) else ""
        assert said in " ".join((text + failed.output).split()), failed.output
    sys.modules.pop("own_network", None)
