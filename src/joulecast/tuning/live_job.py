"""What a live loop trains, what it asks of a training, and where its trials come from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, Protocol

from joulecast.errors import JoulecastError
from joulecast.records.provenance import host_fingerprint, source_state, versions
from joulecast.records.spec import Workload
from joulecast.tuning.limit_measurement import Window
from joulecast.tuning.trial import Criterion, StoppedBy

DEFAULT_ETA = 0.5


@dataclass(frozen=True)
class LiveJob:
    """What is trained, and what may be chosen.

    Raises:
        JoulecastError: a value that makes no sense; names it.

    Attributes:
        batch_sizes: ascending.
        target_accuracy, max_epochs: a training ends at the one, or has failed at the other.
        learning_rate: at the default batch size; in proportion to the batch size, up to
            ``max_learning_rate``.
        threads: of torch.
        eta: weight of energy in the cost; on a CPU the cost is seconds, whatever it says.
        gpu: number of the GPU, as nvidia-smi has it; ``None``: the first that CUDA_VISIBLE_DEVICES shows.
        allow_power_limit: whether power limits may be set.
        limit_step_w: between the power limits that are tried.
        seed: of weights and batches.
    """

    workload: Workload
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    default_batch_size: int = 256
    target_accuracy: float = 0.9
    max_epochs: int = 100
    learning_rate: float = 0.05
    max_learning_rate: float | None = None
    momentum: float = 0.9
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    prefetch_batches: int = 0
    eta: float = DEFAULT_ETA
    gpu: int | None = None
    allow_power_limit: bool = False
    limit_step_w: int = 25
    criterion: Criterion = "cost"
    max_slowdown: float = 1.1
    window: Window = field(default_factory=Window)
    seed: int = 1

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise JoulecastError(
                f"batch_sizes {list(sizes)} are to be whole numbers from 1 on, ascending, at least one"
            )
        if self.default_batch_size not in sizes:
            raise JoulecastError(
                f"default_batch_size {self.default_batch_size} is none of batch_sizes {list(sizes)}"
            )
        # Written so that nan is refused too.
        for name, fits, needed in (
            ("target_accuracy", 0 < self.target_accuracy <= 1, "above 0, at most 1"),
            ("max_epochs", self.max_epochs >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < inf, "above 0"),
            ("max_learning_rate", 0 < (self.max_learning_rate or 1.0) < inf, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "at least 0, below 1"),
            ("threads", self.threads >= 1, "at least 1"),
            ("prefetch_batches", self.prefetch_batches >= 0, "at least 0"),
            ("eta", 0 <= self.eta <= 1, "between 0 and 1"),
            ("gpu", (self.gpu or 0) >= 0, "at least 0"),
            ("limit_step_w", self.limit_step_w >= 1, "at least 1"),
            ("max_slowdown", self.max_slowdown >= 1, "at least 1"),
        ):
            if not fits:
                raise JoulecastError(f"{name} is {getattr(self, name)}; it has to be {needed}")


class Trained(Protocol):
    """How a training ended; :class:`joulecast.training.to_target.TrainedToTarget` is one."""

    @property
    def reached(self) -> bool: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def epochs(self) -> int: ...
    @property
    def time_s(self) -> float: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def failed(self) -> str | None: ...


class Training(Protocol):
    """What trains; :class:`joulecast.training.to_target.TrainingToTarget` is one."""

    def steps_per_epoch(self, batch_size: int) -> int: ...

    def device_uuid(self) -> str | None: ...

    def train(
        self,
        batch_size: int,
        seed: int,
        *,
        begun: Callable[[], None] | None = None,
        stepped: Callable[[int], None] | None = None,
        ended: Callable[[], None] | None = None,
        go_on: Callable[[int, float], bool] | None = None,
    ) -> Trained: ...


def stopped_by(trained: Trained) -> StoppedBy:
    """As a trial has it."""
    if trained.failed is not None:
        return "interrupted"
    if trained.reached:
        return "target"
    return "cost_bound" if trained.stopped else "max_epochs"


def live_provenance() -> dict[str, Any]:
    """Where trials of now come from."""
    return {"host": host_fingerprint(), "versions": versions(), "source": source_state()}
