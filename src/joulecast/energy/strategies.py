"""The energy of a parallel strategy: simulated stage times, priced by the fitted MC2.

A simulator tells how long the stages of a step last on each node; the powers of the stages come from the
campaign's fit. Neither alone forecasts joules: the one knows no watts, the other only what it was fitted to.
"""

from dataclasses import dataclass
from typing import Any

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.observations import metered_units


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
    """Joules of one step of all nodes; ``None`` with a reason where they cannot be told."""

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
    trained = of_platform[of_platform["kind"].isin(("training", "imported"))]
    example = trained.sort_values("nodes", kind="stable").iloc[-1].to_dict()
    joules = powers.get("P0", 0.0) * times.step_s * metered_units(example, nodes, hosts)
    for stage in ("materials", "computing", "communicating_wait", "communicating_copy", "update"):
        joules += nodes * getattr(times, f"{stage}_s") * _power_of(stage, powers)
    sources = sorted(of_platform["energy_source"].dropna().unique())
    return StepEnergy(joules, ", ".join(sources) or None)
