"""The strategy tree: how a network's ops are split over a mesh of devices, and in which order they run.

The mesh has named axes, ``pipeline``, ``data`` and ``tensor`` by habit, whose sizes multiply to the number
of devices; a tree that mirrors the network's modules says which dim of an op is split along which axis,
which pipeline stage it belongs to, whether its activations are computed again for backward, and how much of
its training state each device keeps (ZeRO). What a node does not say it inherits from its parent; what
is not given is inferred: ``data`` splits the batch, ``tensor`` splits columns and rows of matrix products
in turn (Megatron), ``pipeline`` cuts the network where the stages' times come out even, and every other op
follows the tensors that it reads (Duan et al. 2024, section 4; placements by mesh axis after GSPMD).
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_yaml, validated
from joulecast.graphs.schedules import Work, work_order

DDP_FIRST_BUCKET = 1 << 20
DDP_BUCKET = 25 << 20
_MOST_DEVICES = 1_000_000


class Node(BaseModel):
    """What a subtree of the network's modules does; ``None`` and missing keys are inherited."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    split: dict[str, str] = Field(
        {},
        description="Mesh axis by dim: a dim's own name, or `batch`, `out` (columns), `in` (rows).",
    )
    stage: int | None = Field(None, ge=0, le=_MOST_DEVICES, description="Pipeline stage.")
    recompute: bool | None = Field(None, description="Compute activations again for backward.")
    zero: Literal[0, 1, 2, 3] | None = Field(
        None,
        description="Shard over the data axis: 1 optimizer state, 2 also gradients, 3 also weights.",
    )
    children: dict[Annotated[str, Field(max_length=500)], "Node"] = Field(
        {}, description="By module path from this node."
    )


class Strategy(BaseModel):
    """A parallel training step."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    mesh: dict[str, int] = Field(
        {"data": 1}, description="Axes and sizes, the outermost first: neighbours lie on the last."
    )
    micro_batches: int = Field(1, ge=1, le=10_000)
    schedule: Literal["1f1b", "gpipe"] | tuple[int, ...] = Field(
        "1f1b", description="Or, for each stage, how many micro-batches may be under way at most."
    )
    overlap: bool = Field(True, description="Send gradients during the backward pass.")
    bucket_bytes: float | None = Field(
        None,
        ge=1,
        le=1e15,
        description="Least size of a gradient bucket; null: 1 MiB, then 25 MiB (DDP).",
    )
    tree: Node = Node()

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        count = 1
        for size in self.mesh.values():
            count *= size
        return count

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.mesh.get("pipeline", 1)

    def under_way(self, stage: int) -> int:
        """Micro-batches whose forward a stage may have done without their backward."""
        if self.schedule == "gpipe":
            return self.micro_batches
        if self.schedule == "1f1b":
            return min(self.micro_batches, self.stages - stage)
        return min(self.micro_batches, self.schedule[stage])

    def check(self, devices: int | None = None) -> "Strategy":
        """The strategy itself, if it can be run on that many devices.

        Raises:
            JoulecastError: sizes that do not multiply to the devices, or a schedule that does not fit.
        """
        for name, size in self.mesh.items():
            if size < 1:
                raise JoulecastError(f"strategy: mesh.{name}: {size} is below 1")
        if self.devices > _MOST_DEVICES:
            raise JoulecastError(
                f"strategy: its mesh takes {self.devices} devices, more than the {_MOST_DEVICES} that can be "
                "simulated"
            )
        if devices is not None and devices != self.devices:
            sizes = [f"{name}={size}" for name, size in self.mesh.items() if size > 1]
            product = " x ".join(sizes) or "one device"
            raise JoulecastError(
                f"strategy: {product} takes {self.devices} devices, not the {devices} asked for"
            )
        if isinstance(self.schedule, tuple):
            if len(self.schedule) != self.stages or min(self.schedule) < 1:
                raise JoulecastError(
                    f"strategy: schedule {list(self.schedule)}: one number above 0 for each of the "
                    f"{self.stages} stages"
                )
            for stage, (here, later) in enumerate(
                zip(self.schedule, self.schedule[1:], strict=False)
            ):
                if here < later:
                    raise JoulecastError(
                        f"strategy: schedule: stage {stage} may have {here} micro-batches under way "
                        f"and stage {stage + 1} waits for {later}: it would wait for ever"
                    )
        return self


def phases(strategy: Strategy, stage: int) -> list[Work]:
    """Order of a stage's work in a step."""
    most = None if strategy.schedule == "gpipe" else strategy.under_way(stage)
    return work_order(strategy.micro_batches, most)


