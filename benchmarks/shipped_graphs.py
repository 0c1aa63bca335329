"""Captures the op graphs that joulecast ships, and writes them to ``src/joulecast/graphs/networks``.

    ./run python benchmarks/shipped_graphs.py

GPT-2 (Radford et al. 2019) is a plain module here. It has pre-norm blocks, learned positions, GELU in its
tanh form, and causal attention by torch's own kernel. The output layer has no bias. It may share its weight
with the token embedding (tied, as in GPT-2).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from joulecast.graphs import network_graphs
from joulecast.graphs.capture import capture
from joulecast.graphs.opgraph import OpGraph
from joulecast.measure.workloads.networks import build_empty


@dataclass(frozen=True)
class GPTSize:
    """Sizes of the transformer. The defaults give GPT-2 small, with 124 million parameters if tied."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    dropout: float = 0.1
    tied: bool = True
    """The output layer's weight is the token embedding's."""


class _Attention(nn.Module):
    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(hidden, dim=2)
        )
        y = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        y = y.transpose(1, 2).reshape(batch, length, hidden)
        projected: Tensor = self.out(y)
        return projected


class _Block(nn.Module):
    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(size.hidden)
        self.attention = _Attention(size)
        self.drop_1 = nn.Dropout(size.dropout)
        self.ln_2 = nn.LayerNorm(size.hidden)
        self.up = nn.Linear(size.hidden, 4 * size.hidden)
        self.gelu = nn.GELU(approximate="tanh")
        self.down = nn.Linear(4 * size.hidden, size.hidden)
        self.drop_2 = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_1(self.attention(self.ln_1(x)))
        mlp: Tensor = self.drop_2(self.down(self.gelu(self.up(self.ln_2(x)))))
        return x + mlp


class GPT(nn.Module):
    """The transformer. It takes token ids ``(batch, length <= positions)``, and gives logits ``(batch,
    length, vocabulary)``."""

    def __init__(self, size: GPTSize | None = None) -> None:
        super().__init__()
        self.size = size = size or GPTSize()
        self.token = nn.Embedding(size.vocabulary, size.hidden)
        self.position = nn.Embedding(size.positions, size.hidden)
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.ln = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        if size.tied:
            self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        x = self.drop(self.token(tokens) + self.position.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln(x))
        return logits


def build_gpt(size: GPTSize | None = None) -> GPT:
    """Build the transformer on the ``meta`` device, where it takes no memory."""
    with torch.device("meta"):
        return GPT(size)


def capture_gpt(size: GPTSize | None = None, length: int = 1024, name: str = "gpt2") -> OpGraph:
    """The op graph of :class:`GPT` for samples of ``length`` tokens."""
    tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
    return capture(build_gpt(size), [tokens], name)


IMAGES = {
    "vgg16": 224,
    "vgg19": 224,
    "resnet50": 224,
    "inception_v3": 299,
    "vit_b": 224,
    "alexnet": 224,
}
"""Networks whose graphs are shipped, and the width of their images in pixels (ImageNet, 1000 classes)."""


def capture_network(name: str, image_size: int, patch_size: int, classes: int) -> OpGraph:
    """The op graph of a network in :data:`joulecast.measure.workloads.networks.NETWORKS`.

    The graph of Inception has the auxiliary classifier, as in training.
    """
    network = build_empty(name, image_size, patch_size, classes)
    return capture(network, [torch.empty(1, 3, image_size, image_size, device="meta")], name)


def main() -> None:
    """Capture and write all of them."""
    folder = Path(network_graphs.__file__).with_name("networks")
    graphs = [capture_network(name, image, 16, 1000) for name, image in IMAGES.items()]
    for graph in (*graphs, capture_gpt()):
        graph.write(folder / f"{graph.name}.json")


if __name__ == "__main__":
    main()
