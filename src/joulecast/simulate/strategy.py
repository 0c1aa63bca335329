"""The strategy tree: how a network's ops are split over a mesh of devices, and in which order they run.

The mesh has named axes, usually ``pipeline``, ``data`` and ``tensor``. The product of their sizes is the
number of devices. The tree has the same shape as the modules of the network. It says which dim of an op is
split along which axis, to which pipeline stage the op belongs, whether its activations are computed again for
backward, and how much of its training state each device keeps (ZeRO). If a node does not say something, it
inherits this from its parent. If no node says it, it is inferred. ``data`` splits the batch. ``tensor``
splits columns and rows of matrix products in turn (Megatron). ``pipeline`` cuts the network so that the times
of the stages are even. Every other op follows the tensors that it reads (Duan et al. 2024, section 4;
placements by mesh axis are those of GSPMD).
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_yaml, validated

DDP_FIRST_BUCKET = 1 << 20
DDP_BUCKET = 25 << 20
_MOST_DEVICES = 1_000_000
MOST_MICRO_BATCHES = 10_000
"""Largest number of micro-batches of a step."""

_SHARDED = ("data", "context", "expert")
"""Axes along which ZeRO shards. ``replica`` holds copies of the shards."""
REPLICAS = ("replica", "data", "expert")
"""Axes along which the batch is split."""


def shards_state(axis: str) -> bool:
    """Whether ZeRO shards along an axis."""
    return all(part in _SHARDED for part in axis.split("+"))


def joined(axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes. First comes one axis that joins all axes along which ZeRO shards, and then the others."""
    sharded = [axis for axis in axes if axis in _SHARDED]
    others = tuple(axis for axis in axes if axis not in _SHARDED)
    return ("+".join(sharded), *others) if sharded else others


def size_along(mesh: Mapping[str, int], axis: str) -> int:
    """Number of devices along an axis, or along two joined axes; 1 if the mesh does not have the axis."""
    return math.prod(mesh.get(part, 1) for part in axis.split("+"))


