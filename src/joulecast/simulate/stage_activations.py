"""Memory of a pipeline stage's activations. For each tensor, it counts which ops still need it.

A tensor lives from the op that makes it to the last op that reads it, forward or backward. With
recomputation, only the inputs of a block are kept for the backward pass, and one block at a time is computed
again. Most stages of a pipeline are alike. Stages that are alike are computed only once.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

from joulecast.graphs.costs import extra_kept, kept_for_backward, part_of
from joulecast.graphs.opgraph import OpGraph
from joulecast.simulate.cost_cache import OpCache
from joulecast.simulate.placement import PlacedOp
from joulecast.simulate.program import StageProgram
from joulecast.simulate.strategy import Strategy


def _parts(item: PlacedOp) -> dict[str, float]:
    """Number of parts of each split dim, as if all parts had the size of the largest one."""
    sizes = {name: item.op.dim(name).size for name in item.parts}
    return {name: sizes[name] / math.ceil(sizes[name] / p) for name, p in item.parts.items()}


def _sizes(graph: OpGraph, items: list[PlacedOp], as_written: bool) -> dict[str, float]:
    """Bytes that a device holds of each activation that its stage reads or writes.

    A tensor that is gathered for a product is held whole, or with ``as_written`` as a shard.
    """
    sizes: dict[str, float] = {}
    written = {access.tensor for item in items for access in item.op.writes}
    for item in items:
        parts = _parts(item)
        reads = [a for a in item.op.reads if not (as_written and a.tensor in written)]
        for access in (*reads, *item.op.writes):
            tensor = graph.tensors[access.tensor]
            if tensor.role in ("input", "activation"):
                size = tensor.bytes * part_of(access, parts)
                sizes[tensor.name] = max(sizes.get(tensor.name, 0.0), size)
    return sizes


def _kept_by(op: str, number: int = 0) -> str:
    """Name of the bytes that an op keeps in addition to tensors of the graph."""
    return f"kept by {op}, {number}"


class _Stage:
    """Activations of a stage: the bytes that a forward leaves, and the peaks of forward and backward."""

    def __init__(
        self,
        graph: OpGraph,
        program: StageProgram,
        keeps: bool = True,
        as_written: bool = False,
    ) -> None:
        self.items = program.items
        self.sizes = _sizes(graph, program.items, as_written)
        self.gathered = [self._gathered_for(graph, item) for item in self.items]
        """Bytes that each op gathers from shards, and drops when it is done."""
        self.weights = [self._begins(graph, item) for item in self.items]
        """Bytes of the weights whose gradients exist from the backward of each op on."""
        self.last_read: dict[str, int] = {}
        self.keepers: dict[str, list[int]] = {}
        """Ops whose backward needs each tensor, in the order of the forward."""
        self.cached: set[str] = set()
        """Copies of weights that autocast made. It holds them until the end of the forward."""
        self.made: dict[str, int] = {}
        self.makes: list[list[str]] = []
        """Tensors that each op makes: its output, and whatever else it keeps for the backward."""
        for place, item in enumerate(self.items):
            for access in item.op.reads:
                self.last_read[access.tensor] = place
            makes = [a.tensor for a in item.op.writes if a.tensor in self.sizes]
            for access in kept_for_backward(graph, item.op) if keeps else ():
                self.keepers.setdefault(access.tensor, []).append(place)
            for number, extra in enumerate(extra_kept(graph, item.op)):
                name = _kept_by(item.op.name, number)
                if graph.tensors[extra.access.tensor].role == "parameter":
                    self.cached.add(name)
                elif not keeps:
                    continue
                share = part_of(extra.access, _parts(item))
                if as_written and extra.access.tensor in self.made:
                    tensor = extra.access.tensor
                    share = min(share, self.sizes[tensor] / graph.tensors[tensor].bytes)
                self.sizes[name] = extra.bytes * share
                if keeps:
                    self.keepers[name] = [place]
                makes.append(name)
            self.makes.append(makes)
            self.made |= dict.fromkeys(makes, place)
        self.units: dict[str, list[int]] = {}
        """Ops that are recomputed together."""
        for place, item in enumerate(self.items):
            if item.recompute:
                self.units.setdefault(item.recompute, []).append(place)
        saved = {
            tensor
            for tensor, places in self.keepers.items()
            if any(not self.items[place].recompute for place in places)
        }
        for unit in self.units if keeps else ():
            saved |= self._inputs_of(unit)
        self.saved = {t for t in saved if t in self.sizes}
        self.saved_bytes = sum(self.sizes[t] for t in self.saved)

    def _gathered_for(self, graph: OpGraph, item: PlacedOp) -> float:
        parts = _parts(item)
        return sum(
            max(0.0, graph.tensors[a.tensor].bytes * part_of(a, parts) - self.sizes[a.tensor])
            for a in item.op.reads
            if a.tensor in self.sizes
        )

    @staticmethod
    def _begins(graph: OpGraph, item: PlacedOp) -> float:
        parts = _parts(item)
        return sum(
            graph.tensors[a.tensor].bytes * part_of(a, parts)
            for a in item.op.reads
            if graph.tensors[a.tensor].role == "parameter"
            # If there are several readers, the backward of the last one makes the gradient first.
            and graph.readers[a.tensor][-1] is item.op
        )

    def _inside(self, unit: str) -> set[str]:
        return {tensor for place in self.units[unit] for tensor in self.makes[place]}

    def _inputs_of(self, unit: str) -> set[str]:
        read = {a.tensor for place in self.units[unit] for a in self.items[place].op.reads}
        return read - self._inside(unit)

    def forward_peak(self) -> tuple[float, int]:
        """Most bytes during a forward that starts from nothing, and its op's place; -1: before all ops."""
        live: set[str] = {t for t in self.sizes if t not in self.made and t in self.last_read}
        now = sum(self.sizes[t] for t in live)
        live -= self.saved
        peak, where = now, -1
        for place in range(len(self.items)):
            for tensor in self.makes[place]:
                # Saved and cached tensors stay. Only the others are looked through below.
                if tensor not in self.saved and tensor not in self.cached:
                    live.add(tensor)
                now += self.sizes[tensor]
            if now + self.gathered[place] > peak:
                peak, where = now + self.gathered[place], place
            done = [t for t in live if self.last_read.get(t, place) <= place]
            for tensor in done:
                live.discard(tensor)
                now -= self.sizes[tensor]
        return peak, where

    def _freed(self) -> dict[int, list[str]]:
        """Saved tensors by the op whose backward needs them last. It is the first op that keeps them."""
        first = {tensor: places[0] for tensor, places in self.keepers.items()}
        for places in self.units.values():
            for place in places:
                for access in self.items[place].op.reads:
                    first[access.tensor] = min(first.get(access.tensor, place), places[0])
        freed: dict[int, list[str]] = {}
        for tensor in self.saved:
            freed.setdefault(first[tensor], []).append(tensor)
        return freed

    def backward_peak(self) -> tuple[float, int, tuple[float, float]]:
        """Most bytes during a backward that starts with the saved tensors, the op, and ``with_gradients``."""
        now = self.saved_bytes
        freed = self._freed()
        gradients = of_weights = 0.0
        held: dict[str, float] = {}
        again: dict[str, float] = {}
        peak, where, both = now, -1, (now, 0.0)
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if item.recompute and item.recompute not in again:
                again = {item.recompute: self._made_again(item.recompute)}
            elif not item.recompute:
                again = {}
            for access in item.op.reads:
                # The gradient of each input. Several readers add to the same gradient.
                if access.tensor in self.sizes and access.tensor not in held:
                    held[access.tensor] = self.sizes[access.tensor]
                    gradients += held[access.tensor]
            # A gathered tensor is gathered again, and its gradient is whole before it is scattered.
            total = now + gradients + sum(again.values()) + 2 * self.gathered[place]
            if item.op.kind == "cross_entropy":
                # The gradient of the shares' logarithms, and that of the logits at their precision.
                kept, logits = _kept_by(item.op.name), item.op.reads[0].tensor
                total += self.sizes[kept] + max(0.0, self.sizes[kept] - self.sizes[logits])
            if total > peak:
                peak, where = total, place
            of_weights += self.weights[place]
            both = max(both, (total, of_weights), key=sum)
            for access in item.op.writes:
                gradients -= held.pop(access.tensor, 0.0)
            now -= sum(self.sizes[t] for t in freed.get(place, ()))
        return peak, where, max(both, (0.0, of_weights), key=sum)

    def _made_again(self, unit: str) -> float:
        return sum(self.sizes[t] for t in self._inside(unit) - self.saved if t in self.keepers)


