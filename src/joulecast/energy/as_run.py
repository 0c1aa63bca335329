"""Settings as they were run: the mean of their runs, how repeats vary, and where a model says otherwise.

A forecast has these means next to the model's figures. An advice takes them in place of these figures.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from joulecast.quantities import consumptions, counted, listed, percent, times
from joulecast.runs.judging import SETTING
from joulecast.runs.record import read_info
from joulecast.runs.scale import hosts_and_gpus, scale_in_words, unit_of

_SAME_WORK = 0.1
"""Relative difference of work up to which an imported run stands for another amount."""

_IN_WORDS = {"time": ("s", times), "energy": ("j", consumptions)}


def per_work(runs: pd.DataFrame) -> pd.DataFrame:
    """``time_s`` and ``energy_j`` of one step; of imported runs, of one unit of their work."""
    units = runs["steps"].mask(runs["kind"] == "imported", runs["samples"]).astype(float)
    return pd.DataFrame({"time_s": runs["total_s"] / units, "energy_j": runs["energy_j"] / units})


def as_run(
    of_workload: pd.DataFrame, setting: Mapping[str, Any]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """The runs of exactly a setting, and their mean ``time_s`` and ``energy_j`` for its work; NaN where it
    was not run, or an imported run did another amount of work: its start and what stands still do not grow
    with the work, so that no run shows what that takes.

    Args:
        setting: with the ``work`` that the model predicts where none was asked for.
    """
    same = of_workload["nodes"] == setting["nodes"]
    if pd.notna(setting["batch"]):
        same &= of_workload["batch"] == setting["batch"]
    own = of_workload[same]
    if setting["kind"] == "imported":
        own = own[(own["samples"] / setting["work"] - 1).abs() < _SAME_WORK]
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
                f"{of_workload['workload'].iloc[0]}: in {off} of {ran} settings that were run, MC2's "
                f"{quantity} and the mean of the runs differ by more than repeats do, {worst}; `advise` "
                "takes the mean, so it may order settings otherwise than `forecast`"
            )
    return notes


def notes_on(
    training: pd.DataFrame, of_workload: pd.DataFrame, predicted: pd.DataFrame
) -> list[str]:
    """What a reader of predictions should know of the runs behind them: :func:`differences` (which has the
    arguments), which part of a node was metered, which runs had more ranks than cores, and how many hosts a
    scale is taken to have."""
    workload = str(of_workload["workload"].iloc[0])
    notes = differences(training, of_workload, predicted)
    if "energy_covers" in of_workload:
        parts = [str(covers) for covers in of_workload["energy_covers"].dropna().unique()]
        if parts and not {"node", "module"} & {*parts}:
            notes.append(
                f"{workload}: only {' and '.join(parts)} of its nodes were metered; what else draws power is "
                "in no energy, money or CO2 here"
            )
    crowded = [
        str(run)
        for run, folder, nodes_are in of_workload[["run", "folder", "nodes_are"]].itertuples(
            index=False
        )
        # Emulated nodes have the speed of one with a core of its own, whatever their number.
        if nodes_are != "emulated" and read_info(Path(folder)).oversubscribed
    ]
    if crowded:
        notes.append(
            f"{workload}: more ranks than cores in {listed(crowded, 3)}: they took longer than ranks with a "
            "core each, and the fit does not know it"
        )
    ran = of_workload.loc[of_workload["nodes"].idxmax()].to_dict()
    hosts_ran, _ = hosts_and_gpus(ran)
    largest = predicted.loc[predicted["nodes"].idxmax()].to_dict()
    hosts, _ = hosts_and_gpus(largest)
    if unit_of(ran["nodes_are"]) != "node" and hosts_ran and hosts and hosts > hosts_ran:
        scale = scale_in_words(largest["nodes"], largest["nodes_are"])
        notes.append(
            f"{workload}: {scale} are taken to be {counted(round(hosts), 'host')}, each with its power, as "
            f"no run had more than {ran['ranks_per_host']:g} on a host"
        )
    return notes


def _setting(row: Mapping[str, Any]) -> str:
    batch = (
        ""
        if pd.isna(row["batch"]) or row["work_unit"] == "steps"
        else f", batch {row['batch']:,.10g}"
    )
    return scale_in_words(row["nodes"], row["nodes_are"]) + batch
