"""Memory that a device needs in a step: activations, weights, gradients and optimizer state.

The backward pass needs activations of the forward pass (:mod:`joulecast.simulate.stage_activations`). They
are kept for every micro-batch that waits for its backward pass. Weights, gradients and optimizer state are
added. ZeRO says how these are sharded (Rajbhandari et al. 2020).
"""

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import TrainingSetup
from joulecast.runs.platforms import Platform
from joulecast.simulate.cost_cache import OpCache
from joulecast.simulate.phases import Sharding
from joulecast.simulate.program import StageProgram
from joulecast.simulate.schedules import device_order
from joulecast.simulate.stage_activations import StagePeaks, stage_peaks
from joulecast.simulate.strategy import Strategy


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


def _activations(
    strategy: Strategy, programs: list[StageProgram], chunks: list[StagePeaks], inference: bool
) -> tuple[float, str]:
    """The peak of the activations on a device in bytes, and the op at which it occurs. For inference, it is
    the peak of the forward pass."""
    if inference:
        return max((chunk.forward, chunk.op_at(chunk.forward_at)) for chunk in chunks)
    # If a backward pass is split in two, its saved tensors are needed until the second half.
    done = "weights" if strategy.schedule == "zb-h1" else "backward"
    peak, where, saved = 0.0, "", 0.0
    for phase, _, number in device_order(strategy, programs[0].stage):
        chunk, now, at = chunks[number], 0.0, -1
        if phase == "forward":
            now, at = saved + chunk.forward, chunk.forward_at
            saved += chunk.saved
        elif phase == "backward":
            now, at = saved - chunk.saved + chunk.backward, chunk.backward_at
        if phase == done:
            saved -= chunk.saved
        if now > peak:
            peak, where = now, chunk.op_at(at)
    return peak, where


def _largest_block(programs: list[StageProgram], without: Collection[str] = ()) -> float:
    """Bytes of the whole weights of the largest block that is gathered (ZeRO-3), ``without`` some weights."""
    blocks = [weights for program in programs for weights in program.gathered.values()]
    return max(
        (sum(w.bytes for name, w in weights.items() if name not in without) for weights in blocks),
        default=0.0,
    )


def _gathered(programs: list[StageProgram]) -> float:
    """Bytes of whole weights that exist at the same time, if they are kept in shards (ZeRO-3).

    They are the weights of two blocks (one computes, the next is gathered ahead), and shared weights.
    """
    shared: dict[str, float] = {}
    for program in programs:
        blocks = Counter(name for weights in program.gathered.values() for name in weights)
        for weights in program.gathered.values():
            shared |= {name: w.bytes for name, w in weights.items() if blocks[name] > 1}
    return 2 * _largest_block(programs, shared) + sum(shared.values())


def _gradients_bytes(
    strategy: Strategy, programs: list[StageProgram], weights: list[Sharding]
) -> float:
    """Bytes of gradients: shards and one whole block. If gradients are added up before they are scattered,
    all of them are whole."""
    scattered = strategy.micro_batches == 1 or strategy.scatter == "each"
    if not scattered:
        return sum(weight.bytes for weight in weights)
    return sum(_kept(weight, 2) for weight in weights) + _largest_block(programs)


def _kept(weight: Sharding, level: int) -> float:
    """Bytes that a device keeps of a tensor of a weight's size. ZeRO shards it from this level on."""
    return weight.bytes / (weight.shards if weight.zero >= level else 1)


def _communicators(strategy: Strategy) -> int:
    """Number of groups in which a device communicates: one for each axis.

    If not only data are split, Megatron's code has two more: all devices, and the devices of one model.
    """
    axes = {axis for axis, size in strategy.mesh.items() if size > 1}
    return len(axes) + (2 if axes - {"data"} else 0)


def memory_of(
    graph: OpGraph,
    strategy: Strategy,
    programs: list[StageProgram],
    training: TrainingSetup,
    op_cache: OpCache,
    communicator_bytes: float,
) -> Memory:
    """Peak memory of the devices at one place of the pipeline. If dims do not divide evenly, it is for the
    largest parts.

    Args:
        programs: programs of the stages on these devices. There are several if the schedule is interleaved.
        communicator_bytes: bytes of the communication library's buffers for each group of devices.
    """
    keeps = not training.inference
    chunks = [stage_peaks(graph, strategy, program, keeps, op_cache) for program in programs]
    weights = [weight for program in programs for weight in program.weights.values()]
    gradients = _gradients_bytes(strategy, programs, weights)
    if strategy.devices == 1 and strategy.micro_batches == 1 and not training.precision.half:
        # Plain PyTorch on one GPU allocates its gradients in each step: ``zero_grad`` frees them. Wrappers
        # and frameworks keep buffers.
        (chunk,) = chunks
        peak, gradients = chunk.with_gradients
        where = chunk.op_at(chunk.backward_at)
        if chunk.forward > peak + gradients:
            peak, gradients, where = chunk.forward, 0.0, chunk.op_at(chunk.forward_at)
    else:
        peak, where = _activations(strategy, programs, chunks, training.inference)
    return Memory(
        programs[0].stage,
        sum(_kept(weight, 3) for weight in weights) + _gathered(programs),
        training.gradient_bytes(gradients),
        sum(training.state_bytes(_kept(weight, 1)) for weight in weights),
        activations_bytes=peak,
        at_op=where,
        communication_bytes=communicator_bytes * _communicators(strategy),
    )


def least_state_bytes(graph: OpGraph, strategy: Strategy, training: TrainingSetup) -> float:
    """A lower bound of the bytes of weights, gradients and optimizer state on the fullest device.

    It assumes that they are divided evenly over the pipeline, tensor and expert axes. So no op has to be
    placed.
    """
    mesh = strategy.mesh
    split = math.prod(mesh.get(axis, 1) for axis in ("pipeline", "tensor", "expert"))
    whole = sum(tensor.bytes for tensor in graph.parameters) / split
    zero, shards = strategy.tree.zero or 0, mesh.get("data", 1)
    scattered = strategy.micro_batches == 1 or strategy.scatter == "each"
    kept = [whole / (shards if zero >= level else 1) for level in (1, 2, 3)]
    gradients = training.gradient_bytes(kept[1] if scattered else whole)
    return kept[2] + gradients + training.state_bytes(kept[0])


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
        ends: of the 90 % interval of the fullest device's bytes.
    """
    device = platform.require_cluster().device
    limit, worst = device.memory_bytes, max(memory, key=lambda m: m.peak_bytes)
    share = share_of_memory(memory, platform)
    if limit is None or share is None:
        return f"memory of {platform.name}'s devices is not known"
    needed = f"{share * limit / 1e9:.1f}"
    if ends is not None:
        needed += " ({:.1f} to {:.1f})".format(*(end / 1e9 for end in ends))
    if share <= 1:
        near = "; it may not fit" if ends is not None and ends[1] > limit else ""
        return f"fits: {needed} of {limit / 1e9:.1f} GB{near}"
    return (
        f"out of memory: stage {worst.stage} needs {needed} GB, a device of "
        f"{platform.name} has {limit / 1e9:.1f}; most at op `{worst.at_op}`"
    )
