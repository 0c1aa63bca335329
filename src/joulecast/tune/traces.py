"""Traces of trainings by others. They have the number of epochs to a target, and for each power limit the
power and time of an epoch.

The format and the six workloads come from You et al., Zeus (NSDI 2023). There is one file of epochs, and one
file of power for each GPU. They are joined on data set, network, batch size and optimizer.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import Column, read_csv
from joulecast.tune.trial import PLAIN, CostModel, EpochAtLimit, Goal, SearchSpace

# Highest settable power limit of a device, W.
MAX_POWER_W = {"v100": 250, "a40": 300, "rtx6000": 260, "p100": 250}
_JOINED = ["dataset", "network", "batch_size", "optimizer"]
_SETTING = {
    **dict.fromkeys(("dataset", "network", "optimizer"), Column("text")),
    "batch_size": Column("whole", 1, 1e9),
}
_EPOCHS = {
    **_SETTING,
    "target_metric": Column("number", optional=True),
    # The value is empty if a run never reached the target.
    "target_epoch": Column("whole", 1, 1e9, optional=True),
}
# A row without a measurement is left out.
_POWER = {
    **_SETTING,
    "power_limit": Column("whole", 1, 1e6, optional=True),
    "time_per_epoch": Column("number", 0, 1e9, optional=True),
    "average_power": Column("number", 0, 1e6, optional=True),
}


_LEAST_EPOCH_S, _LEAST_POWER_W = 1e-6, 1e-3
"""Smaller values are no measurements of an epoch, and their ratios might not be finite."""


@dataclass(frozen=True)
class TracedWorkload:
    """A training with the settings of the paper."""

    name: str
    dataset: str
    network: str
    target: float
    max_epochs: int
    default_batch_size: int


WORKLOADS = {
    workload.name: workload
    for workload in (
        TracedWorkload("librispeech", "librispeech", "deepspeech2", 40.0, 16, 192),
        TracedWorkload("squad", "squad", "bert_base_uncased", 84.0, 6, 32),
        TracedWorkload("sentiment140", "sentiment140", "bert_base_uncased", 0.84, 10, 128),
        TracedWorkload("imagenet", "imagenet", "resnet50", 0.65, 100, 256),
        TracedWorkload("cifar100", "cifar100", "shufflenetv2", 0.60, 100, 1024),
        TracedWorkload("movielens", "movielens-1m", "ncf", 0.41, 100, 1024),
    )
}


@dataclass(frozen=True)
class Trace:
    """One workload on one GPU.

    Attributes:
        epochs: by batch size, the number of epochs of every run; ``None`` for a run that never reached the
            target.
        at_limit: an epoch by batch size and power limit. Limits are in descending order.
        default: the batch size without tuning: the paper's batch size, or the largest one for this GPU.
    """

    workload: str
    gpu: str
    max_power_w: int
    max_epochs: int
    default: int
    epochs: dict[int, tuple[int | None, ...]]
    at_limit: dict[int, dict[int, EpochAtLimit]]

    def space(self, goal: Goal = PLAIN) -> SearchSpace:
        """The search space: what can be chosen, what it costs, and how a power limit is chosen."""
        return SearchSpace(
            tuple(self.epochs),
            self.default,
            {batch: tuple(limits) for batch, limits in self.at_limit.items()},
            CostModel(goal.eta, self.max_power_w),
            goal.criterion,
            goal.max_slowdown,
        )

    def always_reached(self, batch_size: int) -> bool:
        """Whether every run of a batch size reached the target in time."""
        return all(e is not None and e <= self.max_epochs for e in self.epochs[batch_size])


def read_trace(folder: Path, workload: str, gpu: str, *, target: float | None = None) -> Trace:
    """Read one workload on one GPU.

    Args:
        folder: folder with ``summary_train.csv`` and ``summary_power_GPU.csv``.
        workload: a name in :data:`WORKLOADS`.
        gpu: a name in :data:`MAX_POWER_W`.
        target: value of the metric to reach; by default the paper's.

    Raises:
        JoulecastError: the workload, GPU or target is not known; a file or column is missing; the default
            batch size has no row for the highest power limit; the two files have no rows in common; or runs
            have several optimizers.
    """
    if workload not in WORKLOADS:
        raise JoulecastError(f"no workload `{workload}`; there are {', '.join(WORKLOADS)}")
    if gpu not in MAX_POWER_W:
        raise JoulecastError(f"no traces of `{gpu}`; there are {', '.join(MAX_POWER_W)}")
    known = WORKLOADS[workload]
    target = known.target if target is None else target
    train_file, power_file = folder / "summary_train.csv", folder / f"summary_power_{gpu}.csv"
    train = read_csv(train_file, "trace of epochs", _EPOCHS)
    power = read_csv(power_file, "trace of power", _POWER)
    ours = f"dataset == {known.dataset!r} and network == {known.network!r}"
    train, power = train.query(ours), power.query(ours).dropna()
    wrong = power[
        (power["time_per_epoch"] < _LEAST_EPOCH_S) | (power["average_power"] < _LEAST_POWER_W)
    ]
    if len(wrong):
        row = wrong.iloc[0]
        raise JoulecastError(
            f"{power_file}: {workload} with batch size {row['batch_size']} and {row['power_limit']} W has "
            "an epoch without time or power"
        )
    targets = sorted(set(train["target_metric"]))
    none = f"none, as no row has dataset {known.dataset} and network {known.network}"
    train = train[np.isclose(train["target_metric"], target, rtol=0, atol=1e-9)]
    if train.empty:
        raise JoulecastError(
            f"{train_file}: {workload} has no target {target}; it has "
            f"{', '.join(f'{value:g}' for value in targets) or none}"
        )
    joined = train[_JOINED].merge(power[_JOINED]).drop_duplicates()
    train, power = train.merge(joined), power.merge(joined)
    if train.empty:
        raise JoulecastError(
            f"{power_file}: no row of {workload} has batch size and optimizer of a row in {train_file}"
        )
    optimizers = sorted(set(joined["optimizer"]))
    if len(optimizers) > 1:
        raise JoulecastError(
            f"{train_file}: the runs of {workload} have several optimizers ({', '.join(optimizers)}); "
            "keep the rows of one"
        )
    epochs = {
        int(batch): tuple(None if pd.isna(e) else int(e) for e in runs["target_epoch"])
        for batch, runs in train.groupby("batch_size")
    }
    epoch = power.assign(joules=power["time_per_epoch"] * power["average_power"])
    # An epoch that was measured several times counts as their mean.
    means = epoch.groupby(["batch_size", "power_limit"])[["time_per_epoch", "joules"]].mean()
    at_limit: dict[int, dict[int, EpochAtLimit]] = {}
    for (batch, watts), row in means.sort_index(ascending=[True, False]).iterrows():
        at_limit.setdefault(int(batch), {})[int(watts)] = EpochAtLimit(
            float(row["time_per_epoch"]), float(row["joules"])
        )
    default = min(known.default_batch_size, max(epochs))
    max_power_w = MAX_POWER_W[gpu]
    if default not in epochs:
        raise JoulecastError(
            f"{power_file}: {workload} has no default batch size {default}; it has "
            f"{', '.join(map(str, epochs))}"
        )
    if max_power_w not in at_limit[default]:
        raise JoulecastError(
            f"{power_file}: {workload} with the default batch size {default} has no power limit of "
            f"{max_power_w} W, which everything is compared with; it has "
            f"{', '.join(f'{watts} W' for watts in at_limit[default])}"
        )
    return Trace(workload, gpu, max_power_w, known.max_epochs, default, epochs, at_limit)
