"""Judges the simulator on real training of two ranks on one machine: replicas and pipelines.

Operators, all-reduces, messages and the other parts of a step were measured alone, in the same sessions as
the steps. The overlap slowdown, gamma, is fitted on two configurations, which are marked ``fits_gamma``.
Every configuration is predicted before it is compared.

The work of a rank apart from its operators is simulated as follows:

* A replica first fetches its batch. On one core, nothing overlaps this. Its time is added to the simulated
  step.
* A replica copies each gradient into its bucket when it is ready. This is part of the operator's backward.
* Replicas run the same operator at about the same time, and share the bandwidth of the memory. So the times
  of their operators were measured with both ranks at work. Stages never run the same operator at the same
  time. The times of their operators were measured with one rank.
* A pipeline adds up the gradients of micro-batches, from the second one on. Each backward has its share of
  this work.
* In an all-reduce, the cores work on shared memory. A byte costs the same as when both ranks work. Overlap
  only interleaves the all-reduce with computing. (A gamma near 1 means that it gains nothing.)

Besides its tables, the folder of results has

``database-NETWORK-RANKS-SESSION.json``
                          times of the operators of each network (:mod:`joulecast.graphs.database`). There is
                          a file for both ranks at work (for replicas), and one for a single rank (for stages)
``graph-NETWORK.json``    op graph of each network

Everything was measured in several sessions. The mean of the fastest quarter of all measurements is used,
whatever their session (:func:`joulecast.graphs.database.mean_of_fastest`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import Field, model_validator
from scipy.optimize import minimize_scalar

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Cost, Direction, part_of
from joulecast.graphs.database import (
    Database,
    MeasuredCosts,
    mean_of_fastest,
    read_database,
)
from joulecast.graphs.opgraph import Op, OpGraph, read_graph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.simulate.judged.results import (
    STAGES,
    Calibrated,
    Experiment,
    IterationTable,
    Measurements,
    StepConfiguration,
    judge_steps,
    platform_of,
    read_folder,
)
from joulecast.simulate.network_calibration import NetworkCalibration, calibrate_network
from joulecast.simulate.simulate import Simulation, simulate
from joulecast.simulate.strategy import Node, Strategy

RANKS = 2


class TrainingConfiguration(StepConfiguration):
    """A step of training on two ranks: two replicas, or a pipeline of two stages."""

    family: Literal["data parallel", "overlapped", "gpipe", "1f1b"]
    network: str
    batch: int = Field(ge=1, description="Samples of a replica's step.")
    bucket_mb: float | None = Field(None, gt=0, description="Least size of a gradient bucket.")
    overlap: bool = False
    micro_batches: int = Field(1, ge=1)
    cut: str | None = Field(None, description="Module at which the second stage begins.")
    fits_gamma: bool = Field(False, description="Whether the overlap slowdown is fitted on it.")

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return RANKS

    @property
    def is_pipeline(self) -> bool:
        """Whether the ranks are two stages, and not two replicas."""
        return self.cut is not None

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.batch // self.micro_batches

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "TrainingConfiguration":
        if self.is_pipeline != (self.family in ("gpipe", "1f1b")):
            raise ValueError(f"{self.name}: a pipeline needs a cut, and nothing else has one")
        if self.is_pipeline == (self.bucket_mb is not None):
            raise ValueError(f"{self.name}: replicas need bucket_mb, and a pipeline has none")
        if self.batch % self.micro_batches:
            raise ValueError(f"{self.name}: batch does not divide into micro_batches")
        return self


LARGEST_GAMMA = 4.0
_OUTCOME = ("seconds", "waited_share", "other_cores")

REAL = Experiment(
    configuration=TrainingConfiguration,
    tables={
        "steps": IterationTable(("configuration", "repeat"), (*_OUTCOME, "buckets", *STAGES)),
        "collectives": IterationTable(("kind", "network", "bytes"), _OUTCOME),
        # Other parts of a step, measured alone: copying gradients, adding them up, the optimizer, the batch.
        "parts": IterationTable(("part", "network", "rank", "bytes"), _OUTCOME),
    },
    typical=mean_of_fastest,
)


Databases = Mapping[tuple[str, int], Database]
"""Databases by network and number of working ranks."""


@dataclass(frozen=True)
class TrainingResults(Measurements[TrainingConfiguration]):
    """The measurements of real training. ``steps`` also has the number of gradient ``buckets``."""

    parts: pd.DataFrame
    """``part``, ``network``, ``rank``, ``bytes``, and the same summary as ``collectives``."""
    databases: Databases
    """Of each network and number of ranks, only the database of the quietest session."""
    graphs: dict[str, OpGraph]
    """Op graphs by network."""


def quietest_database(databases: Sequence[Database]) -> Database:
    """The database whose steps took the least time."""
    return min(databases, key=lambda each: sum(step.ops_s for step in each.steps))


def read_results(folder: Path) -> TrainingResults:
    """Read the measurements of real training.

    Raises:
        JoulecastError: ``folder`` has no measurements of real training.
    """
    results = read_folder(folder, REAL)
    rows, sessions = results.rows["steps"], len(results.provenance["sessions"])
    buckets = rows[rows.repeat == 0].groupby("configuration", sort=False).buckets.first()
    networks = list(dict.fromkeys(each.network for each in results.configurations))
    return TrainingResults(
        **vars(results) | {"steps": results.steps.assign(buckets=buckets)},
        parts=REAL.apart_from_steps("parts", results.rows["parts"]),
        databases={
            (network, ranks): quietest_database(
                [
                    read_database(folder / f"database-{network}-{ranks}-{number}.json")
                    for number in range(sessions)
                ]
            )
            for network in networks
            for ranks in (1, 2)
        },
        graphs={network: read_graph(folder / f"graph-{network}.json") for network in networks},
    )


@dataclass(frozen=True)
class TrainingCosts:
    """Costs of a network's operators in training. A shape that the database can neither give nor
    interpolate is an error."""

    results: TrainingResults
    network: str
    ranks_at_work: int
    gradient_s_per_byte: float
    """Additional seconds of an operator's backward pass, for each byte of its weights' gradients."""

    def cost(
        self, graph: OpGraph, op: Op, parts: Mapping[str, float], direction: Direction
    ) -> Cost:
        database = self.results.databases[self.network, self.ranks_at_work]
        missing = f"{self.network} was not measured at that batch"
        known = MeasuredCosts(database, missing).cost(graph, op, parts, direction)
        if direction == "forward":
            return known
        gradients = sum(
            graph.tensors[access.tensor].bytes * part_of(access, parts)
            for access in op.reads
            if graph.tensors[access.tensor].role == "parameter"
        )
        return replace(known, seconds=known.seconds + self.gradient_s_per_byte * gradients)

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        updates = _parts(self.results, "update", self.network)
        same = updates[(updates.bytes / parameter_bytes - 1).abs() < 1e-6]
        if same.empty:
            raise JoulecastError(
                f"parts of {self.network}: the optimizer was not measured on {parameter_bytes:.0f} bytes"
            )
        return Cost(float(same.seconds.median()), "measured")


def _parts(results: TrainingResults, part: str, network: str) -> pd.DataFrame:
    parts = results.parts
    return parts[(parts.part == part) & (parts.network == network)]


def costs_of(results: TrainingResults, configuration: TrainingConfiguration) -> TrainingCosts:
    """Costs of a configuration's operators, with the time to copy their gradients or to add them up."""
    network, ranks, share = configuration.network, RANKS, 1.0
    if configuration.is_pipeline:
        # The gradient of the first micro-batch is not added to anything.
        ranks, share = 1, (configuration.micro_batches - 1) / configuration.micro_batches
    parts = _parts(results, "accumulate" if configuration.is_pipeline else "copy", network)
    return TrainingCosts(
        results, network, ranks, share * float((parts.seconds / parts.bytes).median())
    )


