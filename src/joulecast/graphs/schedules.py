"""Pipeline schedules: the order of each stage's work, and its times. Needs no torch and no MPI.

    order of one stage's work     stage_order("1f1b", stages=4, stage=0, micro_batches=8)
    every stage's work in time    timeline([1, 2], [2, 4], "gpipe", micro_batches=8)
    when the last work ends       makespan([1, 2], [2, 4], "gpipe", micro_batches=8)

GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2019 (PipeDream), here with a flush after every batch.
Interleaved 1F1B: Narayanan et al. 2021 (Megatron-LM), section 2.2. ZB-H1: Qi et al. 2023, section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from joulecast.errors import JoulecastError

Schedule = Literal["gpipe", "1f1b"]
Phase = Literal["forward", "backward"]
Work = tuple[Phase, int]
"""What a stage does next, and the micro-batch it does it for (0-based)."""


def work_order(micro_batches: int, most_in_flight: int | None = None) -> list[Work]:
    """Order of a stage's work: a forward while it may do one, else a backward.

    Args:
        most_in_flight: micro-batches whose forward is done and whose backward is not; ``None``: all forwards
            come first, then all backwards in the opposite order (GPipe).
    """
    if most_in_flight is None:
        forwards: list[Work] = [("forward", batch) for batch in range(micro_batches)]
        return forwards + [("backward", batch) for batch in reversed(range(micro_batches))]
    order: list[Work] = []
    forward = backward = 0
    while backward < micro_batches:
        if forward < micro_batches and forward - backward < most_in_flight:
            order.append(("forward", forward))
            forward += 1
        else:
            order.append(("backward", backward))
            backward += 1
    return order


class Turn(NamedTuple):
    """What a device does next, where it may hold several chunks of the network or split its backward."""

    phase: Literal["forward", "backward", "weights"]
    """``weights``: the gradients of weights, where the backward leaves them for later."""
    micro_batch: int
    chunk: int = 0
    """Which of the device's parts of the network."""


def interleaved_order(devices: int, device: int, micro_batches: int, chunks: int) -> list[Turn]:
    """Order of a device's work when it holds several chunks of the network (Megatron-LM).

    Micro-batches pass in groups of as many as there are devices: a group goes through a device's first chunk,
    then through its second, and so on; backward the other way. With equal chunks the bubble is that of 1F1B
    over ``chunks``.

    Raises:
        JoulecastError: the micro-batches are no multiple of the devices.
    """
    if micro_batches % devices:
        raise JoulecastError(
            f"schedule: interleaved: {micro_batches} micro-batches are no multiple of the {devices} pipeline "
            "stages"
        )
    total = micro_batches * chunks

    def piece(phase: Literal["forward", "backward"], number: int) -> Turn:
        group, inside = divmod(number, devices * chunks)
        chunk, place = divmod(inside, devices)
        chunk = chunk if phase == "forward" else chunks - 1 - chunk
        return Turn(phase, group * devices + place, chunk)

    ahead = min(total, 2 * (devices - device - 1) + (chunks - 1) * devices)
    order = [piece("forward", number) for number in range(ahead)]
    for number in range(total - ahead):
        order += [piece("forward", ahead + number), piece("backward", number)]
    return order + [piece("backward", number) for number in range(total - ahead, total)]


def zero_bubble_order(devices: int, device: int, micro_batches: int) -> list[Turn]:
    """Order of a device's work when its backward is split in two (ZB-H1).

    Gradients of weights wait until nothing else is to do: device ``i`` keeps those of ``i`` micro-batches
    back, and fills with them what is the bubble of 1F1B at the end. With equal times of forward and both
    parts of backward the bubble is a third of that of 1F1B, and no device keeps more than the first does.
    """
    ahead = min(micro_batches, devices - device)
    order = [Turn("forward", batch) for batch in range(ahead)]
    for batch in range(micro_batches):
        order.append(Turn("backward", batch))
        if batch >= device:
            order.append(Turn("weights", batch - device))
        if ahead + batch < micro_batches:
            order.append(Turn("forward", ahead + batch))
    left = range(max(0, micro_batches - device), micro_batches)
    return order + [Turn("weights", batch) for batch in left]


