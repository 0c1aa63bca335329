"""Memory that a device needs in a step: activations, weights, gradients and optimizer state.

An activation lives from the op that makes it to the last op that reads it, forward or backward. With
recomputation, only the inputs of a block are kept for the backward pass, and one block at a time is computed
again. Activations are kept for every micro-batch that waits for its backward pass. Most stages of a pipeline
have the same shape. Stages of the same shape are computed only once.

Weights, gradients and optimizer state are added. ZeRO says how these are sharded (Rajbhandari et al. 2020).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from joulecast.graphs.costs import Parts, bytes_of, extra_kept, kept_for_backward, part_of
from joulecast.graphs.opgraph import Op, OpGraph
from joulecast.graphs.precision import TrainingSetup
from joulecast.runs.platforms import Platform
from joulecast.simulate.phases import Sharding
from joulecast.simulate.placement import PlacedOp, Split
from joulecast.simulate.program import StageProgram
from joulecast.simulate.schedules import device_order
from joulecast.simulate.strategy import Strategy


def _parts(split: Split) -> dict[str, float]:
    """Number of parts of each split dim, as if all parts had the size of the largest one."""
    sizes = {name: split.op.dim(name).size for name in split.parts}
    return {name: sizes[name] / math.ceil(sizes[name] / p) for name, p in split.parts.items()}


def _kept_by(op: str, number: int = 0) -> str:
    """Name of the bytes that an op keeps in addition to tensors of the graph."""
    return f"kept by {op}, {number}"


class _Stage:
    """Activations of a stage: the bytes that a forward leaves, and the peaks of forward and backward.

    A tensor that is gathered for a product is kept whole, or with ``as_written`` as a shard.
    """

    def __init__(
        self, graph: OpGraph, items: list[PlacedOp], keeps: bool, as_written: bool
    ) -> None:
        self.graph, self.items, self.keeps = graph, items, keeps
        self.trained = graph.trained
        self.sizes: dict[str, float] = {}
        """Bytes that a device holds of each activation that its stage reads or writes."""
        self.gathered: list[float] = []
        """Bytes that each op gathers from shards, and drops when it is done."""
        self.weights: list[float] = []
        """Bytes of the weights whose gradients exist from the backward of each op on."""
        self.last_read = {
            a.tensor: place for place, item in enumerate(items) for a in item.op.reads
        }
        self.keepers: dict[str, list[int]] = defaultdict(list)
        """Ops whose backward needs each tensor, in the order of the forward."""
        self.cached: set[str] = set()
        """Copies of weights that autocast made. It holds them until the end of the forward."""
        self.made: set[str] = set()
        self.makes: list[list[str]] = []
        """Tensors that each op makes: its output, and whatever else it keeps for the backward."""
        self.units: dict[str, list[int]] = defaultdict(list)
        """Ops that are recomputed together."""
        written = {access.tensor for item in items for access in item.op.writes}
        self.shards = written if as_written else set()
        """Tensors that are kept as they were written, also if a product gathers them."""
        parts_of = {split: _parts(split) for split in dict.fromkeys(item.split for item in items)}
        every_parts = [parts_of[item.split] for item in items]
        for item, parts in zip(items, every_parts, strict=True):
            self._size_activations(item.op, parts)
        for place, (item, parts) in enumerate(zip(items, every_parts, strict=True)):
            gathered = [a for a in item.op.reads if a.tensor in self.sizes]
            self.gathered.append(
                sum(max(0.0, bytes_of(graph, [a], parts) - self.sizes[a.tensor]) for a in gathered)
            )
            # If there are several readers, the backward of the last one makes the gradient first.
            begin = [a for a in item.op.reads if graph.readers[a.tensor][-1] is item.op]
            begin = [a for a in begin if graph.tensors[a.tensor].role == "parameter"]
            self.weights.append(bytes_of(graph, begin, parts))
            for access in kept_for_backward(graph, item.op) if keeps else ():
                self.keepers[access.tensor].append(place)
            makes = [a.tensor for a in item.op.writes if a.tensor in self.sizes]
            self.makes.append([*makes, *self._size_extra(place, parts)])
            self.made.update(self.makes[place])
            if item.recompute:
                self.units[item.recompute].append(place)
        saved = self._names_of_saved() if keeps else set()
        # In the order of the sizes, so that sums do not depend on the order of a set.
        self.saved = {t: self.sizes[t] for t in self.sizes if t in saved}
        self.saved_bytes = sum(self.saved.values())

    def _size_activations(self, op: Op, parts: Parts) -> None:
        """Note the bytes of the activations that an op reads or writes."""
        reads = [a for a in op.reads if a.tensor not in self.shards]
        for access in (*reads, *op.writes):
            if self.graph.tensors[access.tensor].role in ("input", "activation"):
                size = bytes_of(self.graph, [access], parts)
                self.sizes[access.tensor] = max(self.sizes.get(access.tensor, 0.0), size)

    def _size_extra(self, place: int, parts: Parts) -> list[str]:
        """Note the bytes that an op keeps in addition to tensors of the graph, and return their names."""
        op, names = self.items[place].op, []
        for number, extra in enumerate(extra_kept(self.graph, op)):
            name, tensor = _kept_by(op.name, number), extra.access.tensor
            if self.graph.tensors[tensor].is_weight:
                self.cached.add(name)
            elif not self.keeps:
                continue
            share = part_of(extra.access, parts)
            if tensor in self.shards:
                share = min(share, self.sizes[tensor] / self.graph.tensors[tensor].bytes)
            self.sizes[name] = extra.bytes * share
            if self.keeps:
                self.keepers[name] = [place]
            names.append(name)
        return names

    def _names_of_saved(self) -> set[str]:
        """What a forward leaves for the backward: tensors that a gradient needs, and the inputs of ops that
        are recomputed."""
        saved = {
            tensor
            for tensor, places in self.keepers.items()
            if any(not self.items[place].recompute for place in places)
        }
        for unit, places in self.units.items():
            reads = {a.tensor for place in places for a in self.items[place].op.reads}
            saved |= reads - self._inside(unit)
        return saved

    def _inside(self, unit: str) -> set[str]:
        return {tensor for place in self.units[unit] for tensor in self.makes[place]}

    def forward_peak(self) -> tuple[float, int]:
        """The largest number of bytes during a forward that starts from nothing, and the place of the op at
        which they are in memory; -1: before all ops."""
        live: set[str] = {t for t in self.sizes if t not in self.made and t in self.last_read}
        now = sum(self.sizes[t] for t in live)
        live -= self.saved.keys()
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
        """For the place of each op: the saved tensors that no backward needs after the backward of this op.
        The backward runs in the opposite order, so this op is the first one that keeps them, or the first one
        of a group that is recomputed from them."""
        first = {tensor: places[0] for tensor, places in self.keepers.items()}
        for places in self.units.values():
            for place in places:
                for access in self.items[place].op.reads:
                    first[access.tensor] = min(first.get(access.tensor, place), places[0])
        freed: dict[int, list[str]] = defaultdict(list)
        for tensor in self.saved:
            freed[first[tensor]].append(tensor)
        return freed

    def backward_peak(self) -> tuple[float, int, tuple[float, float, int]]:
        """Three results: the most bytes during a backward that starts with the saved tensors; the place of
        the op at which they are in memory; and ``with_gradients`` of :class:`_StagePeaks`."""
        now = self.saved_bytes
        freed = self._freed()
        gradients = of_weights = 0.0
        held: dict[str, float] = {}
        unit, again = "", 0.0
        peak, where, both = now, -1, (now, 0.0, -1)
        for place in range(len(self.items) - 1, -1, -1):
            item = self.items[place]
            if item.recompute != unit:
                unit = item.recompute
                made = self._inside(unit) - self.saved.keys() if unit else set()
                again = sum(self.sizes[t] for t in made if t in self.keepers)
            for access in item.op.reads:
                # The gradient of each input. Several readers add to the same gradient. Data have none.
                needed = access.tensor in self.trained and access.tensor in self.sizes
                if needed and access.tensor not in held:
                    held[access.tensor] = self.sizes[access.tensor]
                    gradients += held[access.tensor]
            # A gathered tensor is gathered again, and its gradient is whole before it is scattered.
            total = now + gradients + again + 2 * self.gathered[place]
            if item.op.kind == "cross_entropy" and _kept_by(item.op.name) in self.sizes:
                # The gradient of the shares' logarithms, and that of the logits at their precision.
                kept, logits = _kept_by(item.op.name), item.op.reads[0].tensor
                total += self.sizes[kept] + max(0.0, self.sizes[kept] - self.sizes[logits])
            if total > peak:
                peak, where = total, place
            of_weights += self.weights[place]
            both = max(both, (total, of_weights, place), key=lambda at: at[0] + at[1])
            for access in item.op.writes:
                gradients -= held.pop(access.tensor, 0.0)
            now -= sum(self.sizes[t] for t in freed[place])
        return peak, where, both


@dataclass(frozen=True)
class _StagePeaks:
    """Bytes of a stage's activations of one micro-batch."""

    saved: float
    """Bytes that a forward leaves for its backward."""
    forward: float
    """Most bytes during a forward that starts from nothing."""
    forward_at: int
    """Place of the op at the peak of the forward; -1: before all ops."""
    backward: float
    """Most bytes during a backward that starts with the saved tensors; 0 without a backward."""
    backward_at: int
    with_gradients: tuple[float, float, int]
    """The moment of the backward at which activations and gradients of weights together are largest: the
    bytes of the activations, the bytes of the weights whose gradients exist, and the place of the op. It is
    used if each step allocates its gradients again."""


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


