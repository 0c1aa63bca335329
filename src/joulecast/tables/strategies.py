"""Strategies with their joules, and what a campaign's networks would take on many nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.strategies import StageTimes, StepEnergy, step_energy
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs
from joulecast.graphs.opgraph import OpGraph
from joulecast.platforms import Platform
from joulecast.simulator.simulate import Simulation, simulate
from joulecast.simulator.strategy import Strategy


def stage_times(simulation: Simulation, fit: CampaignFit | None = None) -> StageTimes:
    """A simulated step by MC2's stages.

    Exposed communication is copying, a bubble is waiting; what the loader leaves exposed is taken from the
    fitted times (``m`` of the network), as no simulation of a step knows it.
    """
    parts, samples = simulation.breakdown, simulation.batch / simulation.strategy.devices
    values: dict[str, float] = (fit.mc2.get("time") or {}).get("values", {}) if fit else {}
    materials = values.get(f"m:{simulation.graph.name}", 0.0) * samples
    update = simulation.optimizer_s
    return StageTimes(
        materials_s=materials,
        computing_s=parts.computing_s - update,
        communicating_wait_s=parts.bubble_s,
        communicating_copy_s=parts.exposed_communication_s,
        update_s=update,
    )


def _energy(simulation: Simulation, fit: CampaignFit) -> StepEnergy:
    platform = simulation.platform
    per_node = platform.require_cluster().devices_per_node
    nodes = -(-simulation.strategy.devices // per_node)
    units = nodes if platform.hosts is None else platform.hosts
    return step_energy(fit, platform.name, stage_times(simulation, fit), nodes, units)


def priced(simulation: Simulation, fits: Path | None) -> dict[str, Any]:
    """Stage times of a step, and its joules where ``fits`` of a campaign on the platform are given."""
    fit = None if fits is None else CampaignFit.load(fits)
    times = stage_times(simulation, fit)
    told: dict[str, Any] = {
        "stages": {
            "materials_s": times.materials_s,
            "computing_s": times.computing_s + times.update_s,
            "communicating_s": times.communicating_copy_s + times.communicating_wait_s,
        }
    }
    if fit is None:
        why = "no fits were given (--fits results/fits)"
        return told | {"step_j": None, "energy_source": None, "why_no_energy": why}
    energy = _energy(simulation, fit)
    return told | {
        "step_j": energy.joules,
        "energy_source": energy.source,
        "why_no_energy": energy.reason,
    }


@dataclass(frozen=True)
class Setting:
    """A platform to forecast on, with its op costs and the batch of a device."""

    platform: Platform
    costs: Costs | None
    batch: int
    why_not: str = ""
    """Why it cannot be simulated, if it cannot."""


def _row(graph: OpGraph, setting: Setting, nodes: int) -> dict[str, Any]:
    cluster = setting.platform.cluster
    devices = nodes * (cluster.devices_per_node if cluster else 1)
    row: dict[str, Any] = {
        "network": graph.name,
        "platform": setting.platform.name,
        "nodes": nodes,
        "devices": devices if cluster else None,
        "batch_per_device": setting.batch,
    }
    if setting.why_not:
        return row | {"why_none": setting.why_not}
    strategy = Strategy(mesh={"data": devices})
    try:
        simulation = simulate(graph, setting.platform, strategy, setting.batch, setting.costs)
    except JoulecastError as error:
        return row | {"why_none": str(error)}
    return row | {"simulation": simulation, "why_none": ""}


def scaling_forecast(
    graphs: Sequence[OpGraph],
    settings: Sequence[Setting],
    nodes: Sequence[int],
    fits: Mapping[str, CampaignFit],
) -> pd.DataFrame:
    """Data-parallel training on every platform and node count, the batch of a device kept (weak scaling).

    Args:
        graphs: the networks.
        settings: the platforms.
        nodes: node counts.
        fits: energy models by the platform that they were fitted on.

    Returns:
        a row a network, platform and node count: ``step_s`` and its parts, ``efficiency_percent`` against
        one node, memory, and joules where an energy model was fitted; ``why_none`` says what is missing.
    """
    rows = []
    for graph in graphs:
        for setting in settings:
            alone: float | None = None
            for count in nodes:
                row = _row(graph, setting, count)
                simulation: Simulation | None = row.pop("simulation", None)
                if simulation is not None:
                    alone = alone or simulation.step_s
                    row |= _figures(simulation, alone, fits.get(setting.platform.name))
                rows.append(row)
    return pd.DataFrame(rows)


def _figures(simulation: Simulation, alone: float, fit: CampaignFit | None) -> dict[str, Any]:
    parts = simulation.breakdown
    energy = StepEnergy(None, None, "no energy model was fitted on this platform")
    if fit is not None:
        energy = _energy(simulation, fit)
    known = simulation.cost_sources
    return {
        "step_s": simulation.step_s,
        "samples_per_s": simulation.samples_per_s,
        "efficiency_percent": 100 * alone / simulation.step_s,
        "computing_s": parts.computing_s,
        "exposed_communication_s": parts.exposed_communication_s,
        "bubble_s": parts.bubble_s,
        "memory_gb": simulation.peak_memory_bytes / 1e9,
        "out_of_memory": simulation.out_of_memory,
        "op_costs": ", ".join(f"{count} {name}" for name, count in sorted(known.items())),
        "step_j": energy.joules,
        "energy_source": energy.source,
        "source": "simulated",
        "why_no_energy": energy.reason,
    }
