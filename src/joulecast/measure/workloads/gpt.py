"""A decoder-only transformer with the sizes of GPT-2 (Radford et al. 2019), as a plain module.

It has pre-norm blocks, learned positions, GELU in its tanh form, and causal attention by torch's own kernel.
The output layer has no bias. It may share its weight with the token embedding (tied, as in GPT-2). Its op
graph is captured. It is never trained here, so its weights are those that torch draws.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


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
