"""Settings as they were run: the mean of their runs, how repeats vary, and where a model says otherwise.

A forecast has these means beside the model's figures, and an advice takes them in place of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from joulecast.quantities import consumptions, percent, times
from joulecast.runs.judging import SETTING
from joulecast.runs.scale import scale_in_words

_IN_WORDS = {"time": ("s", times), "energy": ("j", consumptions)}


def per_work(runs: pd.DataFrame) -> pd.DataFrame:
    """``time_s`` and ``energy_j`` of one step; of imported runs, of one unit of their work."""
    units = runs["steps"].mask(runs["kind"] == "imported", runs["samples"]).astype(float)
    return pd.DataFrame({"time_s": runs["total_s"] / units, "energy_j": runs["energy_j"] / units})


def as_run(
    of_workload: pd.DataFrame, setting: Mapping[str, Any]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The runs of exactly a setting, and their mean ``time_s`` and ``energy_j`` for its work; NaN where it
    was not run.

    Args:
        setting: with the ``work`` that the model predicts where none was asked for.
    """
    same = of_workload["nodes"] == setting["nodes"]
    if pd.notna(setting["batch"]):
        same &= of_workload["batch"] == setting["batch"]
    own = of_workload[same]
    # What was run pays whole steps as the forecast does.
    units = setting["work"] if setting["kind"] == "imported" else setting["steps"]
    return own, {name: float(mean) for name, mean in (per_work(own).mean() * units).items()}


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the logarithm of a quantity between repeats, pooled over settings."""

    sd: float
    freedom: int

    def sides(self, runs: int) -> tuple[float, float] | None:
        """Half widths of the logarithm's 90 % interval for one more run, after the mean of ``runs``;
        ``None`` for a setting that was not repeated."""
        if self.freedom < 1 or runs < 2:
            return None
        half = float(stdtrit(self.freedom, 0.95)) * self.sd * float(np.sqrt(1 + 1 / runs))
        return half, half


def spread_of(training: pd.DataFrame, quantity: str) -> Spread:
    """The spread between repeats of ``time_s`` or ``energy_j``, over all settings that have any."""
    values = np.log(per_work(training)[quantity].where(lambda v: v > 0))
    cells = values.groupby([training[key] for key in SETTING], dropna=False)
    counts, squares = cells.count(), cells.var(ddof=1) * (cells.count() - 1)
    freedom = int((counts - 1).clip(lower=0).sum())
    if freedom < 1:
        return Spread(float("nan"), 0)
    return Spread(float(np.sqrt(squares.sum() / freedom)), freedom)


def differences(
    training: pd.DataFrame, of_workload: pd.DataFrame, predicted: pd.DataFrame
) -> list[str]:
    """A note for the time and one for the energy, where the model lies further from the mean of a setting's
    runs than the 90 % interval of one more run: from the repeats, without any from the model.

    Args:
        training: runs whose repeats tell how runs vary.
        of_workload: the runs of one workload.
        predicted: settings of it, with the columns of :data:`joulecast.runs.judging.ANSWER`.
    """
    rows = predicted.to_dict("records")
    notes = []
    for quantity, (unit, in_words) in _IN_WORDS.items():
        name, spread = f"{quantity}_{unit}", spread_of(training, f"{quantity}_{unit}")
        ran = off = 0
        worst, size = "", 0.0
        for row in rows:
            own, means = as_run(of_workload, row)
            mean, model = means[name], row[name]
            if not (mean > 0 and model > 0):
                continue
            ran += 1
            sides = spread.sides(int(per_work(own)[name].notna().sum()))
            low, high = row[f"{quantity}_low_{unit}"], row[f"{quantity}_high_{unit}"]
            half = abs(math.log(model / mean))
            is_near = half <= sides[0] if sides else not (mean < low or mean > high)
            if is_near:
                continue
            off += 1
            if half > size:
                size, (said, was) = half, in_words(model, mean)
                worst = (
                    f"most on {_setting(row)}: {said} for {was} "
                    f"({percent(100 * (model / mean - 1), signed=True)})"
                )
        if off:
            notes.append(
                f"{of_workload['workload'].iloc[0]}: the {quantity} that MC2 says of {off} of {ran} settings "
                f"that were run is further from the mean of their runs than repeats vary, {worst}; "
                "`advise` takes the mean"
            )
    return notes


def _setting(row: Mapping[str, Any]) -> str:
    batch = (
        ""
        if pd.isna(row["batch"]) or row["work_unit"] == "steps"
        else f", batch {row['batch']:,.10g}"
    )
    return scale_in_words(row["nodes"], row["nodes_are"]) + batch
