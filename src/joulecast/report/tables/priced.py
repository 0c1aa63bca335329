"""Hours, kWh, money and CO2 in tables, where prices are given: for the work that all costs are given for."""

import pandas as pd

from joulecast.energy.forecast import whole_steps, work_of
from joulecast.energy.prices import Prices, cost_columns
from joulecast.quantities import counted

_S_PER_HOUR = 3600.0
_ENDS = ("", "_low", "_high")


def work_done(unit: str, batch: float | None) -> float:
    """What a training does for :func:`~joulecast.energy.forecast.work_of`: whole steps.

    Args:
        batch: samples of a step of all nodes; ``None`` or NaN where the training is not known to have steps.
    """
    work = work_of(unit)
    if batch is None or pd.isna(batch) or unit != "samples":
        return work
    return whole_steps(work, batch) * batch


def work_in_words(unit: str) -> str:
    """The work that costs are given for: ``1,000 samples`` or ``1 epoch``."""
    return counted(int(work_of(unit)), unit.removesuffix("s"))


def price_notes(prices: Prices) -> list[str]:
    """What a reader must know of the prices; nothing where none are given."""
    if not prices.given:
        return []
    return [
        f"Prices: {prices.in_words()}. `energy_kwh` is at the building's meter. `cost_rests_on` says what "
        "the energy in the cost is: where that is `estimated`, the money is estimated too."
    ]


def priced_forecast(rows: pd.DataFrame, prices: Prices, on_gpus: bool) -> pd.DataFrame:
    """The rows of the scaling forecast with hours, kWh, money and CO2, and their 90 % intervals where speed
    and joules have them; as they are where no prices are given.

    Args:
        on_gpus: whether the campaign's own ranks are GPUs; the devices of other platforms are.
    """
    if not prices.given or rows.empty:
        return rows
    batches = rows["batch_per_device"] * rows["devices"]
    work = batches.astype(float).map(lambda batch: work_done("samples", batch))
    ran = rows["rests_on"].isin(("measured", "fitted"))
    own = rows["platform"].isin(rows.loc[ran, "platform"])
    amounts = pd.DataFrame(
        {
            "nodes": rows["nodes"],
            "gpus": rows["devices"].where(~own | on_gpus),
            "energy_source": rows["energy_source"],
        }
    )
    # The fastest end of the speed is the lowest end of the time.
    for end, of_speed in zip(_ENDS, ("", "_high", "_low"), strict=True):
        amounts[f"time{end}_s"] = work / rows[f"samples_per_s{of_speed}"]
        amounts[f"energy{end}_j"] = work * rows[f"joules_per_sample{end}"]
    hours = {f"hours{end}": amounts[f"time{end}_s"] / _S_PER_HOUR for end in _ENDS}
    paid = cost_columns(amounts, prices).drop(columns="co2_rests_on")
    return rows.assign(
        priced_work=work_in_words("samples"), **hours, **paid, currency=prices.currency
    )
