"""Memory that a device needs in a step, by counting who still needs each tensor.

A tensor lives from the op that makes it to the last op that reads it, forward or backward. What backward
needs of the forward is kept for every micro-batch under way; with recomputation only a block's inputs are,
and one block at a time is made again. Weights, gradients and optimizer state stand beside it, sharded as
ZeRO says (Rajbhandari et al. 2020).
"""

import math
from dataclasses import dataclass

from joulecast.graphs.costs import part_of
from joulecast.graphs.opgraph import KINDS, Access, Op, OpGraph
from joulecast.platforms import Platform
from joulecast.simulator.placement import PlacedOp
from joulecast.simulator.program import StageProgram
from joulecast.simulator.strategy import Strategy, phases

OPTIMIZER_STATES = 1
"""Tensors of a weight's size that SGD with momentum keeps."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one device of a stage."""

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    """At the peak."""
    at_op: str
    """The op at the peak."""

    @property
    def peak_bytes(self) -> float:
        """All of it."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
        )


def kept_for_backward(graph: OpGraph, op: Op) -> list[Access]:
    """Activations that an op's backward reads."""
    if KINDS[op.kind] in ("copy", "lookup") or op.kind in ("add", "avg_pool", "timed"):
        return []
    if op.kind == "relu":
        return list(op.writes)
    return [a for a in op.reads if graph.tensors[a.tensor].role in ("input", "activation")]


def _largest_part(op: Op, name: str, parts: float) -> float:
    """Parts of a dim as the device with the largest of them sees it."""
    size = op.dim(name).size
    return size / math.ceil(size / parts)


def _sizes(
    graph: OpGraph, items: list[PlacedOp], mesh: dict[str, int], as_written: bool
) -> dict[str, float]:
    """Bytes that a device holds of each activation that its stage reads or writes.

    What is gathered for a product is held whole, or ``as_written``: gathered again for backward.
    """
    sizes: dict[str, float] = {}
    written = {access.tensor for item in items for access in item.op.writes}
    for item in items:
        parts = {name: _largest_part(item.op, name, p) for name, p in item.parts(mesh).items()}
        reads = [a for a in item.op.reads if not (as_written and a.tensor in written)]
        for access in (*reads, *item.op.writes):
            tensor = graph.tensors[access.tensor]
            if tensor.role in ("input", "activation"):
                size = tensor.bytes * part_of(access, parts)
                sizes[tensor.name] = max(sizes.get(tensor.name, 0.0), size)
    return sizes


class _Stage:
    """Activations of one stage: what a forward leaves, and the peaks of forward and backward above it."""

    def __init__(
        self, graph: OpGraph, program: StageProgram, mesh: dict[str, int], as_written: bool = False
    ) -> None:
        self.items = program.items
        self.sizes = _sizes(graph, program.items, mesh, as_written)
        self.last_read: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.made: dict[str, int] = {}
        for place, item in enumerate(self.items):
            for access in item.op.reads:
                self.last_read[access.tensor] = place
            if item.op.kind == "max_pool":
                self._keep_indices(graph, item, place, mesh)
            for access in kept_for_backward(graph, item.op):
                # Backward runs the other way: the first op that keeps a tensor is the last to need it.
                self.kept.setdefault(access.tensor, place)
        self.made |= {a.tensor: p for p, item in enumerate(self.items) for a in item.op.writes}
        units = {item.unit for item in self.items if item.recompute}
        self.unit_kept = {unit: self._inputs_of(unit) for unit in units}
        saved = {t for t, place in self.kept.items() if not self.items[place].recompute}
        for inputs in self.unit_kept.values():
            saved |= inputs
        self.saved = {t for t in saved if t in self.sizes}
        self.saved_bytes = sum(self.sizes[t] for t in self.saved)

    def _keep_indices(
        self, graph: OpGraph, item: PlacedOp, place: int, mesh: dict[str, int]
    ) -> None:
        """Keep the index of each maximum in its window: 8 bytes each, as torch does."""
        written = item.op.writes[0]
        tensor, name = graph.tensors[written.tensor], f"indices of {item.op.name}"
        self.sizes[name] = 8 * tensor.elements * part_of(written, item.parts(mesh))
        self.kept[name] = self.made[name] = place

    def _inputs_of(self, unit: str) -> set[str]:
        inside = {a.tensor for i in self.items if i.unit == unit for a in i.op.writes}
        read = {a.tensor for i in self.items if i.unit == unit for a in i.op.reads}
        return read - inside

    def forward_peak(self) -> tuple[float, str]:
        """Most bytes during a forward, from nothing, and the op where."""
        live: set[str] = {t for t in self.sizes if t not in self.made and t in self.last_read}
        now = sum(self.sizes[t] for t in live)
        live -= self.saved
        peak, where = now, ""
        for place, item in enumerate(self.items):
            for access in item.op.writes:
                if access.tensor in self.sizes:
                    # What is saved stays: only the others are looked through below.
                    if access.tensor not in self.saved:
                        live.add(access.tensor)
                    now += self.sizes[access.tensor]
            if now > peak:
                peak, where = now, item.op.name
            done = [t for t in live if self.last_read.get(t, place) <= place]
            for tensor in done:
                live.discard(tensor)
                now -= self.sizes[tensor]
        return peak, where

    def backward_peak(self) -> tuple[float, str]:
        """Most bytes during a backward that starts with what its forward saved, and the op where."""
        now = self.saved_bytes
        freed: dict[int, list[str]] = {}
        for tensor in self.saved:
            freed.setdefault(self.kept.get(tensor, self.made.get(tensor, 0)), []).append(tensor)
        gradients = 0.0
        held: dict[str, float] = {}
        again: dict[str, float] = {}
        peak, where = now, ""
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if item.recompute and item.unit not in again:
                again = {item.unit: self._made_again(item.unit)}
            elif not item.recompute:
                again = {}
            for access in item.op.reads:
                # The gradient of what was read; several readers add into one.
                if access.tensor in self.sizes and access.tensor not in held:
                    held[access.tensor] = self.sizes[access.tensor]
                    gradients += held[access.tensor]
            total = now + gradients + sum(again.values())
            if total > peak:
                peak, where = total, item.op.name
            for access in item.op.writes:
                gradients -= held.pop(access.tensor, 0.0)
            now -= sum(self.sizes[t] for t in freed.get(place, ()))
        return peak, where

    def _made_again(self, unit: str) -> float:
        inside = {a.tensor for i in self.items if i.unit == unit for a in i.op.writes}
        return sum(self.sizes[t] for t in inside if t in self.kept)


