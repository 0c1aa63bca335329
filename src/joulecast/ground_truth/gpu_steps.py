"""Steps of large networks that others measured on GPUs, and the simulator judged on them.

The rows are in ``recorded/training-steps``: single GPUs (NeuSight), clusters of A100 with tensor and pipeline
parallelism (vTrain), FSDP on A100 and H100 (llm-foundry). Each is predicted three times:

* ``description``: from the GPU's description and kernels of other GPUs;
* ``one step``: with the factor of one other row of the same GPU and source, the mean over all other rows;
* ``plateau``: with the plateau of the GPU's own large matrix products, where its kernels were measured.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.files.columns import Column, read_csv
from joulecast.graphs.kernel_costs import KernelCosts
from joulecast.platforms import Platform, find_platform
from joulecast.simulator.measured_step import MeasuredStep, factor_of, simulated_step

TRAINING_STEPS = Path("recorded/training-steps")
_FAMILY = {
    "bert_large": "bert",
    "gpt2_large": "gpt",
    "gpt3_xl": "gpt",
    "gpt3_27": "gpt",
    "opt_13": "opt",
}
_CLUSTERS = {
    # What their papers say of the node: vTrain has four cards of 200 Gbit/s.
    ("vtrain", "a100_80gb_sxm"): "a100-80gb-sxm:nics=4x200",
    ("llm-foundry", "a100_40gb"): "a100-40gb-sxm",
    ("llm-foundry", "h100_80gb"): "h100-sxm",
}


@dataclass(frozen=True)
class GpuStep:
    """A measured step and the platform that it ran on."""

    source: str
    platform: str
    step: MeasuredStep

    @property
    def kind(self) -> str:
        """``inference``, or ``training`` on one or several GPUs."""
        return "inference" if self.step.inference else "training"


def _neusight(row: Mapping[str, Any]) -> MeasuredStep | None:
    family = _FAMILY.get(str(row["model"]))
    if family is None or row["note"]:
        # Mixtures of experts whose sizes are not given, and steps of a compiled network.
        return None
    numbers = f"layers={row['layers']},hidden={row['hidden']},heads={row['heads']}"
    return MeasuredStep(
        network=f"{family}:{numbers},sequence={row['sequence']},vocabulary={row['vocabulary']},loss=no",
        strategy=f"dp={row['dp']}" if int(row["dp"]) > 1 else "dp=1",
        batch=int(row["global_batch"]) // int(row["dp"]),
        precision="fp32",
        attention="eager",
        optimizer="none",
        inference=row["kind"] == "inference",
        step_s=float(row["step_s"]),
        source="NeuSight",
    )


def _vtrain(row: Mapping[str, Any]) -> MeasuredStep:
    dp, micro = int(row["dp"]), int(row["micro_batch"])
    batch = int(row["global_batch"]) // dp
    numbers = f"layers={row['layers']},hidden={row['hidden']},heads={row['heads']}"
    return MeasuredStep(
        network=f"gpt:{numbers},sequence={row['sequence']},vocabulary={row['vocabulary']}",
        strategy=f"dp={dp},tp={row['tp']},pp={row['pp']},micro={batch // micro},recompute,no-overlap",
        batch=batch,
        precision="fp16",
        attention="eager",
        optimizer="adam",
        step_s=float(row["step_s"]),
        source="vTrain",
    )


def _llm_foundry(row: Mapping[str, Any]) -> MeasuredStep | None:
    if "fp8" in row["precision"]:
        return None
    dp, micro = int(row["dp"]), int(row["micro_batch"])
    batch = int(row["global_batch"]) // dp
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}[row["sharding"]]
    recompute = ",recompute" if row["recompute"] == "True" else ""
    return MeasuredStep(
        network=f"mpt-{row['model']}:sequence={row['sequence']}",
        strategy=f"dp={dp},micro={batch // micro},zero={zero}{recompute}",
        batch=batch,
        precision="bf16",
        attention="fused",
        optimizer="adam",
        step_s=float(row["step_s"]),
        source="llm-foundry",
    )


_READERS = {"neusight": _neusight, "vtrain": _vtrain, "llm_foundry": _llm_foundry}


_COLUMNS = {
    name: Column("text", optional=True)
    for name in (
        *("source", "gpu", "model", "layers", "hidden", "heads", "sequence", "vocabulary"),
        *("global_batch", "micro_batch", "dp", "tp", "pp", "sharding", "recompute", "precision"),
        *("kind", "step_s", "note"),
    )
}


def read_gpu_steps(folder: Path) -> list[GpuStep]:
    """The measured steps of a folder that the simulator can express.

    Raises:
        JoulecastError: a file is missing or has no such columns.
    """
    found = []
    for name, reader in _READERS.items():
        path = folder / f"{name}.csv"
        frame = read_csv(path, "measured steps", _COLUMNS).fillna("")
        try:
            for row in frame.to_dict("records"):
                step = reader(row)
                if step is not None:
                    platform = _CLUSTERS.get((row["source"], row["gpu"]), row["gpu"])
                    found.append(GpuStep(name, platform, step))
        except (KeyError, ValueError) as error:
            raise JoulecastError(f"{path}: a row that is no measured step: {error}") from None
    return found


def _costs(step: GpuStep) -> tuple[Platform, KernelCosts]:
    platform = find_platform(step.platform)
    return platform, KernelCosts(platform.require_cluster().device, step.step.precision)


def predicted(steps: Iterable[GpuStep]) -> pd.DataFrame:
    """One row a step: measured and predicted seconds, its factor, peak memory and whether it fits."""
    rows = []
    for each in steps:
        platform, costs = _costs(each)
        found = simulated_step(each.step, platform, costs)
        rows.append(
            {
                "data": each.source,
                "platform": each.platform,
                "kind": each.kind,
                "network": each.step.network,
                "strategy": each.step.strategy,
                "batch": each.step.batch,
                "devices": found.strategy.devices,
                "measured_s": each.step.step_s,
                "description_s": found.step_s,
                "factor": factor_of(each.step, platform, costs),
                "peak_memory_bytes": found.peak_memory_bytes,
                "out_of_memory": found.out_of_memory,
            }
        )
    return pd.DataFrame(rows)


def with_one_step(frame: pd.DataFrame) -> pd.DataFrame:
    """Adds ``one_step_error``: the mean absolute error with the factor of one other row of the same group.

    The factor scales computing; where communication is exposed, that is a little less than what a new
    simulation would say, so that the figure is not flattered.
    """
    errors = pd.Series(np.nan, index=frame.index, dtype=float)
    for _, group in frame.groupby(["data", "platform", "kind"]):
        ratio = (group["description_s"] / group["measured_s"]).to_numpy()
        factors = group["factor"].to_numpy()
        for place, index in enumerate(group.index):
            others = np.delete(factors, place)
            if len(others):
                errors[index] = float(np.mean(np.abs(ratio[place] * others - 1)))
    return frame.assign(one_step_error=errors)