def _stage_peaks(
    graph: OpGraph, strategy: Strategy, program: StageProgram, keeps: bool
) -> _StagePeaks:
    """Bytes of the activations of a stage, which keeps them for a backward pass or not. Stages of the same
    shape share a result."""
    as_written = strategy.sequence_parallel

    def looked_at() -> _StagePeaks:
        stage = _Stage(graph, program.items, keeps, as_written)
        forward, at = stage.forward_peak()
        backward = stage.backward_peak() if keeps else (0.0, -1, (0.0, 0.0, -1))
        return _StagePeaks(stage.saved_bytes, forward, at, *backward)

    key = (_shape_of(program), tuple(strategy.mesh.items()), keeps, as_written)
    return graph.once(key, looked_at)


@dataclass(frozen=True)
class Memory:
    """Memory that a device of a pipeline stage needs, by what it is for."""

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    """Bytes of activations at the peak."""
    at_op: str
    """The op at the peak."""
    communication_bytes: float = 0.0
    """Bytes of the communication library's buffers."""

    @property
    def state_bytes(self) -> float:
        """Bytes that are needed all the time: weights, gradients and optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak_bytes(self) -> float:
        """The sum of all parts."""
        return self.state_bytes + self.activations_bytes + self.communication_bytes


def _op_at(program: StageProgram, place: int) -> str:
    """Name of the op at a place of a stage."""
    return "" if place < 0 else program.items[place].op.name


def _activations(
    strategy: Strategy, programs: list[StageProgram], chunks: list[_StagePeaks], inference: bool
) -> tuple[float, str]:
    """The peak of the activations on a device in bytes, and the op at which it occurs. For inference, it is
    the peak of the forward pass."""
    if inference:
        return max(
            (chunk.forward, _op_at(program, chunk.forward_at))
            for program, chunk in zip(programs, chunks, strict=True)
        )
    peak, where = 0.0, ""
    for (phase, number, _), held in device_order(strategy, programs[0].stage).in_flight:
        chunk, now, at = chunks[number], 0.0, -1
        saved = sum(count * each.saved for count, each in zip(held, chunks, strict=True))
        if phase == "forward":
            now, at = saved + chunk.forward, chunk.forward_at
        elif phase == "backward":
            now, at = saved - chunk.saved + chunk.backward, chunk.backward_at
        if now > peak:
            peak, where = now, _op_at(programs[number], at)
    return peak, where


def _block_sizes(
    blocks: Mapping[str, Mapping[str, Sharding]], without: Collection[str]
) -> list[float]:
    """Bytes of the whole weights of each block, ``without`` some weights."""
    return [
        sum(w.bytes for name, w in weights.items() if name not in without)
        for weights in blocks.values()
    ]


def _gathered(programs: list[StageProgram]) -> float:
    """Bytes of whole weights that exist at the same time, if they are kept in shards (ZeRO-3).

    They are the weights of two blocks (one computes, the next is gathered ahead), and shared weights.
    """
    shared: dict[str, float] = {}
    for program in programs:
        blocks = Counter(name for weights in program.gathered.values() for name in weights)
        for weights in program.gathered.values():
            shared |= {name: w.bytes for name, w in weights.items() if blocks[name] > 1}
    sizes = [[0.0, *_block_sizes(program.gathered, shared), 0.0] for program in programs]
    return max(sum(pair) for each in sizes for pair in pairwise(each)) + sum(shared.values())


def _kept(weight: Sharding, level: int) -> float:
    """Bytes that a device keeps of a tensor as large as a weight. ``level`` is the lowest ZeRO level that
    shards the tensor."""
    return weight.bytes / (weight.shards if weight.zero >= level else 1)


def memory_of(
    graph: OpGraph,
    strategy: Strategy,
    programs: list[StageProgram],
    training: TrainingSetup,
    communicator_bytes: float,
) -> Memory:
    """Peak memory of the devices at one place of the pipeline. If dims do not divide evenly, it is for the
    largest parts.

    Args:
        programs: programs of the stages on these devices. There are several if the schedule is interleaved.
        communicator_bytes: bytes of the communication library's buffers for each group of devices.
    """
    keeps = not training.inference
    chunks = [_stage_peaks(graph, strategy, program, keeps) for program in programs]
    weights = [weight for program in programs for weight in program.weights.values()]
    frozen = {tensor.name for tensor in graph.weights if tensor.role == "frozen"}
    trained = [
        weight
        for program in programs
        for name, weight in program.weights.items()
        if name not in frozen
    ]
    # Shards and one whole block. If gradients are added up before they are scattered, all are whole.
    gradients = sum(weight.bytes for weight in trained)
    if strategy.micro_batches == 1 or strategy.scatter == "each":
        gradients = sum(_kept(weight, 2) for weight in trained)
        gradients += max(max(_block_sizes(p.scattered, frozen), default=0.0) for p in programs)
    if strategy.devices == 1 and strategy.micro_batches == 1 and not training.precision.half:
        # Plain PyTorch on one GPU allocates its gradients in each step: ``zero_grad`` frees them. Wrappers
        # and frameworks keep buffers.
        (chunk,), (program,) = chunks, programs
        peak, gradients, place = chunk.with_gradients
        where = _op_at(program, place)
        if chunk.forward > peak + gradients:
            peak, gradients, where = chunk.forward, 0.0, _op_at(program, chunk.forward_at)
    else:
        peak, where = _activations(strategy, programs, chunks, training.inference)
    # A group for each axis. If not only data are split, Megatron's code has two more: all devices, and the
    # devices of one model.
    axes = {axis for axis, size in strategy.mesh.items() if size > 1}
    groups = len(axes) + (2 if axes - {"data"} else 0)
    return Memory(
        programs[0].stage,
        sum(_kept(weight, 3) for weight in weights) + _gathered(programs),
        training.gradient_bytes(gradients),
        sum(training.state_bytes(_kept(weight, 1)) for weight in trained),
        activations_bytes=peak,
        at_op=where,
        communication_bytes=communicator_bytes * groups,
    )


def least_state_bytes(graph: OpGraph, strategy: Strategy, training: TrainingSetup) -> float:
    """A lower bound of the bytes of weights, gradients and optimizer state on the fullest device.

    It assumes that they are divided evenly over the pipeline, tensor and expert axes. So no op has to be
    placed.
    """
    mesh = strategy.mesh
    split = math.prod(mesh.get(axis, 1) for axis in ("pipeline", "tensor", "expert"))
    whole, frozen = (
        sum(tensor.bytes for tensor in graph.weights if (tensor.role == "frozen") == is_frozen)
        / split
        for is_frozen in (False, True)
    )
    zero, shards = strategy.tree.zero or 0, mesh.get("data", 1) * mesh.get("context", 1)
    scattered = strategy.micro_batches == 1 or strategy.scatter == "each"
    kept = [whole / (shards if zero >= level else 1) for level in (1, 2, 3)]
    gradients = training.gradient_bytes(kept[1] if scattered else whole)
    held = frozen / (shards if zero >= 3 else 1)
    return kept[2] + held + gradients + training.state_bytes(kept[0])


def share_of_memory(memory: list[Memory], platform: Platform) -> float | None:
    """The share of its memory that the fullest device needs; ``None`` if its memory is not known."""
    device = platform.require_cluster().device
    if device.memory_bytes is None:
        return None
    return (max(m.peak_bytes for m in memory) + device.reserved_bytes) / device.memory_bytes


def memory_verdict(
    memory: list[Memory], platform: Platform, ends: tuple[float, float] | None = None
) -> str:
    """One line: whether the step fits in memory, and if not, what does not.

    Args:
        ends: ends of the 90 % interval of the fullest device's bytes.
    """
    device = platform.require_cluster().device
    limit, worst = device.memory_bytes, max(memory, key=lambda m: m.peak_bytes)
    share = share_of_memory(memory, platform)
    if limit is None or share is None:
        return f"memory of {platform.name}'s devices is not known"
    needed, near = f"{share * limit / 1e9:.1f}", ""
    if ends is not None:
        needed += f" ({ends[0] / 1e9:.1f} to {ends[1] / 1e9:.1f})"
        near = "probably " if ends[1] > limit else ""
    if share <= 1:
        return f"{near}fits: {needed} of {limit / 1e9:.1f} GB"
    return (
        f"out of memory: stage {worst.stage} needs {needed} GB, a device of "
        f"{platform.name} has {limit / 1e9:.1f}; the peak is at op `{worst.at_op}`"
    )
