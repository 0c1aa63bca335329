"""Judges the simulator on the emulated network: its steps, its measurements, and predictions of them.

The network is calibrated only on collectives that ran alone. Every configuration is predicted before it is
compared with its measurement (``recorded/emulated-network``). The emulated network and the simulator follow
the same rules for a step. These are all rules:

* A rank is ``(stage * data_parallel + replica) * tensor_parallel + shard``. Consecutive ranks share a node.
* A stage has an equal count of consecutive layers and computes one thing at a time, in the order of its
  schedule (:mod:`joulecast.simulate.schedules`).
* When the forward is done, the activation goes to the same replica and shard of the next stage. When the
  backward is done, its gradient (same size) goes back. The sender continues to compute. The receiver waits.
  Every shard sends the whole ``activation_bytes``.
* A tensor-parallel group all-reduces ``activation_bytes`` after every layer's forward, and again after its
  backward. Meanwhile its ranks compute nothing.
* Gradients are all-reduced over the data-parallel group of the stage, only after the last backward, in the
  buckets of :meth:`EmulatedStep.buckets`, one after the other. With ``overlap``, a bucket is ready as soon as
  the backward of its last layer (and the tensor-parallel all-reduce) is done. Without it, all buckets are
  ready when the last backward of the rank is done.
* The computations of a straggler take ``factor`` times as long. Nothing else differs.

The step lasts until the last rank has computed, all-reduced and sent everything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import pandas as pd
from pydantic import Field, model_validator

from joulecast.graphs.costs import Cost, Direction, Parts
from joulecast.graphs.opgraph import Access, Dim, DimKind, Op, OpGraph, Tensor, checked
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.runs.platforms import Platform
from joulecast.simulate.collectives import Algorithm
from joulecast.simulate.judged.results import (
    Calibrated,
    Experiment,
    Frozen,
    IterationTable,
    Measurements,
    StepConfiguration,
    judge_steps,
    platform_of,
    read_folder,
)
from joulecast.simulate.network_calibration import NetworkCalibration, calibrate_network
from joulecast.simulate.shared_links import alone
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import Node, Strategy


class Layer(Frozen):
    """A layer on one rank. Times and activations are per micro-batch."""

    name: str
    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)
    gradient_bytes: int = Field(ge=0, multiple_of=4, description="Gradients that a rank holds.")
    activation_bytes: int = Field(
        ge=0,
        multiple_of=4,
        description="Sent over a pipeline cut after the layer. Tensor-parallel groups sum it.",
    )


class Straggler(Frozen):
    """A rank whose computations take ``factor`` times as long."""

    rank: int = Field(ge=0)
    factor: float = Field(gt=0)


class EmulatedStep(StepConfiguration):
    """A step of training on ``ranks`` ranks. The docstring of the module says how the step works."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    ranks: int = Field(ge=1)
    ranks_per_node: int = Field(1, ge=1)
    data_parallel: int = Field(1, ge=1)
    tensor_parallel: int = Field(1, ge=1)
    pipeline: int = Field(1, ge=1)
    micro_batches: int = Field(1, ge=1)
    schedule: Literal["gpipe", "1f1b"] = "gpipe"
    bucket_bytes: int = Field(1 << 20, ge=1, description="Size at which a bucket closes.")
    overlap: bool = True
    algorithm: Algorithm = "ring"
    layers: tuple[Layer, ...] = Field(min_length=1)
    straggler: Straggler | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "EmulatedStep":
        sizes = self.data_parallel, self.tensor_parallel, self.pipeline
        slow, said = self.straggler.rank if self.straggler else 0, ""
        if math.prod(sizes) != self.ranks:
            product = "data_parallel {} x tensor_parallel {} x pipeline {}".format(*sizes)
            said = f"{product} is {math.prod(sizes)}, not the {self.ranks} ranks"
        elif self.ranks % self.ranks_per_node:
            said = f"{self.ranks} ranks do not fill nodes of {self.ranks_per_node}"
        elif len(self.layers) % self.pipeline:
            said = f"{len(self.layers)} layers cannot be cut into {self.pipeline} stages of equal count"
        elif slow >= self.ranks:
            said = f"straggler.rank {slow} is not one of the ranks 0 to {self.ranks - 1}"
        if said:
            raise ValueError(f"{self.name}: {said}")
        return self

    def stage_layers(self, stage: int) -> tuple[Layer, ...]:
        """The layers of a stage, in the order of the forward."""
        count = len(self.layers) // self.pipeline
        return self.layers[stage * count : (stage + 1) * count]

    def buckets(self, stage: int) -> list[tuple[int, int]]:
        """The gradient buckets of a stage, in the order of the backward.

        Returns:
            for each bucket, the index (within the stage) of the layer whose backward completes it, and the
            size of the bucket in bytes. Layers without gradients are in no bucket.
        """
        layers = self.stage_layers(stage)
        if self.data_parallel == 1:
            return []
        closed: list[tuple[int, int]] = []
        filled, last = 0, 0
        for index in reversed(range(len(layers))):
            if layers[index].gradient_bytes == 0:
                continue
            filled, last = filled + layers[index].gradient_bytes, index
            if filled >= self.bucket_bytes:
                closed.append((index, filled))
                filled = 0
        return [*closed, (last, filled)] if filled else closed


