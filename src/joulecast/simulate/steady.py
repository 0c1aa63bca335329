"""Micro-batches that repeat each other: a long step is simulated with few of them, where that is exact.

Once a pipeline is full, a step may repeat itself: whatever happens happens again a period later, one
micro-batch on. Whether it does is looked up in the simulation of fewer micro-batches. A lane's work there
must be that of the whole step but for periods that were left out; and all activities of two periods, one
after the other, must start and end alike while every lane still does what it would do in the whole step.
Then the state at both their beginnings is one and the same (what is under way, and how much of it is left),
so that the periods that were left out pass as these did, and what follows them follows as it is. Where no
such periods are found, all micro-batches are simulated.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from joulecast.graphs.schedules import Turn
from joulecast.simulate.activities import Activity, ActivityGraph, Timeline
from joulecast.simulate.chains import link_times
from joulecast.simulate.compiler import Compiler
from joulecast.simulate.lane import Lane
from joulecast.simulate.strategy import Strategy

_ALIKE = 1e-10
"""Differences of times, relative to a period, that are rounding."""
_EARLY = 1e-6
_WORTH_WHILE = 0.6
"""Share of the micro-batches above which all of them are simulated at once."""
_IN_LINE = 0.45
"""The same with tensor parallelism."""
_CHEAP = 0.25
"""Share of them that is tried although it may well be too few, or in vain."""


@dataclass(frozen=True)
class Repeats:
    """A period that stands for itself and for ``times`` more of its kind."""

    start_s: float
    stop_s: float
    times: int

    @property
    def period_s(self) -> float:
        """Seconds of one."""
        return self.stop_s - self.start_s

    @property
    def left_out_s(self) -> float:
        """Seconds of all that were left out."""
        return self.times * self.period_s


NONE_LEFT_OUT = Repeats(0.0, 0.0, 0)


@dataclass(frozen=True)
class Happening:
    """An activity at its times in the step, or a link of a chain as an activity of its own."""

    activity: Activity
    start_s: float
    end_s: float


def _links(graph: ActivityGraph, timeline: Timeline) -> Iterator[Happening]:
    for number, activity in enumerate(graph.activities):
        chain = activity.chain
        if chain is None:
            yield Happening(activity, timeline.start_s[number], timeline.end_s[number])
            continue
        computes = iter(activity.link_parts)
        for link, start, end in link_times(chain, timeline.passed[number]):
            parts = next(computes) if link.usage is None else ()
            label = activity.label if link.usage is None else link.label
            own = Activity(
                label, activity.devices, link.work, link.usage, link.latency, parts=parts
            )
            yield Happening(own, start, end)


def happenings(graph: ActivityGraph, timeline: Timeline, repeats: Repeats) -> Iterator[Happening]:
    """Every activity of the whole step: those of the period as often as it passes."""
    for happening in _links(graph, timeline):
        start, end = happening.start_s, happening.end_s
        if start < repeats.start_s:
            yield happening
            continue
        passes = [repeats.left_out_s]
        if start < repeats.stop_s:
            passes = [time * repeats.period_s for time in range(repeats.times + 1)]
        for later in passes:
            yield Happening(happening.activity, start + later, end + later)


class _Tried:
    """A lane of the shorter simulation, paired with the work of the whole step."""

    def __init__(self, lane: Lane, whole: Sequence[Turn], timeline: Timeline) -> None:
        self.pieces = [piece for piece, _ in lane.pieces]
        self.activities = [activities for _, activities in lane.pieces]
        self.whole = whole
        self.timeline = timeline
        self.ends = [max(timeline.end_s[a] for a in found) for found in self.activities]
        # What a piece waits for starts before it, on another device.
        self.starts = [min(timeline.start_s[a] for a in found) for found in self.activities]

    def agrees_until(self) -> float:
        """When this lane may first do something else than in the whole step: a moment before it does.

        The last backward is such a thing, as it sends the gradients.
        """
        last = {(piece.chunk, piece.phase): place for place, piece in enumerate(self.pieces)}
        place = min(last.values())
        for number, (here, there) in enumerate(zip(self.pieces, self.whole, strict=False)):
            if here != there:
                place = min(place, number)
        return self.starts[max(0, place - 1)]

    def alike(self, start: float, stop: float, shift: int, limit: float) -> int | None:
        """Pieces that a period passes, if those of the next are like them in this lane.

        Args:
            start: of the period.
            stop: its end.
            shift: micro-batches that pass in it.
            limit: when any lane may first differ from the whole step.
        """
        inside = [
            place
            for place, (begins, ends) in enumerate(zip(self.starts, self.ends, strict=True))
            if begins < stop and ends >= start
        ]
        if not inside:
            return None
        first = self.pieces[inside[0]]
        later = first._replace(micro_batch=first.micro_batch + shift)
        if later not in self.pieces:
            return None
        step = self.pieces.index(later) - inside[0]
        if step <= 0 or inside[-1] + step >= len(self.pieces):
            return None
        same = _ALIKE * (stop - start)
        for place in inside:
            here, there = self.pieces[place], self.pieces[place + step]
            if here._replace(micro_batch=here.micro_batch + shift) != there:
                return None
            if not self._alike(place, place + step, stop - start, same, limit):
                return None
        return step

    def _alike(self, first: int, second: int, period: float, same: float, limit: float) -> bool:
        ones, others = self.activities[first], self.activities[second]
        if len(ones) != len(others):
            return False
        starts, ends = self.timeline.start_s, self.timeline.end_s
        return all(
            abs(starts[other] - starts[one] - period) <= same
            and abs(ends[other] - ends[one] - period) <= same
            and ends[other] <= limit
            # Nothing is under way for longer than all that was looked at.
            and ends[one] - starts[one] <= period
            for one, other in zip(ones, others, strict=True)
        )

    def goes_on(self, start: float, step: int, shift: int, times: int) -> bool:
        """Whether the whole step is this lane's work with that many periods put in where one starts."""
        place = next(p for p, end in enumerate(self.ends) if end >= start)
        if len(self.whole) != len(self.pieces) + times * step:
            return False
        later = [p._replace(micro_batch=p.micro_batch + times * shift) for p in self.pieces[place:]]
        repeated = (
            piece._replace(micro_batch=piece.micro_batch + time * shift)
            for time in range(times)
            for piece in self.pieces[place : place + step]
        )
        return (
            list(self.whole[:place]) == self.pieces[:place]
            and list(self.whole[place : place + times * step]) == list(repeated)
            and list(self.whole[place + times * step :]) == later
        )


