"""Ranking simulated strategies by what they cost: time, energy, money, or energy and delay together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.strategy_energy import nodes_of, rising_joules, simulation_energy
from joulecast.errors import JoulecastError
from joulecast.platforms import Platform
from joulecast.quantities import check_amounts, steady
from joulecast.simulator.simulate import Simulation
from joulecast.simulator.strategy_search import Value

Objective = Literal["time", "energy", "cost", "edp"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)

_J_PER_KWH, _S_PER_HOUR = 3.6e6, 3600.0


@dataclass(frozen=True)
class Prices:
    """Prices, all in one currency; what is ``None`` costs nothing.

    Attributes:
        kwh: of a kWh at the building's meter.
        node_hour: of an hour of a whole node, whatever it computes.
        gpu_hour: of an hour of a GPU in use.
        pue: power usage effectiveness: kWh of the building for one of the nodes.
    """

    kwh: float | None = None
    node_hour: float | None = None
    gpu_hour: float | None = None
    pue: float = 1.0

    def check(self, objective: Objective) -> None:
        """Raise a :class:`JoulecastError` for a price that is none, or an objective without prices."""
        for name in ("kwh", "node_hour", "gpu_hour"):
            check_amounts(f"price_{name}", [getattr(self, name)])
        check_amounts("pue", [self.pue])
        if self.pue < 1:
            raise JoulecastError(
                f"pue {self.pue:g}: must be 1 or more (the building's kWh a node's)"
            )
        if objective == "cost" and not self.known:
            raise JoulecastError(
                "objective cost: no price is known; give --price-kwh, --price-node-hour or --price-gpu-hour"
            )

    @property
    def known(self) -> bool:
        """Whether there is any price."""
        return any(price is not None for price in (self.kwh, self.node_hour, self.gpu_hour))

    def step(self, seconds: float, joules: float | None, nodes: int, gpus: int) -> float | None:
        """Cost of a step; ``None`` without a price, or where its joules have a price and are not known."""
        if not self.known or (self.kwh is not None and joules is None):
            return None
        hours = seconds / _S_PER_HOUR
        rent = hours * (nodes * (self.node_hour or 0.0) + gpus * (self.gpu_hour or 0.0))
        return rent + (joules or 0.0) / _J_PER_KWH * self.pue * (self.kwh or 0.0)


def _row(simulation: Simulation, prices: Prices, fit: CampaignFit | None) -> dict[str, Any]:
    energy = simulation_energy(simulation, fit)
    joules, step_s = energy.joules, simulation.step_s
    devices = simulation.strategy.devices
    return {
        **simulation.as_json(),
        **energy.as_json(),
        "joules_per_sample": None if joules is None else joules / simulation.batch,
        "energy_delay_js": None if joules is None else joules * step_s,
        "step_cost": prices.step(step_s, joules, nodes_of(simulation.platform, devices), devices),
    }


_KEYS = {
    "time": "step_s",
    "energy": "joules_per_sample",
    "cost": "step_cost",
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
    if objective == "cost" and prices.kwh is None:
        return lambda step_s, _: prices.step(step_s, None, nodes, devices) or 0.0
    joules = rising_joules(platform, devices, fit)
    if joules is None:
        return None
    values: dict[str, Value] = {
        "energy": joules,
        "edp": lambda step_s, computing_s: step_s * joules(step_s, computing_s),
        "cost": lambda step_s, computing_s: (
            prices.step(step_s, joules(step_s, computing_s), nodes, devices) or 0.0
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