def timed_chain(
    name: str, layers: Sequence[Layer], shards: int = 1, weights_share: float = 0.0
) -> OpGraph:
    """A chain of layers, for micro-batches of one sample. The work of the layers is split along the dim
    ``shard``, and their outputs are summed.

    Args:
        shards: size of the tensor-parallel group.
        weights_share: share of the backward for the gradients of weights, which a zero-bubble schedule does
            later.
    """
    tensors = [Tensor("input", (1, 1), 1, "input")]
    ops = []

    def add(
        module: str, suffix: str, reads: Sequence[Access], size: int, *shard: Dim, **timed: float
    ) -> Access:
        written = Tensor(module + suffix, (1, size), 1, "activation")
        tensors.append(written)
        attributes = {"forward_s": 0.0, "backward_s": 0.0, **timed}
        dims = (Dim("batch", 1, DimKind.BATCH), *shard)
        access = Access(written.name, ("batch", None))
        ops.append(Op(written.name, "timed", module, dims, tuple(reads), (access,), attributes))
        return access

    read = Access("input", ("batch", None))
    shard = Dim("shard", shards, DimKind.REDUCE)
    for layer in layers:
        weight = Tensor(f"{layer.name}.weight", (layer.gradient_bytes,), 1, "parameter")
        tensors.append(weight)
        size = layer.activation_bytes
        # An op of its own: so the gradient of the weights is complete only after the layer's backward pass.
        entered = add(layer.name, "/weights", [read, Access(weight.name, (None,))], size)
        timed = {"forward_s": layer.forward_s, "backward_s": layer.backward_s}
        read = add(layer.name, "", [entered], size, shard, **timed, weights_share=weights_share)
    add(layers[-1].name, "/loss", [read], 1)
    return checked(OpGraph(name, tuple(ops), {t.name: t for t in tensors}, 1))


@dataclass(frozen=True)
class GivenCosts:
    """The given costs of timed layers. The optimizer costs nothing."""

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        return Cost(float(op.attributes[f"{direction}_s"]), "given")

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        return Cost(0.0, "given")


_STEP = ("configuration", "repeat")
_COLLECTIVE = ("kind", "algorithm", "ranks", "ranks_per_node", "bytes")
_OUTCOME = ("seconds", "other_cores", "late_s")

EMULATED = Experiment(
    configuration=EmulatedStep,
    tables={
        "steps": IterationTable(_STEP, _OUTCOME),
        # Seconds from the common start until each rank began, and until it had finished everything.
        "ranks": IterationTable((*_STEP, "rank"), ("began_s", "ended_s")),
        "collectives": IterationTable(_COLLECTIVE, _OUTCOME),
    },
    typical=median,
)

ABLATIONS: dict[str, tuple[Assumptions, bool]] = {
    "simulator": (Assumptions(), True),
    "no sharing": (Assumptions(sharing=False), True),
    "no overlap": (Assumptions(), False),
    "single queue": (Assumptions(single_queue=True), True),
}
"""The simulator, whole and without a part. Also whether gradients overlap as the configuration says."""


