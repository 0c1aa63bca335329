"""Pipeline schedules: the order of a device's work in a step, and how many micro-batches the device holds.

A schedule is a list of turns. GPipe, 1F1B, interleaved 1F1B and ZB-H1 differ only in this list.

GPipe: Huang et al. 2019. 1F1B: Narayanan et al. 2019 (PipeDream), here with a flush after every batch.
Interleaved 1F1B: Narayanan et al. 2021 (Megatron-LM), section 2.2. ZB-H1: Qi et al. 2023, section 2.
"""

from collections import Counter
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from joulecast.simulate.strategy import Strategy

Phase = Literal["forward", "backward", "weights"]
"""Phases. ``weights`` computes the gradients of weights, if the backward leaves them for later."""


class Turn(NamedTuple):
    """A turn: the next work of a device."""

    phase: Phase
    micro_batch: int
    chunk: int = 0
    """Number of the device's part of the network, if it holds several parts."""


class Work(NamedTuple):
    """The work of a turn. A step has many turns, but few different pieces of work."""

    phase: Phase
    chunk: int
    at_edge: bool
    """Whether the turn is a chunk's first ``forward``, its last ``backward``, or its last ``weights``."""


class DeviceOrder:
    """Order of the work of a pipeline's device in a step."""

    def __init__(self, turns: list[Turn]) -> None:
        self.turns = turns
        last = {turn[::2]: turn for turn in turns}
        first = {turn[::2]: turn for turn in reversed(turns)}
        edges = {(first if phase == "forward" else last)[phase, chunk] for phase, chunk in first}
        self.works = [Work(turn.phase, turn.chunk, turn in edges) for turn in turns]
        self.counts = Counter(self.works)
        """Number of turns with each work."""

    @cached_property
    def in_flight(self) -> dict[tuple[Work, tuple[int, ...]], None]:
        """The pieces of work. With each: how many micro-batches of each chunk have saved tensors in the
        device's memory before this piece begins."""
        held = [0] * (1 + max(work.chunk for work in self.works))
        # If a backward pass is split in two, its saved tensors are needed until the second half.
        halves = any(work.phase == "weights" for work in self.works)
        found: dict[tuple[Work, tuple[int, ...]], None] = {}
        for work in self.works:
            found[work, tuple(held)] = None
            if work.phase == "forward":
                held[work.chunk] += 1
            elif work.phase == "weights" or not halves:
                held[work.chunk] -= 1
        return found


def device_order(strategy: Strategy, device: int) -> DeviceOrder:
    """Order of the work of a pipeline's device in a step."""
    return _order(
        strategy.schedule, strategy.pipeline, device, strategy.micro_batches, strategy.virtual
    )


# Strategies that differ only in their sharding have the same order. Both the memory and the time of a step
# need it.
@lru_cache(maxsize=1024)
def _order(kind: str, pipeline: int, device: int, micro_batches: int, chunks: int) -> DeviceOrder:
    if kind == "interleaved":
        return DeviceOrder(_interleaved(pipeline, device, micro_batches, chunks))
    if kind == "zb-h1":
        return DeviceOrder(_zero_bubble(pipeline, device, micro_batches))
    if kind == "gpipe":
        # All forwards come first, then all backwards in the opposite order.
        forwards = [Turn("forward", batch) for batch in range(micro_batches)]
        return DeviceOrder(
            [*forwards, *(turn._replace(phase="backward") for turn in forwards[::-1])]
        )
    return DeviceOrder(_1f1b(pipeline, device, micro_batches))


def _1f1b(devices: int, device: int, micro_batches: int) -> list[Turn]:
    """Order of a device's work with 1F1B.

    Of p devices, device d (from 0) does a forward if fewer than p - d of its micro-batches wait for their
    backward, and if there is a forward left. Otherwise it does a backward.
    """
    order: list[Turn] = []
    forward = backward = 0
    while backward < micro_batches:
        if forward < micro_batches and forward - backward < devices - device:
            order.append(Turn("forward", forward))
            forward += 1
        else:
            order.append(Turn("backward", backward))
            backward += 1
    return order


def _interleaved(devices: int, device: int, micro_batches: int, chunks: int) -> list[Turn]:
    """Order of a device's work when it holds several chunks of the network (Megatron-LM).

    A group has the same number of micro-batches as there are devices. It goes through a device's first chunk,
    then through its second, and so on. The backward goes the other way. With equal chunks, the bubble is the
    bubble of 1F1B divided by ``chunks``.
    """
    total = micro_batches * chunks

    def piece(phase: Phase, number: int) -> Turn:
        group, inside = divmod(number, devices * chunks)
        chunk, place = divmod(inside, devices)
        chunk = chunk if phase == "forward" else chunks - 1 - chunk
        return Turn(phase, group * devices + place, chunk)

    ahead = min(total, 2 * (devices - device - 1) + (chunks - 1) * devices)
    order = [piece("forward", number) for number in range(ahead)]
    for number in range(total - ahead):
        order += [piece("forward", ahead + number), piece("backward", number)]
    return order + [piece("backward", number) for number in range(total - ahead, total)]


def _zero_bubble(devices: int, device: int, micro_batches: int) -> list[Turn]:
    """Order of a device's work when its backward is split in two (ZB-H1).

    Device ``i`` computes the gradients of weights ``i`` micro-batches later than the rest of the backward. So
    the gradients of ``i`` micro-batches are left at the end. They are computed in the time that is the bubble
    of 1F1B. If forward and both parts of the backward take the same time, the bubble is a third of 1F1B's. No
    device keeps more micro-batches than the first one.
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
