"""Table of the simulator's error on steps that others measured on GPUs."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

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
        "called_out_of_memory": int(group["out_of_memory"].sum()),
        "peer_error_percent": peers.get(name),
    }


def gpu_error_table(frame: pd.DataFrame, peers: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Mean errors by data, GPU and kind of step; a row of each data's mean stands first.

    Args:
        frame: as of :func:`joulecast.ground_truth.gpu_steps.predicted`.
        peers: percent that other simulators publish on their own data, by data.
    """
    rows = []
    for data, of_data in frame.groupby("data", sort=False):
        rows.append(_row(str(data), of_data, peers or {}))
        parts = list(of_data.groupby(["gpu", "kind"]))
        rows += [_row(str(data), part, {}) for _, part in parts if len(parts) > 1]
    return pd.DataFrame(rows)
