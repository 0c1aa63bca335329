"""Memory that a device needs in a step, by counting who still needs each tensor.

A tensor lives from the op that makes it to the last op that reads it, forward or backward. What backward
needs of the forward is kept for every micro-batch under way; with recomputation only a block's inputs are,
and one block at a time is made again. Weights, gradients and optimizer state come on top, sharded as
ZeRO says (Rajbhandari et al. 2020).
"""

import math
from dataclasses import dataclass

from joulecast.graphs.costs import part_of
from joulecast.graphs.opgraph import Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, Training
from joulecast.graphs.saved_for_backward import extra_kept, kept_for_backward
from joulecast.platforms import Platform
from joulecast.simulator.placement import PlacedOp
from joulecast.simulator.program import StageProgram
from joulecast.simulator.strategy import Strategy, phases


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
    communication_bytes: float = 0.0
    """Buffers of the communication library."""

    @property
    def state_bytes(self) -> float:
        """What is there all the time: weights, gradients and optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> float:
        """All of it."""
        return self.state_bytes + self.activations_bytes + self.communication_bytes


def _largest_part(op: Op, name: str, parts: float) -> float:
    """Parts of a dim as the device with the largest of them sees it."""
    size = op.dim(name).size
    return size / math.ceil(size / parts)


def _parts(item: PlacedOp, mesh: dict[str, int]) -> dict[str, float]:
    return {name: _largest_part(item.op, name, p) for name, p in item.parts(mesh).items()}


def _sizes(
    graph: OpGraph, items: list[PlacedOp], mesh: dict[str, int], as_written: bool
) -> dict[str, float]:
    """Bytes that a device holds of each activation that its stage reads or writes.

    What is gathered for a product is held whole, or ``as_written``: gathered again for backward.
    """
    sizes: dict[str, float] = {}
    written = {access.tensor for item in items for access in item.op.writes}
    for item in items:
        parts = _parts(item, mesh)
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
        self,
        graph: OpGraph,
        program: StageProgram,
        mesh: dict[str, int],
        keeps: bool = True,
        as_written: bool = False,
    ) -> None:
        self.items = program.items
        self.sizes = _sizes(graph, program.items, mesh, as_written)
        self.last_read: dict[str, int] = {}
        self.keepers: dict[str, list[int]] = {}
        """Ops whose backward needs a tensor, in the order of the forward."""
        self.made: dict[str, int] = {}
        self.makes: list[list[str]] = []
        """What each op makes: what it writes, and what else it keeps for backward."""
        for place, item in enumerate(self.items):
            for access in item.op.reads:
                self.last_read[access.tensor] = place
            makes = [a.tensor for a in item.op.writes if a.tensor in self.sizes]
            for access in kept_for_backward(graph, item.op) if keeps else ():
                self.keepers.setdefault(access.tensor, []).append(place)
            extra = extra_kept(graph, item.op) if keeps else None
            if extra is not None:
                name = f"kept by {item.op.name}"
                self.sizes[name] = extra.bytes * part_of(extra.access, _parts(item, mesh))
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

    def _inside(self, unit: str) -> set[str]:
        return {tensor for place in self.units[unit] for tensor in self.makes[place]}

    def _inputs_of(self, unit: str) -> set[str]:
        read = {a.tensor for place in self.units[unit] for a in self.items[place].op.reads}
        return read - self._inside(unit)

    def forward_peak(self) -> tuple[float, str]:
        """Most bytes during a forward, from nothing, and the op where."""
        live: set[str] = {t for t in self.sizes if t not in self.made and t in self.last_read}
        now = sum(self.sizes[t] for t in live)
        live -= self.saved
        peak, where = now, ""
        for place, item in enumerate(self.items):
            for tensor in self.makes[place]:
                # What is saved stays: only the others are looked through below.
                if tensor not in self.saved:
                    live.add(tensor)
                now += self.sizes[tensor]
            if now > peak:
                peak, where = now, item.op.name
            done = [t for t in live if self.last_read.get(t, place) <= place]
            for tensor in done:
                live.discard(tensor)
                now -= self.sizes[tensor]
        return peak, where

    def _freed(self) -> dict[int, list[str]]:
        """Saved tensors by the op whose backward is the last to need them: the first that keeps them."""
        first = {tensor: places[0] for tensor, places in self.keepers.items()}
        for places in self.units.values():
            for place in places:
                for access in self.items[place].op.reads:
                    first[access.tensor] = min(first.get(access.tensor, place), places[0])
        freed: dict[int, list[str]] = {}
        for tensor in self.saved:
            freed.setdefault(first[tensor], []).append(tensor)
        return freed

    def backward_peak(self) -> tuple[float, str]:
        """Most bytes during a backward that starts with what its forward saved, and the op where."""
        now = self.saved_bytes
        freed = self._freed()
        gradients = 0.0
        held: dict[str, float] = {}
        again: dict[str, float] = {}
        peak, where = now, ""
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if item.recompute and item.recompute not in again:
                again = {item.recompute: self._made_again(item.recompute)}
            elif not item.recompute:
                again = {}
            for access in item.op.reads:
                # The gradient of what was read; several readers add into one.
                if access.tensor in self.sizes and access.tensor not in held:
                    held[access.tensor] = self.sizes[access.tensor]
                    gradients += held[access.tensor]
            total = now + gradients + sum(again.values())
            if item.op.kind == "cross_entropy":
                # The gradient of the shares' logarithms, and that of the logits at their precision.
                kept, logits = f"kept by {item.op.name}", item.op.reads[0].tensor
                total += self.sizes[kept] + max(0.0, self.sizes[kept] - self.sizes[logits])
            if total > peak:
                peak, where = total, item.op.name
            for access in item.op.writes:
                gradients -= held.pop(access.tensor, 0.0)
            now -= sum(self.sizes[t] for t in freed.get(place, ()))
        return peak, where

    def _made_again(self, unit: str) -> float:
        return sum(self.sizes[t] for t in self._inside(unit) - self.saved if t in self.keepers)


def _activations(
    graph: OpGraph, strategy: Strategy, programs: list[StageProgram], keeps: bool
) -> tuple[float, str]:
    """Most bytes of activations on a device, and the op where; without a backward, of one forward."""
    mesh = dict(strategy.mesh)
    as_written = strategy.sequence_parallel
    stages = [_Stage(graph, program, mesh, keeps, as_written) for program in programs]
    forward = [stage.forward_peak() for stage in stages]
    if not keeps:
        return max(forward)
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


def _largest_block(programs: list[StageProgram]) -> float:
    """Bytes of the whole weights of the largest block that is gathered from its shards (ZeRO-3)."""
    blocks = [weights for program in programs for weights in program.gathered.values()]
    return max((sum(weights.values()) for weights in blocks), default=0.0)


def _gathered(programs: list[StageProgram]) -> float:
    """Bytes of whole weights that are there at once where they are kept in shards (ZeRO-3).

    Two blocks': one that computes, and the next, gathered ahead; and those that a later block shares.
    """
    shared = {
        name: size
        for program in programs
        for unit, weights in program.gathered.items()
        for name, size in weights.items()
        if any(name in other for u, other in program.gathered.items() if u != unit)
    }
    return 2 * _largest_block(programs) + sum(shared.values())


def _gradients_bytes(
    strategy: Strategy, programs: list[StageProgram], sizes: list[tuple[float, int]]
) -> float:
    """Bytes of gradients: shards, and a block's before it is scattered, or whole where they add up first."""
    data = strategy.mesh.get("data", 1)
    scattered = strategy.micro_batches == 1 or strategy.scatter == "each"
    if not scattered:
        return sum(b for b, _ in sizes)
    return sum(b / (data if zero >= 2 else 1) for b, zero in sizes) + _largest_block(programs)


