"""The least time that a step can take by the work of its devices alone: no program has to be written for it.

A device computes all its micro-batches one after the other, in the order of its program. Its first forward
waits for the tensors that earlier stages make, and what follows its last backward waits for its gradients.
Transfers take no time here. The bound is therefore never above that of :mod:`joulecast.simulate.least_time`
in principle, and rules out most strategies that recompute or fill their pipelines badly.
"""

import math
from dataclasses import dataclass

from joulecast.graphs.costs import Direction
from joulecast.simulate.alike import remembered
from joulecast.simulate.fleet import remainder
from joulecast.simulate.least_time import Least
from joulecast.simulate.placement import PlacedOp
from joulecast.simulate.run_again import run_again
from joulecast.simulate.simulate import Prepared
from joulecast.simulate.strategy import Strategy

_NOT_YET = -math.inf


@dataclass(frozen=True)
class _Pass:
    """A forward or a backward of a stage's largest device, in the order of its program."""

    steps: tuple[tuple[PlacedOp, float, bool], ...]
    """Ops, their seconds, and whether they are run again for the backward that follows."""

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return sum(seconds for _, seconds, _ in self.steps)


class _Work:
    """Forward and backward passes of all stages, and what they wait for."""

    def __init__(self, ready: Prepared, strategy: Strategy) -> None:
        self.ready, self.strategy = ready, strategy
        self.graph = ready.graph
        self.mesh = {axis: size for axis, size in strategy.mesh.items() if axis != "pipeline"}
        self.stage = {item.op.name: item.stage for item in ready.placed}
        self.uneven = False
        self.forward = [self._forward(program.items) for program in ready.programs]
        training = not ready.training.inference
        self.backward = [
            self._backward(program.items) if training else _Pass(()) for program in ready.programs
        ]

    def _seconds(self, item: PlacedOp, direction: Direction) -> float:
        parts = item.parts(self.mesh)
        for axis, dim in item.placement.items():
            size, count = item.op.dim(dim).size, self.mesh[axis]
            if size % count:
                # The first places along each axis have one more; all have, where the dim is padded.
                parts[dim] *= size / (size // count + 1) / count
                self.uneven |= remainder(size, count) > 0
        return self.ready.costs.cost(self.graph, item.op, parts, direction).seconds

    def _forward(self, items: list[PlacedOp]) -> _Pass:
        return _Pass(tuple((item, self._seconds(item, "forward"), False) for item in items))

    def _backward(self, items: list[PlacedOp]) -> _Pass:
        """As :meth:`joulecast.simulate.program.ProgramBuilder.backward` orders it."""
        steps: list[tuple[PlacedOp, float, bool]] = []
        units: dict[str, list[PlacedOp]] = {}
        for item in items:
            if item.recompute:
                units.setdefault(item.recompute, []).append(item)
        for item in reversed(items):
            unit = units.pop(item.recompute, [])
            steps += [(each, self._seconds(each, "forward"), True) for each in self._again(unit)]
            if any(access.tensor in self.graph.trained for access in item.op.reads):
                steps.append((item, self._seconds(item, "backward"), False))
        return _Pass(tuple(steps))

    def _again(self, unit: list[PlacedOp]) -> list[PlacedOp]:
        return run_again(self.graph, unit) if unit else []

    def first_ends(self) -> list[float]:
        """When each place of the pipeline has done its first forward at the earliest."""
        ready: dict[str, float] = {}
        ends = []
        for passed in self.forward[: self.strategy.pipeline]:
            now = 0.0
            for item, seconds, _ in passed.steps:
                now = max([now, *(ready.get(a.tensor, 0.0) for a in item.op.reads)]) + seconds
                ready |= {access.tensor: now for access in item.op.writes}
            ends.append(now)
        return ends

    def last_takes(self, place: int) -> float:
        """Seconds from the start of a place's last backward to the end of all that waits for it."""
        ready: dict[str, float] = {}
        latest = 0.0
        for number in range(place, -1, -1):
            # What an earlier stage may do before anything arrives is not counted.
            now = 0.0 if number == place else _NOT_YET
            for item, seconds, again in self.backward[number].steps:
                if again or number == place:
                    now += seconds
                else:
                    arrived = (ready.get(access.tensor, _NOT_YET) for access in item.op.writes)
                    now = max([now, *arrived]) + seconds
                for access in () if again else item.op.reads:
                    made = self.graph.producer.get(access.tensor)
                    # A gradient is sent to an earlier stage once the last reader here has added its own.
                    if (
                        made is not None
                        and self.stage[made.name] < number
                        and access.tensor in self.graph.trained
                    ):
                        ready[access.tensor] = max(ready.get(access.tensor, _NOT_YET), now)
            latest = max(latest, now)
        return latest


def _alone(work: _Work, strategy: Strategy) -> tuple[float, float]:
    """Least seconds of a step, and seconds of computing of a device, the mean, without the optimizer."""
    forward = [each.seconds for each in work.forward]
    backward = [each.seconds for each in work.backward]
    places, count = strategy.pipeline, strategy.micro_batches
    totals = [count * (sum(forward[p::places]) + sum(backward[p::places])) for p in range(places)]
    ends, least = work.first_ends(), 0.0
    # The first place ends last, the last one waits longest for its first input.
    for place in {0, places - 1, totals.index(max(totals))}:
        total = totals[place]
        behind = backward[place]
        # Gradients of weights that are left for later may come last.
        last = behind if strategy.schedule == "zb-h1" else max(behind, work.last_takes(place))
        least = max(least, ends[place] + total - forward[place] - behind + last)
    return least, 0.0 if work.uneven else sum(totals) / places


def least_work(ready: Prepared, strategy: Strategy) -> Least:
    """Seconds that a step takes at least, and that a device computes, without any transfer.

    Devices must compute at the pace of their kind: a straggler's is not looked at.
    """
    tree = strategy.tree
    if not strategy.is_inferred:
        return Least(0.0, 0.0)
    # What a strategy shards changes nothing here.
    alike = remembered(ready.costs).alike
    key = (
        "least work",
        tuple(strategy.mesh.items()),
        (strategy.virtual, strategy.schedule, strategy.sequence_parallel, strategy.micro_batches),
        (tree.recompute, ready.training.inference, id(ready.costs)),
    )
    return alike.once(ready.graph, key, lambda: Least(*_alone(_Work(ready, strategy), strategy)))
