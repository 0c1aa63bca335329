"""Compares kept forecasts with what ran later: their errors, how often the intervals were right, and how much
more was used than forecast.

A ledger has a line of JSON for each forecast that was requested with ``--keep``: its time, its prices and its
rows. To find what a setting really took, the same question is asked again. The forecast then has a row for
this setting with the basis "measured". So one question has one answer.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.forecast import forecast_table
from joulecast.energy.intervals import conformal_width
from joulecast.energy.prices import Prices
from joulecast.energy.request import PricesSection, Scales
from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_text, validated
from joulecast.runs.json_values import json_rows
from joulecast.runs.platforms import same_hardware
from joulecast.runs.scale import unit_of

_QUANTITIES = {"time": "time{}_s", "energy": "energy{}_j", "cost": "cost{}", "co2": "co2{}_kg"}
_Amount = Annotated[float, Field(allow_inf_nan=False)] | None


class _Row(BaseModel):
    """The parts of a forecast's row that are compared."""

    model_config = ConfigDict(extra="allow", frozen=True)

    workload: str
    platform: str
    nodes: Annotated[int, Field(ge=1)]
    nodes_are: str
    gpus: int | None = None
    batch_size: float | None
    work: float
    work_unit: str
    basis: str
    time_s: float
    energy_j: _Amount = None
    cost: _Amount = None
    co2_kg: _Amount = None


class _Entry(BaseModel):
    """A line of a ledger."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    at: datetime
    prices: PricesSection
    forecasts: list[_Row]
    widths: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = {}
    """Factors by which the intervals are wider than the model's."""
    to_target: bool = False
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None


_ENTRY = TypeAdapter(_Entry)


def keep_forecast(ledger: Path, forecasts: dict[str, Any], asked: Scales) -> None:
    """Add a forecast to a ledger. If the file does not exist, it is made.

    Args:
        forecasts: what :func:`joulecast.energy.forecast.forecast` returned.
        asked: the question.
    """
    entry = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    entry |= asked.model_dump(include={"to_target", "gpus_per_node"})
    kept = {name: forecasts[name] for name in ("prices", "forecasts", "widths")}
    line = json.dumps(entry | kept, allow_nan=False)
    try:
        # The line is written at once. So two forecasts at the same time do not mix their lines.
        with ledger.open("a") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise JoulecastError(f"{ledger}: the forecast cannot be kept ({error.strerror})") from None


def read_ledger(ledger: Path) -> list[_Entry]:
    """The forecasts of a ledger, the earliest first.

    Raises:
        JoulecastError: there is no ledger, or a line in it is no forecast. The error names the line.
    """
    found = []
    for number, line in enumerate(read_text(ledger, "ledger of forecasts").splitlines(), start=1):
        place = f"{ledger}, line {number}"
        try:
            content = json.loads(line)
        except ValueError as error:
            raise JoulecastError(f"{place}: is no JSON ({error})") from None
        found.append(validated(_ENTRY, content, place))
    return sorted(found, key=lambda entry: entry.at)


class _SameWork(Scales):
    """A question about the amount of work that a forecast has. The unit is the unit of the forecast, which
    may also be steps."""

    amount: Annotated[float, Field(gt=0)]

    @property
    def work(self) -> float:
        return self.amount


def _asked_again(row: _Row, entry: _Entry) -> Scales:
    """The request that has the scale, the batch and the work of the row of a kept forecast. A training to a
    target may need another amount of work than was forecast."""
    asked: dict[str, Any] = {"nodes": [row.nodes]}
    if unit_of(row.nodes_are) != "node":
        asked = {"gpus": [row.nodes], "gpus_per_node": entry.gpus_per_node}
    if row.batch_size is not None:
        asked["batch"] = round(row.batch_size)
    if entry.to_target:
        return Scales(**asked, to_target=True)
    return _SameWork(**asked, amount=row.work)


_Setting = tuple[str, str, int, str]
_SETTING = ("workload", "platform", "nodes", "gpus", "batch_size", "work")
"""Keys that are equal in all forecasts of one setting. The last of these forecasts counts."""


def _measured(runs: KnownRuns, question: Scales, prices: Prices) -> dict[_Setting, dict[str, Any]]:
    """The settings of a question that have run, by workload, platform, scale and unit of work."""
    try:
        table, _ = forecast_table(runs, question, prices)
    except JoulecastError:
        # The runs cannot answer this question: its setting is not among them.
        return {}
    return {
        (row["workload"], row["platform"], row["nodes"], row["work_unit"]): row
        for row in json_rows(table)
        if row["basis"] == "measured"
    }


