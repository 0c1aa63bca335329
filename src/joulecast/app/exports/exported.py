"""The figures of runs and forecasts that other tools get. All tools get the same list."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    TypeAdapter,
    create_model,
)

from joulecast.app.api.arguments import AnyPath, Records
from joulecast.app.api.forecasts import read_records
from joulecast.errors import JoulecastError
from joulecast.quantities import is_number
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.frames import STAGES
from joulecast.runs.observations import observe
from joulecast.runs.record import RunRecord
from joulecast.runs.scale import hosts_and_gpus

_RUN = {
    "energy_joules": ("energy_j", "Energy of the run."),
    "time_seconds": ("total_s", "Time of the run, without its warm-up."),
    "steps": ("steps", "Steps of the run."),
    "samples": ("samples", "Samples that the run trained on."),
}
_FORECAST = {
    "energy_joules": ("energy", "j", 1.0, "Energy of the metered parts of the nodes."),
    "energy_kilowatthours": ("energy", "kwh", 1.0, "Energy of the training at the building."),
    "time_seconds": ("time", "s", 1.0, "Time of the training."),
    "cost": ("cost", "", 1.0, "Money, in the currency of the prices."),
    "co2_grams": ("co2", "kg", 1e3, "CO2 equivalent of the training."),
}
_ENDS = {"expected": "", "low": "_low", "high": "_high"}
_Count = Annotated[int, Field(ge=0, le=10**12)]


class _Scale(BaseModel):
    """A row of a forecast, without its figures. Its values are labels of the figures."""

    model_config = ConfigDict(allow_inf_nan=False)

    workload: str
    platform: str | None = None
    nodes: _Count
    nodes_are: str | None
    gpus: _Count | None
    batch_size: _Count | NonNegativeFloat | None = None
    work: _Count | NonNegativeFloat | None = None
    work_unit: str | None = None
    basis: str | None = None
    energy_covers: str | None = None
    energy_source: str | None


@dataclass(frozen=True)
class Value:
    """One figure; its name ends with its unit."""

    name: str
    amount: float
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def flat_name(self) -> str:
        """Name for a tool whose figures have no labels."""
        return "_".join([self.name, *self.labels.values()])


@dataclass(frozen=True)
class Exported:
    """Figures of one run, or of the forecast of one scale. Figures that are not known are left out.

    ``scale`` is the number of GPUs (or nodes) of a forecast. ``labels`` say what was run, and whether its
    energy was measured or estimated.
    """

    kind: str
    title: str
    labels: Mapping[str, str]
    values: Sequence[Value]
    scale: int | None = None


def _plain(value: Any) -> str:
    # Labels with fewer digits would make two amounts one series.
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def of_record(record: RunRecord) -> Exported:
    """Figures of a run."""
    row = observe(record)
    counts_samples = row.get("work_unit", "samples") == "samples"
    values = [
        Value(name, float(row[column]), text)
        for name, (column, text) in _RUN.items()
        if is_number(row[column])
        and (name != "samples" or counts_samples)
        # If the work of an imported run is not known, its record has 0.
        and (name not in ("samples", "steps") or row[name] > 0)
    ]
    values += [
        Value(
            "stage_seconds",
            float(row[f"t_{stage}_s"]),
            "Time of a stage in a step.",
            {"stage": stage},
        )
        for stage in STAGES
        if is_number(row.get(f"t_{stage}_s")) and row["steps"] > 0
    ]
    if record.info.outcome.final_loss is not None:
        values.append(Value("final_loss", record.info.outcome.final_loss, "Loss at the end."))
    named = ["workload", "platform", "nodes", "gpus", "nodes_are"]
    if counts_samples:
        named.append("batch")
    row["gpus"] = hosts_and_gpus(row)[1]
    # Forecasts use the same name. The platform is a separate label.
    row["workload"] = row["network"]
    labels = {name: _plain(row[name]) for name in named if row[name] != "" and pd.notna(row[name])}
    source = row["energy_source"] if is_number(row["energy_j"]) else "unknown"
    # A run in another folder, or from another log, may have the same name.
    labels |= {"run": record.info.spec.run, "started": record.info.started_utc}
    if "path" in record.info.source:
        labels["source"] = str(record.info.source["path"])
    labels["energy_source"] = str(source)
    if row["energy_covers"]:
        labels["energy_covers"] = str(row["energy_covers"])
    return Exported("run", record.info.spec.run, labels, values)


def of_forecast(forecast: Mapping[str, Any]) -> Iterator[Exported]:
    """Figures of each scale of a forecast, as :func:`joulecast.forecast` returns it."""
    currency = (forecast.get("prices") or {}).get("currency")
    for row in forecast["forecasts"]:
        values = []
        for name, (column, unit, factor, text) in _FORECAST.items():
            for end, ending in _ENDS.items():
                amount = row.get(f"{column}{ending}{'_' if unit else ''}{unit}")
                if amount is not None:
                    values.append(Value(name, amount * factor, text, {"end": end}))
        named = {name: row.get(name) for name in _Scale.model_fields}
        labels = {name: _plain(value) for name, value in named.items() if value is not None}
        labels["energy_source"] = str(row["energy_source"] or "unknown")
        if row.get("cost") is not None:
            labels["currency"] = str(currency or "unknown")
        scale = row["gpus"] or row["nodes"]
        yield Exported("forecast", f"{row['workload']}-forecast", labels, values, int(scale))


def exported(source: Records | Mapping[str, Any]) -> list[Exported]:
    """Figures of run records, or of a forecast.

    Args:
        source: a folder of run records, the name of an observed training, the result of
            :func:`joulecast.forecast`, or a FILE.json of ``joulecast forecast --json``.

    Raises:
        JoulecastError: the source is none of these.
    """
    if isinstance(source, Mapping):
        return list(of_forecast(source))
    if isinstance(source, str | Path) and Path(source).suffix == ".json":
        return list(of_forecast(_read_forecast(source)))
    return [of_record(record) for record in read_records(source)]


class _Prices(BaseModel):
    currency: str | None = None


_FIGURES: dict[str, Any] = {
    name: (NonNegativeFloat | None, None)
    for column, unit, *_ in _FORECAST.values()
    for name in (f"{column}{end}{'_' if unit else ''}{unit}" for end in _ENDS.values())
}
_ROW = create_model("_ROW", __base__=_Scale, **_FIGURES)


def _read_forecast(file: AnyPath) -> dict[str, Any]:
    content = read_json_object(Path(file), "forecast")
    if "forecasts" not in content:
        raise JoulecastError(f"{file}: is no forecast; make one by `joulecast forecast ... --json`")
    rows = validated(TypeAdapter(list[_ROW]), content["forecasts"], f"{file}: forecasts")
    prices = validated(TypeAdapter(_Prices | None), content.get("prices"), f"{file}: prices")
    return {
        "forecasts": [row.model_dump() for row in rows],
        "prices": None if prices is None else prices.model_dump(),
    }


def grouped(found: Sequence[Exported]) -> list[list[Exported]]:
    """Groups of figures that belong together. A run is a group. All scales of the forecast of a workload on a
    platform are a group, the smallest scale first."""
    runs = [[each] for each in found if each.scale is None]
    forecasts: dict[tuple[str, str | None], list[Exported]] = {}
    for each in sorted(found, key=lambda one: one.scale or 0):
        if each.scale is not None:
            forecasts.setdefault((each.title, each.labels.get("platform")), []).append(each)
    return [*runs, *forecasts.values()]
