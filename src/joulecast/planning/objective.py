"""Ranking simulated strategies by what they cost: time, energy, money, or energy and delay together."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.prices import Prices
from joulecast.energy.strategy_energy import nodes_of, simulation_energy
from joulecast.errors import JoulecastError
from joulecast.quantities import steady
from joulecast.simulator.simulate import Simulation

Objective = Literal["time", "energy", "cost", "edp"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)


def check_objective(objective: str, prices: Prices) -> None:
    """Refuse an objective whose prices are not known."""
    if objective == "cost" and not prices.known:
        raise JoulecastError(
            "objective cost: no price is known; give --price, --price-node-hour or --price-gpu-hour"
        )


def _row(simulation: Simulation, prices: Prices, fit: CampaignFit | None) -> dict[str, Any]:
    energy = simulation_energy(simulation, fit)
    joules, step_s = energy.joules, simulation.step_s
    devices = simulation.strategy.devices
    return {
        **simulation.as_json(),
        **energy.as_json(),
        "joules_per_sample": None if joules is None else joules / simulation.batch,
        "energy_delay_js": None if joules is None else joules * step_s,
        "step_cost": prices.money(step_s, joules, nodes_of(simulation), devices),
    }


_KEYS = {
    "time": "step_s",
    "energy": "joules_per_sample",
    "cost": "step_cost",
    "edp": "energy_delay_js",
}


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