@dataclass(frozen=True)
class StagePeaks:
    """Bytes of a stage's activations of one micro-batch."""

    items: list[PlacedOp]
    saved: float
    """Bytes that a forward leaves for its backward."""
    forward: float
    """Most bytes during a forward that starts from nothing."""
    forward_at: int
    """Place of the op at the peak of the forward; -1: before all ops."""
    backward: float
    """Most bytes during a backward that starts with the saved tensors; 0 without a backward."""
    backward_at: int
    with_gradients: tuple[float, float]
    """Bytes of activations, and of weights whose gradients exist, when both together are largest. They count
    if each step allocates its gradients again."""

    def op_at(self, place: int) -> str:
        """Name of the op at a place."""
        return "" if place < 0 else self.items[place].op.name


def _shape_of(program: StageProgram) -> Hashable:
    """Everything that distinguishes a stage from other stages of a mesh, except names: its ops, their splits,
    and which op reads which tensor."""
    places: dict[str, int] = {}
    found: list[Hashable] = []
    for item in program.items:
        tensors = [
            places.setdefault(a.tensor, len(places)) for a in (*item.op.reads, *item.op.writes)
        ]
        again = places.setdefault(f"again {item.recompute}", len(places)) if item.recompute else -1
        found.append((item.split, again, *tensors))
    return tuple(found)


def stage_peaks(
    graph: OpGraph, strategy: Strategy, program: StageProgram, keeps: bool, op_cache: OpCache
) -> StagePeaks:
    """Bytes of the activations of a stage, which keeps them for a backward pass or not. Stages of the same
    shape share a result."""
    as_written = strategy.sequence_parallel

    def looked_at() -> StagePeaks:
        stage = _Stage(graph, program, keeps, as_written)
        forward, at = stage.forward_peak()
        backward = stage.backward_peak() if keeps else (0.0, -1, (0.0, 0.0))
        return StagePeaks(program.items, stage.saved_bytes, forward, at, *backward)

    key = (_shape_of(program), tuple(strategy.mesh.items()), keeps, as_written)
    return replace(op_cache.once(graph, key, looked_at), items=program.items)