def _ran_there(row: _Row, settings: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """For a forecast for another platform: the entry of ``settings`` with the setting that was forecast;
    ``None`` if this setting was not run there. In the row, the workload of imported runs ends with the
    platform of the records. In ``settings``, the platform of imported runs ends with the campaign in
    brackets."""
    for ran in settings:
        if (
            row.workload.partition(" on ")[0] == ran["workload"]
            and same_hardware(row.platform, ran["platform"].partition(" (")[0])
            and (row.nodes, row.work_unit) == (ran["nodes"], ran["work_unit"])
            and ran["gpus"] in (None, row.gpus)
        ):
            # The forecast has the energy of whole nodes. The energy of parts is not compared with it.
            is_whole = ran["energy_covers"] == "node"
            return ran if is_whole else ran | dict.fromkeys(("energy_j", "cost", "co2_kg"))
    return None


def judge_ledger(ledger: Path, records: Sequence[Path]) -> dict[str, Any]:
    """Compare forecasts that were kept with the runs of the same settings.

    Args:
        records: folders of run records.

    Returns:
        ``settings`` has a row for each forecast of a setting that ran later: ``at`` (when it was forecast),
        ``workload``, ``platform``, ``nodes``, ``gpus``, ``batch_size`` and ``work``. For time, energy, cost
        and CO2, it has the forecast value and the real one (``time_s``, ``time_was_s``, ...), the error
        (``time_error_percent``), and whether the real value was inside the interval (``time_inside``).
        ``summary`` has a row for each quantity, and for each ``currency`` of the cost: ``settings``,
        ``mape_percent``, ``bias_percent``, ``covered_percent``, and ``missed`` (how much more was used than
        forecast, in total). Of several forecasts of a setting, the last counts. ``waiting`` has the forecasts
        of settings that did not run. ``had_run`` is the number of rows whose setting had already run when the
        forecast was made. These rows are not judged.

    Raises:
        JoulecastError: the ledger is not valid, or no record can be read.
    """
    settings, waiting, had_run = [], [], 0
    runs = KnownRuns.of_records(records)
    known: dict[str, dict[_Setting, dict[str, Any]]] = defaultdict(dict)
    for entry in read_ledger(ledger):
        prices = Prices(**entry.prices.model_dump())
        for row in entry.forecasts:
            if row.basis == "measured":
                had_run += 1
                continue
            question = _asked_again(row, entry)
            key = f"{question.asked()} {prices.as_json()}"
            if key not in known:
                known[key] = _measured(runs, question, prices)
            took = known[key].get((row.workload, row.platform, row.nodes, row.work_unit))
            if took is None and row.basis == "simulated":
                took = _ran_there(row, known[key].values())
            said = {
                "at": entry.at.isoformat(),
                **{name: getattr(row, name) for name in (*_SETTING, "nodes_are", "basis")},
                "widths": entry.widths,
                "currency": prices.currency,
            }
            if took is None:
                waiting.append(said)
            else:
                settings.append(said | _compared(row.model_dump(), took))
    return {
        "settings": settings,
        "summary": _summary(settings),
        "waiting": waiting,
        "had_run": had_run,
    }


_FEWEST = 9
"""Least number of forecasts from which :func:`~joulecast.energy.intervals.conformal_width` gives a width of
90 %."""
_LEAST_HALF = 1e-3
"""Least relative half width of an interval. Errors are divided by the half width."""


def widths_by_ledger(ledger: Path, records: Sequence[Path]) -> dict[str, float]:
    """Factors by which the half widths of forecasts must be multiplied to hold 90 % of the runs.

    Args:
        ledger: the file of forecasts. If it does not exist yet, there are no forecasts.
        records: folders of run records.

    Returns:
        A factor for ``time`` and one for ``energy``. Each exists only if at least nine settings ran after
        they were forecast.
    """
    if not ledger.exists():
        return {}
    settings = {
        tuple(row[name] for name in _SETTING): row
        for row in judge_ledger(ledger, records)["settings"]
    }
    found = {}
    for quantity in ("time", "energy"):
        name, was, low, high = (
            _QUANTITIES[quantity].format(end) for end in ("", "_was", "_low", "_high")
        )
        scores = [
            # Errors are counted in half widths of the model. The intervals in the ledger may have been
            # widened already.
            _in_half_widths(row[name], row[was], row[low], row[high])
            * row["widths"].get(quantity, 1.0)
            for row in settings.values()
            if row["basis"] == "fitted" and None not in (row[name], row[was], row[low], row[high])
        ]
        if len(scores) >= _FEWEST:
            found[quantity] = conformal_width(scores)
    return found


def _in_half_widths(said: float, was: float, low: float, high: float) -> float:
    """The error of a forecast, divided by the half width of its interval (both in logarithms). The half width
    is that on the side of the real value."""
    half = math.log(high / said) if was > said else math.log(said / low)
    return abs(math.log(was / said)) / max(half, _LEAST_HALF)


def _compared(foretold: dict[str, Any], took: dict[str, Any]) -> dict[str, Any]:
    """For each quantity: the forecast value with its interval, the real value, the error in percent, and
    whether the real value was inside the interval."""
    found: dict[str, Any] = {}
    for quantity, form in _QUANTITIES.items():
        name = form.format("")
        said, was = foretold.get(name), took[name]
        low, high = (foretold.get(form.format(end)) for end in ("_low", "_high"))
        is_known = said is not None and was is not None
        found |= {
            name: said,
            form.format("_was"): was,
            form.format("_low"): low,
            form.format("_high"): high,
            f"{quantity}_error_percent": 100 * (said / was - 1) if is_known and was else None,
            f"{quantity}_inside": low <= was <= high if is_known and low is not None else None,
        }
    return found


def _summary(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table, rows = pd.DataFrame(settings), []
    for quantity, form in _QUANTITIES.items() if settings else ():
        errors = pd.to_numeric(table[f"{quantity}_error_percent"]).dropna()
        known = table.loc[errors.index]
        # Money of two currencies cannot be added.
        for currency, of in known.groupby("currency") if quantity == "cost" else [(None, known)]:
            if of.empty:
                continue
            of = of.drop_duplicates([*_SETTING], keep="last")
            inside = of[f"{quantity}_inside"].dropna().astype(float)
            rows.append(
                {
                    "quantity": quantity,
                    "currency": currency,
                    "settings": len(of),
                    "mape_percent": errors[of.index].abs().mean(),
                    "bias_percent": errors[of.index].mean(),
                    "covered_percent": 100 * inside.mean() if len(inside) else None,
                    "missed": (of[form.format("_was")] - of[form.format("")]).astype(float).sum(),
                }
            )
    return json_rows(pd.DataFrame(rows))
