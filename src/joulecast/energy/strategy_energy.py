"""The energy of a parallel strategy: simulated stage times, priced by the fitted MC2.

A simulator tells how long the stages of a step last on each node; the powers of the stages come from the
campaign's fit. Neither alone forecasts joules: the one knows no watts, the other only what it was fitted to.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.observations import is_training, metered_units
from joulecast.simulator.simulate import Simulation


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one step of one node, by MC2's stages."""

    materials_s: float
    computing_s: float
    communicating_wait_s: float
    communicating_copy_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        """All of them."""
        return (
            self.materials_s
            + self.computing_s
            + self.communicating_wait_s
            + self.communicating_copy_s
            + self.update_s
        )


@dataclass(frozen=True)
class StepEnergy:
    """Joules of one step of all nodes; ``None`` with a reason where they are not known."""

    joules: float | None
    source: str | None
    """What the powers were fitted to: measured, estimated or recorded energies."""
    reason: str = ""


def _power_of(stage: str, powers: dict[str, float]) -> float:
    # A stage too short to show a power of its own draws that of computing (as in the fit).
    for name in (f"dP:{stage}", "dP:computing", "dP"):
        if name in powers:
            return powers[name]
    return 0.0


def step_energy(
    fit: CampaignFit, platform: str, times: StageTimes, nodes: int, hosts: int | None
) -> StepEnergy:
    """Price a step: ``E = P_0 T units + sum_x N T_x dP_x`` (MC2's energy of one step).

    Args:
        fit: of a campaign on the same platform.
        platform: that the strategy is simulated on.
        times: simulated stage times of a node.
        nodes: that compute.
        hosts: physical hosts that all nodes live on; ``None``: one host for each node.
    """
    of_platform = fit.observations[fit.observations["platform"] == platform]
    power: dict[str, Any] | None = fit.mc2.get("power")
    if of_platform.empty:
        return StepEnergy(None, None, f"no energy model was fitted on {platform}")
    if not power:
        return StepEnergy(None, None, f"the runs on {platform} carry no energy")
    powers: dict[str, float] = power["values"]
    trained = of_platform[is_training(of_platform)]
    example = trained.sort_values("nodes", kind="stable").iloc[-1].to_dict()
    joules = powers.get("P0", 0.0) * times.step_s * metered_units(example, nodes, hosts)
    for stage in ("materials", "computing", "communicating_wait", "communicating_copy", "update"):
        joules += nodes * getattr(times, f"{stage}_s") * _power_of(stage, powers)
    sources = sorted(of_platform["energy_source"].dropna().unique())
    return StepEnergy(joules, ", ".join(sources) or None)


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


def simulation_energy(simulation: Simulation, fit: CampaignFit) -> StepEnergy:
    """Joules of a simulated step, priced by the fit of a campaign on the same platform."""
    platform = simulation.platform
    per_node = platform.require_cluster().devices_per_node
    nodes = -(-simulation.strategy.devices // per_node)
    return step_energy(fit, platform.name, stage_times(simulation, fit), nodes, platform.hosts)


def priced(simulation: Simulation, fits: Path | None) -> dict[str, Any]:
    """Stage times of a step, and its joules where ``fits`` of a campaign on the platform are given."""
    fit = None if fits is None else CampaignFit.load(fits)
    times = stage_times(simulation, fit)
    result: dict[str, Any] = {
        "stages": {
            "materials_s": times.materials_s,
            "computing_s": times.computing_s + times.update_s,
            "communicating_s": times.communicating_copy_s + times.communicating_wait_s,
        }
    }
    if fit is None:
        why = "no fits were given (--fits results/fits)"
        return result | {"step_j": None, "energy_source": None, "why_no_energy": why}
    energy = simulation_energy(simulation, fit)
    return result | {
        "step_j": energy.joules,
        "energy_source": energy.source,
        "why_no_energy": energy.reason,
    }
