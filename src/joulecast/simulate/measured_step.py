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
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Annotated, Literal
from warnings import catch_warnings

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from scipy.optimize import root_scalar

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, Scaled
from joulecast.graphs.network_graphs import names, network_file, network_for
from joulecast.graphs.precision import FUSED_PRECISIONS, TrainingSetup, training_of
from joulecast.quantities import MOST_SAMPLES, counted, digits, listed
from joulecast.runs.files.reading import read_yaml, validated
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.folders import record_folders
from joulecast.runs.platforms import Platform
from joulecast.runs.record import NETWORK, RunInfo, read_info
from joulecast.runs.recorded import CAMPAIGN_FILE, recorded_infos
from joulecast.simulate.correction import MeasuredError, MeasuredSteps, step_setting
from joulecast.simulate.cost_cache import CachedCosts, cached
from joulecast.simulate.request import Optimizer, PeakPrecision
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import parse_strategy

_LEAST_FACTOR, _MOST_FACTOR = 0.1, 20.0
_NEAR = 1e-3
_TRIES = 20


class MeasuredStep(BaseModel):
    """A measured step: what ran, and how long it took."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    network: str = Field(max_length=500, description="Network, as for `simulate`.")
    strategy: str = Field("dp=1", max_length=500)
    batch: int = Field(ge=1, le=MOST_SAMPLES, description="Samples of a replica in a step.")
    precision: PeakPrecision = "fp32"
    attention: Literal["eager", "fused", "cudnn"] | None = None
    optimizer: Optimizer = "adam"
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


_SHOWN = 10
"""Largest number of records of a folder that an error shows."""


_PRECISIONS = {
    "float32": "fp32",
    "tf32": "tf32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float64": "fp64",
}
_REPLICAS = "DistributedDataParallel"
_OWN_PRECISIONS = {"bf16": "amp", "fp32": "fp32"}
"""The simulator's name for each precision of a campaign. At bf16, a campaign uses autocast, with weights at
fp32."""


def precision_of(info: RunInfo) -> str | None:
    """The simulator's name of the precision of a training on GPUs, if its record says it."""
    training, seen = info.spec.training, info.observed_step
    if training is not None and training.device == "cuda":
        return _OWN_PRECISIONS.get(training.precision)
    if seen is None or info.outcome.device != "cuda":
        return None
    if seen.weights == "float32" and seen.precision in ("bfloat16", "float16"):
        # A compiler fuses kernels, as frameworks do at 16 bits.
        return _PRECISIONS[seen.precision] if seen.compiled else "amp"
    if seen.weights == "bfloat16":
        return "bf16-true"
    return _PRECISIONS.get(str(seen.precision))


def _optimizer_of(info: RunInfo) -> str:
    """The simulator's name of the optimizer of an observed training."""
    seen = info.observed_step
    is_sgd = seen is not None and "sgd" in (seen.optimizer or "").lower()
    return "momentum" if is_sgd else "adam"


def _training_of_network(network: str) -> RunInfo | None:
    """The training that a network was captured from; ``None`` for other networks."""
    file = network_file(network)
    if file is None or not (file.parent / "run.json").is_file():
        return None
    return read_info(file.parent)


def usual_optimizer(network: str) -> str:
    """The optimizer to simulate if none is requested: that of the training that the network was captured
    from, or adam."""
    info = _training_of_network(network)
    return "adam" if info is None else _optimizer_of(info)


def usual_precisions(network: str, calibrate: Path | None, platform: Platform) -> list[str]:
    """The precisions to simulate if none is requested: those of the measured steps, or of the training that
    the network was captured from. Otherwise 16 bits, if the platform has a rate for them: autocast for a
    captured network, fused kernels for a named one."""
    if calibrate is not None:
        return list(dict.fromkeys(step.precision for step in read_steps(calibrate)))
    info = _training_of_network(network)
    known = info and precision_of(info)
    rates = platform.require_cluster().device.peak_flops
    narrow = [name for name in FUSED_PRECISIONS if name in rates]
    if known == "tf32" and known not in rates:
        return ["fp32"]
    if known and (known in narrow or known not in FUSED_PRECISIONS):
        return [known]
    if known is None and narrow and network_file(network) is not None:
        return ["amp"]
    return [*narrow, "fp32"][:1]


_IMAGES = {"image_size": 224, "patch_size": 16, "classes": 1000}
"""Sizes of the shipped graphs of torchvision's networks. (Inception's images are larger.)"""


def _step_of(record: Path, info: RunInfo, step_s: float, batch: int) -> MeasuredStep | None:
    """The step of a captured training, or of a campaign's own training, on GPUs.

    It is ``None`` for any other training. It is also ``None`` if ranks are joined without
    DistributedDataParallel, or if joulecast has no graph of a campaign's network and size.
    """
    precision, ranks, seen = precision_of(info), info.spec.ranks, info.observed_step
    workload, network = info.spec.workload, record / NETWORK
    if precision is None:
        return None
    if network.is_file() and seen is not None and (ranks == 1 or seen.wrapper == _REPLICAS):
        micro = f",micro={seen.micro_batches}" if seen.micro_batches > 1 else ""
        again = ",recompute" if seen.recomputes else ""
        name, strategy = str(network), f"dp={ranks}{micro}{again}"
        optimizer = _optimizer_of(info)
    elif (
        workload is not None
        and workload.network in names()
        and workload.network != "inception_v3"
        and all(getattr(workload, key) == size for key, size in _IMAGES.items())
    ):
        name, strategy, optimizer = workload.network, f"dp={ranks}", "momentum"
    else:
        return None
    gpus = (str(gpu) for host in info.hosts for gpu in host.get("gpus", []))
    return MeasuredStep(
        network=name,
        strategy=strategy,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        step_s=step_s,
        gpu=next(gpus, None),
        source=str(record),
    )


