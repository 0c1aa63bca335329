"""Cutting a stage's program where something is sent or awaited, and gradients into buckets."""

from collections.abc import Callable
from dataclasses import dataclass, field

from joulecast.simulate.phase import Key, Message, Phase, Step, WeightGradient
from joulecast.simulate.strategy import DDP_BUCKET, DDP_FIRST_BUCKET


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


@dataclass(frozen=True)
class Join:
    """A message between two segments of a chain."""

    message: int
    meanwhile: bool = False
    """Whether it is under way while the second computes, and not in line between both."""


def chained(
    phase: Phase, segments: list[Segment], ends: set[int], own: Callable[[Message], bool]
) -> list[tuple[list[Segment], list[Join]]]:
    """Segments in runs that are chains, with the messages between them.

    Two segments are links of one chain if the first does nothing at its end but start one collective of the
    device's own class, for which alone the second waits. No bucket is sent in between. Where the second does
    not wait for it, the collective may be under way meanwhile: then the third must wait for one that the
    second starts, which queues behind it.

    Args:
        phase: that the segments are of.
        segments: in order.
        ends: steps after which a bucket is sent.
        own: whether only this class takes part in a collective.
    """
    runs: list[tuple[list[Segment], list[Join]]] = []

    def passes_on(segment: Segment, joins: list[Join]) -> bool:
        """Whether a segment ends with one collective, and nothing else."""
        if len(segment.starts) != 1 or not ends.isdisjoint(segment.steps):
            return False
        return _in_line(phase.messages[segment.starts[0]], joins, own)

    place = 0
    while place < len(segments):
        segment, after = segments[place], segments[place + 1 : place + 2]
        place += 1
        if not runs or segment.receives or not passes_on(runs[-1][0][-1], runs[-1][1]):
            runs.append(([segment], []))
            continue
        run, joins = runs[-1]
        message = run[-1].starts[0]
        if set(segment.needs) == {message}:
            run.append(segment)
            joins.append(Join(message))
        elif (
            not segment.needs
            and passes_on(segment, joins)
            and after
            and not after[0].receives
            and segment.starts[0] in after[0].needs
            and set(after[0].needs) <= {message, segment.starts[0]}
        ):
            run += [segment, *after]
            joins += [Join(message, meanwhile=True), Join(segment.starts[0])]
            place += 1
        else:
            runs.append(([segment], []))
    return runs


def _in_line(message: Message, joins: list[Join], own: Callable[[Message], bool]) -> bool:
    return (
        message.key is None
        and not message.weights
        and set(message.behind) <= {join.message for join in joins}
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