def stage_order(schedule: Schedule, stages: int, stage: int, micro_batches: int) -> list[Work]:
    """Order of a stage's work: with 1F1B stage s of p has at most p - s micro-batches in flight."""
    return work_order(micro_batches, None if schedule == "gpipe" else stages - stage)


@dataclass(frozen=True)
class Event:
    """One piece of work; times count from the start of the batch."""

    start_s: float
    stop_s: float
    stage: int
    phase: Phase
    micro_batch: int


@dataclass(frozen=True)
class Timeline:
    """All work of one batch, by its start; ``busy_shares`` of each stage are of the makespan."""

    events: tuple[Event, ...]
    makespan_s: float
    busy_shares: tuple[float, ...]


def _checked_times(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    schedule: str,
    micro_batches: int,
    transfer_s: float,
) -> None:
    if schedule not in ("gpipe", "1f1b"):
        raise JoulecastError(f"schedule: `{schedule}` is neither gpipe nor 1f1b")
    if not forward_s or len(forward_s) != len(backward_s):
        raise JoulecastError(
            f"schedule: {len(forward_s)} forward and {len(backward_s)} backward times; every stage has one "
            "of each"
        )
    if micro_batches < 1:
        raise JoulecastError(f"schedule: {micro_batches} micro-batches; there must be one at least")
    if not all(0 <= seconds < float("inf") for seconds in (*forward_s, *backward_s, transfer_s)):
        raise JoulecastError("schedule: a time is negative or not finite")


def timeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    schedule: Schedule,
    micro_batches: int,
    transfer_s: float = 0.0,
) -> Timeline:
    """Every stage's work of one batch in time.

    A stage works in :func:`stage_order`. A forward waits for that micro-batch's forward in the stage before,
    a backward for its backward in the stage after; ``transfer_s`` later what they give is there.

    Args:
        forward_s: seconds of each stage's forward of one micro-batch.
        backward_s: the same of its backward.
        transfer_s: from one stage to the next, both ways; takes no stage's time.

    Raises:
        JoulecastError: lists of different lengths, no stage, no micro-batch, or a negative time.
    """
    _checked_times(forward_s, backward_s, schedule, micro_batches, transfer_s)
    stages = len(forward_s)
    orders = [iter(stage_order(schedule, stages, stage, micro_batches)) for stage in range(stages)]
    upcoming = [next(order, None) for order in orders]
    free_s = [0.0] * stages
    stops: dict[tuple[Phase, int, int], float] = {}
    events: list[Event] = []

    def ready_s(stage: int, phase: Phase, batch: int) -> float | None:
        """Time at which the input of a stage is there; ``None`` if that is not known yet."""
        from_stage = stage - 1 if phase == "forward" else stage + 1
        if not 0 <= from_stage < stages:
            return 0.0
        stop = stops.get((phase, from_stage, batch))
        return None if stop is None else stop + transfer_s

    while any(upcoming):
        for stage in range(stages):
            while (work := upcoming[stage]) and (ready := ready_s(stage, *work)) is not None:
                phase, batch = work
                start = max(free_s[stage], ready)
                stop = start + (forward_s if phase == "forward" else backward_s)[stage]
                free_s[stage] = stops[phase, stage, batch] = stop
                events.append(Event(start, stop, stage, phase, batch))
                upcoming[stage] = next(orders[stage], None)
    end = max(free_s)
    shares = [
        micro_batches * (forward + backward) / end if end else 0.0
        for forward, backward in zip(forward_s, backward_s, strict=True)
    ]
    # The sort is stable, and events of no length were found after those they wait for.
    events.sort(key=lambda event: event.start_s)
    return Timeline(tuple(events), end, tuple(shares))


def makespan(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    schedule: Schedule,
    micro_batches: int,
    transfer_s: float = 0.0,
) -> float:
    """Seconds from the start of a batch to the end of its last backward; see :func:`timeline`.

    Without transfers GPipe's is sum f + (M - 1) max f + sum b + (M - 1) max b.
    """
    return timeline(forward_s, backward_s, schedule, micro_batches, transfer_s).makespan_s
