"""Phases of a micro-batch on one device: its steps of computing, and the messages between them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from joulecast.graphs.costs import Direction
from joulecast.simulate.collectives import Kind, Layout
from joulecast.simulate.placement import PlacedOp
from joulecast.simulate.strategy import shards_state, size_along


class Crossing(NamedTuple):
    """A tensor that is sent from one stage to another."""

    tensor: str
    direction: Direction
    layout: Layout
    source: int
    """The stage that sends it."""
    target: int


@dataclass
class Step:
    """One op in one direction: forward, backward, or forward again (recomputation)."""

    item: PlacedOp
    direction: Direction
    again: bool = False
    needs: list[int] = field(default_factory=list)
    """Messages to wait for."""
    receives: list[Crossing] = field(default_factory=list)


@dataclass
class Message:
    """A collective along a mesh axis, or a tensor that is sent to another stage."""

    kind: Kind
    axis: str
    bytes: float
    label: str
    after: int
    """The step that makes the content of the message; -1: the start of the phase."""
    behind: list[int] = field(default_factory=list)
    """Messages to wait for."""
    crossing: Crossing | None = None
    weights: bool = False
    """Whether it gathers weights (ZeRO-3)."""
    received: Crossing | None = None
    """Tensor of another stage that the message gathers, after each tensor rank has received its part."""


@dataclass
class Phase:
    """The forward pass or the backward pass of one micro-batch."""

    steps: list[Step] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> int:
        """Add a message. Returns its number."""
        self.messages.append(message)
        return len(self.messages) - 1


class Sharding(NamedTuple):
    """How the training state of a weight is divided over replicas."""

    bytes: float
    """Bytes of the weight that a device computes with."""
    zero: int
    axis: str
    """Mesh axis of the shards, or two axes joined by ``+``; empty: there are no shards."""
    shards: int


class WeightGradient(NamedTuple):
    """The gradient of a parameter, and the step of the backward pass that completes it."""

    parameter: str
    bytes: float
    axes: tuple[str, ...]
    """Mesh axes along which the gradient is a partial sum."""
    after: int
    unit: str
    sharding: Sharding
    """Sharding of the weight."""

    @property
    def gathered_after_update(self) -> bool:
        """Whether each device updates only a shard of the weight, and the others need this shard right after
        the update (ZeRO-1)."""
        return self.sharding.zero == 1 and self.sharding.axis in self.axes


def reduction(zero: int, axis: str) -> Kind:
    """The collective that sums gradients along an axis. With ZeRO, a device needs only its own shard of the
    sum."""
    return "reduce_scatter" if zero and shards_state(axis) else "all_reduce"


def gather_weights(phase: Phase, gathered: Mapping[str, Mapping[str, Sharding]]) -> Phase:
    """The phase, with gathers of weights. The weights of a block are gathered while the block before it
    computes.

    If a later block needs the same weight, it is kept until then. (For example, the output layer may share
    the weight of the embedding.)
    """
    if not gathered:
        return phase
    phase = Phase(list(phase.steps), list(phase.messages))
    starts: list[tuple[str, int]] = []
    for number, step in enumerate(phase.steps):
        unit = step.item.unit
        if unit in gathered and (not starts or starts[-1][0] != unit):
            starts.append((unit, number))
    units = {unit for unit, _ in starts}
    blocks_of = Counter(tensor for unit in units for tensor in gathered[unit])
    shared = {tensor for tensor, blocks in blocks_of.items() if blocks > 1}
    held: set[str] = set()
    for place, (unit, first) in enumerate(starts):
        after = starts[place - 1][1] - 1 if place else -1
        sizes: dict[str, float] = defaultdict(float)
        for tensor, weight in gathered[unit].items():
            if tensor not in held:
                sizes[weight.axis] += weight.bytes
        held |= shared & gathered[unit].keys()
        label = f"gather weights of {unit}"
        gathers = [
            phase.send(Message("all_gather", axis, size, label, after, weights=True))
            for axis, size in sizes.items()
        ]
        step = phase.steps[first]
        phase.steps[first] = replace(step, needs=[*step.needs, *gathers])
    return phase


@dataclass
class Bucket:
    """Gradients that are sent together, when the last of them is ready."""

    bytes: float
    after: int
    axes: tuple[str, ...]
    zero: int
    unit: str = ""
    """The block of the gradients, if the gradients of each block are sent alone."""
    number: int = 0
    """Its place among the buckets of its stage."""

    @property
    def stream(self) -> str:
        """The stream of its collectives. Gathers of weights share it from ZeRO-2 on."""
        return "weights" if self.zero >= 2 else "gradient"

    def sums(self, mesh: Mapping[str, int]) -> Iterator[tuple[Kind, str, float]]:
        """The collectives that sum the gradients: kind, axis and bytes of each."""
        size = self.bytes
        for axis in self.axes:
            kind = reduction(self.zero, axis)
            yield kind, axis, size
            if kind == "reduce_scatter":
                size /= size_along(mesh, axis)


def buckets_of(
    gradients: list[WeightGradient], least: float | None, usual: tuple[float, float]
) -> list[Bucket]:
    """Gradients in buckets, in the order in which the backward pass completes them.

    A bucket closes when it has reached its least size: 1 MiB for the first and 25 MiB for the others, as
    PyTorch's DistributedDataParallel does (``usual``), or ``least`` bytes for all. Gradients that are kept
    in shards (ZeRO-2 and 3) are scattered block by block, as FSDP does, unless ``least`` is given.
    """
    closed: list[Bucket] = []
    filling: dict[tuple[tuple[str, ...], int, str], Bucket] = {}
    for gradient in gradients:
        if not gradient.axes or not gradient.bytes:
            continue
        zero = gradient.sharding.zero
        by_unit = least is None and zero >= 2
        kind = (gradient.axes, zero, gradient.unit if by_unit else "")
        bucket = filling.setdefault(kind, Bucket(0.0, -1, *kind))
        bucket.bytes += gradient.bytes
        bucket.after = max(bucket.after, gradient.after)
        first = all((b.axes, b.zero, b.unit) != kind for b in closed)
        if not by_unit and bucket.bytes >= (least or usual[0 if first else 1]):
            closed.append(filling.pop(kind))
    found = sorted([*closed, *filling.values()], key=lambda bucket: bucket.after)
    return [replace(bucket, number=number) for number, bucket in enumerate(found)]


@dataclass
class Segment:
    """Steps of a device's program that run one after the other. Nothing is sent or awaited between them."""

    needs: list[int]
    receives: list[Crossing]
    starts: list[int] = field(default_factory=list)
    """Messages that start when the segment ends."""
    buckets: list[Bucket] = field(default_factory=list)
    """Buckets that are sent when the segment ends."""
    parts: list[tuple[Step, float]] = field(default_factory=list)
    """The steps of the segment, and their seconds."""
    seconds: float = 0.0


def segments_of(
    phase: Phase,
    buckets: Sequence[Bucket],
    fuse: bool,
    seconds_of: Callable[[Step], float],
) -> list[Segment]:
    """Cut a phase at every step that waits for a message, or for which a message or a bucket waits."""
    starts: dict[int, list[int]] = defaultdict(list)
    for number, message in enumerate(phase.messages):
        starts[message.after].append(number)
    ready: dict[int, list[Bucket]] = defaultdict(list)
    for bucket in buckets:
        ready[bucket.after].append(bucket)
    segments: list[Segment] = []
    ended = True
    for number, step in enumerate(phase.steps):
        if ended or step.needs or step.receives:
            segments.append(Segment(step.needs, step.receives))
        seconds = seconds_of(step)
        segments[-1].parts.append((step, seconds))
        segments[-1].seconds += seconds
        ended = number in starts or number in ready or not fuse
        if ended:
            segments[-1].starts, segments[-1].buckets = starts[number], ready[number]
    return segments
