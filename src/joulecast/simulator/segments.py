"""Cutting a stage's program where something is sent or awaited, and gradients into buckets."""

from collections.abc import Callable
from dataclasses import dataclass, field

from joulecast.simulator.phase import Key, Message, Phase, Step, WeightGradient
from joulecast.simulator.strategy import DDP_BUCKET, DDP_FIRST_BUCKET


@dataclass
class Bucket:
    """Gradients that are sent together, once the last of them is ready."""

    bytes: float
    after: int
    axes: tuple[str, ...]
    zero: int
    unit: str = ""
    """The block that they are of, where each block's are sent by themselves."""


def buckets_of(
    gradients: list[WeightGradient],
    least: float | None,
    usual: tuple[float, float] = (DDP_FIRST_BUCKET, DDP_BUCKET),
) -> list[Bucket]:
    """Gradients in buckets, in the order in which backward has them ready.

    A bucket closes when it has reached its least size: 1 MiB for the first and 25 MiB for the others, as
    PyTorch's DistributedDataParallel does (``usual``), or ``least`` bytes for all. Gradients that are kept
    in shards (ZeRO-2 and 3) are scattered block by block, as FSDP does, unless ``least`` is given.
    """
    closed: list[Bucket] = []
    filling: dict[tuple[tuple[str, ...], int, str], Bucket] = {}
    for gradient in gradients:
        if not gradient.axes or not gradient.bytes:
            continue
        by_unit = least is None and gradient.zero >= 2
        kind = (gradient.axes, gradient.zero, gradient.unit if by_unit else "")
        bucket = filling.setdefault(kind, Bucket(0.0, -1, *kind))
        bucket.bytes += gradient.bytes
        bucket.after = max(bucket.after, gradient.after)
        first = all((b.axes, b.zero, b.unit) != kind for b in closed)
        if not by_unit and bucket.bytes >= (least or usual[0 if first else 1]):
            closed.append(filling.pop(kind))
    return sorted([*closed, *filling.values()], key=lambda bucket: bucket.after)


@dataclass
class Segment:
    """Steps that run through without a break."""

    steps: list[int]
    needs: list[int] = field(default_factory=list)
    receives: list[Key] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Messages that start when it ends."""
    parts: tuple[tuple[Step, float], ...] = ()
    """Its steps and their seconds."""
    seconds: float = 0.0


def chained(
    phase: Phase, segments: list[Segment], ends: set[int], own: Callable[[Message], bool]
) -> list[tuple[list[Segment], list[int]]]:
    """Segments in runs that are chains, with the messages between them.

    Two segments are links of one chain if the first does nothing at its end but start one collective of the
    device's own class, for which alone the second waits. No bucket is sent in between.

    Args:
        phase: that the segments are of.
        segments: in order.
        ends: steps after which a bucket is sent.
        own: whether only this class takes part in a collective.
    """
    runs: list[tuple[list[Segment], list[int]]] = []
    for segment in segments:
        if runs:
            run, between = runs[-1]
            before = run[-1]
            if (
                len(before.starts) == 1
                and set(segment.needs) == set(before.starts)
                and not segment.receives
                and ends.isdisjoint(before.steps)
                and _in_line(phase.messages[before.starts[0]], between, own)
            ):
                run.append(segment)
                between.append(before.starts[0])
                continue
        runs.append(([segment], []))
    return runs


def _in_line(message: Message, between: list[int], own: Callable[[Message], bool]) -> bool:
    return (
        message.key is None
        and not message.weights
        and set(message.behind) <= set(between)
        and own(message)
    )


def segments_of(phase: Phase, buckets: list[Bucket], fuse: bool) -> list[Segment]:
    """Cut a phase where steps wait for something or something waits for them."""
    starts: dict[int, list[int]] = {}
    for number, message in enumerate(phase.messages):
        starts.setdefault(message.after, []).append(number)
    ends = {bucket.after for bucket in buckets} | set(starts)
    segments: list[Segment] = []
    open_segment = False
    for number, step in enumerate(phase.steps):
        if not (open_segment and fuse) or step.needs or step.receives:
            segments.append(Segment([]))
        segments[-1].steps.append(number)
        segments[-1].needs += step.needs
        segments[-1].receives += step.receives
        segments[-1].starts += starts.get(number, [])
        open_segment = number not in ends
    return segments
