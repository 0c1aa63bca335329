"""The simulated scaling forecast: what a campaign's networks would take on many nodes of many platforms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.strategy_energy import energy_of_steps
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs
from joulecast.graphs.opgraph import OpGraph
from joulecast.runs.platforms import Platform
from joulecast.simulate.simulate import Simulation, simulate
from joulecast.simulate.strategy import Strategy, text_of

DDP = Strategy()
"""Data parallel as DDP does it: gradients are sent during the backward pass."""


@dataclass(frozen=True)
class Setting:
    """A platform to simulate on, with its op costs and how the step is taken."""

    platform: Platform
    costs: Costs | None
    batch: int
    """Samples of a device, or of all devices where ``is_strong``."""
    why_not: str = ""
    """Why it cannot be simulated, if it cannot."""
    step: Strategy = DDP
    """Overlap and buckets; its mesh is that of the devices asked for."""
    is_strong: bool = False

    def batch_of(self, devices: int) -> int:
        """Samples of a device."""
        return max(1, self.batch // devices) if self.is_strong else self.batch


def _row(graph: OpGraph, setting: Setting, nodes: int) -> dict[str, Any]:
    cluster = setting.platform.cluster
    devices = nodes * (cluster.devices_per_node if cluster else 1)
    batch = setting.batch_of(devices)
    strategy = setting.step.model_copy(update={"mesh": {"data": devices}})
    row: dict[str, Any] = {
        "network": graph.name,
        "platform": setting.platform.name,
        "nodes": nodes,
        "rests_on": "simulated",
        "devices": devices if cluster else None,
        "batch_per_device": batch,
        "strategy": text_of(strategy),
    }
    if setting.why_not:
        return row | {"basis": setting.why_not}
    if setting.is_strong and setting.batch < devices:
        return row | {"basis": f"batch {setting.batch:,} is smaller than the {devices:,} devices"}
    try:
        simulation = simulate(graph, setting.platform, strategy, batch, setting.costs)
    except JoulecastError as error:
        return row | {"basis": str(error)}
    return row | {"simulation": simulation}


def scaling_forecast(
    graphs: Sequence[OpGraph],
    settings: Sequence[Setting],
    nodes: Sequence[int],
    fits: Mapping[str, CampaignFit],
) -> pd.DataFrame:
    """Simulated data-parallel training on every platform and node count.

    Args:
        graphs: the networks.
        settings: the platforms.
        nodes: node counts.
        fits: energy models by the platform that they were fitted on; others have the metered runs that are
            shipped, if these are of the same hardware.

    Returns:
        a row a network, platform and node count: ``step_s`` and its parts, ``samples_per_s``, memory, and
        ``joules_per_sample`` where metered runs are known; ``basis`` says what is missing.
    """
    rows = []
    for graph in graphs:
        for setting in settings:
            # The reason why a platform cannot be simulated has one row.
            for count in nodes if not setting.why_not else nodes[:1]:
                row = _row(graph, setting, count)
                simulation: Simulation | None = row.pop("simulation", None)
                if simulation is not None:
                    row |= _figures(simulation, fits.get(setting.platform.name))
                rows.append(row)
    return pd.DataFrame(rows)


def _figures(simulation: Simulation, fit: CampaignFit | None) -> dict[str, Any]:
    parts = simulation.breakdown
    step = energy_of_steps(simulation, fit)
    joules = step["energy_j"]
    known = simulation.cost_sources
    return {
        "step_s": step["time_s"],
        "samples_per_s": simulation.samples_per_s,
        "joules_per_sample": None if joules is None else joules / simulation.batch,
        "energy_source": step["energy_source"],
        "why_no_energy": step["why_no_energy"],
        "computing_s": parts.computing_s,
        "exposed_communication_s": parts.exposed_communication_s,
        "bubble_s": parts.bubble_s,
        "memory_gb": simulation.peak_memory_bytes / 1e9,
        "out_of_memory": simulation.out_of_memory,
        "basis": "op costs: "
        + ", ".join(f"{count} {name}" for name, count in sorted(known.items())),
    }
