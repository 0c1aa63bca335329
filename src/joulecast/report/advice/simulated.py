"""Simulated strategies with their joules and prices, ranked by the objective."""

from collections.abc import Sequence
from typing import Any

from joulecast.energy.prices import Prices, costs, from_wall
from joulecast.energy.strategy_energy import (
    node_count,
    rising_joules,
    simulation_energy,
    supply_of,
)
from joulecast.errors import JoulecastError
from joulecast.quantities import steady
from joulecast.runs.platforms import Platform
from joulecast.simulate.request import Objective
from joulecast.simulate.simulate import Simulation
from joulecast.simulate.strategy_search import Value


def _row(simulation: Simulation, prices: Prices) -> dict[str, Any]:
    energy = simulation_energy(simulation)
    joules, step_s = energy.joules, simulation.step_s
    devices = simulation.strategy.devices
    nodes = node_count(simulation.platform, devices)
    wall = from_wall(energy.supply, None)
    paid = costs(prices, [step_s], [joules], nodes, devices, energy.label, wall)
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
    precision: str,
    devices: int,
) -> Value | None:
    """The objective as a function of two arguments: a step's seconds, and its computing seconds. The
    objective never falls if one of the two rises.

    The result is ``None`` if this is not certain. A search then has to simulate all strategies.
    """
    if objective == "time":
        return lambda step_s, _: step_s
    nodes = node_count(platform, devices)
    if objective == "cost" and prices.price is None:
        return lambda step_s, _: prices.money(step_s, None, nodes, devices) or 0.0
    joules = rising_joules(platform, precision, devices)
    if joules is None:
        return None
    wall, *_ = from_wall(supply_of(platform), None)
    values: dict[str, Value] = {
        "energy": joules,
        "co2": joules,
        "edp": lambda step_s, computing_s: step_s * joules(step_s, computing_s),
        "cost": lambda step_s, computing_s: (
            prices.money(step_s, wall * joules(step_s, computing_s), nodes, devices) or 0.0
        ),
    }
    return values[objective]


def ranked(
    simulations: Sequence[Simulation],
    objective: Objective = "time",
    prices: Prices | None = None,
) -> list[dict[str, Any]]:
    """Steps as plain data with their joules and cost. The best one by the objective comes first.

    Args:
        simulations: simulations with the same batch. Between equal ones, their order is kept.

    Raises:
        JoulecastError: the objective needs joules, and they are not known. The error says why.
    """
    rows = [_row(simulation, prices or Prices()) for simulation in simulations]
    key = _KEYS[objective]
    missing = next((row for row in rows if row[key] is None), None)
    if missing is not None:
        why = missing["why_no_energy"]
        raise JoulecastError(f"objective {objective}: the energy of a step is not known: {why}")
    return sorted(rows, key=lambda row: steady(row[key]))
