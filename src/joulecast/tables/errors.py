"""The tables of a campaign: errors of time and energy, their summary, and scaling."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.energy.evaluation import MEASURED, run_to_run_cv, summarise, with_errors
from joulecast.energy.observations import TIMED
from joulecast.tables.output import write_table
from joulecast.tables.published import PublishedErrors

ESTIMATE_NOTE = (
    "**The energies here are `estimated`**: a formula over utilisation made them, no meter did. Their "
    "differences show that the pipeline works; they are no errors of a model, and `error_percent` is "
    "left empty."
)
EMULATED_NOTE = (
    "The nodes are **emulated**: ranks of one machine, their compute padded to one speed. Times are "
    "measured on them; they say nothing about a real cluster's."
)


def _cell_means(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """One row a setting: mean over its repeats, with the mean absolute difference of the runs."""
    groups = with_errors(rows).groupby(by, sort=False, dropna=False)
    table = groups.agg(
        runs=("run", "count"),
        measured=("measured", "mean"),
        predicted=("predicted", "mean"),
        difference_percent=("difference_percent", "mean"),
        mean_absolute_percent=("difference_percent", lambda d: d.abs().mean()),
    )
    return table.reset_index()


def _judges(source: Any) -> str:
    return "models" if source in MEASURED else "the pipeline only"


def time_error(times: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted seconds by network, node count, split and model."""
    table = _cell_means(times, ["network", "nodes", "batch", "nodes_are", "split", "model"])
    table = table.rename(columns={"measured": "measured_s", "predicted": "predicted_s"})
    return table.rename(
        columns={"difference_percent": "error_percent", "mean_absolute_percent": "mape_percent"}
    )


def energy_error(energies: pd.DataFrame) -> pd.DataFrame:
    """Joules by network, node count, split and model; an error only where the joules were measured."""
    by = ["energy_source", "network", "nodes", "batch", "nodes_are", "split", "time", "model"]
    table = _cell_means(energies, by)
    table = table.rename(columns={"measured": "reference_j", "predicted": "predicted_j"})
    judged = table["energy_source"].isin(MEASURED)
    table["error_percent"] = table["difference_percent"].where(judged)
    table["judges"] = table["energy_source"].map(_judges)
    return table


def energy_summary(
    energies: pd.DataFrame,
    series: pd.DataFrame,
    training: pd.DataFrame,
    published: PublishedErrors,
) -> pd.DataFrame:
    """One row a model, split and kind of time, the published error beside it.

    The time-series models forecast the rest of the run's own trace: another question, hence a split
    of their own.
    """
    parts = []
    if len(energies):
        by = ["energy_source", "split", "time", "model"]
        parts.append(summarise(with_errors(energies), by))
    if len(series):
        own = series.assign(split="rest of its own trace", time="given")
        parts.append(summarise(own, ["energy_source", "split", "time", "model"]))
    columns = [
        *("energy_source", "split", "time", "model", "settings"),
        *("mape_percent", "max_percent", "bias_percent"),
    ]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    table["run_to_run_cv_percent"] = run_to_run_cv(training, "energy_j")
    table["published_percent"] = table["model"].map(published.error_percent)
    table["same_setting_as_published"] = "yes" if published.comparable else "no"
    table["judges"] = table["energy_source"].map(_judges)
    return table


def scaling(training: pd.DataFrame) -> pd.DataFrame:
    """Throughput, efficiency, stage shares and joules per sample by network and node count.

    Efficiency is throughput per node over that of the smallest node count with the same batch a node.
    """
    rows = []
    for (network, per_rank), of_batch in training.groupby(["network", "batch_per_rank"]):
        smallest = of_batch["nodes"].min()
        speed = of_batch["samples"] / of_batch["total_s"]
        alone = (speed / of_batch["nodes"])[of_batch["nodes"] == smallest].mean()
        for nodes, cell in of_batch.groupby("nodes"):
            own = speed[cell.index]
            step_s = cell["total_s"] / cell["steps"]
            row: dict[str, Any] = {
                "network": network,
                "nodes": nodes,
                "nodes_are": cell["nodes_are"].iloc[0],
                "batch_per_rank": per_rank,
                "runs": len(cell),
                "samples_per_s": own.mean(),
                "cv_percent": 100 * own.std() / own.mean() if len(cell) > 1 else np.nan,
                "efficiency": own.mean() / nodes / alone,
                "step_s": step_s.mean(),
            }
            for stage in (*TIMED, "other"):
                row[f"{stage}_percent"] = 100 * (cell[f"t_{stage}_s"] / step_s).mean()
            row["joules_per_sample"] = (cell["energy_j"] / cell["samples"]).mean()
            row["energy_source"] = cell["energy_source"].iloc[0]
            row["why_no_energy"] = cell["why_no_energy"].iloc[0]
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["network", "batch_per_rank", "nodes"])


def _notes(observations: pd.DataFrame, left_out: int) -> list[str]:
    notes = []
    if (observations["nodes_are"] == "emulated").any():
        notes.append(EMULATED_NOTE)
    if left_out:
        notes.append(f"{left_out} polluted runs are left out; their records say why.")
    return notes


def write_tables(
    folder: Path,
    observations: pd.DataFrame,
    times: pd.DataFrame,
    energies: pd.DataFrame,
    series: pd.DataFrame,
    published: PublishedErrors,
) -> None:
    """Write ``time_error``, ``energy_error``, ``energy_summary`` and ``scaling`` to ``folder``.

    Args:
        observations: of all runs, polluted ones included.
        times, energies: of :func:`joulecast.energy.evaluation.evaluate`.
        series: forecast errors of the time-series models with ``energy_source``.
    """
    clean = observations[observations["polluted"] == ""]
    training = clean[clean["kind"] == "training"]
    notes = _notes(observations, len(observations) - len(clean))
    cv = run_to_run_cv(training, "total_s")
    write_table(
        folder / "time_error",
        "Time: predicted against measured",
        [
            *notes,
            f"Repeats of one setting vary by {cv:.2f} % (mean CV); no model can claim less. "
            "`in-sample` was fitted to the runs it predicts; the other splits were not.",
        ],
        time_error(times),
    )
    energy_notes = list(notes)
    sources = set(training["energy_source"].dropna())
    if not sources:
        reasons = "; ".join(sorted(set(training["why_no_energy"].dropna())))
        energy_notes.append(f"No energy was measured or estimated: {reasons}.")
    elif not sources & set(MEASURED):
        energy_notes.append(ESTIMATE_NOTE)
    write_table(
        folder / "energy_error",
        "Energy: predicted against the reference",
        energy_notes,
        energy_error(energies),
    )
    beside = f"Published: {published.paper}; {published.where}; {published.setting}."
    if not published.comparable:
        beside += f" Not comparable with ours: {published.not_comparable_because}."
    write_table(
        folder / "energy_summary",
        "Energy: MC2 and its rivals",
        [*energy_notes, beside],
        energy_summary(energies, series, training, published),
    )
    write_table(
        folder / "scaling",
        "Scaling: speed, stages and joules by node count",
        energy_notes,
        scaling(training),
    )
