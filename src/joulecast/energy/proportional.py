"""The proportional rivals: energy as node-seconds times a power that utilisation sets.

LP1 to LP4 are the four linear models (a reconstruction after Dayarathna et al. 2016; which ones the
MC2 paper means is not public); the others are models that a user would try first. N is the number of
metered units, T the time of the run in s, u a mean utilisation of 0 to 1.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

UTILISATIONS = ("u_cpu", "memory_bytes", "network_bytes_per_s")


@dataclass(frozen=True)
class Context:
    """What every rival is given: the runs of the fit, the idle power and the platform's watts."""

    training: pd.DataFrame
    idle_w: float
    full_w: float | None
    tdp_w: float | None


def _unit_seconds(runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    return runs["metered_units"] * total_s


def _mean_power(context: Context) -> pd.Series:
    runs = context.training
    return runs["energy_j"] / _unit_seconds(runs, runs["total_s"])


def _peak_power(context: Context) -> float:
    """Highest power: the platform's, else what utilisation 1 would draw by the fit's runs."""
    if context.full_w is not None:
        return context.full_w
    runs = context.training
    slope = ((_mean_power(context) - context.idle_w) / runs["u_cpu"]).median()
    return float(context.idle_w + slope)


def lp1(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T P_TDP``."""
    nameplate = context.tdp_w if context.tdp_w is not None else _peak_power(context)
    return _unit_seconds(runs, total_s) * nameplate


def lp2(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T P_max u``."""
    return _unit_seconds(runs, total_s) * _peak_power(context) * runs["u_cpu"]


def lp3(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T (P_0 + (P_max - P_0) u)``."""
    dynamic = _peak_power(context) - context.idle_w
    return _unit_seconds(runs, total_s) * (context.idle_w + dynamic * runs["u_cpu"])


def lp4(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T (P_0 + sum c_i u_i)`` over CPU, memory and network, non-negative coefficients."""
    columns = list(UTILISATIONS)
    observed = context.training[columns].fillna(0.0).to_numpy(float)
    scale = np.where(observed.max(axis=0) > 0, observed.max(axis=0), 1.0)
    excess = (_mean_power(context) - context.idle_w).clip(lower=0).to_numpy(float)
    coefficients = nnls(observed / scale, excess)[0] / scale
    dynamic = runs[columns].fillna(0.0).to_numpy(float) @ coefficients
    return _unit_seconds(runs, total_s) * (context.idle_w + dynamic)


def fan(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T (P_0 + (P_max - P_0)(2 u - u^1.4))``, Fan et al. 2007."""
    u = runs["u_cpu"].clip(0, 1)
    dynamic = _peak_power(context) - context.idle_w
    return _unit_seconds(runs, total_s) * (context.idle_w + dynamic * (2 * u - u**1.4))


def node_hours(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T P_1``: the mean power of the smallest node count of the fit, for each network."""
    power = _of_smallest(context, _mean_power(context))
    return _unit_seconds(runs, total_s) * runs["network"].map(power)


def work(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """Joules per sample of the smallest node count of the fit, for each network, times samples."""
    training = context.training
    return runs["samples"] * runs["network"].map(
        _of_smallest(context, training["energy_j"] / training["samples"])
    )


def mean_joules(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """Mean joules per sample of all runs of the fit, for each network, times samples."""
    training = context.training
    per_sample = (training["energy_j"] / training["samples"]).groupby(training["network"]).mean()
    return runs["samples"] * runs["network"].map(per_sample)


def _of_smallest(context: Context, quantity: pd.Series) -> pd.Series:
    training = context.training
    smallest = training.groupby("network")["nodes"].transform("min") == training["nodes"]
    # At the batch that most of these runs have: the sweep over batches is for MC2's slopes.
    usual = training.groupby("network")["batch_per_rank"].transform(lambda b: b.mode().iloc[0])
    chosen = smallest & (training["batch_per_rank"] == usual)
    return quantity[chosen].groupby(training.loc[chosen, "network"]).mean()


MODELS = {
    "LP1": lp1,
    "LP2": lp2,
    "LP3": lp3,
    "LP4": lp4,
    "Fan": fan,
    "node-hours": node_hours,
    "work": work,
    "mean-J/sample": mean_joules,
}
"""Rivals by name: (context, runs to predict, their times) -> energy in J."""


def perfect_scaling(training: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Time if every node added its full speed: seconds per sample and node, from the smallest N."""
    per_sample = training["total_s"] * training["nodes"] / training["samples"]
    context = Context(training, 0.0, None, None)
    return runs["network"].map(_of_smallest(context, per_sample)) * runs["samples"] / runs["nodes"]


def nearest_node_count(training: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Time per step of the nearest node count of the fit with the same batch of a node."""
    step_s = training["total_s"] / training["steps"]
    predicted = []
    for row in runs.itertuples():
        same = training[training["network"] == row.network]
        batch = same[same["batch_per_rank"] == row.batch_per_rank]
        same = batch if len(batch) else same
        distance = (same["nodes"] - row.nodes).abs()
        predicted.append(float(step_s[distance[distance == distance.min()].index].mean()))
    return pd.Series(predicted, index=runs.index) * runs["steps"]


def linear_in_nodes(training: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Time per step as a straight line in N, for each network at the batch of its node."""
    step_s = training["total_s"] / training["steps"]
    predicted = []
    for row in runs.itertuples():
        same = training[
            (training["network"] == row.network)
            & (training["batch_per_rank"] == row.batch_per_rank)
        ]
        if same["nodes"].nunique() < 2:
            predicted.append(float("nan"))
            continue
        slope, origin = np.polyfit(same["nodes"], step_s[same.index], 1)
        predicted.append(float(origin + slope * row.nodes))
    return pd.Series(predicted, index=runs.index) * runs["steps"]


TIME_MODELS = {
    "perfect-scaling": perfect_scaling,
    "nearest-N": nearest_node_count,
    "linear-in-N": linear_in_nodes,
}
"""Time rivals by name: (runs of the fit, runs to predict) -> total seconds."""