def _recorded_steps(folder: Path) -> list[MeasuredStep]:
    """The steps of run records whose networks were captured, or belong to a campaign.

    Raises:
        JoulecastError: there are none. The error says what the records lack, and which file to write.
    """
    if (folder / CAMPAIGN_FILE).is_file():
        infos = [(folder / info.spec.run, info) for info in recorded_infos(folder)]
    else:
        infos = [(record, read_info(record)) for record in record_folders(folder)]
    lines, found = [], []
    for record, info in infos:
        outcome, batch = info.outcome, info.global_batch_size
        if not outcome.steps or not batch or outcome.work_unit != "samples" or info.left_out:
            continue
        ranks = info.spec.ranks
        step_s = (outcome.stop_s - outcome.start_s) / outcome.steps
        each = max(1, batch // ranks)
        step = _step_of(record, info, step_s, each)
        found += [] if step is None else [step]
        where = f" on {outcome.device}" if outcome.device else ""
        said = "; ".join(
            [f"{counted(ranks, 'rank')}{where}, {batch} samples of all", *info.remarks]
        )
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
    if isinstance(content, dict) and content.keys() == {"steps"}:
        listed = TypeAdapter(Annotated[list[MeasuredStep], Field(min_length=1)])
        return validated(listed, content["steps"], f"{path}: steps")
    return [validated(TypeAdapter(MeasuredStep), content, str(path))]


# Each measured step is simulated several times, and many measured steps have the same network.
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


def _factor_of(
    step: MeasuredStep, simulation: Simulation, platform: Platform, costs: Costs
) -> float:
    """The factor for the seconds of ops with which the simulated step takes as long as the measured one.

    Raises:
        JoulecastError: no factor between 0.1 and 20 does this.
    """

    def missing(factor: float) -> float:
        slower = simulated_step(step, platform, Scaled(costs, factor, "calibrated"))
        return step.step_s - slower.step_s

    guess = first_factor(simulation, step.step_s)
    if _LEAST_FACTOR <= guess <= _MOST_FACTOR:
        # scipy warns where no factor changes the step. The error below says so.
        with catch_warnings(action="ignore", category=RuntimeWarning):
            found = root_scalar(missing, x0=1.0, x1=guess * 1.001, rtol=_NEAR, maxiter=_TRIES)
        if found.converged and _LEAST_FACTOR <= found.root <= _MOST_FACTOR:
            return float(found.root)
    raise JoulecastError(
        f"measured step of {step.network} ({step.strategy}, batch {step.batch}): {step.step_s:g} s, where "
        f"{simulation.step_s:g} s are simulated on {platform.name}, of which "
        f"{simulation.breakdown.exposed_communication_s:.3g} s are exposed communication, which a measured "
        "step does not correct: too far apart to calibrate on; check platform, links, batch (of one "
        "replica), precision and unit"
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


def correction_remark(steps: Sequence[MeasuredStep], simulations: Sequence[Simulation]) -> str:
    """A remark that names the measured steps, because they may be of other networks.

    It also names a single step that is slower or faster than the 90 % interval of its simulation allows. If
    two steps are off in the same direction, the description of the GPU is probably wrong, and there is no
    such remark.
    """
    said = [f"{step.network} ({step.strategy}, batch {step.batch})" for step in steps]
    outside: dict[bool, list[str]] = {True: [], False: []}
    for name, step, found in zip(said, steps, simulations, strict=True):
        interval = found.interval_s
        if interval and not interval[0] <= step.step_s <= interval[1]:
            outside[step.step_s > found.step_s].append(
                f"the measured step of {name} takes {digits(step.step_s / found.step_s)} times as long as "
                f"simulated, where nine of ten take {digits(interval[0] / found.step_s)} to "
                f"{digits(interval[1] / found.step_s)} times: it may be an odd one; measure another setting, "
                "and give both"
            )
    which = f"corrected by {counted(len(steps), 'measured step')}: {listed(said, 3)}"
    return "; ".join([which, *(odd[0] for odd in outside.values() if len(odd) == 1)])


def corrected(
    platform: Platform, costs: Costs, steps: Sequence[MeasuredStep]
) -> tuple[Platform, CachedCosts]:
    """The platform and its costs, corrected by measured steps.

    Raises:
        JoulecastError: a simulated step takes much longer or shorter than the measured one.
    """
    known = cached(costs)
    found = [simulated_step(step, platform, known.costs) for step in steps]
    errors = tuple(
        error_of(step, simulation, _factor_of(step, simulation, platform, known.costs))
        for step, simulation in zip(steps, found, strict=True)
    )
    extra = [
        step.memory_bytes - simulation.peak_memory_bytes
        for step, simulation in zip(steps, found, strict=True)
        if step.memory_bytes is not None
    ]
    if extra:
        cluster = platform.require_cluster()
        reserved = max(0.0, cluster.device.reserved_bytes + median(extra))
        device = cluster.device.model_copy(update={"reserved_bytes": reserved})
        cluster = cluster.model_copy(update={"device": device})
        platform = platform.model_copy(update={"cluster": cluster})
    evidence = MeasuredSteps(errors, correction_remark(steps, found))
    return platform, CachedCosts(known.costs, known.op_cache, evidence)
