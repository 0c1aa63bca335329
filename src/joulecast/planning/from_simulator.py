"""Candidates for a platform that nothing was run on: strategies in simulated time."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulecast.energy.strategy_energy import priced
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import roofline_of
from joulecast.graphs.shipped_graphs import load
from joulecast.planning.candidate import Candidate
from joulecast.platforms import Platform
from joulecast.simulator.simulate import Simulation
from joulecast.simulator.strategy import text_of
from joulecast.simulator.strategy_search import search

_NODES = (1, 2, 4, 8)
_BATCH_PER_DEVICE = 32
_STRATEGIES = 3

NO_INTERVAL = "simulated, and the simulator's error on this platform was not measured"


def usual_nodes(platform: Platform) -> list[int]:
    """Default node counts: 1, 2, 4, 8, and no more than the platform has."""
    most = platform.require_cluster().nodes
    return [count for count in _NODES if most is None or count <= most]


def simulated_candidates(
    network: str,
    platform: Platform,
    samples: float,
    nodes: Sequence[int],
    batches: Sequence[int] | None,
    *,
    precision: str = "fp32",
    fits: Path | None = None,
) -> tuple[list[Candidate], list[dict[str, str]]]:
    """The fastest strategies of each node count and batch that fit in memory.

    Args:
        network: whose op graph is shipped.
        samples: to train on.
        nodes: node counts; each with all its devices.
        batches: of all nodes; by default 32 samples of a device.
        precision: peak rate to compute at.
        fits: of a campaign on the same platform, for the joules.

    Returns:
        the candidates, without intervals, and the settings that are none, each with ``setting`` and
        ``why``.

    Raises:
        JoulecastError: no such graph, or the platform's file lacks what a simulation needs.
    """
    graph, costs = load(network), roofline_of(platform, precision)
    cluster = platform.require_cluster()
    candidates, refused = [], []
    for count in nodes:
        devices = count * cluster.devices_per_node
        if cluster.nodes is not None and count > cluster.nodes:
            why = f"{platform.name} has {cluster.nodes} nodes"
            refused.append({"setting": f"{count} nodes", "why": why})
            continue
        for batch in batches or [_BATCH_PER_DEVICE * devices]:
            setting = f"{count} nodes, batch {batch}"
            try:
                ranking = search(graph, platform, devices, batch, costs)
            except JoulecastError as error:
                refused.append({"setting": setting, "why": str(error)})
                continue
            if not ranking.feasible:
                why = next(iter(ranking.out_of_memory.values()), "nothing fits in memory")
                refused.append({"setting": setting, "why": why})
            for simulation in ranking.feasible[:_STRATEGIES]:
                candidates.append(_candidate(simulation, count, batch, samples, fits))
    return candidates, refused


def _candidate(
    simulation: Simulation, nodes: int, batch: int, samples: float, fits: Path | None
) -> Candidate:
    steps = math.ceil(samples / batch)
    price: dict[str, Any] = priced(simulation, fits)
    joules: float | None = price["step_j"]
    return Candidate(
        nodes=nodes,
        batch_size=batch,
        batch_per_rank=batch / simulation.strategy.devices,
        strategy=text_of(simulation.strategy),
        rests_on="simulated",
        time_s=steps * simulation.step_s,
        energy_j=None if joules is None else steps * joules,
        energy_source=None if joules is None else f"simulated ({price['energy_source']} powers)",
        why_no_energy=price["why_no_energy"] if joules is None else None,
        why_no_interval=NO_INTERVAL,
    )
