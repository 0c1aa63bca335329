"""Tables of the simulator on steps that others measured on GPUs: its errors, and what it would choose."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import kendalltau

from joulecast.report.tables.output import write_table

WHAT = {
    "neusight": "one GPU, fp32, eager attention",
    "vtrain": "64 to 512 A100, tensor x data x pipeline, fp16",
    "llm_foundry": "8 to 512 GPUs, FSDP, bf16",
}


def _row(name: str, group: pd.DataFrame, peers: Mapping[str, float]) -> dict[str, Any]:
    error = 100 * (group["predicted_s"] / group["measured_s"] - 1)
    return {
        "data": name,
        "gpu": group["gpu"].iloc[0] if group["gpu"].nunique() == 1 else "all",
        "kind": group["kind"].iloc[0] if group["kind"].nunique() == 1 else "all",
        "steps": len(group),
        "error_percent": float(error.abs().mean()),
        "median_error_percent": float(error.abs().median()),
        "bias_percent": float(error.mean()),
        "worst_percent": float(error.loc[error.abs().idxmax()]),
        "one_step_error_percent": 100 * float(group["one_step_error"].mean()),
        "three_steps_error_percent": 100 * float(group["three_steps_error"].mean()),
        "called_out_of_memory": int(group["out_of_memory"].sum()),
        "peer_error_percent": peers.get(name),
    }


def gpu_error_table(frame: pd.DataFrame, peers: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Mean errors by data, GPU and kind of step; a row of each data's mean stands first.

    Args:
        frame: as of :func:`joulecast.simulate.judged.gpu_steps.predicted`.
        peers: percent that other simulators publish on their own data, by data.
    """
    rows = []
    for data, of_data in frame.groupby("data", sort=False):
        rows.append(_row(str(data), of_data, peers or {}))
        parts = list(of_data.groupby(["gpu", "kind"]))
        rows += [_row(str(data), part, {}) for _, part in parts if len(parts) > 1]
    return pd.DataFrame(rows)


def write_gpu_steps_tables(folder: Path, frame: pd.DataFrame, peers: Mapping[str, float]) -> None:
    """Write ``simulator_real_gpus`` and ``simulator_choice``; arguments as of :func:`gpu_error_table`."""
    settings = "; ".join(f"{name}: {what}" for name, what in WHAT.items())
    write_table(
        folder / "simulator_real_gpus",
        "The simulator on real GPUs",
        [
            "Steps that others measured, against the prediction from the GPU's description and kernels of "
            "other GPUs. The first row of each data is its mean.",
            f"{settings}.",
            "`one_step_error_percent`: corrected by another row of the same data, GPU and kind; the mean "
            "over all rows that it could be. `three_steps_error_percent`: by three of them. "
            "`peer_error_percent`: what the data's own simulator is "
            "published to reach on all of its data, of which this is a part.",
            "Constants of power and attention were chosen with these rows in sight "
            "(docs/explanation/simulator.md says which); rates of kernels and the rest were not.",
        ],
        gpu_error_table(frame, peers),
        sections="data",
    )
    write_table(
        folder / "simulator_choice",
        "The simulator's choice of a strategy on real GPUs",
        [
            "Of the configurations of one training that others measured: the one that is predicted to be the "
            "fastest, the one that was, and how much longer the chosen one takes. Kendall's tau compares the "
            "orders (1: the same).",
        ],
        choice_table(frame),
        sections="data",
    )


def write_all_reduces_table(folder: Path, frame: pd.DataFrame) -> None:
    """Write ``simulator_collectives``, of the rows of ``joulecast.simulate.judged.all_reduces``."""
    write_table(
        folder / "simulator_collectives",
        "The simulator's collectives on real GPUs",
        [
            "All-reduces of 1 MB to 1 GB in one node (vTrain), against the price from the GPU's name."
        ],
        frame,
    )


_FEWEST = 4
"""Configurations of one training that make a choice."""


def choice_table(frame: pd.DataFrame) -> pd.DataFrame:
    """What the simulator would choose among the measured configurations of one training, and what it costs.

    One row for each network, GPU, number of devices and samples a step with at least four configurations.

    Args:
        frame: as of :func:`joulecast.simulate.judged.gpu_steps.predicted`.
    """
    rows = []
    of_one_training = ["data", "gpu", "network", "devices", "global_batch"]
    for names, group in frame.groupby(of_one_training, sort=False):
        if len(group) < _FEWEST:
            continue
        chosen = group.loc[group["predicted_s"].idxmin()]
        best = group.loc[group["measured_s"].idxmin()]
        tau = kendalltau(group["predicted_s"], group["measured_s"]).statistic
        rows.append(
            {
                **dict(zip(of_one_training, names, strict=True)),
                "configurations": len(group),
                "chosen": chosen["strategy"],
                "fastest": best["strategy"],
                "regret_percent": 100 * float(chosen["measured_s"] / best["measured_s"] - 1),
                "kendall_tau": float(tau),
            }
        )
    return pd.DataFrame(rows)
