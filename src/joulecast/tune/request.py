"""Requests for tuning, from a command or the configuration: replay a policy, or tune live."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from joulecast.errors import JoulecastError
from joulecast.measure.workloads.networks import check_size
from joulecast.runs.request import Request, Section
from joulecast.tune.trial import Criterion, Goal

DEFAULT_POLICY: Literal["curve"] = "curve"
"""The policy of a tuning, live or replayed, if none is named."""


class Goals(BaseModel):
    """The goals of a training that recurs. A section of the configuration and a request share them."""

    target_accuracy: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Accuracy on the test split to reach.",
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Device of a live training.")
    eta: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Weight of energy, against time, in the cost on a GPU.",
    )
    allow_power_limit: bool = Field(
        default=False,
        description="Let the tuner set the GPU's power limit, and restore it after each training.",
    )
    criterion: Criterion = Field(
        default="cost",
        description="Choice among the measured power limits: least cost, energy or time, or (max-slowdown) "
        "the lowest limit that is fast enough.",
    )
    max_slowdown: float = Field(
        default=1.1,
        ge=1,
        description="With the criterion max-slowdown: longest time, relative to that at the highest limit.",
    )


class _Trained(Section):
    """The training, and the batch sizes to choose from."""

    network: str = Field("lenet5", description="Network. It is trained on scikit-learn's digits.")
    image_size: int = Field(
        8,
        ge=8,
        description="Side of the images in pixels.",
    )
    max_epochs: int = Field(100, ge=1, description="Largest number of epochs of a training.")
    batch_sizes: list[int] = Field(
        [8, 16, 32, 64, 128, 256, 512], min_length=1, description="Batch sizes to choose from."
    )
    default_batch_size: int = Field(256, ge=1, description="Batch size without tuning.")
    learning_rate: float = Field(
        0.05,
        gt=0,
        description="Learning rate at the default batch size. It grows in proportion to the batch "
        "size.",
    )
    max_learning_rate: float | None = Field(
        None, gt=0, description="Highest learning rate after scaling. null: no limit."
    )
    seed: int = Field(1, description="Seed of policy, weights and order of batches.")
    gpu: int | None = Field(
        None,
        ge=0,
        description="Number of the GPU, as nvidia-smi counts. null: the first GPU that CUDA shows.",
    )

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, sizes: list[int]) -> list[int]:
        if min(sizes) < 1:
            raise ValueError(f"batch size {min(sizes)} is below 1")
        return sorted(set(sizes))

    @model_validator(mode="after")
    def _fits(self) -> "_Trained":
        try:
            check_size(self.network, self.image_size, 16)
        except JoulecastError as error:
            raise ValueError(str(error)) from None
        if self.default_batch_size not in self.batch_sizes:
            raise ValueError(
                f"default_batch_size {self.default_batch_size} is none of batch_sizes "
                f"{', '.join(map(str, self.batch_sizes))}"
            )
        return self


class RecurringTraining(Goals, _Trained):
    """A training that recurs on this machine, and the choices of a tuner."""


class LiveTuningSection(RecurringTraining):
    """A training that recurs on this machine, tuned from one recurrence to the next."""

    policy: Literal["default", "power-limit-only", "zeus", "grid-search", "curve"] = Field(
        DEFAULT_POLICY, description="Policy that proposes batch sizes and power limits."
    )
    recurrences: int = Field(
        50, ge=1, le=10_000, description="Number of trainings, each to the target."
    )


class TuningSection(Section):
    """Replays of the Zeus authors' traces (recorded/zeus-trace), and a training that is tuned live."""

    eta: float = Field(0.5, ge=0, le=1, description="Weight of energy, against time, in the cost.")
    seeds: int = Field(20, ge=2, le=10_000, description="Replays of every policy in every setting.")
    recurrences: int = Field(50, ge=10, le=10_000, description="Trainings in every replay.")
    live: LiveTuningSection = LiveTuningSection()


_REPLAYED = ("traces", "workload", "gpu", "target", "seeds")
_LIVE = ("target_accuracy", "device", "allow_power_limit", "history")


class _Tuning(Request):
    """What is tuned, and by which policy."""

    live: bool = Field(
        default=False,
        description="Train LeNet-5 on scikit-learn's digits on this machine. By default, traces "
        "are replayed.",
    )
    traces: Path | None = Field(
        default=None,
        description="Folder with summary_train.csv and summary_power_GPU.csv. By default the shipped "
        "traces.",
    )
    workload: str | None = Field(
        default=None, description="Workload to replay from the traces, such as cifar100."
    )
    gpu: str | None = Field(
        default=None, description="GPU to replay from the traces, such as v100."
    )
    policy: str = Field(
        default=DEFAULT_POLICY,
        description="Policy, such as zeus.",
    )
    recurrences: int = Field(
        default=50, ge=1, description="Number of trainings, each to the target."
    )
    seeds: int | None = Field(
        default=None,
        ge=1,
        description="Number of replays, each with another random seed. By default 20.",
    )
    target: float | None = Field(
        default=None,
        description="Value of the metric that a replayed training must reach. By default "
        "the value in the Zeus paper.",
    )
    beta: float | None = Field(
        default=None, description="Stop a try when it costs this many times the lowest cost so far."
    )
    window: int | None = Field(
        default=None,
        description="For each batch size, only this number of its newest costs counts. By default all "
        "count.",
    )
    history: Path | None = Field(
        default=None,
        description="File to which the trials of a live tuning are added. The same file continues "
        "a tuning.",
    )


class TuneRequest(Goals, _Tuning):
    """Tune the batch size and power limit of a training that recurs."""

    command: ClassVar[str] = "tune"

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        others = [
            name for name in (_REPLAYED if self.live else _LIVE) if name in self.model_fields_set
        ]
        given = [f"--{name.replace('_', '-')}" for name in others]
        if given and self.live:
            raise ValueError(f"{given[0]} is for replays; leave it out with --live")
        if given:
            raise ValueError(f"{given[0]} is for trainings on this machine; give --live too")
        if "max_slowdown" in self.model_fields_set and self.criterion != "max-slowdown":
            raise ValueError("--max-slowdown is for --criterion max-slowdown; give it too")
        if not self.live and None in (self.workload, self.gpu):
            raise ValueError(
                "a replay needs --workload and --gpu; --live trains on this machine instead"
            )
        return self

    @property
    def goal(self) -> Goal:
        """The goal: what the policy should minimise."""
        return Goal(self.eta, self.criterion, self.max_slowdown)

    @property
    def options(self) -> dict[str, float]:
        """The given options of the policy."""
        given = {"beta": self.beta, "window": self.window}
        return {name: value for name, value in given.items() if value is not None}