def calibrations(results: TrainingResults) -> dict[str, NetworkCalibration]:
    """Calibrations of all-reduces in shared memory, and of messages between stages."""
    found = results.collectives[results.collectives.clean > 0].assign(ranks=RANKS)
    return {kind: calibrate_network(found[found.kind == kind]) for kind in ("all_reduce", "send")}


def with_named_ops(graph: OpGraph) -> OpGraph:
    """The graph with every op in a module. An op of the network itself gets a module with its own name."""
    ops = tuple(replace(op, module=op.module or op.name) for op in graph.ops)
    return replace(graph, ops=ops)


def stage_tree(graph: OpGraph, cut: str) -> Node:
    """A tree whose second stage begins with the first op of module ``cut``.

    Raises:
        JoulecastError: the network has no module ``cut``.
    """
    modules = [op.module for op in graph.ops]
    inside = [i for i, m in enumerate(modules) if m == cut or m.startswith(f"{cut}.")]
    if not inside:
        raise JoulecastError(f"graph {graph.name}: no module `{cut}` to begin a stage at")
    stage = {module: int(i >= inside[0]) for i, module in reversed(list(enumerate(modules)))}
    # The setting of a module also holds for the modules inside it, unless these come later in the tree.
    inner_last = sorted(stage, key=lambda module: module.count("."))
    return Node(children={module: Node(stage=stage[module]) for module in inner_last})