class Node(BaseModel):
    """The setting of a subtree of the network's modules. ``None`` and missing keys are inherited."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    split: dict[str, str] = Field(
        {},
        description="Mesh axis by dim. A dim is a name, `batch`, `out` (columns) or `in` (rows).",
    )
    stage: int | None = Field(None, ge=0, le=_MOST_DEVICES, description="Pipeline stage.")
    recompute: bool | Literal["selective"] | None = Field(
        None,
        description="Compute activations again for the backward pass: those of whole blocks, or with "
        "`selective` only the attention scores.",
    )
    zero: Literal[0, 1, 2, 3] | None = Field(
        None,
        description="Shards over the data axis. 1: optimizer state, 2: also gradients, 3: also weights.",
    )
    children: dict[Annotated[str, Field(max_length=500)], "Node"] = Field(
        {}, description="Nodes below this node, by module path."
    )


class Strategy(BaseModel):
    """A parallel strategy for a training step."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    mesh: dict[str, int] = Field(
        {"data": 1},
        description="Axes and sizes, the outermost first. Neighbours differ on the last axis.",
    )
    micro_batches: int = Field(1, ge=1, le=MOST_MICRO_BATCHES)
    schedule: Literal["1f1b", "gpipe", "interleaved", "zb-h1"] = Field(
        "1f1b", description="Order of a pipeline's work."
    )
    virtual: int = Field(
        1,
        ge=1,
        le=1000,
        description="Chunks of the network on each device (schedule `interleaved`).",
    )
    scatter: Literal["each", "once"] = Field(
        "each",
        description="With ZeRO-2 and 3: gradients are scattered after each micro-batch, as FSDP and "
        "DeepSpeed do, or once in a step (FSDP under `no_sync`).",
    )
    sequence_parallel: bool = Field(
        False,
        description="Split all other ops along the sequence, over the tensor-parallel devices (Megatron).",
    )
    tensor_overlap: bool = Field(
        False,
        description="With sequence parallelism: gather and scatter activations in parts, while the product "
        "next to it computes (Megatron's tp-comm-overlap).",
    )
    overlap: bool = Field(True, description="Send gradients during the backward pass.")
    bucket_bytes: float | None = Field(
        None,
        ge=1,
        le=1e15,
        description="Least size of a gradient bucket. null: 1 MiB for the first, 25 MiB for others (DDP).",
    )
    tree: Node = Node()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return math.prod(self.mesh.values())

    @property
    def pipeline(self) -> int:
        """Number of devices in a pipeline."""
        return self.mesh.get("pipeline", 1)

    @property
    def stages(self) -> int:
        """Number of stages of the network. Stage ``s`` is on device ``s % pipeline`` of the pipeline."""
        return self.pipeline * self.virtual

    @property
    def replicas(self) -> int:
        """Number of parts of the batch."""
        return math.prod(self.mesh.get(axis, 1) for axis in REPLICAS)

    @property
    def spreads_experts(self) -> bool:
        """Whether the experts of a mixture are also divided among the tensor ranks, so that no expert is
        cut."""
        return self.sequence_parallel and "expert" in self.mesh

    @property
    def is_inferred(self) -> bool:
        """Whether the tree leaves all splits and stages open."""
        return not (self.tree.children or self.tree.split or self.tree.stage is not None)

    def check(self, devices: int | None) -> "Strategy":
        """The strategy itself, if it can be run on that many devices.

        Raises:
            JoulecastError: the product of the sizes is not the number of devices.
        """
        if devices not in (None, self.devices):
            short = {axis: key for key, axis in _AXES.items()}
            sizes = [f"{short.get(a, a)}={size}" for a, size in self.mesh.items() if size > 1]
            product = " x ".join(sizes) or "one device"
            raise JoulecastError(
                f"strategy: {product} takes {self.devices} devices, not the {devices} requested"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "Strategy":
        if wrong := self._wrong():
            raise ValueError(wrong)
        return self

    def _wrong(self) -> str | None:
        schedule, virtual, pipeline = self.schedule, self.virtual, self.pipeline
        for name, size in self.mesh.items():
            if size < 1:
                return f"mesh.{name}: {size} is below 1"
        if self.devices > _MOST_DEVICES:
            return (
                f"its mesh takes {self.devices} devices; at most {_MOST_DEVICES} can be simulated"
            )
        if self.sequence_parallel and self.mesh.get("tensor", 1) == 1:
            return (
                "sp splits the sequence over a tensor-parallel group, and there is none; give tp=2 or more "
                "with it, or leave sp out"
            )
        if self.tensor_overlap and not self.sequence_parallel:
            return "tp-overlap is for what sequence parallelism gathers and scatters; add sp, or leave it out"
        if (schedule == "interleaved") != (virtual > 1) or (virtual > 1 and pipeline == 1):
            return (
                f"schedule {schedule} with virtual={virtual} on {pipeline} pipeline stages: `interleaved` "
                "takes two stages and virtual=2 at least, the others virtual=1"
            )
        if schedule == "interleaved" and self.micro_batches % pipeline:
            return (
                f"schedule interleaved: micro={self.micro_batches} is no multiple of the pp={pipeline} "
                "stages; take the next multiple, or schedule=1f1b"
            )
        return None


def gradient_passes(strategy: Strategy) -> float:
    """Number of additional passes over a weight's gradient in the backward pass of a micro-batch. (The matrix
    product writes the gradient once. This pass is not counted.)

    From the second micro-batch on, the gradient is added to the sum so far: two reads and a write. DDP copies
    it into a bucket before it is sent, and out of the bucket afterwards (its default,
    ``gradient_as_bucket_view=False``).
    """
    zero, count = strategy.tree.zero or 0, strategy.micro_batches
    if not any(size > 1 for axis, size in strategy.mesh.items() if shards_state(axis)):
        zero = 0
    added = 3 * (count - 1) / count if zero < 2 else 0.0
    copied = 4 / count if zero == 0 and strategy.overlap and strategy.replicas > 1 else 0.0
    return added + copied


_RECOMPUTE: dict[str, bool | str] = {"": True, "full": True, "selective": "selective"}
_AXES = {"pp": "pipeline", "dp": "data", "cp": "context", "tp": "tensor"}
_GROUPS = {"shard": ("replica", "data"), "ep": ("data", "expert")}
"""For each key: the axis of the groups of replicas, and the axis of the replicas in a group."""
_FIELDS = {
    "micro": "micro_batches",
    "schedule": "schedule",
    "virtual": "virtual",
    "bucket": "bucket_bytes",
    "scatter": "scatter",
}
_WORDS = {
    "sp": {"sequence_parallel": True},
    "tp-overlap": {"tensor_overlap": True},
    "no-overlap": {"overlap": False},
}


def _whole(key: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise JoulecastError(f"{key}={value}: a whole number above 0 is needed")
    return int(value)


def parse_strategy(text: str) -> Strategy:
    """A strategy from a line like ``dp=8,tp=2,pp=4,micro=16,zero=1,recompute``.

    ``docs/reference/simulator.md`` explains all words: ``dp``, ``tp``, ``pp``, ``cp``, ``micro``,
    ``schedule``, ``virtual``, ``zero``, ``shard``, ``ep``, ``scatter``, ``bucket``, ``recompute``, ``sp``,
    ``tp-overlap``, ``no-overlap``. In place of the line, the text may be the path of a YAML file, which has a
    strategy with a tree.

    Raises:
        JoulecastError: a word is not known, or a number is missing or wrong.
    """
    if text.endswith((".yaml", ".yml")):
        return read_strategy(Path(text))
    try:
        content = _parsed(text)
    except JoulecastError as error:
        raise JoulecastError(f"strategy `{text}`: {error}") from None
    return validated(TypeAdapter(Strategy), content, f"strategy `{text}`")


def _parsed(text: str) -> dict[str, object]:
    sizes = dict.fromkeys(_AXES, 1)
    rest: dict[str, object] = {}
    root: dict[str, object] = {}
    groups: dict[str, int] = {}
    seen: set[str] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = word.partition("=")
        if key in seen:
            raise JoulecastError(f"`{key}` is there twice")
        seen.add(key)
        if key in sizes:
            sizes[key] = _whole(key, value)
        elif key in _GROUPS:
            groups[key] = _whole(key, value)
        elif key == "interleaved":
            rest |= {"schedule": "interleaved", "virtual": _whole(key, value)}
        elif key in ("micro", "virtual"):
            rest[_FIELDS[key]] = _whole(key, value)
        elif key in _FIELDS:
            rest[_FIELDS[key]] = value
        elif key == "zero":
            root["zero"] = int(value) if value.isdecimal() else value
        elif key == "recompute" and value in _RECOMPUTE:
            root["recompute"] = _RECOMPUTE[value]
        elif word in _WORDS:
            rest |= _WORDS[word]
        else:
            raise JoulecastError(
                f"`{word}` is not known (known: dp=, tp=, pp=, cp=, ep=, micro=, schedule=, virtual=, zero=, "
                "shard=, scatter=each|once, bucket=, recompute, recompute=selective, sp, tp-overlap, "
                "no-overlap; or the path of a YAML file)"
            )
    if rest.get("schedule") == "interleaved":
        rest.setdefault("virtual", 2)
    elif rest.get("virtual", 1) != 1:
        # Only this schedule gives a device several chunks of layers.
        rest.setdefault("schedule", "interleaved")
    if groups.get("ep", 1) > 1 and rest.get("sequence_parallel"):
        if groups["ep"] % sizes["tp"]:
            raise JoulecastError(
                f"ep={groups['ep']}: with sp the tp={sizes['tp']} tensor ranks count too; give a multiple of "
                "them"
            )
        groups["ep"] //= sizes["tp"]
    return {"mesh": _mesh(sizes, groups, root), "tree": root, **rest}


def _mesh(sizes: dict[str, int], groups: dict[str, int], root: dict[str, object]) -> dict[str, int]:
    """The mesh. Its replicas are in groups of neighbours that share shards or experts."""
    for key, size in groups.items():
        if sizes["dp"] % size:
            raise JoulecastError(f"{key}={size} does not divide the dp={sizes['dp']} replicas")
    if "shard" in groups and not root.get("zero"):
        raise JoulecastError(
            f"shard={groups['shard']} is for sharded training state; add zero=1, 2 or 3"
        )
    if len(groups) > 1:
        raise JoulecastError(
            f"ep={groups['ep']} and shard={groups['shard']} cannot be combined; leave one out"
        )
    mesh = {axis: sizes[key] for key, axis in _AXES.items() if key != "cp" or sizes["cp"] > 1}
    for key, size in groups.items():
        mesh = divided_replicas(mesh, key, size)
    return mesh


def divided_replicas(mesh: Mapping[str, int], key: str, size: int) -> dict[str, int]:
    """A mesh in which replicas are divided into groups of neighbours, for ``shard`` or ``ep``."""
    outer, inner = _GROUPS[key]
    found: dict[str, int] = {}
    for axis, count in mesh.items():
        found |= {outer: count // size, inner: size} if axis == "data" else {axis: count}
    return found


def read_strategy(path: Path) -> Strategy:
    """Read a strategy with its tree from YAML.

    Raises:
        JoulecastError: the file is missing, is no YAML, or has wrong keys.
    """
    return validated(TypeAdapter(Strategy), read_yaml(path, "strategy file"), str(path))


def _words_of_mesh(strategy: Strategy) -> list[str]:
    short = {axis: key for key, axis in _AXES.items()}
    groups = {key: axes for key, axes in _GROUPS.items() if set(axes) <= set(strategy.mesh)}
    inside = {axis for axes in groups.values() for axis in axes}
    words = []
    for axis, size in strategy.mesh.items():
        if groups and axis in inside:
            size = strategy.replicas if axis == "data" else 1
        if size > 1:
            words.append(f"{short.get(axis, axis)}={size}")
    spread = strategy.mesh.get("tensor", 1) if strategy.spreads_experts else 1
    words += [f"{key}={strategy.mesh[inner] * spread}" for key, (_, inner) in groups.items()]
    return words or ["dp=1"]


def text_of(strategy: Strategy) -> str:
    """The line for a strategy that :func:`parse_strategy` reads. For a strategy with a tree or with other
    axes, the line only says so."""
    recompute = strategy.tree.recompute
    words = {
        f"micro={strategy.micro_batches}": strategy.micro_batches > 1,
        f"schedule={strategy.schedule}": strategy.pipeline > 1,
        f"virtual={strategy.virtual}": strategy.virtual > 1,
        f"zero={strategy.tree.zero}": strategy.tree.zero,
        "scatter=once": strategy.scatter == "once",
        "recompute=selective": recompute == "selective",
        "recompute": recompute and recompute != "selective",
        "sp": strategy.sequence_parallel,
        "tp-overlap": strategy.tensor_overlap,
        f"bucket={strategy.bucket_bytes or 0:.15g}": strategy.bucket_bytes,
        "no-overlap": not strategy.overlap,
        "with a tree": strategy.tree.children or strategy.tree.split,
    }
    return ",".join([*_words_of_mesh(strategy), *(word for word, said in words.items() if said)])
