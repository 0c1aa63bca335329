"""The simulator judged on the emulated network: what was measured, its calibration, and predictions.

The network is calibrated on stand-alone collectives alone; every configuration is then predicted before it
is compared with what was measured (``recorded/emulated-network``).
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pandas as pd

from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.timed import GivenCosts, TimedLayer, timed_chain
from joulecast.runs.platforms import Platform
from joulecast.simulate.judged.emulated_step import Configuration
from joulecast.simulate.judged.judging import judge_steps, platform_of
from joulecast.simulate.judged.results import Experiment, Results, Table, read_folder
from joulecast.simulate.network import alone
from joulecast.simulate.network_calibration import NetworkCalibration, calibrate_network
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import Node, Strategy

_STEP = ("configuration", "repeat")
_COLLECTIVE = ("kind", "algorithm", "ranks", "ranks_per_node", "bytes")
_OUTCOME = ("seconds", "foreign_cores", "late_s")

EMULATED = Experiment(
    configuration=Configuration,
    tables={
        "steps": Table(_STEP, _OUTCOME),
        # Seconds after the common start at which each rank began and had finished everything.
        "ranks": Table((*_STEP, "rank"), ("began_s", "ended_s")),
        "collectives": Table(_COLLECTIVE, _OUTCOME),
    },
    typical=median,
    # The first has one session, whose facts are the provenance, and no column for it.
    formats=(1, 2),
    missing="no measurements of the emulated network ({why}); the kept ones are in "
    "recorded/emulated-network, experiments/emulated-network makes new ones",
)

ABLATIONS: dict[str, tuple[Assumptions, bool]] = {
    "simulator": (Assumptions(), True),
    "no sharing": (Assumptions(sharing=False), True),
    "no overlap": (Assumptions(), False),
    "single queue": (Assumptions(single_queue=True), True),
}
"""The simulator, whole and with a part left out, and whether gradients overlap as the configuration says."""


def read_results(folder: Path) -> Results[Configuration]:
    """Read what was measured on the emulated network.

    Raises:
        JoulecastError: ``folder`` is not such data, or was changed since it was written.
    """
    return read_folder(folder, EMULATED)


def calibrations(results: Results[Configuration]) -> dict[str, NetworkCalibration]:
    """Calibration of the link between nodes and of the memory inside one, with ring all-reduces."""
    points = results.collectives
    ring = (points.kind == "send") | (points.algorithm == "ring")
    points = points[ring & (points.clean > 0)]
    return {
        "nic": calibrate_network(points[points.ranks_per_node == 1]),
        "node": calibrate_network(points[points.ranks_per_node == 2]),
    }


def emulated_platform(results: Results[Configuration], ranks_per_node: int) -> Platform:
    """The emulated network as a platform, with the rates of its calibration."""
    found = calibrations(results)
    links: dict[tuple[str, int | None], NetworkCalibration] = {("nic", None): found["nic"]}
    if ranks_per_node > 1:
        links = {("node", ranks_per_node): found["node"], **links}
    return platform_of("emulated-network", "a sleeping rank", links, ranks_per_node, 0.0)


def graph_of(configuration: Configuration) -> OpGraph:
    """The layers of a configuration as an op graph."""
    layers = [
        TimedLayer(
            layer.name,
            layer.forward_s,
            layer.backward_s,
            layer.gradient_bytes,
            layer.activation_bytes,
        )
        for layer in configuration.layers
    ]
    return timed_chain(configuration.name, layers, configuration.tensor_parallel)


def strategy_of(configuration: Configuration, overlap: bool = True) -> Strategy:
    """The strategy of a configuration, with its layers on the stages that it says."""
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
    configuration: Configuration,
    platform: Platform,
    assumptions: Assumptions | None = None,
    overlap: bool = True,
) -> Simulation:
    """Simulate a configuration."""
    slow: Mapping[int, float] = {}
    if configuration.straggler is not None:
        slow = {configuration.straggler.rank: configuration.straggler.factor}
    assumed = assumptions or Assumptions()
    return simulate(
        graph_of(configuration),
        platform,
        strategy_of(configuration, overlap),
        configuration.micro_batches,
        GivenCosts(),
        Assumptions(stragglers=slow, sharing=assumed.sharing, single_queue=assumed.single_queue),
    )


def sum_and_max(simulation: Simulation) -> tuple[float, float]:
    """Two rules of thumb for a step: compute plus communication of the busiest device, and the larger.

    Communication is what each message would take by itself on an idle network.
    """
    count = simulation.fleet.classes.count
    computing, talking = [0.0] * count, [0.0] * count
    capacity = simulation.capacity
    for happening in simulation.happenings():
        task = happening.activity
        if task.usage is None:
            computing[task.devices[0]] += task.work
            continue
        crossed = {port: min(times, 1.0) for port, times in task.usage.items()}
        seconds = task.latency + task.work / alone(crossed, capacity)
        for device in task.devices:
            talking[device] += seconds
    both = list(zip(computing, talking, strict=True))
    return max(c + t for c, t in both), max(max(c, t) for c, t in both)


def judge(results: Results[Configuration]) -> pd.DataFrame:
    """Predict every measured configuration, by the simulator, whole and without a part, and by two rules of
    thumb; rows as of :func:`joulecast.simulate.judged.judging.judge_steps`."""
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
