"""Simulated strategies with their joules and prices: ranked by what is to be least, and as candidates for a
platform that nothing was run on."""

from collections.abc import Sequence
from typing import Any

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.forecast import whole_steps
from joulecast.energy.prices import Prices, costs
from joulecast.energy.strategy_energy import (
    energy_of_steps,
    fit_in,
    nodes_of,
    rising_joules,
    simulation_energy,
)
from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.quantities import steady
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.request import AdviceRequest
from joulecast.runs.platforms import Platform
from joulecast.simulate.answer import platform_and_costs
from joulecast.simulate.request import BATCH_PER_DEVICE, Objective
from joulecast.simulate.simulate import Assumptions, Simulation
from joulecast.simulate.strategy import text_of
from joulecast.simulate.strategy_search import Value, search

_NODES = (1, 2, 4, 8)
STRATEGIES = 3


def _row(simulation: Simulation, prices: Prices, fit: CampaignFit | None) -> dict[str, Any]:
    energy = simulation_energy(simulation, fit)
    joules, step_s = energy.joules, simulation.step_s
    devices = simulation.strategy.devices
    nodes = nodes_of(simulation.platform, devices)
    paid = costs(prices, [step_s], [joules], nodes, devices, energy.label)
    return {
        **simulation.as_json(),
        **energy.as_json(),
        "joules_per_sample": None if joules is None else joules / simulation.batch,
        "energy_delay_js": None if joules is None else joules * step_s,
        "step_cost": paid["cost"],
        "step_co2_kg": paid["co2_kg"],
        "cost_rests_on": paid["cost_rests_on"],
    }


_KEYS = {
    "time": "step_s",
    "energy": "joules_per_sample",
    "cost": "step_cost",
    "co2": "step_co2_kg",
    "edp": "energy_delay_js",
}


def rising_value(
    objective: Objective,
    prices: Prices,
    platform: Platform,
    devices: int,
    fit: CampaignFit | None = None,
) -> Value | None:
    """The objective as a function of a step's seconds and those that compute, if it rises with both.

    ``None`` where that is not known: then a search has to simulate all strategies.
    """
    if objective == "time":
        return lambda step_s, _: step_s
    nodes = nodes_of(platform, devices)
    if objective == "cost" and prices.price is None:
        return lambda step_s, _: prices.money(step_s, None, nodes, devices) or 0.0
    joules = rising_joules(platform, devices, fit)
    if joules is None:
        return None
    values: dict[str, Value] = {
        "energy": joules,
        "co2": joules,
        "edp": lambda step_s, computing_s: step_s * joules(step_s, computing_s),
        "cost": lambda step_s, computing_s: (
            prices.money(step_s, joules(step_s, computing_s), nodes, devices) or 0.0
        ),
    }
    return values[objective]


def ranked(
    simulations: Sequence[Simulation],
    objective: Objective = "time",
    prices: Prices | None = None,
    fit: CampaignFit | None = None,
) -> list[dict[str, Any]]:
    """Steps as plain data with their joules and cost, the best by the objective first.

    Args:
        simulations: of one batch, equals in the order that they shall have.
        fit: for the joules, as of :func:`joulecast.energy.strategy_energy.simulation_energy`.

    Raises:
        JoulecastError: the objective needs joules, which are not known; says why.
    """
    rows = [_row(simulation, prices or Prices(), fit) for simulation in simulations]
    key = _KEYS[objective]
    missing = next((row for row in rows if row[key] is None), None)
    if missing is not None:
        why = missing["why_no_energy"]
        raise JoulecastError(f"objective {objective}: the energy of a step is not known: {why}")
    return sorted(rows, key=lambda row: steady(row[key]))


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
        for batch in request.batch or [BATCH_PER_DEVICE * devices]:
            setting = f"{count} nodes, batch {batch}"
            try:
                ranking = search(graph, platform, devices, batch, costs, assumed, STRATEGIES)
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
        basis="simulated",
        **energy_of_steps(simulation, fit, whole_steps(samples, batch)),
    )
