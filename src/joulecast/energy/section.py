"""What energy, time and CO2 cost: the configuration's section."""

from pydantic import Field

from joulecast.runs.request import PriceList
from joulecast.runs.section import Section


class PricesSection(PriceList, Section):
    """What energy, time and CO2 cost, for tables and page; all in one currency, none by default."""

    source: str | None = Field(
        default=None,
        max_length=250,
        description="Where these numbers come from; tables and page print it with the money.",
    )
