"""The verdict on a folder of records: errors of every model on one split, as plain data.

What ``joulecast evaluate`` prints: any records, imported or measured, go through the evaluation that the
tables are made of.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecast.energy.evaluation import (
    MEASURED,
    SETTING,
    compare,
    evaluate,
    run_to_run_cv,
    settings,
    summarise,
)
from joulecast.energy.fitting import KnownRuns
from joulecast.energy.plain import plain, plain_rows
from joulecast.errors import JoulecastError


def evaluate_records(folders: Sequence[Path], split: str, time: str) -> dict[str, Any]:
    """Judge all models on the records in ``folders``.

    Args:
        split: a name of :data:`joulecast.energy.evaluation.SPLITS`.
        time: ``given`` or ``predicted``.

    Returns:
        ``settings``: for each held-out setting and model ``predicted_j``, ``reference_j`` and its
        ``difference_percent``; ``measured_j`` and ``error_percent`` are ``None`` where the reference is
        an estimate, which judges nothing. ``summary`` and ``ablation`` by model;
        ``against_best_rival``, a paired bootstrap, where measurements judge;
        ``run_to_run_cv_percent``; ``left_out`` with reasons; ``notes``. What is not known is ``None``.

    Raises:
        JoulecastError: nothing to fit, or the split holds nothing out of these records.
    """
    runs = KnownRuns.of_records(folders)
    judged = evaluate(runs.clean, runs.allreduce, runs.watts, splits=[split], times=[time])
    if judged.energies.empty:
        clean = runs.clean
        counts = ", ".join(f"{n:g}" for n in sorted(clean["nodes"].unique()))
        raise JoulecastError(
            f"split {split}: nothing of these records can be held out and judged (workloads: "
            f"{', '.join(sorted(clean['network'].dropna().unique()))}; node counts: {counts}; runs with "
            f"energy: {int(clean['energy_j'].notna().sum())})"
        )
    cells = settings(judged.energies, [*SETTING, "model"])
    sourced = cells.rename(columns={"energy_source": "source"})
    ablated = settings(judged.ablations, [*SETTING, "model"])
    ablated = ablated.rename(columns={"energy_source": "source"})
    measured = cells["energy_source"].isin(MEASURED)
    table = cells.rename(
        columns={
            "energy_source": "source",
            "network": "workload",
            "measured": "reference_j",
            "predicted": "predicted_j",
        }
    ).drop(columns="bounded")
    table = table.assign(
        measured_j=cells["measured"].where(measured),
        error_percent=cells["difference_percent"].where(measured),
    )
    compared = compare(cells[measured])
    return {
        "split": split,
        "time": time,
        "training_runs": len(runs.trained),
        "left_out": runs.left_out,
        "notes": runs.notes,
        "run_to_run_cv_percent": plain(run_to_run_cv(runs.trained, "energy_j")),
        "settings": plain_rows(table),
        "summary": plain_rows(summarise(sourced, ["source", "model"])),
        "ablation": plain_rows(summarise(ablated, ["source", "model"])),
        "against_best_rival": asdict(compared[0]) if compared else None,
    }
