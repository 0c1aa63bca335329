"""What a training costs in kWh, money and CO2, by prices that the user gives.

Money and CO2 have the label of the joules on which they rest: if these are estimated, so are money and CO2.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd

from joulecast.energy.request import PricesSection
from joulecast.quantities import NONE, masses, money, with_range
from joulecast.runs.json_values import json_rows
from joulecast.runs.scale import hosts_and_gpus

_J_PER_KWH, _S_PER_HOUR = 3.6e6, 3600.0
_ENDS = ("", "_low", "_high")
RENT = "rent alone"
"""The label of an amount of money that contains no energy."""


SUPPLY_EFFICIENCY = (0.95, 0.98, 0.91)
"""Efficiency of power supplies (the share of AC that becomes DC) if no log states it: the expected value, and
the values for the lower and the upper end of the energy at the wall. 80 PLUS Titanium requires 96 % at half
load and 91 % at full load (230 V). An AC meter and a DC meter of one MLPerf cluster differ by 2 %."""


def from_wall(supply: Any, efficiency: Any) -> tuple[float, float, float]:
    """Joules at the wall for one joule that a meter reads, with the ends of its range.

    Args:
        supply: ``DC`` if the meter reads behind the power supplies.
        efficiency: efficiency of the power supplies, if the log has it.
    """
    if supply != "DC":
        return 1.0, 1.0, 1.0
    known = not pd.isna(efficiency)
    expected, low, high = (float(efficiency),) * 3 if known else SUPPLY_EFFICIENCY
    return 1 / expected, 1 / low, 1 / high


def at_wall(efficiency: Any) -> str:
    """For meters behind the power supplies: words that say by how much kWh, money and CO2 are larger at the
    wall (:func:`from_wall`)."""
    expected, low, high = from_wall("DC", efficiency)
    rests = "by the log" if low == high else f"assumed: {low:.2f} to {high:.2f}"
    return (
        "the meters of the nodes are behind the power supplies (DC). At the wall, the nodes draw "
        f"{expected:.2f} times as much ({rests}). The building's kWh, money and CO2 contain this factor. "
        "The energy of the nodes does not"
    )


class Prices(PricesSection, frozen=True):
    """The prices that a configuration or a request gives, and what a training costs by them."""

    @property
    def known(self) -> bool:
        """Whether there is a price of energy, or of nodes or GPUs for an hour."""
        return any(
            price is not None for price in (self.price, self.price_node_hour, self.price_gpu_hour)
        )

    @property
    def given(self) -> bool:
        """Whether there is anything to report: a price, a CO2 intensity, or the PUE of a building."""
        return self.known or self.co2 is not None or self.pue != 1

    def kwh(self, joules: float | None) -> float | None:
        """kWh at the building's meter; ``None`` if the joules are not known."""
        return None if joules is None else joules / _J_PER_KWH * self.pue

    def money(
        self, seconds: float | None, joules: float | None, nodes: float | None, gpus: float | None
    ) -> float | None:
        """Money for the energy, and for nodes and GPUs over some time; ``None`` without a price, or if an
        amount that has a price is not known."""
        if not self.known or (self.price is not None and joules is None):
            return None
        paid = (self.kwh(joules) or 0.0) * (self.price or 0.0)
        for price, count in ((self.price_node_hour, nodes), (self.price_gpu_hour, gpus)):
            if price is None:
                continue
            if seconds is None or count is None:
                return None
            paid += seconds / _S_PER_HOUR * count * price
        return paid

    def why_no_money(self, joules: float | None, gpus: float | None) -> str | None:
        """Reason why :meth:`money` of a known time is ``None``; ``None`` if there is money."""
        if not self.known:
            return "no price is given"
        if self.price is not None and joules is None:
            return "energy has a price, and its energy is not known"
        if self.price_gpu_hour is not None and gpus is None:
            return "no GPU of it is known; give --price-node-hour in place of --price-gpu-hour"
        return None

    def co2_kg(self, joules: float | None) -> float | None:
        """Kilograms of CO2 equivalent; ``None`` without an intensity or without joules."""
        kwh = self.kwh(joules)
        return None if kwh is None or self.co2 is None else kwh * self.co2 / 1e3

    def as_json(self) -> dict[str, Any]:
        """All prices as plain data."""
        return self.model_dump()

    def in_words(self) -> str:
        """One line with the prices and their source; empty if no prices are given."""
        if not self.given:
            return ""
        named = (
            (self.price, "a kWh"),
            (self.price_node_hour, "an hour of a node"),
            (self.price_gpu_hour, "an hour of a GPU"),
        )
        parts = [
            f"{self.currency} {price:,.10g} {per}" for price, per in named if price is not None
        ]
        if self.co2 is not None:
            parts.append(f"{self.co2:,.10g} g CO2e a kWh")
        if self.pue != 1:
            parts.append(f"{self.pue:,.10g} kWh of the building for each kWh of the nodes (PUE)")
        source = " ".join(self.source.split()) if self.source else "not given"
        return f"{', '.join(parts)}; source: {source}"


