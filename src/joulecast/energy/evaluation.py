"""Judging the models on what they have not seen.

A split says which training runs a fit may see. A node count that is held out takes its all-reduce and
sleeping-rank calibrations with it. A fit that sees one node only is given the communication
calibration of the smallest larger node count: two nodes that are not training are what a user has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from joulecast.energy.mc2 import MC2
from joulecast.energy.proportional import MODELS, TIME_MODELS, UTILISATIONS, Context

MEASURED = ("measured", "recorded", "imported")
"""Energy sources that may judge a model; an estimate shows the pipeline only."""


@dataclass(frozen=True)
class Split:
    """Runs to fit and runs to judge, by boolean masks over the training runs."""

    name: str
    fitted: pd.Series
    judged: pd.Series


def splits(training: pd.DataFrame) -> Iterator[Split]:
    """In-sample, leave one node count out, and extrapolation from N <= N_max / 4.

    The sweep over batch sizes (batches of a node that larger node counts do not have) is fitted
    wherever N = 1 is, and judged only in-sample.
    """
    everything = pd.Series(True, index=training.index)
    yield Split("in-sample", everything, everything)
    counts = sorted(training["nodes"].unique())
    campaign = ~is_sweep(training)
    if len(counts) > 1:
        for count in counts:
            out = training["nodes"] == count
            yield Split("leave-one-node-count-out", ~out, out & campaign)
    small = training["nodes"] <= max(counts) / 4
    if small.any() and not small.all():
        yield Split("extrapolation", small, ~small)


def is_sweep(training: pd.DataFrame) -> pd.Series:
    """Runs whose batch exists at one node count only, when the network has others with more."""
    per_rank = training.groupby(["network", "batch_per_rank"])["nodes"].transform("nunique")
    most = per_rank.groupby(training["network"]).transform("max")
    return per_rank < most


def _calibrations(
    split: Split, training: pd.DataFrame, others: pd.DataFrame, allreduce: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    seen = set(training.loc[split.fitted, "nodes"])
    available = sorted(set(allreduce["nodes"]))
    allowed = {count for count in available if count in seen}
    if not allowed and available:
        allowed = {available[0]}
    chosen = others["nodes"].isin(allowed) | (others["kind"] == "idle")
    return others[chosen], allreduce[allreduce["nodes"].isin(allowed)]


@dataclass(frozen=True)
class Evaluation:
    """``times`` and ``energies``, one row a judged run, split and model (columns: the setting,
    ``split``, ``time`` given or predicted, ``model``, ``measured``, ``predicted``), and the fit to
    all runs."""

    times: pd.DataFrame
    energies: pd.DataFrame
    full_fit: MC2


_SETTING = ["run", "network", "nodes", "batch", "repeat", "nodes_are", "energy_source"]


def _rows(judged: pd.DataFrame, predicted: pd.Series, measured: str, **labels: str) -> pd.DataFrame:
    rows = judged[_SETTING].assign(**labels)
    return rows.assign(measured=judged[measured], predicted=predicted)


def _context(
    training: pd.DataFrame, calibration: pd.DataFrame, watts: dict[str, float | None]
) -> Context:
    idle = calibration[calibration["kind"] == "idle"]
    idle_w = float((idle["energy_j"] / idle["total_s"] / idle["metered_units"]).mean())
    if not np.isfinite(idle_w):
        idle_w = float(watts.get("idle_w") or 0.0)
    return Context(training, idle_w, watts.get("full_w"), watts.get("tdp_w"))


def _typical_utilisation(fitted: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """The judged settings with the utilisations that the fit's runs of their network had."""
    means = fitted.groupby("network")[list(UTILISATIONS)].mean()
    return judged.assign(**{name: judged["network"].map(means[name]) for name in UTILISATIONS})


def evaluate(
    observations: pd.DataFrame,
    allreduce: pd.DataFrame,
    watts: dict[str, float | None],
    bootstrap: int = 0,
) -> Evaluation:
    """Fit and judge all models on all splits.

    Args:
        observations: of all runs, polluted ones left out by the caller.
        watts: ``idle_w``, ``full_w`` and ``tdp_w`` of the platform.

    Raises:
        ValueError: there is no training run.
    """
    training = observations[observations["kind"] == "training"].reset_index(drop=True)
    if training.empty:
        raise ValueError("no training run to fit")
    others = observations[observations["kind"] != "training"]
    times: list[pd.DataFrame] = []
    energies: list[pd.DataFrame] = []
    full = MC2().fit(training, allreduce, others, bootstrap)
    for split in splits(training):
        fitted, judged = training[split.fitted], training[split.judged]
        calibration, points = _calibrations(split, training, others, allreduce)
        in_sample = split.name == "in-sample"
        model = full if in_sample else MC2().fit(fitted, points, calibration)
        predicted = model.predict_times(judged)
        total_s = predicted["total_s"]
        times.append(_rows(judged, total_s, "total_s", split=split.name, model="MC2"))
        for name, rival in TIME_MODELS.items():
            guess = rival(fitted, judged)
            times.append(_rows(judged, guess, "total_s", split=split.name, model=name))
        if model.power is None:
            continue
        context = _context(fitted[fitted["energy_j"].notna()], calibration, watts)
        for given in ("given", "predicted"):
            # With the time given everybody knows the run's own times and utilisations.
            known = judged if given == "given" else _typical_utilisation(fitted, judged)
            spent = judged["total_s"] if given == "given" else total_s
            stage_times = judged[list(predicted.columns)] if given == "given" else predicted
            labels = {"split": split.name, "time": given}
            mc2 = model.predict_energy(judged, stage_times)
            energies.append(_rows(judged, mc2, "energy_j", model="MC2", **labels))
            for name, proportional in MODELS.items():
                guess = proportional(context, known, spent)
                energies.append(_rows(judged, guess, "energy_j", model=name, **labels))
    return Evaluation(_joined(times), _joined(energies), full)


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    if not frames:
        return pd.DataFrame(columns=[*_SETTING, "split", "time", "model", "measured", "predicted"])
    return pd.concat(frames, ignore_index=True)


def with_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``difference_percent``, and ``error_percent`` where the measured value may judge."""
    difference = 100 * (rows["predicted"] / rows["measured"] - 1)
    return rows.assign(difference_percent=difference)


def summarise(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Mean absolute, largest and signed difference in percent of ``difference_percent``, by group."""
    groups = rows.assign(size=rows["difference_percent"].abs()).groupby(by, sort=False)
    return groups.agg(
        settings=("size", "count"),
        mape_percent=("size", "mean"),
        max_percent=("size", "max"),
        bias_percent=("difference_percent", "mean"),
    ).reset_index()


def run_to_run_cv(training: pd.DataFrame, quantity: str) -> float:
    """Mean coefficient of variation in percent between repeats: no model can claim less."""
    cells = training.groupby(["network", "nodes", "batch"])[quantity]
    spread = (cells.std() / cells.mean())[cells.count() > 1]
    return float(100 * spread.mean())
