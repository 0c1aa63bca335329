"""A small language model on text of its own, with DistributedDataParallel or sharded; knows no joulecast.

    torchrun --nproc-per-node 2 train.py --batch 8 --steps 40 [--sharded]

The text is Python's own documentation of its modules, so that nothing has to be downloaded. A sample is a
piece of it, letter by letter.
"""

import argparse
import os
import pydoc
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MODULES = (
    "argparse",
    "collections",
    "decimal",
    "logging",
    "pathlib",
    "random",
    "statistics",
    "typing",
)
LETTERS = 128


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text with the letters that follow each letter."""

    def __init__(self, length: int) -> None:
        """Pieces of ``length`` letters."""
        text = "".join(pydoc.plain(pydoc.render_doc(name)) for name in MODULES)
        codes = [min(ord(letter), LETTERS - 1) for letter in text]
        self.codes, self.length = torch.tensor(codes), length

    def __len__(self) -> int:
        """Count the pieces."""
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Letters, and the letters that follow them."""
        start = index * self.length
        piece = self.codes[start : start + self.length + 1]
        return piece[:-1], piece[1:]


class LanguageModel(nn.Module):
    """A decoder of a few blocks."""

    def __init__(self, length: int, width: int, layers: int) -> None:
        """For pieces of ``length`` letters."""
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask)

    def forward(self, codes: Tensor) -> Tensor:
        places = torch.arange(codes.shape[1], device=codes.device)
        hidden = self.letters(codes) + self.places(places)
        logits: Tensor = self.head(self.blocks(hidden, mask=self.mask, is_causal=True))
        return logits


def distributed(network: nn.Module, sharded: bool) -> nn.Module:
    """The network over all ranks: copies of it, or shards."""
    if sharded:
        for block in network.blocks.layers:
            fully_shard(block)
        return fully_shard(network)
    return DistributedDataParallel(network)


def main() -> None:
    """Train, and print loss and seconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8, help="Samples of a rank.")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sharded", action="store_true", help="Shard the weights (FSDP).")
    asked = parser.parse_args()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if several:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else "cpu"
    )
    text = Text(asked.length)
    loader = DataLoader(
        text,
        asked.batch,
        shuffle=not several,
        sampler=DistributedSampler(text) if several else None,
        num_workers=1,
        drop_last=True,
    )
    network: nn.Module = LanguageModel(asked.length, asked.width, asked.layers).to(device)
    if several:
        network = distributed(network, asked.sharded)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    step, begun = 0, 0.0
    while step < asked.steps:
        for codes, following in loader:
            logits = network(codes.to(device))
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.to(device).flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == 1:
                begun = time.perf_counter()
            if step == asked.steps:
                break
    seconds = (time.perf_counter() - begun) / max(1, step - 1)
    if not several or dist.get_rank() == 0:
        print(f"{step} steps of {seconds * 1e3:.1f} ms, loss {loss.item():.2f}", flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
