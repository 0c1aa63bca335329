"""The simulator judged on the emulated network: its calibration, its configurations, its error.

The network is calibrated on stand-alone collectives alone; every configuration is then predicted before it
is compared with what was measured (``../testbed``, ``recorded/emulated-network``).
"""

from collections.abc import Mapping

import pandas as pd

from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.timed import GivenCosts, TimedLayer, timed_chain
from joulecast.ground_truth.configurations import Configuration
from joulecast.ground_truth.results import Results
from joulecast.platforms import Cluster, Device, Link, Platform
from joulecast.simulator.network import alone
from joulecast.simulator.network_calibration import NetworkCalibration, calibrate_network
from joulecast.simulator.simulate import Assumptions, Simulation, simulate
from joulecast.simulator.strategy import Node, Strategy

ABLATIONS: dict[str, tuple[Assumptions, bool]] = {
    "full": (Assumptions(), True),
    "no sharing": (Assumptions(sharing=False), True),
    "no overlap": (Assumptions(), False),
    "single queue": (Assumptions(single_queue=True), True),
}
"""What is left out of the model, and whether gradients overlap as the configuration says."""


def _points(results: Results, algorithm: str, ranks_per_node: int) -> pd.DataFrame:
    frame = results.collectives
    chosen = frame[(frame.ranks_per_node == ranks_per_node) & (frame.clean > 0)]
    chosen = chosen[(chosen.kind == "send") | (chosen.algorithm == algorithm)]
    return chosen.rename(columns={"median_s": "seconds"})[["kind", "ranks", "bytes", "seconds"]]


def calibrations(results: Results, algorithm: str = "ring") -> dict[str, NetworkCalibration]:
    """Calibration of the link between nodes and of the memory inside one, for one all-reduce algorithm."""
    return {
        "nic": calibrate_network(_points(results, algorithm, 1)),
        "node": calibrate_network(_points(results, algorithm, 2)),
    }


def emulated_platform(results: Results, ranks_per_node: int, algorithm: str = "ring") -> Platform:
    """The emulated network as a platform, with the rates of its calibration."""
    found = calibrations(results, algorithm)
    links = [
        Link(
            name="nic",
            bytes_per_s=found["nic"].bytes_per_s,
            latency_s=found["nic"].latency_s,
        )
    ]
    if ranks_per_node > 1:
        inside = found["node"]
        links.insert(
            0,
            Link(
                name="node",
                joins=ranks_per_node,
                bytes_per_s=inside.bytes_per_s,
                latency_s=inside.latency_s,
            ),
        )
    return Platform(
        name="emulated-network",
        cluster=Cluster(
            devices_per_node=ranks_per_node,
            device=Device(name="a sleeping rank"),
            links=tuple(links),
            collective_launch_s=found["nic"].launch_s,
            collective_algorithm=found["nic"].algorithm,
            overlap_slowdown=0.0,
        ),
    )


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
    for task in simulation.activities.activities:
        if task.usage is None:
            computing[task.devices[0]] += task.work
            continue
        crossed = {port: min(times, 1.0) for port, times in task.usage.items()}
        seconds = task.latency + task.work / alone(crossed, capacity)
        for device in task.devices:
            talking[device] += seconds
    both = list(zip(computing, talking, strict=True))
    return max(c + t for c, t in both), max(max(c, t) for c, t in both)


def judge(results: Results) -> pd.DataFrame:
    """Predict every measured configuration.

    Returns:
        a row a configuration: ``configuration``, ``family``, ``ranks``, ``measured_s``, ``spread_s``,
        ``again_s`` (the A/A repeat), ``predicted_s``, ``sum_s``, ``max_s``, and the prediction of every
        ablation (``no sharing``, ...).
    """
    rows = []
    platforms = {count: emulated_platform(results, count) for count in (1, 2)}
    for configuration in results.configurations:
        measured = results.steps.loc[configuration.name]
        platform = platforms[configuration.ranks_per_node]
        simulations = {
            name: predict(configuration, platform, assumed, overlap)
            for name, (assumed, overlap) in ABLATIONS.items()
        }
        total, larger = sum_and_max(simulations["no sharing"])
        rows.append(
            {
                "configuration": configuration.name,
                "family": configuration.family,
                "ranks": configuration.ranks,
                "measured_s": measured.median_s,
                "spread_s": measured.spread_s,
                "again_s": measured.again_s,
                "predicted_s": simulations["full"].step_s,
                "sum_s": total,
                "max_s": larger,
                **{n: s.step_s for n, s in simulations.items() if n != "full"},
            }
        )
    return pd.DataFrame(rows)
