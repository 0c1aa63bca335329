"""What a training costs in kWh, money and CO2, by prices that the user gives."""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from joulecast.energy.plain import plain_rows
from joulecast.errors import JoulecastError
from joulecast.quantities import check_amounts

_J_PER_KWH, _S_PER_HOUR = 3.6e6, 3600.0
_AMOUNTS = ("price", "price_node_hour", "price_gpu_hour", "co2")


@dataclass(frozen=True)
class Prices:
    """Prices, all in one currency; what is ``None`` costs nothing.

    Attributes:
        price: of a kWh at the building's meter.
        price_node_hour: of an hour of a whole node, whatever it computes.
        price_gpu_hour: of an hour of a GPU in use.
        co2: grams of CO2 equivalent for a kWh at the building's meter.
        pue: power usage effectiveness: kWh of the building for one of the nodes.
    """

    price: float | None = None
    price_node_hour: float | None = None
    price_gpu_hour: float | None = None
    co2: float | None = None
    pue: float = 1.0

    def check(self) -> "Prices":
        """Raise a :class:`JoulecastError` for a price that is none; returns the prices."""
        for name in _AMOUNTS:
            check_amounts(name, [getattr(self, name)])
        check_amounts("pue", [self.pue])
        if self.pue < 1:
            raise JoulecastError(
                f"pue {self.pue:g}: must be 1 or more (the building's kWh a node's)"
            )
        return self

    @property
    def known(self) -> bool:
        """Whether there is any price of energy or of time."""
        return any(
            price is not None for price in (self.price, self.price_node_hour, self.price_gpu_hour)
        )

    def kwh(self, joules: float | None) -> float | None:
        """kWh at the building's meter; ``None`` where the joules are not known."""
        return None if joules is None else joules / _J_PER_KWH * self.pue

    def money(
        self, seconds: float, joules: float | None, nodes: float, gpus: float
    ) -> float | None:
        """Money for nodes and GPUs over some time; ``None`` without a price, or where the joules have a
        price and are not known."""
        if not self.known or (self.price is not None and joules is None):
            return None
        hours = seconds / _S_PER_HOUR
        rent = hours * (nodes * (self.price_node_hour or 0.0) + gpus * (self.price_gpu_hour or 0.0))
        return rent + (self.kwh(joules) or 0.0) * (self.price or 0.0)

    def co2_kg(self, joules: float | None) -> float | None:
        """Kilograms of CO2 equivalent; ``None`` without an intensity or without joules."""
        kwh = self.kwh(joules)
        return None if kwh is None or self.co2 is None else kwh * self.co2 / 1e3


NO_PRICES = Prices()
"""What a user gives who asks for kWh alone."""


def cost_columns(columns: Mapping[str, pd.Series], prices: Prices) -> dict[str, list[float | None]]:
    """kWh, money and CO2 of forecasts (``energy_kwh``, ``cost``, ``co2_kg``), each with its 90 % interval
    (``energy_low_kwh``, ...); ``None`` where it is not known.

    Args:
        columns: ``time_s`` and ``energy_j`` with their intervals, ``nodes`` and ``gpus`` of the forecasts.
    """
    found: dict[str, list[float | None]] = {}
    for end in ("", "_low", "_high"):
        # The lowest time and the lowest energy make the lowest cost.
        rows = plain_rows(
            pd.DataFrame(
                {
                    "s": columns[f"time{end}_s"],
                    "j": columns[f"energy{end}_j"],
                    "nodes": columns["nodes"],
                    "gpus": columns["gpus"],
                }
            )
        )
        found[f"energy{end}_kwh"] = [prices.kwh(row["j"]) for row in rows]
        found[f"cost{end}"] = [
            None
            if row["s"] is None
            else prices.money(row["s"], row["j"], row["nodes"], row["gpus"] or 0)
            for row in rows
        ]
        found[f"co2{end}_kg"] = [prices.co2_kg(row["j"]) for row in rows]
    return found
