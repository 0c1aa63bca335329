"""Forecasting a campaign: energy and time of node counts that were not run yet.

MC2 is fitted to all records of a few small node counts and asked for larger ones of the same workloads:
the same work, with the batch that the records themselves keep (of all nodes, or of one).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from joulecast.energy.evaluation import campaigns
from joulecast.energy.fitting import KnownRuns
from joulecast.energy.models import EnergyModel, mc2_for
from joulecast.energy.observations import metered_units, most_frequent
from joulecast.energy.plain import plain_rows
from joulecast.quantities import MOST_NODES, check_counts
from joulecast.records.record import read_info

Scaling = Literal["recorded", "weak", "strong"]

_COLUMNS = {
    "workload": "network",
    "platform": "platform",
    "nodes": "nodes",
    "batch_size": "batch",
    "work": "samples",
    "time_s": "predicted_s",
    "time_low_s": "lower_s",
    "time_high_s": "upper_s",
    "energy_j": "predicted_j",
    "energy_low_j": "lower_j",
    "energy_high_j": "upper_j",
    "fitted_on": "energy_source",
    "nodes_are": "nodes_are",
}


def _scales_weakly(of_workload: pd.DataFrame) -> bool:
    """Whether the recorded batch grew with the nodes; imported runs divide one batch over them."""
    if of_workload["nodes"].nunique() < 2 or of_workload["batch"].isna().all():
        return bool(of_workload["batch_per_rank"].notna().all())
    if of_workload["batch_per_rank"].notna().all():
        # On how many node counts the most widespread batch was run: of a rank, or of all nodes. Batches that
        # were swept on one node belong to neither.
        of_rank, of_all = (
            of_workload.groupby(key)["nodes"].nunique().max() for key in ("batch_per_rank", "batch")
        )
        return bool(of_rank >= of_all)
    sizes = of_workload.groupby("nodes")["batch"].median()
    return bool(sizes.iloc[-1] > sizes.iloc[0])


def as_setting(
    example: Mapping[str, Any], nodes: int, batch: float, samples: float
) -> dict[str, Any]:
    """A setting as a row of observations, by the example of a run with another one.

    Args:
        example: observations of the run.
        batch: of all nodes; NaN where the log of an imported run has none.
        samples: the work, in the run's unit.
    """
    ranks = example["ranks"] * nodes / float(example["nodes"])
    hosts = read_info(Path(example["folder"])).spec.platform.hosts
    return {
        **example,
        "nodes": nodes,
        "ranks": ranks,
        "batch": batch,
        "batch_per_rank": math.nan if math.isnan(example["batch_per_rank"]) else batch / ranks,
        "samples": samples,
        "metered_units": metered_units(example, nodes, hosts),
    }


def _setting(of_workload: pd.DataFrame, nodes: int, scaling: Scaling) -> dict[str, Any]:
    """A run on ``nodes`` nodes, by the example of the largest recorded node count."""
    largest = of_workload[of_workload["nodes"] == of_workload["nodes"].max()]
    batch = most_frequent(largest["batch"])
    usual = largest if math.isnan(batch) else largest[largest["batch"] == batch]
    example: dict[str, Any] = usual.iloc[0].to_dict()
    growth = nodes / float(example["nodes"])
    weak = _scales_weakly(of_workload) if scaling == "recorded" else scaling == "weak"
    # Steps are as many on every node count, and do more there; a run from outside has its work to do.
    more_work = growth if example["kind"] == "training" and weak else 1.0
    batch = example["batch"] * (growth if weak else 1.0)
    return as_setting(example, nodes, batch, more_work * float(usual["samples"].mean()))


def _as_run(of_workload: pd.DataFrame, setting: Mapping[str, Any]) -> dict[str, float]:
    """Mean time and energy of the runs of exactly a setting, for its work; NaN where it was not run."""
    same = of_workload["nodes"] == setting["nodes"]
    if pd.notna(setting["batch"]):
        same &= of_workload["batch"] == setting["batch"]
    own = of_workload[same]
    share = setting["samples"] / own["samples"]
    return {
        "measured_time_s": float((own["total_s"] * share).mean()),
        "measured_energy_j": float((own["energy_j"] * share).mean()),
    }


def forecast_table(
    runs: KnownRuns, nodes: Sequence[int], scaling: Scaling = "recorded"
) -> pd.DataFrame:
    """A row a workload, platform and node count: the columns of :func:`forecast`, unrounded.

    Raises:
        JoulecastError: a node count is below 1.
    """
    check_counts("nodes", nodes, MOST_NODES)
    parts = []
    for everything, imported in campaigns(runs.clean, runs.allreduce, runs.watts):
        model: EnergyModel = mc2_for(imported).fit(everything)
        fitted = everything.training
        counts = ", ".join(f"{count:g}" for count in sorted(fitted["nodes"].unique()))
        rests_on = f"MC2, fitted to {len(fitted)} runs on {counts} nodes"
        for _, of_workload in fitted.groupby("workload"):
            settings = [_setting(of_workload, count, scaling) for count in nodes]
            asked = pd.DataFrame(settings)
            predicted = asked.join(model.predict(asked, "predicted"))
            columns = {name: predicted[column] for name, column in _COLUMNS.items()}
            ran = [_as_run(of_workload, setting) for setting in settings]
            forecasts = pd.DataFrame(columns).assign(rests_on=rests_on)
            parts.append(pd.concat([forecasts, pd.DataFrame(ran)], axis=1))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(_COLUMNS))


def forecast(
    folders: Sequence[Path], nodes: Sequence[int], scaling: Scaling = "recorded"
) -> dict[str, Any]:
    """Forecast all workloads in the records.

    Args:
        folders: run records, imported or measured.
        nodes: node counts to forecast.
        scaling: whether the batch grows with the nodes; ``recorded`` as in the records.

    Returns:
        ``forecasts`` (a list of settings with ``time_s``, ``energy_j`` and their 90 % intervals, means of the
        runs of that very setting (``measured_``), what the forecasts rest on, and what the nodes are;
        energies are ``None`` where the records have none), ``fitted_runs``, ``largest_fitted_nodes``,
        ``left_out``, ``notes``.

    Raises:
        JoulecastError: nothing is left to fit, or a node count is below 1.
    """
    runs = KnownRuns.of_records(folders)
    return {
        "forecasts": plain_rows(forecast_table(runs, nodes, scaling)),
        "fitted_runs": len(runs.trained),
        "largest_fitted_nodes": int(runs.trained["nodes"].max()),
        "left_out": runs.left_out,
        "notes": runs.notes,
    }