def strategy_of(configuration: TrainingConfiguration, graph: OpGraph) -> Strategy:
    """The strategy of a configuration, with its second stage."""
    if configuration.cut is None:
        assert configuration.bucket_mb is not None
        return Strategy(
            mesh={"data": RANKS},
            overlap=configuration.overlap,
            bucket_bytes=configuration.bucket_mb * 1e6,
        )
    return Strategy(
        mesh={"pipeline": RANKS},
        micro_batches=configuration.micro_batches,
        schedule="gpipe" if configuration.family == "gpipe" else "1f1b",
        tree=stage_tree(graph, configuration.cut),
    )


def predict(
    results: TrainingResults,
    configuration: TrainingConfiguration,
    found: Mapping[str, NetworkCalibration],
    gamma: float,
) -> Simulation:
    """Simulate a configuration, without fetching the batch (see :func:`predicted_s`)."""
    graph = with_named_ops(results.graphs[configuration.network])
    link = Calibrated("between_ranks", found["send" if configuration.is_pipeline else "all_reduce"])
    return simulate(
        graph,
        platform_of("two-core-training", "a core", [link], RANKS, gamma, nodes=1),
        strategy_of(configuration, graph),
        configuration.batch,
        costs_of(results, configuration),
    )


def predicted_s(
    results: TrainingResults,
    configuration: TrainingConfiguration,
    found: Mapping[str, NetworkCalibration],
    gamma: float,
) -> float:
    """Seconds of a configuration's step. They include fetching the batch, if the ranks are replicas."""
    simulated = predict(results, configuration, found, gamma).step_s
    if configuration.is_pipeline:
        return simulated
    fetching = _parts(results, "materials", configuration.network).seconds
    return simulated + float(fetching.median())


def fitted_gamma(results: TrainingResults) -> float:
    """The overlap slowdown with the least squared relative error on the configurations marked ``fits_gamma``.

    Raises:
        JoulecastError: no measured configuration is marked.
    """
    chosen = [each for each in results.configurations if each.fits_gamma]
    if not chosen:
        raise JoulecastError("no measured configuration is marked `fits_gamma`")
    found = calibrations(results)

    def error(gamma: float) -> float:
        measured = results.steps.seconds
        return sum(
            (predicted_s(results, each, found, gamma) / float(measured[each.name]) - 1) ** 2
            for each in chosen
        )

    best = minimize_scalar(
        error, bounds=(0.0, LARGEST_GAMMA), method="bounded", options={"xatol": 1e-3}
    )
    return float(best.x)


def judge(results: TrainingResults) -> pd.DataFrame:
    """Predict every measured configuration, once with the fitted gamma and once with overlap that costs
    nothing (``no gamma``). :func:`joulecast.simulate.judged.results.judge_steps` makes the rows."""
    found, gamma = calibrations(results), fitted_gamma(results)
    seconds = {
        each.name: {
            "simulator": predicted_s(results, each, found, gamma),
            "no gamma": predicted_s(results, each, found, 0.0),
        }
        for each in results.configurations
    }
    fitted = [each.name for each in results.configurations if each.fits_gamma]
    return judge_steps(results, "real training", seconds, "stand-alone parts", fitted)
