"""The verdict on a folder of records: errors of every model on one split, as plain data.

What ``joulecast evaluate`` prints: any records, imported or measured, go through the evaluation that the
tables are made of.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.evaluation import (
    MEASURED,
    SETTING,
    compare,
    evaluate,
    run_to_run_cv,
    settings,
    summarise,
)
from joulecast.energy.fitting import clean_observations, known_watts, left_out
from joulecast.energy.observations import allreduce_points
from joulecast.errors import JoulecastError


def _plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    plain = table.astype(object).where(table.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]


def evaluate_records(folders: Sequence[Path], split: str, time: str) -> dict[str, Any]:
    """Judge all models on the records in ``folders``.

    Args:
        split: a name of :data:`joulecast.energy.evaluation.SPLITS`.
        time: ``given`` or ``predicted``.

    Returns:
        ``settings``: for each held-out setting and model ``measured_j``, ``predicted_j`` and
        ``error_percent`` (``None`` where the reference is an estimate, which judges nothing:
        ``difference_percent`` is there always); ``summary`` and ``ablation`` by model;
        ``against_best_rival``, a paired bootstrap, where measurements judge; ``run_to_run_cv_percent``;
        ``left_out`` with reasons.

    Raises:
        JoulecastError: nothing to fit, or the split holds nothing out of these records.
    """
    observations, clean = clean_observations(folders)
    kept = [Path(folder) for folder in clean["folder"]]
    judged = evaluate(
        clean, allreduce_points(kept), known_watts(folders), splits=[split], times=[time]
    )
    if judged.energies.empty:
        counts = ", ".join(f"{n:g}" for n in sorted(clean["nodes"].unique()))
        raise JoulecastError(
            f"split {split}: nothing of these records can be held out and judged (workloads: "
            f"{', '.join(sorted(clean['network'].dropna().unique()))}; node counts: {counts}; runs with "
            f"energy: {int(clean['energy_j'].notna().sum())})"
        )
    cells = settings(judged.energies, [*SETTING, "model"])
    ablated = settings(judged.ablations, [*SETTING, "model"])
    measured = cells["energy_source"].isin(MEASURED)
    table = cells.rename(
        columns={"network": "workload", "measured": "measured_j", "predicted": "predicted_j"}
    ).assign(error_percent=cells["difference_percent"].where(measured))
    compared = compare(cells[measured])
    trained = clean[clean["kind"].isin(("training", "imported"))]
    return {
        "split": split,
        "time": time,
        "fitted_and_judged_runs": len(trained),
        "left_out": left_out(observations),
        "run_to_run_cv_percent": run_to_run_cv(trained, "energy_j"),
        "settings": _plain_rows(table),
        "summary": _plain_rows(summarise(cells, ["energy_source", "model"])),
        "ablation": _plain_rows(summarise(ablated, ["energy_source", "model"])),
        "against_best_rival": asdict(compared[0]) if compared else None,
    }
