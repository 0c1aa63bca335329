"""One step of distributed training in field terms: what is computed where, and what is sent.

This is the whole semantics that both the emulated network and a simulator of it follow:

* Rank ``(stage * data_parallel + replica) * tensor_parallel + shard``; consecutive ranks share a node.
* A stage has an equal count of consecutive layers and computes one thing at a time, in the order of
  :meth:`Configuration.stage_order`.
* An activation goes to the same replica and shard of the next stage when the forward is done, its
  gradient back (same size) when the backward is; the sender computes on, the receiver waits. Every
  shard sends the whole ``activation_bytes``.
* A tensor-parallel group all-reduces ``activation_bytes`` after every layer's forward and again after
  its backward; nothing else is computed meanwhile.
* Gradients are all-reduced over the data-parallel group of the stage after the last backward only,
  in the buckets of :meth:`Configuration.buckets`, one after the other. With ``overlap`` a bucket is
  ready as soon as its last layer's backward (and tensor-parallel all-reduce) is done; without, all
  are when the rank's last backward is.
* A straggler's computations take ``factor`` times as long; nothing else about it differs.

The step lasts until the last rank has computed, all-reduced and got rid of everything.
"""

from typing import Literal

from pydantic import Field, model_validator

from joulecast.graphs.schedules import Schedule, Work, stage_order
from joulecast.simulate.judged.jobs import Frozen, Job, StepConfiguration

Algorithm = Literal["ring", "recursive_doubling", "rabenseifner"]


class Layer(Frozen):
    """A layer as one rank sees it; times and activations are per micro-batch."""

    name: str
    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    gradient_bytes: int = Field(ge=0, multiple_of=4, description="What a rank holds of it.")
    activation_bytes: int = Field(
        ge=0,
        multiple_of=4,
        description="Crosses a pipeline cut behind the layer; all-reduced by tensor-parallel groups.",
    )


class Straggler(Frozen):
    """A rank whose computations take ``factor`` times as long."""

    rank: int = Field(ge=0)
    factor: float = Field(gt=0)


class Configuration(StepConfiguration):
    """A step of training on ``ranks`` ranks; the module's text says what happens in it."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    ranks: int = Field(ge=1)
    ranks_per_node: int = Field(1, ge=1)
    data_parallel: int = Field(1, ge=1)
    tensor_parallel: int = Field(1, ge=1)
    pipeline: int = Field(1, ge=1)
    micro_batches: int = Field(1, ge=1)
    schedule: Schedule = "gpipe"
    bucket_bytes: int = Field(1 << 20, ge=1, description="A bucket closes when it has this much.")
    overlap: bool = True
    algorithm: Algorithm = "ring"
    layers: tuple[Layer, ...] = Field(min_length=1)
    straggler: Straggler | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "Configuration":
        product = self.data_parallel * self.tensor_parallel * self.pipeline
        if product != self.ranks:
            raise ValueError(
                f"{self.name}: data_parallel {self.data_parallel} x tensor_parallel "
                f"{self.tensor_parallel} x pipeline {self.pipeline} is {product}, "
                f"not the {self.ranks} ranks"
            )
        if self.ranks % self.ranks_per_node:
            raise ValueError(
                f"{self.name}: {self.ranks} ranks do not fill nodes of {self.ranks_per_node}"
            )
        if len(self.layers) % self.pipeline:
            raise ValueError(
                f"{self.name}: {len(self.layers)} layers cannot be cut into {self.pipeline} "
                "stages of equal count"
            )
        if self.straggler is not None and self.straggler.rank >= self.ranks:
            raise ValueError(
                f"{self.name}: straggler.rank {self.straggler.rank} is not one of the ranks "
                f"0 to {self.ranks - 1}"
            )
        return self

    @property
    def nodes(self) -> int:
        """Nodes, each with one link."""
        return self.ranks // self.ranks_per_node

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and shard of a rank."""
        rest, shard = divmod(rank, self.tensor_parallel)
        stage, replica = divmod(rest, self.data_parallel)
        return stage, replica, shard

    def rank_at(self, stage: int, replica: int, shard: int) -> int:
        """The rank at a place."""
        return (stage * self.data_parallel + replica) * self.tensor_parallel + shard

    def slowdown(self, rank: int) -> float:
        """The factor of a rank's computing times."""
        straggler = self.straggler
        return straggler.factor if straggler is not None and straggler.rank == rank else 1.0

    def stage_layers(self, stage: int) -> tuple[Layer, ...]:
        """The layers of a stage, in the order of forward."""
        count = len(self.layers) // self.pipeline
        return self.layers[stage * count : (stage + 1) * count]

    def stage_order(self, stage: int) -> list[Work]:
        """A stage's work in a step, in order."""
        return stage_order(self.schedule, self.pipeline, stage, self.micro_batches)

    def buckets(self, stage: int) -> list[tuple[int, int]]:
        """The gradient buckets of a stage in the order of backward.

        Returns:
            for each bucket the index (within the stage) of the layer whose backward completes it,
            and its bytes. Layers without gradients take part in none.
        """
        layers = self.stage_layers(stage)
        if self.data_parallel == 1:
            return []
        closed: list[tuple[int, int]] = []
        filled, last = 0, 0
        for index in reversed(range(len(layers))):
            if layers[index].gradient_bytes == 0:
                continue
            filled, last = filled + layers[index].gradient_bytes, index
            if filled >= self.bucket_bytes:
                closed.append((index, filled))
                filled = 0
        return [*closed, (last, filled)] if filled else closed


class Collective(Frozen):
    """A communication by itself: ``all_reduce`` of all ranks, ``send`` from rank 0 to 1."""

    kind: Literal["all_reduce", "send"]
    algorithm: Algorithm = "ring"
    bytes: int = Field(ge=4, multiple_of=4)


class EmulatedJob(Job):
    """Parts that are measured one after the other, each ``iterations`` times after a warm-up."""

    ranks_per_node: int = Field(1, ge=1)
    iterations: int = Field(7, ge=1)
    parts: tuple[Configuration | Collective, ...]
