"""The verdict on a folder of records: errors of every model on one split, as plain data.

``joulecast evaluate`` prints it. The errors are computed as in the tables of a campaign, for imported and for
measured records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.evaluation import Evaluation, evaluate
from joulecast.energy.measured_settings import metered_parts
from joulecast.energy.splits import NEXT_SCALE, SPLITS, USUAL, usual_time
from joulecast.errors import JoulecastError
from joulecast.runs.json_values import json_rows, json_value
from joulecast.runs.judging import (
    MEASURED,
    OF_ENERGY,
    SETTING,
    best_rival,
    by_setting,
    judge,
    run_to_run_cv,
    summarise,
)

_KEYS, _TIMED = [*OF_ENERGY, "model"], [*SETTING, "model"]


def evaluate_records(
    folders: Sequence[Path], split: str | None = None, time: str | None = None
) -> dict[str, Any]:
    """Judge all models on the records in ``folders``.

    Args:
        split: a name of :data:`joulecast.energy.splits.SPLITS`; by default the first of
            :data:`~joulecast.energy.splits.USUAL` that these records have.
        time: ``given`` or ``predicted``. By default :func:`~joulecast.energy.splits.usual_time` decides.

    Returns:
        ``settings`` has a row for each held-out setting and model: ``predicted_j``, ``reference_j`` and
        its ``difference_percent``. ``measured_j`` and ``error_percent`` are ``None`` if the reference is
        an estimate, which judges nothing, or if there is no power. If the time is predicted, the row also
        has ``predicted_s``, ``measured_s`` and ``time_error_percent``. ``covered_percent`` is the share
        of the runs inside the 90 % interval of the energy, or else of the time. ``summary`` and ``ablation``
        have a row for each model and source of measured energies, ``time_summary`` one for each model.
        ``against_best_rival`` is a paired bootstrap, if measurements judge. Further keys are
        ``run_to_run_cv_percent``, ``left_out`` and ``refused`` with reasons, and ``notes``. A value that is
        not known is ``None``.

    Raises:
        JoulecastError: there is nothing to fit, the split holds out none of these records, or the split is
            the next scale and the time is to be given.
    """
    if split == NEXT_SCALE and time == "given":
        raise JoulecastError(
            "split next-scale predicts the time of a scale; ask for --time predicted"
        )
    runs = KnownRuns.of_records(folders)
    split = split or next(_can_hold_out(USUAL, runs.trained), USUAL[0])
    time = time or usual_time(split)
    judged = evaluate(runs.clean, runs.allreduce, runs.watts, splits=[split], times=[time])
    timed, energies, ablations = (
        judge(judged.predictions, runs.clean, of) for of in ("time", "energy", "ablation")
    )
    if energies.empty and timed.empty:
        raise JoulecastError(_nothing_held_out(split, runs))
    cells = by_setting(energies, _KEYS)
    notes = [*runs.notes, *(text for fit in judged.full_fits for text in fit.remarks)]
    if len(cells) and not {fit.name for fit in judged.full_fits} & {*cells["model"]}:
        notes.append(
            "MC2 predicts no energy of a workload that its fit has not seen; measure each workload on two "
            "node counts, or with three batches"
        )
    parts = metered_parts(runs.trained)
    if parts:
        notes.append(
            f"only the {parts} of the nodes had meters: the energies do not contain the other parts"
        )
    measured = cells[cells["energy_source"].isin(MEASURED)]
    best = best_rival(measured)
    return {
        "split": split,
        "time": time,
        "training_runs": len(runs.trained),
        "left_out": runs.left_out,
        "refused": _refused(judged),
        "notes": notes,
        "run_to_run_cv_percent": json_value(run_to_run_cv(runs.trained, _judged_quantity(cells))),
        "settings": json_rows(_table(cells, energies, timed, time)),
        "summary": _summary(measured),
        "time_summary": _time_summary(timed),
        "ablation": _summary(
            by_setting(ablations[ablations["energy_source"].isin(MEASURED)], _KEYS)
        ),
        "against_best_rival": asdict(best) if best else None,
    }


def _judged_quantity(cells: pd.DataFrame) -> str:
    return "energy_j" if len(cells) else "total_s"


def _can_hold_out(names: Sequence[str], training: pd.DataFrame) -> Iterator[str]:
    """The splits that hold out some of these runs and leave others to fit."""
    for name in names:
        if any(split.judged.any() and split.fitted.any() for split in SPLITS[name](training)):
            yield name


def _nothing_held_out(split: str, runs: KnownRuns) -> str:
    clean = runs.clean
    others = [name for name in _can_hold_out([*SPLITS], runs.trained) if name != split]
    way_out = f"; try --split {' or '.join(others)}" if others else ""
    counts = ", ".join(f"{n:g}" for n in sorted(clean["nodes"].unique()))
    return (
        f"split {split}: nothing of these records can be held out and judged (workloads: "
        f"{', '.join(sorted(clean['network'].dropna().unique()))}; node counts: {counts}; runs with "
        f"energy: {int(clean['energy_j'].notna().sum())}){way_out}"
    )


def _refused(judged: Evaluation) -> list[dict[str, Any]]:
    """Settings on platforms that the fit did not see. No power is predicted for them, because powers
    differ between platforms."""
    reason = "nothing else was metered on its platform, and other platforms draw other powers"
    named = judged.refused.rename(columns={"network": "workload"})
    return json_rows(named.drop(columns="split").assign(reason=reason))


def _summary(cells: pd.DataFrame) -> list[dict[str, Any]]:
    sourced = cells.rename(columns={"energy_source": "source"})
    return json_rows(summarise(sourced, ["source", "model"]))


def _time_summary(timed: pd.DataFrame) -> list[dict[str, Any]]:
    if timed.empty:
        return []
    return json_rows(summarise(by_setting(timed, _TIMED), ["model"]))


def _table(
    cells: pd.DataFrame, energies: pd.DataFrame, timed: pd.DataFrame, time: str
) -> pd.DataFrame:
    """A row for each setting and model, with the errors of energy and time."""
    measured = cells["energy_source"].isin(MEASURED)
    table = cells.rename(columns={"measured": "reference_j", "predicted": "predicted_j"})
    table = table.assign(
        measured_j=cells["measured"].where(measured),
        error_percent=cells["difference_percent"].where(measured),
    )
    if time == "given":
        table = table.assign(measured_s=None, predicted_s=None, time_error_percent=None)
    else:
        # All energy models use the time that MC2 predicts. The rivals of the time model predict no energy.
        columns = {"measured": energies["measured_s"], "predicted": energies["predicted_s"]}
        clocks = by_setting(energies.assign(lower=np.nan, upper=np.nan, **columns), _TIMED)
        known = pd.concat([by_setting(timed, _TIMED), clocks]).drop_duplicates(_TIMED)
        known = known.rename(
            columns={
                "measured": "measured_s",
                "predicted": "predicted_s",
                "difference_percent": "time_error_percent",
                "covered_percent": "time_covered_percent",
                "runs": "timed_runs",
            }
        ).drop(columns=["mean_absolute_percent", "bounded"])
        table = table.merge(known, on=_TIMED, how="outer")
        inside = table.pop("time_covered_percent")
        table["covered_percent"] = table["covered_percent"].fillna(inside)
        table["runs"] = table["runs"].fillna(table.pop("timed_runs"))
    renamed = table.rename(columns={"energy_source": "source", "network": "workload"})
    return renamed.drop(columns="bounded")
