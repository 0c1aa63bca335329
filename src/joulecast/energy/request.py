"""The questions to the energy models: judge them on run records, forecast from records, and choose a start.
Also the section ``prices`` of a configuration."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from joulecast.errors import JoulecastError
from joulecast.quantities import MOST_SAMPLES, duration_s, energy_j
from joulecast.runs.request import (
    Called,
    Name,
    Priced,
    PriceList,
    Recorded,
    Request,
    Scale,
    Section,
    Shell,
    from_text,
)
from joulecast.simulate.request import PeakPrecision


class PricesSection(PriceList, Section):
    """Prices of energy and time, and the CO2 of a kWh, for tables and page. By default there are none."""

    source: str | None = Field(
        default=None,
        max_length=250,
        description="Where these numbers come from.",
    )


Split = Literal[
    "in-sample",
    "leave-one-node-count-out",
    "leave-one-batch-out",
    "extrapolation",
    "leave-one-workload-out",
    "next-scale",
]


class EvaluateRequest(Recorded):
    """Judge MC2 and its rivals on run records."""

    command: ClassVar[str] = "evaluate"

    split: Split | None = Field(
        default=None,
        description="What is left out of the fit, and then predicted. By default each node count in turn. "
        "With only one node count: each batch, or each workload if no network has three batches. "
        "next-scale: each scale of a submitter is predicted from the two scales below it.",
    )
    time: Literal["given", "predicted"] | None = Field(
        default=None,
        description="given: the models know the time of the judged runs. predicted: they use "
        "a predicted time. By default predicted, but given for leave-one-workload-out.",
    )
    ledger: Path | None = Field(
        default=None,
        description="File of `forecast --keep`. Its forecasts are judged on the runs whose records "
        "were added later.",
    )

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.ledger is not None and (self.split or self.time):
            raise ValueError("split and time are of the models; a ledger has neither")
        return self


class Work(Request):
    """The work of a training, in samples or epochs."""

    samples: float | None = Field(
        default=None,
        gt=0,
        le=MOST_SAMPLES,
        description="Samples of the whole training: epochs x items of the data set. By default, "
        "`forecast` takes the work of the records. `advise` takes a million samples (1,000 steps if the "
        "records count only steps; for imported runs, the work of the records).",
    )
    epochs: float | None = Field(
        default=None,
        gt=0,
        le=MOST_SAMPLES,
        description="Epochs to train for, if the records count epochs.",
    )

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if self.samples is not None and self.epochs is not None:
            raise ValueError("samples and epochs say the work in different ways; give one")
        return self

    @property
    def work(self) -> float | None:
        """The amount that is requested, in its unit."""
        return self.epochs if self.samples is None else self.samples


class Scales(Work, Scale):
    """The trainings to forecast."""

    scaling: Literal["recorded", "weak", "strong"] = Field(
        default="recorded",
        description="Whether the batch of all nodes together grows with the node count (weak), stays "
        "(strong), or changes as in the records.",
    )
    batch: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SAMPLES,
        description="Batch of all nodes together, in place of scaling.",
    )
    to_target: Annotated[bool, Shell("--target")] = Field(
        default=False,
        description="Train to the quality of the recorded runs. The batch decides how many samples this "
        "needs.",
    )
    whole_job: bool = Field(
        default=False,
        description="Also say what start-up, checkpoints, restarts and network switches add.",
    )
    checkpoint_s: Annotated[float | None, from_text(duration_s), Shell("--checkpoint")] = Field(
        default=None,
        gt=0,
        description="Only with whole-job: time to write one checkpoint, such as 30s. By default there are no "
        "checkpoints.",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.checkpoint_s is not None and not self.whole_job:
            raise ValueError("checkpoint is a part of the whole job; give whole_job, too")
        if self.to_target and self.work is not None:
            raise ValueError("samples, epochs and target say the work in different ways; give one")
        if self.batch is not None and self.scaling != "recorded":
            raise ValueError("batch and scaling say the batch in different ways; give one")
        return self


def _time_s(text: str) -> float:
    """Seconds since 1970 of a time as people type it: ``2026-11-27T08:00``; in UTC where it has no zone. The
    command of a request has the seconds themselves."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            raise JoulecastError(
                f"{text}: no time; give it as 2026-11-27T08:00, in UTC, or with a zone"
            ) from None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


_DURATION, _ENERGY = from_text(duration_s), from_text(energy_j)


class StartRequest(Request):
    """Choose when to run a training, by the price or the CO2 of each hour."""

    command: ClassVar[str] = "when"

    hours: Path = Field(
        description="CSV file with a column time (ISO 8601; UTC if it has no zone), and a column price "
        "(money per kWh), co2 (g per kWh), or both."
    )
    duration_s: Annotated[float, _DURATION, Shell("--duration")] = Field(
        gt=0, le=1e9, description="Time of the training: seconds, or with a unit (30min, 6h, 2d)."
    )
    energy_j: Annotated[float, _ENERGY, Shell("--energy")] = Field(
        gt=0, le=1e18, description="Energy of the training: joules, or with a unit (5MJ, 40kWh)."
    )
    after_s: Annotated[float | None, from_text(_time_s), Shell("--after")] = Field(
        default=None,
        ge=0,
        le=1e11,
        description="Earliest start, such as 2026-11-27T08:00. By default now.",
    )
    deadline_s: Annotated[float | None, _DURATION, Shell("--deadline")] = Field(
        default=None,
        gt=0,
        description="Time after --after at which the training must be done: seconds, or with a unit (12h, "
        "2d). By default the end of the file.",
    )
    restart_s: Annotated[float | None, _DURATION, Shell("--restart")] = Field(
        default=None,
        ge=0,
        le=1e9,
        description="Time to start again after a pause: seconds, or with a unit (10min). Without "
        "this option, the training does not pause.",
    )
    objective: Literal["cost", "co2"] | None = Field(
        default=None,
        description="What to minimise. By default money, if the file has prices.",
    )


class ForecastRequest(Priced, Scales, Recorded):
    """Forecast time, energy, money and CO2 of scales not yet run."""

    command: ClassVar[str] = "forecast"

    platform: Name | None = Field(
        default=None,
        description="Another platform to forecast for, by simulation: a name or a GPU, such as b200 or "
        "l40s:gpus=4.",
    )
    graph: Called = Field(
        default={},
        description="Only with platform: the simulator's name of a network, such as resnet=resnet50.",
    )
    precision: PeakPrecision | None = Field(
        default=None,
        description="Only with platform: the precision to simulate. By default that of the records, or bf16.",
    )
    ran_on: Name | None = Field(
        default=None,
        description="Only with platform: the platform of the records, if they do not name the GPU, such "
        "as h100-sxm:gpus=4.",
    )
    keep: Path | None = Field(
        default=None,
        description="File to which the forecasts are added, one a line, for `evaluate --ledger`.",
    )

    @model_validator(mode="after")
    def _elsewhere(self) -> Self:
        """Refuse options that need a platform if there is none, and options that a platform excludes."""
        if self.platform is None and self.model_fields_set & {"graph", "ran_on", "precision"}:
            raise ValueError("graph, ran-on and precision are of a platform; give platform, too")
        if self.platform is not None and self.whole_job:
            raise ValueError(
                "what surrounds a training was seen on the records' platform alone; leave out whole-job, or "
                "platform"
            )
        return self