NO_PRICES = Prices()
"""Prices of a user who asks for kWh alone: no price is given."""


def cost_keys(with_interval: bool = True) -> list[str]:
    """Names of the amounts that :func:`costs` gives."""
    ends = _ENDS if with_interval else _ENDS[:1]
    return [f"{name}{end}{unit}" for name, unit in _UNITS for end in ends]


_UNITS = (("energy", "_kwh"), ("cost", ""), ("co2", "_kg"))


def costs(
    prices: Prices,
    seconds: Sequence[float | None],
    joules: Sequence[float | None],
    nodes: float | None,
    gpus: float | None,
    source: str | None,
    wall: Sequence[float] = (1.0, 1.0, 1.0),
) -> dict[str, Any]:
    """kWh, money and CO2 of a training (``energy_kwh``, ``cost``, ``co2_kg``), each with its 90 % interval
    (``energy_low_kwh``, ...); ``None`` if not known.

    Args:
        seconds, joules: the expected value, and the lower and the upper end of the interval, if there is one.
        nodes, gpus: numbers in use.
        source: source of the joules: measured, estimated, ...
        wall: the factors of :func:`from_wall`.

    Returns:
        The values. Also ``cost_rests_on`` and ``co2_rests_on`` (the source of the joules in money and CO2),
        and ``why_no_cost``.
    """
    found: dict[str, Any] = {}
    # The lowest time and the lowest energy make the lowest cost.
    for end, s, metered_j, factor in zip_longest(_ENDS, seconds, joules, wall):
        j = None if metered_j is None else metered_j * factor
        found[f"energy{end}_kwh"] = prices.kwh(j)
        found[f"cost{end}"] = prices.money(s, j, nodes, gpus)
        found[f"co2{end}_kg"] = prices.co2_kg(j)
    paid_for = source if prices.price is not None else RENT
    return {key: found[key] for key in cost_keys()} | {
        "cost_rests_on": None if found["cost"] is None else paid_for,
        "co2_rests_on": None if found["co2_kg"] is None else source,
        "why_no_cost": prices.why_no_money(joules[0], gpus),
    }


def cost_columns(
    table: pd.DataFrame, prices: Prices, source: str = "energy_source"
) -> pd.DataFrame:
    """The columns of :func:`costs` for the rows of a table.

    Args:
        table: has ``time_s`` and ``energy_j`` (with their intervals, if known), and the columns that
            :func:`joulecast.runs.scale.hosts_and_gpus` reads.
        source: the column with the source of the joules.
    """
    rows = []
    for row in json_rows(table):
        seconds = [row.get(f"time{end}_s") for end in _ENDS]
        joules = [row.get(f"energy{end}_j") for end in _ENDS]
        wall = from_wall(row.get("supply"), row.get("conversion_eff"))
        rows.append(costs(prices, seconds, joules, *hosts_and_gpus(row), row.get(source), wall))
    names = [*cost_keys(), "cost_rests_on", "co2_rests_on", "why_no_cost"]
    columns = pd.DataFrame(rows, columns=names, index=table.index)
    return columns.astype(dict.fromkeys(cost_keys(), float))


def estimated(text: str, rests_on: Any) -> str:
    """Money or CO2 in words. If the power in it is estimated, a word behind it says so."""
    return f"{text}, estimated power" if "estimated" in str(rests_on) and text != NONE else text


def cost_text(row: Mapping[str, Any], currency: str, with_interval: bool = True) -> str:
    """Money of a row of :func:`costs` in words, and whether its power is estimated; a dash if it is not
    known."""
    keys = ("cost", "cost_low", "cost_high")
    shown = money(currency, *(row.get(key) for key in keys))
    text = with_range(*shown) if with_interval else shown[0]
    return estimated(text, row.get("cost_rests_on"))


def co2_text(row: Mapping[str, Any], with_interval: bool = True) -> str:
    """CO2 of a row of :func:`costs` in words, and whether its power is estimated; a dash if it is not
    known."""
    shown = masses(*(row.get(key) for key in ("co2_kg", "co2_low_kg", "co2_high_kg")))
    text = with_range(*shown) if with_interval else shown[0]
    return estimated(text, row.get("co2_rests_on"))
