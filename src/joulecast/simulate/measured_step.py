"""Training steps that were measured on a GPU. They are simulated, too, to correct the costs of the GPU.

    network: gpt2-large
    strategy: dp=4
    batch: 4
    precision: fp32
    attention: eager
    optimizer: none
    step_s: 0.712
    memory_bytes: 41.2e+9

They correct effects that no description contains: clocks, drivers, libraries.
:mod:`joulecast.simulate.correction` applies them to other steps. The correction scales the costs of ops, and
leaves communication as it is. A measured peak of memory shows how much memory the process keeps in addition
to its tensors.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from scipy.optimize import root_scalar

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, Scaled
from joulecast.graphs.network_graphs import names, network_for
from joulecast.graphs.precision import TrainingSetup, training_of
from joulecast.quantities import MOST_SAMPLES, counted, digits
from joulecast.runs.files.reading import read_yaml, validated
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.folders import record_folders
from joulecast.runs.platforms import Platform
from joulecast.runs.record import NETWORK, RunInfo, read_info
from joulecast.runs.recorded import CAMPAIGN_FILE, recorded_infos
from joulecast.simulate.correction import (
    Corrected,
    MeasuredError,
    MeasuredSteps,
    step_setting,
)
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import parse_strategy

_LEAST_FACTOR, _MOST_FACTOR = 0.1, 20.0
_NEAR = 1e-3
_TRIES = 20


class MeasuredStep(BaseModel):
    """A measured step: what ran, and how long it took."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    network: str = Field(max_length=500, description="By name or numbers, as of `simulate`.")
    strategy: str = Field("dp=1", max_length=500)
    batch: int = Field(ge=1, le=MOST_SAMPLES, description="Samples of one replica's step.")
    precision: str = "fp32"
    attention: Literal["eager", "fused", "cudnn"] | None = None
    optimizer: str = "adam"
    inference: bool = False
    step_s: float = Field(gt=0, le=1e9, description="Seconds of a step.")
    memory_bytes: float | None = Field(
        None,
        gt=0,
        le=1e15,
        description="Peak memory of the device that needs most, if it was measured.",
    )
    gpu: str | None = Field(
        None, max_length=200, description="GPU that it ran on. It corrects no other GPU's steps."
    )
    source: str = Field("", max_length=1000, description="Who measured it, and where.")

    @property
    def training(self) -> TrainingSetup:
        """The setup of the training: precision, optimizer, and whether there is a backward pass."""
        return training_of(self.precision, self.optimizer, self.inference)


class _Steps(BaseModel):
    model_config = ConfigDict(extra="forbid")

    steps: list[MeasuredStep] = Field(min_length=1)


_SHOWN = 10
"""Largest number of records of a folder that an error shows."""


_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
_REPLICAS = "DistributedDataParallel"


_OWN_PRECISIONS = {"bf16": "amp", "fp32": "fp32"}
"""Precisions of campaigns in the simulator. At bf16, a campaign uses autocast, with weights at fp32."""


def precision_of(info: RunInfo) -> str | None:
    """The simulator's name of the precision of a training on GPUs, if its record says it."""
    training, seen = info.spec.training, info.observed_step
    if training is not None and training.device == "cuda":
        return _OWN_PRECISIONS.get(training.precision)
    if seen is None or info.outcome.device != "cuda":
        return None
    if seen.weights == "float32" and seen.precision in ("bfloat16", "float16"):
        return "amp"
    if seen.weights == "bfloat16":
        return "bf16-true"
    return _PRECISIONS.get(str(seen.precision))


def _gpu_of(info: RunInfo) -> str | None:
    return next((str(name) for host in info.hosts for name in host.get("gpus", [])), None)


def _captured_step(record: Path, info: RunInfo, step_s: float, batch: int) -> MeasuredStep | None:
    """The step of a captured training. It is ``None`` if the training was not captured, used no GPU, or has
    ranks without DistributedDataParallel."""
    network, seen, ranks = record / NETWORK, info.observed_step, info.spec.ranks
    precision = precision_of(info)
    if not network.is_file() or seen is None or precision is None:
        return None
    if ranks > 1 and seen.wrapper != _REPLICAS:
        return None
    micro = f",micro={seen.micro_batches}" if seen.micro_batches > 1 else ""
    return MeasuredStep(
        network=str(network),
        strategy=f"dp={ranks}{micro}",
        batch=batch,
        precision=precision,
        optimizer="adam" if "adam" in (seen.optimizer or "").lower() else "momentum",
        step_s=step_s,
        gpu=_gpu_of(info),
        source=str(record),
    )