def _schedule(text: str, value: str) -> str | list[int]:
    if value in ("1f1b", "gpipe"):
        return value
    if all(part.isdigit() for part in value.split("/")):
        return [int(part) for part in value.split("/")]
    raise JoulecastError(
        f"strategy `{text}`: schedule={value}: 1f1b, gpipe, or how many micro-batches each stage may have "
        "under way, as 3/2/1"
    )


_AXES = {"dp": "data", "tp": "tensor", "pp": "pipeline"}


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise JoulecastError(f"strategy `{text}`: {key}={value} is no number") from None
    if not math.isfinite(number):
        raise JoulecastError(f"strategy `{text}`: {key}={value} is not finite")
    return number


def _whole(text: str, key: str, value: str) -> int:
    number = _number(text, key, value)
    if number != int(number):
        raise JoulecastError(f"strategy `{text}`: {key}={value}: a whole number is needed")
    return int(number)


def parse_strategy(text: str) -> Strategy:
    """A strategy from a line like ``dp=8,tp=2,pp=4,micro=16,zero=1,recompute``.

    Keys: ``dp``, ``tp``, ``pp`` (sizes), ``micro`` (micro-batches), ``schedule`` (1f1b, gpipe, or how many
    micro-batches each stage may have under way, as 3/2/1), ``zero`` (0..3), ``bucket`` (bytes), and the words
    ``recompute`` and ``no-overlap``. A path of a YAML file gives a strategy with a tree of its own.

    Raises:
        JoulecastError: an unknown word, or a number that is none.
    """
    if text.endswith((".yaml", ".yml")):
        return read_strategy(Path(text))
    sizes = {"pp": 1, "dp": 1, "tp": 1}
    rest: dict[str, object] = {}
    root: dict[str, object] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = word.partition("=")
        if key in sizes:
            sizes[key] = _whole(text, key, value)
            if sizes[key] < 1:
                raise JoulecastError(f"strategy `{text}`: {word}: a whole number above 0 is needed")
        elif key == "micro":
            rest["micro_batches"] = _whole(text, key, value)
        elif key == "bucket":
            rest["bucket_bytes"] = _number(text, key, value)
        elif key == "schedule":
            rest["schedule"] = _schedule(text, value)
        elif key == "zero":
            root["zero"] = _whole(text, key, value)
        elif word == "recompute":
            root["recompute"] = True
        elif word == "no-overlap":
            rest["overlap"] = False
        else:
            raise JoulecastError(
                f"strategy `{text}`: `{word}` is not known (known: dp=, tp=, pp=, micro=, schedule=, "
                "zero=, bucket=, recompute, no-overlap; or the path of a YAML file)"
            )
    mesh = {_AXES[key]: size for key, size in sizes.items()}
    return _validated({"mesh": mesh, "tree": root, **rest}, f"strategy `{text}`")


def _validated(content: object, origin: str) -> Strategy:
    strategy = validated(TypeAdapter(Strategy), content, origin)
    try:
        return strategy.check()
    except JoulecastError as error:
        raise JoulecastError(f"{origin}: {error}") from None


def read_strategy(path: Path) -> Strategy:
    """Read a strategy with its tree from YAML.

    Raises:
        JoulecastError: missing, no YAML, or wrong keys.
    """
    return _validated(read_yaml(path, "strategy file"), str(path))


def text_of(strategy: Strategy) -> str:
    """The line that :func:`parse_strategy` reads; a tree or axes of one's own are only hinted at."""
    short = {axis: key for key, axis in _AXES.items()}
    words = [f"{short.get(axis, axis)}={size}" for axis, size in strategy.mesh.items() if size > 1]
    words = words or ["dp=1"]
    if strategy.micro_batches > 1:
        words.append(f"micro={strategy.micro_batches}")
    if strategy.stages > 1:
        schedule = strategy.schedule
        text = schedule if isinstance(schedule, str) else "/".join(map(str, schedule))
        words.append(f"schedule={text}")
    if strategy.tree.zero:
        words.append(f"zero={strategy.tree.zero}")
    if strategy.tree.recompute:
        words.append("recompute")
    if strategy.bucket_bytes:
        words.append(f"bucket={strategy.bucket_bytes:.15g}")
    if not strategy.overlap:
        words.append("no-overlap")
    if strategy.tree.children or strategy.tree.split:
        words.append("with a tree")
    return ",".join(words)
