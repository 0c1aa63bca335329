"""Judges the simulator on steps of large networks and all-reduces that others measured on GPUs.

``recorded/training-steps/steps.csv`` has single GPUs (NeuSight), clusters of A100 with tensor and pipeline
parallelism (vTrain), FSDP on A100 and H100 (llm-foundry), and a vendor's tuned recipes on H100 and GB200, for
dense networks and mixtures of experts (Megatron-Bridge). The rows of plain PyTorch on one H100 and one H200
are ours. A prediction rests on one of these:

* ``description``: the GPU's data sheet and fitted constants;
* ``one step``: also one other row with the same data, GPU and kind. Each of these rows gives a prediction;
* ``three steps``: also three of these rows. They are drawn at random ten times. Each draw is a prediction.
"""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter

from joulecast.graphs.kernel_costs import KernelCosts
from joulecast.graphs.precision import PRECISIONS
from joulecast.runs.files.columns import Column, read_csv
from joulecast.runs.files.reading import read_text, validated
from joulecast.runs.judging import join_references
from joulecast.runs.platforms import Platform, find_platform
from joulecast.simulate.cluster_links import collective_seconds
from joulecast.simulate.correction import MeasuredSteps
from joulecast.simulate.measured_step import (
    MeasuredStep,
    error_of,
    first_factor,
    simulated_step,
)
from joulecast.simulate.simulate import Simulation

_SEVERAL, _DRAWS = 3, 10
"""Number of measured steps in a draw, and number of draws."""
_LEAST_FACTOR = 0.1
_GROUP = ["data", "gpu", "kind"]
_REFERENCE = [*_GROUP, "step_kind", "network", "strategy", "batch", "devices", "global_batch"]


@dataclass(frozen=True)
class GpuStep:
    """A measured step, and its platform."""

    source: str
    platform: str
    step: MeasuredStep

    @property
    def kind(self) -> str:
        """``inference`` or ``training``. If the training is at tf32, in plain PyTorch at 16 bits, or with
        narrow operands, the precision is part of the kind. A step corrects no step of another kind."""
        precision = PRECISIONS[self.step.precision]
        has_own_kind = (
            precision.operand_bytes is not None or precision.plain or precision.name == "tf32"
        )
        training = f"training, {self.step.precision}" if has_own_kind else "training"
        return "inference" if self.step.inference else training


def read_gpu_steps(folder: Path) -> list[GpuStep]:
    """Read the measured steps of a folder, from ``steps.csv``. It has the columns ``data`` (who measured the
    step), ``platform``, and those of :class:`MeasuredStep`.

    Raises:
        JoulecastError: the file is missing, lacks a column, or has a row that is no measured step.
    """
    path, found = folder / "steps.csv", []
    for number, row in enumerate(csv.DictReader(read_text(path, "measured steps").splitlines()), 1):
        given = {name: value for name, value in row.items() if value}
        source, platform = given.pop("data", ""), given.pop("platform", "")
        step = validated(TypeAdapter(MeasuredStep), given, f"{path}: row {number}")
        found.append(GpuStep(source, platform, step))
    return found


def _costs(step: GpuStep) -> tuple[Platform, KernelCosts]:
    platform = find_platform(step.platform)
    return platform, KernelCosts(platform.require_cluster().device, step.step.precision)


def simulate_steps(steps: Iterable[GpuStep]) -> pd.DataFrame:
    """Simulate measured steps by the GPU's description.

    Returns:
        A row for each step: its setting, ``measured_s``, ``predicted_s`` and the ends of its 90 % interval,
            the seconds of exposed communication (``exposed_s``), whether it is predicted to be
            ``out_of_memory``, and the ``error`` that corrects other steps.
    """
    rows = []
    known: dict[GpuStep, Simulation] = {}
    for number, each in enumerate(steps):
        platform, costs = _costs(each)
        # A vendor measures the same recipe with every release of its software.
        setting = replace(each, step=each.step.model_copy(update={"step_s": 1.0}))
        if setting not in known:
            known[setting] = simulated_step(each.step, platform, costs).without_activities()
        found = known[setting]
        low_s, high_s = found.interval_s or (math.nan, math.nan)
        ops_factor = max(first_factor(found, each.step.step_s), _LEAST_FACTOR)
        rows.append(
            {
                "step": number,
                "data": each.source,
                "gpu": platform.name,
                # A mixture of experts says little about the own error of a dense network.
                "kind": each.kind + ", experts" * (found.kind == "experts"),
                "step_kind": found.kind,
                "network": each.step.network,
                "strategy": each.step.strategy,
                "batch": each.step.batch,
                "devices": found.strategy.devices,
                "global_batch": found.batch,
                "measured_s": each.step.step_s,
                "predicted_s": found.step_s,
                "time_low_s": low_s,
                "time_high_s": high_s,
                "exposed_s": found.breakdown.exposed_communication_s,
                "error": error_of(each.step, found, ops_factor),
                "out_of_memory": bool(found.out_of_memory),
            }
        )
    return pd.DataFrame(rows)