_IMAGES = {"image_size": 224, "patch_size": 16, "classes": 1000}
"""Sizes of the shipped graphs of torchvision's networks. (Inception's images are larger.)"""


def _campaign_step(record: Path, info: RunInfo, step_s: float, batch: int) -> MeasuredStep | None:
    """The step of a campaign's own training on GPUs. It is ``None`` for any other training, or if no graph is
    shipped for its network and size."""
    workload, precision = info.spec.workload, precision_of(info)
    if workload is None or precision is None:
        return None
    is_shipped = workload.network in names() and workload.network != "inception_v3"
    if not is_shipped or any(getattr(workload, name) != size for name, size in _IMAGES.items()):
        return None
    return MeasuredStep(
        network=workload.network,
        strategy=f"dp={info.spec.ranks}",
        batch=batch,
        precision=precision,
        optimizer="momentum",
        step_s=step_s,
        gpu=_gpu_of(info),
        source=str(record),
    )


def _infos(folder: Path) -> Iterator[tuple[Path, RunInfo]]:
    if (folder / CAMPAIGN_FILE).is_file():
        yield from ((folder / info.spec.run, info) for info in recorded_infos(folder))
    else:
        yield from ((record, read_info(record)) for record in record_folders(folder))


def _recorded_steps(folder: Path) -> list[MeasuredStep]:
    """The steps of run records whose networks were captured, or belong to a campaign.

    Raises:
        JoulecastError: there are none. The error says what the records lack, and which file to write.
    """
    lines, found = [], []
    for record, info in _infos(folder):
        outcome, batch = info.outcome, info.global_batch_size
        if not outcome.steps or not batch or outcome.work_unit != "samples" or info.left_out:
            continue
        ranks = info.spec.ranks
        step_s = (outcome.stop_s - outcome.start_s) / outcome.steps
        each = max(1, batch // ranks)
        step = _captured_step(record, info, step_s, each)
        step = step or _campaign_step(record, info, step_s, each)
        found += [] if step is None else [step]
        said = "; ".join([f"{counted(ranks, 'rank')}, {batch} samples of all", *info.remarks])
        lines.append(
            f"  - {{network: NETWORK, strategy: STRATEGY, batch: {each}, precision: "
            f"PRECISION, step_s: {step_s:.6g}}}  # {record.name}: {said}"
        )
    if found:
        return found
    if not lines:
        raise JoulecastError(
            f"{folder}: no record there has steps of known samples to calibrate on; measure with "
            "--samples-per-step N where the observer sees no data loader"
        )
    raise JoulecastError(
        f"{folder}: these run records do not say which network of the simulator was trained, at which length "
        "or image size, and how it was split, or are not of GPUs. Measure with --capture, on GPUs (one, or "
        f"several joined by {_REPLICAS}); or write these into a YAML file, and give that file:\n  steps:\n"
        + "\n".join(lines[:_SHOWN])
    )


def read_steps(path: Path) -> list[MeasuredStep]:
    """Measured steps from YAML, one or several under ``steps``; or from a folder of run records, or from a
    recorded campaign.

    Raises:
        JoulecastError: the file is missing or has wrong keys (the error names them); or the records lack
            something (the error says what).
    """
    path = recorded_folder(path)
    if path.is_dir():
        return _recorded_steps(path)
    content = read_yaml(path, "measured step")
    if isinstance(content, dict) and "steps" in content:
        return validated(TypeAdapter(_Steps), content, str(path)).steps
    return [validated(TypeAdapter(MeasuredStep), content, str(path))]


# A step that is corrected by is simulated several times, and many measured steps are of one network.
_network = lru_cache(maxsize=4)(network_for)


def simulated_step(step: MeasuredStep, platform: Platform, costs: Costs) -> Simulation:
    """The simulation of a measured step.

    Raises:
        JoulecastError: an error of :func:`joulecast.simulate.simulate.simulate`.
    """
    graph = _network(step.network, step.training, step.attention)
    assumed = Assumptions(training=step.training)
    return simulate(graph, platform, parse_strategy(step.strategy), step.batch, costs, assumed)


def first_factor(simulation: Simulation, measured_s: float) -> float:
    """A first guess of the factor. It assumes that everything except exposed communication grows with the
    factor."""
    exposed = simulation.breakdown.exposed_communication_s
    return (measured_s - exposed) / (simulation.step_s - exposed)


def factor_of(step: MeasuredStep, platform: Platform, costs: Costs) -> float:
    """The factor for the seconds of ops with which the simulated step takes as long as the measured one.

    Raises:
        JoulecastError: no factor between 0.1 and 20 does this.
    """

    def missing(factor: float) -> float:
        return (
            step.step_s - simulated_step(step, platform, Scaled(costs, factor, "calibrated")).step_s
        )

    first = simulated_step(step, platform, costs)
    guess = first_factor(first, step.step_s)
    if _LEAST_FACTOR <= guess <= _MOST_FACTOR:
        found = root_scalar(missing, x0=1.0, x1=guess * 1.001, rtol=_NEAR, maxiter=_TRIES)
        if found.converged and _LEAST_FACTOR <= found.root <= _MOST_FACTOR:
            return float(found.root)
    raise JoulecastError(
        f"measured step of {step.network} ({step.strategy}, batch {step.batch}): {step.step_s:g} s, where "
        f"{first.step_s:g} s are simulated on {platform.name}: too far apart to calibrate on; check "
        "platform, batch (of one replica), precision and unit"
    )


def error_of(step: MeasuredStep, simulation: Simulation, ops_factor: float) -> MeasuredError:
    """A measured step's error, from its simulation and the factor of its ops' seconds."""
    strategy = simulation.strategy
    micro_batch = simulation.graph.with_batch(round(simulation.batch / strategy.micro_batches))
    return MeasuredError(
        step_setting(micro_batch, strategy, step.inference),
        math.log(step.step_s / simulation.step_s),
        math.log(ops_factor),
    )


def odd_remark(steps: Sequence[MeasuredStep], simulations: Sequence[Simulation]) -> str | None:
    """A remark if a single step is slower or faster than the 90 % interval of its simulation allows.

    If two steps are off in the same direction, the description of the GPU is probably wrong, and there is no
    remark.
    """
    outside: dict[bool, list[str]] = {True: [], False: []}
    for step, found in zip(steps, simulations, strict=True):
        interval = found.interval_s
        if interval and not interval[0] <= step.step_s <= interval[1]:
            outside[step.step_s > found.step_s].append(
                f"the measured step of {step.network} ({step.strategy}, batch {step.batch}) takes "
                f"{digits(step.step_s / found.step_s)} times as long as simulated, where nine of ten take "
                f"{digits(interval[0] / found.step_s)} to {digits(interval[1] / found.step_s)} times: it may "
                "be an odd one; measure another setting, and give both"
            )
    alone = [said[0] for said in outside.values() if len(said) == 1]
    return "; ".join(alone) or None


def corrected(
    platform: Platform, costs: Costs, steps: Sequence[MeasuredStep]
) -> tuple[Platform, Corrected]:
    """The platform and its costs, corrected by measured steps.

    Raises:
        JoulecastError: an error of :func:`factor_of`.
    """
    found = [simulated_step(step, platform, costs) for step in steps]
    errors = tuple(
        error_of(step, simulation, factor_of(step, platform, costs))
        for step, simulation in zip(steps, found, strict=True)
    )
    extra = [
        step.memory_bytes - simulation.peak_memory_bytes
        for step, simulation in zip(steps, found, strict=True)
        if step.memory_bytes is not None
    ]
    cluster = platform.require_cluster()
    reserved = cluster.device.reserved_bytes
    known = {"reserved_bytes": max(0.0, reserved + median(extra))} if extra else {}
    device = cluster.device.model_copy(update=known)
    described = cluster.model_copy(update={"device": device})
    there = platform.model_copy(update={"cluster": described})
    return there, Corrected(cached(costs), MeasuredSteps(errors), odd_remark(steps, found))