def _activations(
    graph: OpGraph, strategy: Strategy, programs: list[StageProgram]
) -> tuple[float, str]:
    """Most bytes of activations on a device, and the op where."""
    mesh = dict(strategy.mesh)
    kept = strategy.sequence_parallel
    stages = [_Stage(graph, program, mesh, kept) for program in programs]
    forward = [stage.forward_peak() for stage in stages]
    backward = [stage.backward_peak() for stage in stages]
    # What is saved for a backward that is split in two is needed until its second half.
    done = "weights" if strategy.schedule == "zb-h1" else "backward"
    peak, where, saved = 0.0, "", 0.0
    for phase, _, chunk in phases(strategy, programs[0].stage):
        own = stages[chunk].saved_bytes
        if phase == "forward":
            now, at = saved + forward[chunk][0], forward[chunk][1]
            saved += own
        else:
            now, at = saved - own + backward[chunk][0], backward[chunk][1]
            saved -= own if phase == done else 0.0
        if now > peak:
            peak, where = now, at
    return peak, where


def _gathered(programs: list[StageProgram]) -> float:
    """Bytes of whole weights that are there at once where they are kept in shards (ZeRO-3).

    Two blocks': one that computes, and the next, gathered ahead; and those that a later block shares.
    """
    blocks = [weights for program in programs for weights in program.gathered.values()]
    largest = max((sum(weights.values()) for weights in blocks), default=0.0)
    shared = {
        name: size
        for program in programs
        for unit, weights in program.gathered.items()
        for name, size in weights.items()
        if any(name in other for u, other in program.gathered.items() if u != unit)
    }
    return 2 * largest + sum(shared.values())


def _gradients_bytes(strategy: Strategy, sizes: list[tuple[float, int]]) -> float:
    """Bytes of gradients: shards where they are scattered before they add up, else whole."""
    data = strategy.mesh.get("data", 1)
    scattered = strategy.micro_batches == 1 or strategy.scatter == "each"
    return sum(b / (data if zero >= 2 and scattered else 1) for b, zero in sizes)


def memory_of(graph: OpGraph, strategy: Strategy, programs: list[StageProgram]) -> Memory:
    """Peak memory of the devices of a pipeline's place (the largest parts, where dims divide unevenly).

    Args:
        graph: at the batch of a micro-batch.
        strategy: that it is run by.
        programs: of the stages on these devices; several, where the schedule is interleaved.
    """
    peak, where = _activations(graph, strategy, programs)
    data = strategy.mesh.get("data", 1)
    sizes = [size for program in programs for size in program.weights.values()]
    return Memory(
        stage=programs[0].stage,
        weights_bytes=sum(b / (data if zero == 3 else 1) for b, zero in sizes)
        + _gathered(programs),
        gradients_bytes=_gradients_bytes(strategy, sizes),
        optimizer_bytes=sum(OPTIMIZER_STATES * b / (data if zero else 1) for b, zero in sizes),
        activations_bytes=peak,
        at_op=where,
    )


def exceeds(memory: list[Memory], platform: Platform) -> bool | None:
    """Whether some stage's devices have too little; ``None`` if their memory is not known."""
    limit = platform.require_cluster().device.memory_bytes
    return None if limit is None else max(m.peak_bytes for m in memory) > limit


def memory_verdict(memory: list[Memory], platform: Platform) -> str:
    """One line: whether the step fits in memory, and if not, what does not."""
    limit = platform.require_cluster().device.memory_bytes
    worst = max(memory, key=lambda m: m.peak_bytes)
    if limit is None:
        return f"memory of {platform.name}'s devices is not known"
    if not exceeds(memory, platform):
        return f"fits: {worst.peak_bytes / 1e9:.1f} of {limit / 1e9:.1f} GB"
    return (
        f"out of memory: stage {worst.stage} needs {worst.peak_bytes / 1e9:.1f} GB, a device of "
        f"{platform.name} has {limit / 1e9:.1f}; most at op `{worst.at_op}`"
    )
