"""Pipeline schedules: the order of each stage's work, and its times. Needs no torch and no MPI.

    order of one stage's work     stage_order("1f1b", stages=4, stage=0, micro_batches=8)
    every stage's work in time    timeline([1, 2], [2, 4], "gpipe", micro_batches=8)
    when the last work ends       makespan([1, 2], [2, 4], "gpipe", micro_batches=8)

GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2019 (PipeDream), here with a flush after every batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
