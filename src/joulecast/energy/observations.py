"""One row a run: what the models fit and are judged on, taken from the run records.

Columns (times in s per step unless said, energies in J per run):

``run kind network nodes ranks batch batch_per_rank steps samples repeat gradient_bytes`` the setting;
``total_s`` of the run; ``t_<stage>_s`` the mean over ranks and steps of a stage, exposed time only,
``t_other_s`` what no stage covers; ``sigma_computing_s`` the spread of computing over steps and ranks;
``energy_j`` of all nodes, ``e_<stage>_j`` its split; ``metered_units`` how many nodes have a
meter of their own; ``u_cpu`` (share of 1), ``memory_bytes`` and ``network_bytes_per_s`` their means over
nodes; ``energy_source``, ``why_no_energy``, ``nodes_are``, ``polluted``, ``overlap``, ``algorithm``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.power.integration import exposed_intervals, stage_energy
from joulecast.records import STAGES, RunRecord, read_record

TIMED = STAGES[:-1]
"""The stages that are timed; ``other`` is the rest."""


def _stage_seconds(record: RunRecord) -> dict[str, float]:
    """Node-seconds of each stage over the run, averaged over ranks."""
    exposed = exposed_intervals(record.stages)
    seconds = (exposed["stop_s"] - exposed["start_s"]).groupby(exposed["stage"]).sum()
    return {stage: float(seconds.get(stage, 0.0)) / record.info.spec.ranks for stage in TIMED}


def _energy(record: RunRecord) -> dict[str, Any]:
    info = record.info
    row: dict[str, Any] = {
        "energy_source": info.energy_source,
        "why_no_energy": info.no_energy_reason,
        "energy_j": np.nan,
        "metered_units": 0,
    }
    row |= {f"e_{stage}_j": np.nan for stage in STAGES}
    if info.energy_source is None:
        return row
    # Measured and estimated figures of one run are never added up.
    used = {m.meter for m in info.meters if m.available and m.source == info.energy_source}
    power = record.power[record.power["meter"].isin(used)]
    outcome = info.outcome
    split = stage_energy(record.stages, power, info.node_of_rank, outcome.start_s, outcome.stop_s)
    by_stage = split.groupby("stage")["energy_j"].sum()
    row |= {f"e_{stage}_j": float(by_stage.get(stage, 0.0)) for stage in STAGES}
    row["energy_j"] = float(split["energy_j"].sum())
    row["metered_units"] = power["node"].nunique()
    return row


def _utilisation(record: RunRecord) -> dict[str, float]:
    outcome, activity = record.info.outcome, record.activity
    inside = activity[activity["t_s"].between(outcome.start_s, outcome.stop_s)]
    return {
        "u_cpu": float(inside["cpu_utilisation"].mean()),
        "memory_bytes": float(inside["memory_bytes"].mean()),
        "network_bytes_per_s": float(inside["network_bytes_per_s"].mean()),
    }


def observe(record: RunRecord) -> dict[str, Any]:
    """The row of one record."""
    info = record.info
    spec, outcome = info.spec, info.outcome
    total_s = outcome.stop_s - outcome.start_s
    steps = max(outcome.steps, 1)
    seconds = _stage_seconds(record)
    computing = record.stages[record.stages["stage"] == "computing"]
    per_step = (computing["stop_s"] - computing["start_s"]).groupby(
        [computing["rank"], computing["step"]]
    )
    row: dict[str, Any] = {
        "run": spec.run,
        "kind": spec.kind,
        "network": spec.workload.network if spec.workload else None,
        "nodes": spec.nodes,
        "ranks": spec.ranks,
        "repeat": spec.repeat,
        "batch": spec.training.global_batch_size if spec.training else 0,
        "batch_per_rank": spec.training.global_batch_size / spec.ranks if spec.training else 0.0,
        "steps": outcome.steps,
        "samples": outcome.samples,
        "gradient_bytes": 4.0 * (info.parameters or 0),
        "total_s": total_s,
        "sigma_computing_s": float(per_step.sum().std()) if len(computing) > 1 else 0.0,
        "nodes_are": info.nodes_are,
        "polluted": "; ".join(info.polluted),
        "overlap": bool(spec.training and spec.training.overlap),
        "algorithm": info.algorithm_used,
    }
    row |= {f"t_{stage}_s": value / steps for stage, value in seconds.items()}
    row["t_other_s"] = max(0.0, total_s - sum(seconds.values())) / steps
    return row | _energy(record) | _utilisation(record)


def observe_all(folders: Iterable[Path]) -> pd.DataFrame:
    """The rows of many records, one record in memory at a time."""
    return pd.DataFrame([observe(read_record(Path(folder))) for folder in folders])


def allreduce_points(folders: Iterable[Path]) -> pd.DataFrame:
    """Single sums of the all-reduce calibrations: ``run nodes ranks bytes copy_s algorithm``.

    The time of a sum is that of the slowest rank.
    """
    rows: list[dict[str, Any]] = []
    for folder in folders:
        record = read_record(Path(folder))
        spec = record.info.spec
        if spec.kind != "allreduce":
            continue
        copies = record.stages[record.stages["stage"] == "communicating_copy"]
        slowest = (copies["stop_s"] - copies["start_s"]).groupby(copies["step"]).max()
        for step, size in enumerate(record.info.step_bytes or []):
            rows.append(
                {
                    "run": spec.run,
                    "nodes": spec.nodes,
                    "ranks": spec.ranks,
                    "bytes": float(size),
                    "copy_s": float(slowest[step]),
                    "algorithm": record.info.algorithm_used,
                }
            )
    columns = ["run", "nodes", "ranks", "bytes", "copy_s", "algorithm"]
    return pd.DataFrame(rows, columns=columns)