def corrected_s(row: Mapping[str, Any], evidence: MeasuredSteps) -> float:
    """Seconds of a row of :func:`simulate_steps`, after measured steps have corrected its ops."""
    exposed = row["exposed_s"]
    factor = evidence.factor(row["error"].setting)
    return float(exposed + factor * (row["predicted_s"] - exposed))


def _after_others(group: pd.DataFrame) -> pd.DataFrame:
    """Predictions of each step of a group, after other steps of the group were measured."""
    alone = [MeasuredSteps((error,)) for error in group["error"]]
    chance = np.random.default_rng(0)
    rows = []
    for place, row in enumerate(group.to_dict("records")):
        others = np.delete(np.arange(len(group)), place)
        taken = min(_SEVERAL, len(others))
        draws = [chance.choice(others, taken, replace=False) for _ in range(_DRAWS)]
        after = {
            "one step": [alone[other] for other in others],
            "three steps": [MeasuredSteps(tuple(group["error"].iloc[drawn])) for drawn in draws],
        }
        rows += [
            (row["step"], basis, corrected_s(row, evidence), row["out_of_memory"])
            for basis, evidences in after.items()
            for evidence in evidences
        ]
    return pd.DataFrame(rows, columns=["step", "basis", "time_s", "out_of_memory"])


def judge(steps: Iterable[GpuStep]) -> pd.DataFrame:
    """Predict measured steps, from the GPU's description and after other steps were measured.

    Returns:
        A row of :func:`joulecast.runs.judging.join_references` for each prediction: ``step`` (its number),
        ``data``, ``gpu``, ``kind``, ``network``, ``strategy``, ``batch``, ``devices``, ``global_batch``,
        ``basis``, and whether the step is predicted to be ``out_of_memory``.
    """
    found = simulate_steps(steps)
    described = found.assign(basis="description", time_s=found["predicted_s"])
    after = [_after_others(group) for _, group in found.groupby(_GROUP) if len(group) > 1]
    predictions = pd.concat([described, *after], ignore_index=True).assign(
        split="held out", time="predicted", model="simulator", role="model"
    )
    said = ["step", "split", "time", "model", "role", "basis", "time_s", "out_of_memory"]
    said += ["time_low_s", "time_high_s"]
    references = found[["step", *_REFERENCE]].assign(time_s=found["measured_s"], source="recorded")
    return join_references(predictions[said], references, "step", "time_s")


_ALL_REDUCE_PLATFORMS = {"a100": "a100-80gb-sxm", "v100": "v100"}
_ALL_REDUCE_COLUMNS = {
    "gpu": Column("text"),
    "gpus": Column("whole"),
    "bytes": Column("number"),
    "seconds": Column("number"),
}


def judge_all_reduces(folder: Path) -> pd.DataFrame:
    """Predict measured all-reduces from the GPU's name, and join the predictions with the measurements.

    Args:
        folder: folder with ``allreduce_in_node.csv``.

    Returns:
        A row of :func:`joulecast.runs.judging.join_references` for each all-reduce, with ``gpu``, ``gpus``
        and ``bytes``.

    Raises:
        JoulecastError: the file is missing or lacks a column.
    """
    frame = read_csv(folder / "allreduce_in_node.csv", "measured all-reduces", _ALL_REDUCE_COLUMNS)
    platforms = {gpu: find_platform(name) for gpu, name in _ALL_REDUCE_PLATFORMS.items()}
    predicted = [
        collective_seconds(platforms[gpu], "all_reduce", int(count), [size])[0]
        for gpu, count, size in zip(frame["gpu"], frame["gpus"], frame["bytes"], strict=True)
    ]
    references = frame.rename_axis("all_reduce").reset_index()
    predictions = references[["all_reduce"]].assign(
        split="held out",
        time="predicted",
        model="simulator",
        role="model",
        basis="description",
        time_s=predicted,
    )
    references = references.rename(columns={"seconds": "time_s"}).assign(source="recorded")
    return join_references(predictions, references, "all_reduce", "time_s")
