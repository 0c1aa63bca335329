"""What can be asked of tuning: replay a policy on traces, or let it tune a training of this machine."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from joulecast.runs.request import Request
from joulecast.tune.section import DEFAULT_POLICY, Goals
from joulecast.tune.trial import Goal

_REPLAYED = ("traces", "workload", "gpu", "target", "seeds")
_LIVE = ("target_accuracy", "device", "allow_power_limit")


class _Tuning(Request):
    """What is tuned, and by which policy."""

    live: bool = Field(
        default=False,
        description="Train LeNet-5 on digits on this machine, instead of replaying traces.",
    )
    traces: Path | None = Field(
        default=None,
        description="Folder of summary_train.csv and summary_power_GPU.csv; the shipped ones by default.",
    )
    workload: str | None = Field(default=None, description="Workload of the traces, as cifar100.")
    gpu: str | None = Field(default=None, description="GPU of the traces, as v100.")
    policy: str = Field(
        default=DEFAULT_POLICY, description="Policy, as zeus; a wrong name lists all."
    )
    recurrences: int = Field(default=50, ge=1, description="Trainings to the target.")
    seeds: int | None = Field(
        default=None, ge=1, description="Replays to take the mean of; 20 by default."
    )
    target: float | None = Field(
        default=None, description="Metric to reach in a replay; the paper's by default."
    )
    beta: float | None = Field(
        default=None, description="Stop a try at this many times the best cost."
    )
    window: int | None = Field(
        default=None, description="Number of last costs of a batch size that count (drift)."
    )
    history: Path | None = Field(
        default=None, description="File for the trials; a live tuning continues where it ends."
    )


class TuneRequest(Goals, _Tuning):
    """Tune batch size and power limit over recurrences of a training."""

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
        if not self.live and None in (self.workload, self.gpu):
            raise ValueError(
                "a replay needs --workload and --gpu; --live trains on this machine instead"
            )
        return self

    @property
    def goal(self) -> Goal:
        """What the policy is to make least."""
        return Goal(self.eta, self.criterion, self.max_slowdown)

    @property
    def options(self) -> dict[str, float]:
        """Options of the policy that are given."""
        given = {"beta": self.beta, "window": self.window}
        return {name: value for name, value in given.items() if value is not None}
