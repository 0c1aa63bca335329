"""What energy, time and CO2 cost: the configuration's section, and the same options of requests."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from joulecast.runs.request import Request
from joulecast.runs.section import Section

_MOST = 1e12


class PriceList(BaseModel):
    """Prices, all in one currency; what has none costs nothing."""

    price: float | None = Field(
        default=None, ge=0, le=_MOST, description="Price of a kWh at the building's meter."
    )
    price_node_hour: float | None = Field(
        default=None, ge=0, le=_MOST, description="Price of an hour of a whole node."
    )
    price_gpu_hour: float | None = Field(
        default=None, ge=0, le=_MOST, description="Price of an hour of a GPU in use."
    )
    co2: float | None = Field(
        default=None, ge=0, le=_MOST, description="Grams of CO2 equivalent for a kWh."
    )
    pue: float = Field(
        default=1.0, ge=1, le=_MOST, description="kWh of the building for each kWh of the nodes."
    )
    currency: Annotated[str, StringConstraints(strip_whitespace=True)] = Field(
        default="EUR",
        min_length=1,
        max_length=12,
        description="Currency of all prices, as tables print it.",
    )


class PricesSection(PriceList, Section):
    """What energy, time and CO2 cost, for tables and page; all in one currency, none by default."""

    source: str | None = Field(
        default=None,
        max_length=250,
        description="Where these numbers come from; tables and page print it with the money.",
    )


class Priced(PriceList, Request):
    """A request whose answer has prices."""

    prices: Path | None = Field(
        default=None,
        description="Configuration whose section `prices` counts for prices that are not given.",
    )
