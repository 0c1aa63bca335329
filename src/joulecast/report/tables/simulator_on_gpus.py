"""Tables of the simulator on steps that others measured on GPUs: its errors, and what it would choose."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.report.tables.output import write_table
from joulecast.runs.judging import by_setting, rank, summarise

WHAT = {
    "neusight": "one GPU, fp32, eager attention",
    "vtrain": "64 to 512 A100, tensor x data x pipeline, fp16",
    "llm_foundry": "8 to 512 GPUs, FSDP, bf16",
}
_COLUMNS = {
    "settings": "steps",
    "mape_percent": "error_percent",
    "median_percent": "median_error_percent",
    "bias_percent": "bias_percent",
    "worst_percent": "worst_percent",
    "one step": "one_step_error_percent",
    "three steps": "three_steps_error_percent",
    "called_out_of_memory": "called_out_of_memory",
}
"""Of the errors, by their names in judging."""


def _errors(cells: pd.DataFrame) -> pd.DataFrame:
    """Errors by data, GPU and kind: from the description, and after other steps were measured."""
    by = ["data", "gpu", "kind"]
    described = cells[cells["basis"] == "description"]
    groups = described.groupby(by, sort=False)
    table = summarise(described, by).set_index(by)
    table["worst_percent"] = groups["difference_percent"].agg(lambda e: e.loc[e.abs().idxmax()])
    table["called_out_of_memory"] = groups["out_of_memory"].sum()
    after = cells.groupby([*by, "basis"])["mean_absolute_percent"].mean().unstack("basis")
    return table.join(after).rename(columns=_COLUMNS)[[*_COLUMNS.values()]].reset_index()


def gpu_error_table(judged: pd.DataFrame, peers: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Mean errors by data, GPU and kind of step; a row of each data's mean stands first.

    Args:
        judged: as of :func:`joulecast.simulate.judged.gpu_steps.judge`.
        peers: percent that other simulators publish on their own data, by data.
    """
    cells = by_setting(judged, ["step", "data", "gpu", "kind", "basis", "out_of_memory"])
    parts = []
    for data, of_data in cells.groupby("data", sort=False):
        mixed = {name: "all" for name in ("gpu", "kind") if of_data[name].nunique() > 1}
        peer = (peers or {}).get(str(data), np.nan)
        parts.append(_errors(of_data.assign(**mixed)).assign(peer_error_percent=peer))
        if mixed:
            parts.append(_errors(of_data.sort_values(["gpu", "kind"], kind="stable")))
    return pd.concat(parts, ignore_index=True)


def write_gpu_steps_tables(folder: Path, judged: pd.DataFrame, peers: Mapping[str, float]) -> None:
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
        gpu_error_table(judged, peers),
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
        choice_table(judged),
        sections="data",
    )


def write_all_reduces_table(folder: Path, judged: pd.DataFrame) -> None:
    """Write ``simulator_collectives``, of the rows of ``joulecast.simulate.judged.all_reduces``."""
    write_table(
        folder / "simulator_collectives",
        "The simulator's collectives on real GPUs",
        [
            "All-reduces of 1 MB to 1 GB in one node (vTrain), against the price from the GPU's name."
        ],
        all_reduces_table(judged),
    )


def all_reduces_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Errors of all-reduces in percent by GPU and number of GPUs.

    Args:
        judged: as of :func:`joulecast.simulate.judged.all_reduces.judge_all_reduces`.
    """
    by = ["gpu", "gpus"]
    table = summarise(by_setting(judged, ["all_reduce", *by]), by).sort_values(by)
    names = {"settings": "rows", "mape_percent": "error_percent", "max_percent": "worst_percent"}
    return table.rename(columns=names)[[*by, *names.values()]]


_FEWEST = 4
"""Configurations of one training that make a choice."""


def choice_table(judged: pd.DataFrame) -> pd.DataFrame:
    """What the simulator would choose among the measured configurations of one training, and what it costs.

    One row for each network, GPU, number of devices and samples a step with at least four configurations.

    Args:
        judged: as of :func:`joulecast.simulate.judged.gpu_steps.judge`.
    """
    of_one_training = ["data", "gpu", "network", "devices", "global_batch"]
    ranks = rank(judged[judged["basis"] == "description"], of_one_training, _FEWEST)
    for column in ("chosen", "least"):
        ranks[column] = ranks[column].map(judged["strategy"])
    return ranks.rename(columns={"settings": "configurations", "least": "fastest"})