def find_repeats(
    lanes: Sequence[Lane],
    whole: Sequence[Sequence[Turn]],
    timeline: Timeline,
    left_out: int,
    periods: Sequence[int],
) -> Repeats | None:
    """The period of a step that was simulated with fewer micro-batches; ``None`` if none is proved.

    Args:
        lanes: of the simulation.
        whole: the work of each lane in the whole step.
        timeline: of the simulation.
        left_out: micro-batches that it lacks.
        periods: micro-batches of the periods that are looked for.
    """
    tried = [_Tried(lane, work, timeline) for lane, work in zip(lanes, whole, strict=True)]
    limit = min(lane.agrees_until() for lane in tried)
    leader = tried[0]
    forwards = {
        piece: min(timeline.start_s[a] for a in activities)
        for piece, activities in zip(leader.pieces, leader.activities, strict=True)
        if piece.phase == "forward" and piece.chunk == 0
    }
    latest = max(piece.micro_batch for piece in forwards)
    for shift in periods:
        if left_out % shift:
            continue
        # The last period that ends while all is as in the whole step has had most time to settle.
        for piece, start in reversed(forwards.items()):
            stop = forwards.get(piece._replace(micro_batch=piece.micro_batch + shift))
            if stop is None or stop > limit:
                continue
            # A moment before, so that rounding does not move what starts together across the border.
            early = _EARLY * (stop - start)
            start, stop = start - early, stop - early
            times = left_out // shift
            steps = [lane.alike(start, stop, shift, limit) for lane in tried]
            if all(
                step is not None and lane.goes_on(start, step, shift, times)
                for lane, step in zip(tried, steps, strict=True)
            ):
                return Repeats(start, stop, times)
            if piece.micro_batch + 3 * shift + periods[0] < latest:
                break
    return None


def _fewer(strategy: Strategy) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Numbers of micro-batches to try in place of all of them, and the periods to look for in each.

    A full pipeline repeats itself from one micro-batch to the next, or, where messages hold it up on their
    way through all stages and back, every so many micro-batches as there are stages.
    """
    if strategy.schedule == "gpipe":
        return
    interleaved = strategy.schedule == "interleaved"
    unit = strategy.pipeline if interleaved else 1
    full = max(strategy.schedule) if isinstance(strategy.schedule, tuple) else strategy.pipeline
    filled = (3 if interleaved else 1) * full
    # Messages in line meet those between stages, and settle late.
    likely = _WORTH_WHILE if strategy.mesh.get("tensor", 1) == 1 else _IN_LINE
    if strategy.schedule == "zb-h1":
        # Early stages run ahead of late ones, as gradients of weights wait: none settles for long.
        likely = _CHEAP
    tries = [
        (filled + full // 4 + 6 * unit, (unit, 2 * unit), _CHEAP),
        (filled + full // 2 + 8 * unit, (unit, 2 * unit), likely),
        (filled + 3 * full + 6 * unit, (unit, 2 * unit, full), _CHEAP),
    ]
    for wanted, periods, most in tries:
        # What is left out is a whole number of periods.
        count = wanted + (strategy.micro_batches - wanted) % math.lcm(*periods)
        if count <= most * strategy.micro_batches:
            yield count, periods


def timed_step(
    compiler: Compiler, timed: Callable[[int], Timeline], folded: bool
) -> tuple[Timeline, Repeats]:
    """The timeline of a step, and the period of it that stands for those that were left out.

    Args:
        compiler: of the step's activities.
        timed: the timeline with so many micro-batches.
        folded: whether any may be left out.
    """
    strategy = compiler.strategy
    for count, periods in _fewer(strategy) if folded else ():
        timeline = timed(count)
        whole = [compiler.work(lane.device, strategy.micro_batches) for lane in compiler.lanes]
        left_out = strategy.micro_batches - count
        repeats = find_repeats(compiler.lanes, whole, timeline, left_out, periods)
        if repeats is not None:
            return timeline, repeats
    return timed(strategy.micro_batches), NONE_LEFT_OUT