def _communicators(strategy: Strategy) -> int:
    """Groups of devices that a device talks in: one for each axis, as data parallelism alone has one.

    Megatron's code has two more: all devices, and those that hold one model, for overflows and norms.
    """
    axes = {axis for axis, size in strategy.mesh.items() if size > 1}
    return len(axes) + (2 if axes - {"data"} else 0)


def memory_of(
    graph: OpGraph,
    strategy: Strategy,
    programs: list[StageProgram],
    training: Training = DEFAULT_TRAINING,
    communicator_bytes: float = 0.0,
) -> Memory:
    """Peak memory of the devices of a pipeline's place (the largest parts, where dims divide unevenly).

    Args:
        graph: at the batch of a micro-batch.
        strategy: that it is run by.
        programs: of the stages on these devices; several, where the schedule is interleaved.
        training: precision and optimizer, and whether there is a backward.
        communicator_bytes: of the communication library's buffers, for each group of devices.
    """
    peak, where = _activations(graph, strategy, programs, not training.inference)
    data = strategy.mesh.get("data", 1)
    sizes = [size for program in programs for size in program.weights.values()]
    return Memory(
        stage=programs[0].stage,
        weights_bytes=sum(b / (data if zero == 3 else 1) for b, zero in sizes)
        + _gathered(programs),
        gradients_bytes=training.gradient_bytes(_gradients_bytes(strategy, programs, sizes)),
        optimizer_bytes=sum(training.state_bytes(b) / (data if zero else 1) for b, zero in sizes),
        activations_bytes=peak,
        at_op=where,
        communication_bytes=communicator_bytes * _communicators(strategy),
    )


def exceeds(memory: list[Memory], platform: Platform) -> bool | None:
    """Whether some stage's devices have too little; ``None`` if their memory is not known."""
    device = platform.require_cluster().device
    if device.memory_bytes is None:
        return None
    return max(m.peak_bytes for m in memory) + device.reserved_bytes > device.memory_bytes


def memory_verdict(memory: list[Memory], platform: Platform) -> str:
    """One line: whether the step fits in memory, and if not, what does not."""
    device = platform.require_cluster().device
    limit, worst = device.memory_bytes, max(memory, key=lambda m: m.peak_bytes)
    needed = worst.peak_bytes + device.reserved_bytes
    if limit is None:
        return f"memory of {platform.name}'s devices is not known"
    if not exceeds(memory, platform):
        return f"fits: {needed / 1e9:.1f} of {limit / 1e9:.1f} GB"
    return (
        f"out of memory: stage {worst.stage} needs {needed / 1e9:.1f} GB, a device of "
        f"{platform.name} has {limit / 1e9:.1f}; most at op `{worst.at_op}`"
    )