def read_results(folder: Path) -> Measurements[EmulatedStep]:
    """Read the measurements on the emulated network.

    Raises:
        JoulecastError: ``folder`` has no such measurements.
    """
    return read_folder(folder, EMULATED)


def calibrations(results: Measurements[EmulatedStep]) -> dict[str, NetworkCalibration]:
    """Two calibrations, from ring all-reduces and messages: of the link between nodes (``nic``), and of the
    memory inside a node."""
    points = results.collectives
    ring = (points.kind == "send") | (points.algorithm == "ring")
    points = points[ring & (points.clean > 0)]
    return {
        "nic": calibrate_network(points[points.ranks_per_node == 1]),
        "node": calibrate_network(points[points.ranks_per_node == 2]),
    }


def emulated_platform(results: Measurements[EmulatedStep], ranks_per_node: int) -> Platform:
    """The emulated network as a platform, with the rates of its calibration."""
    found = calibrations(results)
    links = [Calibrated("nic", found["nic"])]
    if ranks_per_node > 1:
        links = [Calibrated("node", found["node"], ranks_per_node), *links]
    return platform_of("emulated-network", "a sleeping rank", links, ranks_per_node, 0.0)


def strategy_of(configuration: EmulatedStep, overlap: bool = True) -> Strategy:
    """The strategy of a configuration, with its layers on its stages."""
    each = len(configuration.layers) // configuration.pipeline
    children = {
        layer.name: Node(stage=place // each) for place, layer in enumerate(configuration.layers)
    }
    mesh = {
        "pipeline": configuration.pipeline,
        "data": configuration.data_parallel,
        "tensor": configuration.tensor_parallel,
    }
    split = {"batch": "data", "shard": "tensor"}
    return Strategy(
        mesh=mesh,
        micro_batches=configuration.micro_batches,
        schedule=configuration.schedule,
        overlap=configuration.overlap and overlap,
        bucket_bytes=configuration.bucket_bytes,
        tree=Node(split=split, children=children),
    )


def predict(
    configuration: EmulatedStep,
    platform: Platform,
    assumptions: Assumptions | None = None,
    overlap: bool = True,
) -> Simulation:
    """Simulate a configuration."""
    graph = timed_chain(configuration.name, configuration.layers, configuration.tensor_parallel)
    straggler, assumed = configuration.straggler, assumptions or Assumptions()
    if straggler is not None:
        assumed = replace(assumed, stragglers={straggler.rank: straggler.factor})
    strategy = strategy_of(configuration, overlap)
    return simulate(graph, platform, strategy, configuration.micro_batches, GivenCosts(), assumed)


def sum_and_max(simulation: Simulation) -> tuple[float, float]:
    """Two rules of thumb for the seconds of a step, from the compute and communication of devices.

    One rule takes their sum, and the other the larger of the two, each on the busiest device. The
    communication of a device is the sum of the times that each message would take alone on an idle network.
    """
    count = simulation.device_mesh.classes.count
    computing, talking = [0.0] * count, [0.0] * count
    capacity = simulation.capacity
    for task in simulation.activities:
        if task.usage is None:
            computing[task.devices[0]] += task.work
            continue
        crossed = {port: min(times, 1.0) for port, times in task.usage.items()}
        seconds = task.latency + task.work / alone(crossed, capacity)
        for device in task.devices:
            talking[device] += seconds
    both = list(zip(computing, talking, strict=True))
    return max(c + t for c, t in both), max(max(c, t) for c, t in both)


def judge(results: Measurements[EmulatedStep]) -> pd.DataFrame:
    """Predict every measured configuration by the simulator, by the simulator without a part of it, and by
    two rules of thumb. :func:`joulecast.simulate.judged.results.judge_steps` makes the rows."""
    platforms = {count: emulated_platform(results, count) for count in (1, 2)}
    seconds = {}
    for configuration in results.configurations:
        platform = platforms[configuration.ranks_per_node]
        simulations = {
            name: predict(configuration, platform, assumed, overlap)
            for name, (assumed, overlap) in ABLATIONS.items()
        }
        total, larger = sum_and_max(simulations["no sharing"])
        seconds[configuration.name] = {
            **{name: simulation.step_s for name, simulation in simulations.items()},
            "sum": total,
            "max": larger,
        }
    return judge_steps(results, "emulated network", seconds, "stand-alone collectives")
