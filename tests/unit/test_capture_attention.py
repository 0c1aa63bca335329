"""Attention of other packages than torch has the same op as torch's."""

import pytest
import torch
from torch import nn

from joulecast.graphs.capture import capture
from joulecast.graphs.costs import op_work

HEADS, LENGTH, WIDTH = 4, 32, 64


@torch.library.custom_op("flash_attn::_flash_attn_forward", mutates_args=())
def flash_attn(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator of the package flash-attn, which needs a GPU. Its results only have their shapes."""
    return torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1])


flash_attn.register_fake(
    lambda q, k, v, dropout_p, causal: (
        torch.empty_like(q),
        q.new_empty(q.shape[0], q.shape[2], q.shape[1]),
    )
)


class Own(nn.Module):
    """A layer that calls an attention by itself."""

    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.flash, self.out = flash, nn.Linear(WIDTH, WIDTH)
        self.packed = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.packed(x).unflatten(-1, (3, HEADS, -1)).unbind(2)
        if self.flash:
            y = torch.ops.flash_attn._flash_attn_forward(q, k, v, 0.0, True)[0]
        else:
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out(y.flatten(2))


def test_the_package_flash_attn_is_torchs_attention() -> None:
    x = torch.empty(1, LENGTH, WIDTH)
    ours, torchs = (capture(Own(flash), [x], "own").ops for flash in (True, False))
    assert [(op.kind, op.dims) for op in ours] == [(op.kind, op.dims) for op in torchs]


class Latent(nn.Module):
    """Its queries and keys are twice as wide as its values, as in latent attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.v = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.v))
        return nn.functional.scaled_dot_product_attention(q, q, v)


def test_products_of_values_may_be_narrower_than_those_of_scores() -> None:
    graph = capture(Latent(), [torch.empty(1, LENGTH, WIDTH)], "latent")
    (op,) = (op for op in graph.ops if op.kind == "attention")
    flops = op_work(graph, op, {}, "forward").flops
    assert flops == 2 * LENGTH * LENGTH * (2 * WIDTH + WIDTH)
    assert graph.tensors[op.writes[0].tensor].elements == LENGTH * WIDTH


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_a_model_of_the_hub_keeps_its_attention(attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "vocab_size": 50}
    config = transformers.LlamaConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=HEADS, attn_implementation="sdpa"
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    plain = capture(model, [tokens], "llama")
    model.config._attn_implementation = attention
    assert capture(model, [tokens], "llama") == plain
    assert model.config._attn_implementation == attention


class _Config:
    """As the hub's configs do: what is set for a model is set for its parts."""

    def __init__(self, attention: str, *parts: "_Config") -> None:
        self.attention, self.parts = attention, parts

    @property
    def _attn_implementation(self) -> str:
        return self.attention

    @_attn_implementation.setter
    def _attn_implementation(self, attention: str) -> None:
        for config in (self, *self.parts):
            config.attention = attention


def test_the_parts_of_a_model_keep_their_own_attention() -> None:
    seen = _Config("eager")
    model, part = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH)), torch.nn.Identity()
    model.append(part)
    model.config, part.config = _Config("flash_attention_2", seen), seen
    capture(model, [torch.zeros(2, WIDTH)], "model")
    assert model.config.attention == "flash_attention_2" and seen.attention == "eager"
