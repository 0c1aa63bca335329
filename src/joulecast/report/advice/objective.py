"""Whether the prices are known that an objective or a budget needs."""

from collections.abc import Mapping

from joulecast.energy.prices import Prices
from joulecast.errors import JoulecastError


def check_objective(objective: str, prices: Prices) -> None:
    """Refuse an objective whose prices are not known."""
    check_priced({f"objective {objective}": objective}, prices)


def check_priced(asked: Mapping[str, str], prices: Prices) -> None:
    """Refuse what asks for money without a price, or for CO2 without an intensity.

    Args:
        asked: the quantity (``cost``, ``co2``, ...) by the name of what asks for it.
    """
    for name, quantity in asked.items():
        if quantity == "cost" and not prices.known:
            raise JoulecastError(
                f"{name}: no price is known; give --price, --price-node-hour or --price-gpu-hour"
            )
        if quantity == "co2" and prices.co2 is None:
            raise JoulecastError(f"{name}: no intensity is known; give --co2 (grams for a kWh)")
