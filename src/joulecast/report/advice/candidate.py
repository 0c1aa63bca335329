"""A setting that could be run, with its expected time and energy, and the data behind them."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from joulecast.energy.prices import Prices, costs, from_wall
from joulecast.quantities import steady
from joulecast.runs.scale import scale_in_words

Basis = Literal["measured", "fitted", "simulated"]
Ends = tuple[float | None, float | None, float | None]
"""The expected value, and the lower and the upper end of its 90 % interval."""


@dataclass(frozen=True)
class Candidate:
    """One setting of a training. Times are in s, energies in J, both for the whole work.

    Attributes:
        nodes: number of nodes, as ``nodes_are`` counts them. For an observed training, number of its GPUs or
            ranks.
        hosts, gpus: numbers in use, if they are known.
        energy_kwh, cost, co2_kg: values by the given prices, with their intervals. ``cost_rests_on`` and
            ``co2_rests_on`` are the source of the joules in them.
        batch_size: samples in one step of all nodes; ``None`` if a log does not say it.
        time_low_s, time_high_s, energy_low_j, energy_high_j: 90 % interval of one run; ``None`` with
            ``why_no_interval``.
        energy_source: measured, estimated, recorded, imported; or for a simulation, the source of its powers.
        supply, conversion_eff: whether the joules were metered before or behind the power supplies, and the
            efficiency of these (:func:`joulecast.energy.prices.from_wall`).
        runs: number of recorded runs of exactly this setting.
        runs_with_energy: number of these runs whose energy is known. If it is 0, the energy comes from MC2.
        width_is_assumed: whether the width of the interval is assumed, because no repeats show how runs
            differ.
        extrapolation: the ways in which the setting lies outside of what was measured.
        times_beyond: the setting's node count, divided by the largest that was run; at least 1.
        beyond_one_count: whether only one node count was run, and the setting has another one.
        platform, precision: only for a plan, which chooses them, too.
        power_limit_w: power limit of each GPU; ``None``: its highest limit.
        near_memory_limit: whether the upper end of the predicted memory is above the limit. The setting may
            then not fit.
        is_calibrated: whether measured steps correct the simulation.
    """

    nodes: int
    batch_size: int | None
    strategy: str
    basis: Basis
    time_s: float
    time_low_s: float | None = None
    time_high_s: float | None = None
    energy_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    energy_source: str | None = None
    why_no_energy: str | None = None
    why_no_interval: str | None = None
    runs: int = 0
    runs_with_energy: int = 0
    width_is_assumed: bool = False
    extrapolation: tuple[str, ...] = ()
    times_beyond: float = 1.0
    beyond_one_count: bool = False
    nodes_are: str = "hosts"
    hosts: float | None = None
    gpus: float | None = None
    supply: str | None = None
    conversion_eff: float | None = None
    energy_kwh: float | None = None
    energy_low_kwh: float | None = None
    energy_high_kwh: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    co2_kg: float | None = None
    co2_low_kg: float | None = None
    co2_high_kg: float | None = None
    cost_rests_on: str | None = None
    co2_rests_on: str | None = None
    why_no_cost: str | None = None
    platform: str | None = None
    precision: str | None = None
    power_limit_w: float | None = None
    near_memory_limit: bool = False
    is_calibrated: bool = False

    def ends(self, quantity: str) -> Ends:
        """The ``time`` (s), ``energy`` (J), ``cost``, ``co2`` (kg), or ``edp`` (J s) with its interval."""
        if quantity == "edp":
            pairs = zip(self.ends("energy"), self.ends("time"), strict=True)
            value, low, high = (None if e is None or t is None else e * t for e, t in pairs)
            return value, low, high
        unit = {"time": "_s", "energy": "_j", "cost": "", "co2": "_kg"}[quantity]
        value, low, high = (
            getattr(self, f"{quantity}{end}{unit}") for end in ("", "_low", "_high")
        )
        return value, low, high

    def at_wall(self, quantity: str) -> Ends:
        """:meth:`ends`, with joules at the wall. Settings are compared there, because some meters read behind
        the power supplies."""
        factor = 1.0
        if quantity in ("energy", "edp"):
            factor = from_wall(self.supply, self.conversion_eff)[0]
        value, low, high = (None if end is None else factor * end for end in self.ends(quantity))
        return value, low, high

    def bound(self, quantity: str) -> float | None:
        """The value that is compared with a budget: the upper end of the interval if there is one, else
        the expected value."""
        value, _, high = self.ends(quantity)
        return value if high is None else high

    def source_of(self, quantity: str) -> str | None:
        """The source of the joules in a quantity; ``None`` if it contains no joules."""
        return {
            "time": None,
            "cost": self.cost_rests_on,
            "co2": self.co2_rests_on,
        }.get(quantity, self.energy_source)

    def priced(self, prices: Prices) -> "Candidate":
        """The candidate, with its kWh, money and CO2 added."""
        paid = costs(
            prices,
            self.ends("time"),
            self.ends("energy"),
            self.hosts,
            self.gpus,
            self.energy_source,
            from_wall(self.supply, self.conversion_eff),
        )
        return replace(self, **paid)

    @property
    def setting(self) -> str:
        """The setting in words."""
        if self.platform is not None:
            limit = "" if self.power_limit_w is None else f", {self.power_limit_w:.0f} W a GPU"
            how = f"batch {self.batch_size:,}, {self.precision}, {self.strategy}{limit}"
            return f"{self.gpus:.0f} x {self.platform}, {how}"
        nodes = scale_in_words(self.nodes, self.nodes_are)
        batch = "" if self.batch_size is None else f", batch {self.batch_size:,}"
        # The column of the node count already says "one node" or "8 nodes". Data parallelism over all nodes
        # is not named either, if nothing else was run.
        plain = self.strategy == f"dp={self.nodes}"
        alone = plain or any(unit in self.strategy for unit in ("node", "GPU", "rank"))
        strategy = "" if alone else f", {self.strategy}"
        return f"{nodes}{batch}{strategy}"

    @property
    def simplicity(self) -> tuple[int, int, str]:
        """The key that decides between equal candidates: fewer nodes, then the smaller batch, then the name
        of the strategy."""
        return self.nodes, self.batch_size or 0, self.strategy

    @property
    def cost_order(self) -> tuple[float, float, int, int, str]:
        """The key that orders candidates without money: the least energy first, then the least time, then
        simplicity. Unknown energies come last."""
        return _known(self.at_wall("energy")[0]), steady(self.time_s), *self.simplicity

    def order(self, quantity: str) -> tuple[float, float, float, int, int, str]:
        """The key for the order of a quantity: the least value first, then :attr:`cost_order`. Unknown values
        come last."""
        return _known(self.at_wall(quantity)[0]), *self.cost_order

    def as_json(self) -> dict[str, Any]:
        """All attributes as plain data."""
        return asdict(self) | {"extrapolation": list(self.extrapolation), "setting": self.setting}


def _known(value: float | None) -> float:
    """A value to compare by. An unknown one is infinite."""
    return math.inf if value is None else steady(value)


def dominates(one: Candidate, other: Candidate) -> bool:
    """Whether ``one`` is expected to take at most as much time, energy and money as ``other``, and less of at
    least one of them. Only quantities that are known for ``other`` count."""
    known = [
        (_known(one.at_wall(quantity)[0]), steady(theirs))
        for quantity in ("time", "energy", "cost")
        if (theirs := other.at_wall(quantity)[0]) is not None
    ]
    return any(a != b for a, b in known) and all(a <= b for a, b in known)
