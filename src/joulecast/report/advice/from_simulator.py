"""Candidates for a platform that nothing was run on: strategies in simulated time."""

from collections.abc import Sequence

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.forecast import whole_steps
from joulecast.energy.strategy_energy import energy_of_steps, fit_in
from joulecast.errors import JoulecastError
from joulecast.graphs.precision import training_of
from joulecast.graphs.shipped_graphs import network_for
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.request import AdviceRequest
from joulecast.report.advice.simulator_inputs import platform_and_costs
from joulecast.runs.platforms import Platform
from joulecast.simulate.simulate import Assumptions, Simulation
from joulecast.simulate.strategy import text_of
from joulecast.simulate.strategy_search import search

_NODES = (1, 2, 4, 8)
_BATCH_PER_DEVICE = 32
_STRATEGIES = 3


def usual_nodes(platform: Platform) -> list[int]:
    """Default node counts: 1, 2, 4, 8, and no more than the platform has."""
    most = platform.require_cluster().nodes
    return [count for count in _NODES if most is None or count <= most]


def simulated_candidates(
    request: AdviceRequest, platform: Platform, samples: float, nodes: Sequence[int]
) -> tuple[list[Candidate], list[dict[str, str]]]:
    """The fastest strategies of each node count and batch that fit in memory.

    Args:
        request: the network, how it is trained, and its batches, by default 32 samples of a device.
        samples: to train on.
        nodes: node counts; each with all its devices.

    Returns:
        the candidates, with intervals where the simulator's errors were judged, and the settings that are
        none, each with ``setting`` and ``why``.

    Raises:
        JoulecastError: no such network, or the platform's file lacks what a simulation needs.
    """
    training = training_of(request.precision, request.optimizer, False, request.gradients)
    graph = network_for(request.network, training, request.attention)
    platform, costs = platform_and_costs(
        platform, request.precision, links=request.links, measured_steps=request.calibrate
    )
    assumed = Assumptions(training=training)
    cluster, fit = platform.require_cluster(), fit_in(request.fits)
    candidates, refused = [], []
    for count in nodes:
        devices = count * cluster.devices_per_node
        if cluster.nodes is not None and count > cluster.nodes:
            why = f"{platform.name} has {cluster.nodes} nodes"
            refused.append({"setting": f"{count} nodes", "why": why})
            continue
        for batch in request.batch or [_BATCH_PER_DEVICE * devices]:
            setting = f"{count} nodes, batch {batch}"
            try:
                ranking = search(graph, platform, devices, batch, costs, assumed, _STRATEGIES)
            except JoulecastError as error:
                refused.append({"setting": setting, "why": str(error)})
                continue
            if not ranking.feasible:
                why = next(iter(ranking.out_of_memory.values()), "nothing fits in memory")
                refused.append({"setting": setting, "why": why})
            for simulation in ranking.feasible:
                candidates.append(_candidate(simulation, count, batch, samples, fit))
    return candidates, refused


def _candidate(
    simulation: Simulation, nodes: int, batch: int, samples: float, fit: CampaignFit | None
) -> Candidate:
    devices = simulation.strategy.devices
    return Candidate(
        nodes=nodes,
        hosts=nodes,
        gpus=devices,
        batch_size=batch,
        batch_per_rank=batch / devices,
        strategy=text_of(simulation.strategy),
        rests_on="simulated",
        **energy_of_steps(simulation, fit, whole_steps(samples, batch)),
    )
