"""What can be asked of the energy models: judge them on run records, forecast from these; and the prices of a
configuration."""

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
    """What energy, time and CO2 cost, for tables and page; all in one currency, none by default."""

    source: str | None = Field(
        default=None,
        max_length=250,
        description="Where these numbers come from; tables and page print it with the money.",
    )


Split = Literal[
    "in-sample",
    "leave-one-node-count-out",
    "extrapolation",
    "leave-one-workload-out",
    "next-scale",
]


class EvaluateRequest(Recorded):
    """Judge MC2 and its rivals on run records."""

    command: ClassVar[str] = "evaluate"

    split: Split | None = Field(
        default=None,
        description="What the fit does not see: by default a node count, or a workload if there is one node "
        "count. next-scale: each scale of a submitter's series, from the two below it.",
    )
    time: Literal["given", "predicted"] | None = Field(
        default=None,
        description="Time that the models get of the judged runs: by default predicted, but given where a "
        "workload is left out.",
    )
    ledger: Path | None = Field(
        default=None,
        description="File of `forecast --keep`: judge the forecasts in it on what ran later, in place of the "
        "models.",
    )

    @model_validator(mode="after")
    def _one_question(self) -> Self:
        if self.ledger is not None and (self.split or self.time):
            raise ValueError("split and time are of the models; a ledger has neither")
        return self


class Work(Request):
    """How much a training does."""

    samples: float | None = Field(
        default=None,
        gt=0,
        le=MOST_SAMPLES,
        description="Samples to train on. By default, `forecast` takes the recorded work, `advise` a million "
        "samples (1 epoch, 1,000 steps).",
    )
    epochs: float | None = Field(
        default=None,
        gt=0,
        le=MOST_SAMPLES,
        description="Epochs to train for, where the records count these.",
    )

    @model_validator(mode="after")
    def _one_amount(self) -> Self:
        if self.samples is not None and self.epochs is not None:
            raise ValueError("samples and epochs say the work in different ways; give one")
        return self

    @property
    def work(self) -> float | None:
        """The amount that is asked for, in its unit."""
        return self.epochs if self.samples is None else self.samples


class Scales(Work, Scale):
    """The trainings to forecast."""

    scaling: Literal["recorded", "weak", "strong"] = Field(
        default="recorded",
        description="Whether the batch of all nodes grows with them: as in the records, yes (weak), or no "
        "(strong).",
    )
    batch: int | None = Field(
        default=None, ge=1, le=MOST_SAMPLES, description="Batch of all nodes, in place of scaling."
    )
    to_target: Annotated[bool, Shell("--target")] = Field(
        default=False,
        description="Train to the recorded quality: the work follows the batch, as in the records and "
        "the recorded MLPerf times.",
    )
    whole_job: bool = Field(
        default=False,
        description="Say what start-up, checkpoints, restarts and switches add to the training, with the "
        "source of each.",
    )
    checkpoint_s: Annotated[float | None, from_text(duration_s), Shell("--checkpoint")] = Field(
        default=None,
        gt=0,
        description="With whole-job: time to write one checkpoint, as 30s; by default there are none.",
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
    """Seconds since 1970 of a time as people type it: ``2026-11-27T08:00``; in UTC where it has no zone."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise JoulecastError(
            f"{text}: no time; give it as 2026-11-27T08:00, in UTC, or with a zone"
        ) from None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


_DURATION, _ENERGY = from_text(duration_s), from_text(energy_j)


class StartRequest(Request):
    """Choose when to run a training, by prices or CO2 of the hour."""

    command: ClassVar[str] = "when"

    hours: Path = Field(
        description="CSV file with the columns time (ISO 8601, in UTC where it has no zone), and price "
        "(money a kWh), co2 (g a kWh), or both."
    )
    duration_s: Annotated[float, _DURATION, Shell("--duration")] = Field(
        gt=0, le=1e9, description="Time that the training takes: seconds, or as 30min, 6h, 2d."
    )
    energy_j: Annotated[float, _ENERGY, Shell("--energy")] = Field(
        gt=0, le=1e18, description="Energy that it takes: joules, or as 5MJ, 40kWh."
    )
    after_s: Annotated[float | None, from_text(_time_s), Shell("--after")] = Field(
        default=None,
        ge=0,
        le=1e11,
        description="Time from which it may run, as 2026-11-27T08:00; by default now.",
    )
    deadline_s: Annotated[float | None, _DURATION, Shell("--deadline")] = Field(
        default=None,
        gt=0,
        description="Time from --after until the training must be done: seconds, or as 12h, 2d; by default "
        "the end of the file.",
    )
    restart_s: Annotated[float | None, _DURATION, Shell("--restart")] = Field(
        default=None,
        ge=0,
        le=1e9,
        description="Time to go on after a pause: seconds, or as 10min. Without this option, the training "
        "does not pause.",
    )
    objective: Literal["cost", "co2"] | None = Field(
        default=None,
        description="What to minimise; by default money, if the file has prices.",
    )


class ForecastRequest(Priced, Scales, Recorded):
    """Forecast time, energy, money and CO2 of scales not yet run."""

    command: ClassVar[str] = "forecast"

    platform: Name | None = Field(
        default=None,
        description="Another platform than the records', by name or GPU, as b200 or l40s:gpus=4: times are "
        "simulated and corrected by the records, watts are those of the description.",
    )
    graph: Called = Field(
        default={},
        description="With platform: what the simulator calls a network of the records, as resnet=resnet50.",
    )
    precision: PeakPrecision = Field(
        default="bf16", description="With platform: precision that is simulated."
    )
    ran_on: Name | None = Field(
        default=None,
        description="With platform: the platform that the records ran on, as h100-sxm:gpus=4; by default the "
        "GPU that they name.",
    )
    keep: Path | None = Field(
        default=None,
        description="Add the forecast to this file, a line each, for `evaluate --ledger`. Once nine of its "
        "settings ran, intervals are as wide as needed to hold nine of ten of them.",
    )

    @model_validator(mode="after")
    def _elsewhere(self) -> Self:
        """What is asked of a platform, and what is not."""
        if self.platform is None and self.model_fields_set & {"graph", "ran_on", "precision"}:
            raise ValueError("graph, ran-on and precision are of a platform; give platform, too")
        if self.platform is not None and self.whole_job:
            raise ValueError(
                "what surrounds a training was seen on the records' platform alone; leave out whole-job, or "
                "platform"
            )
        return self
