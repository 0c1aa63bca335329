"""Judging the models on what they have not seen.

A split (:mod:`joulecast.energy.splits`) holds out runs. Errors are of settings:
the mean over the repeats of a workload on a node count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from joulecast.energy.models import TIME, EnergyModel, Evidence, ablations, mc2_for, rivals
from joulecast.energy.proportional_models import Watts
from joulecast.energy.recorded_times import times_of_others
from joulecast.energy.splits import NEXT_SCALE, SPLITS, Split
from joulecast.energy.time_rivals import TIME_MODELS
from joulecast.quantities import steady
from joulecast.runs.observations import is_training

MEASURED = ("measured", "recorded", "imported")
"""Energy sources that may judge a model; an estimate shows the pipeline only."""


def _evidence(split: Split, everything: Evidence) -> Evidence:
    training, others, allreduce = (
        everything.training,
        everything.calibration,
        everything.allreduce,
    )
    seen = set(training.loc[split.fitted, "nodes"])
    available = sorted(set(allreduce["nodes"]))
    allowed = {count for count in available if count in seen}
    if not allowed and available:
        allowed = {available[0]}
    chosen = others["nodes"].isin(allowed) | (others["kind"] == "idle")
    fitted = training[split.fitted]
    if split.name == NEXT_SCALE:
        # A copy under another name would say what is asked.
        fitted = _without_copies(fitted, training[split.judged])
    return Evidence(
        fitted,
        others[chosen],
        allreduce[allreduce["nodes"].isin(allowed)],
        everything.watts,
        _without_copies(everything.times, training[split.judged]),
    )


def _without_copies(times: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """The times without the judged runs themselves, which may be there twice: under another name, with
    another meter, or on the same scale of the same series without one."""
    if times.empty or "series" not in judged:
        return times
    same = set(zip(judged["network"], judged["total_s"].round(2), strict=True))
    scales = set(zip(judged["series"], judged["ranks"], strict=True))
    copies = [
        (network, second) in same or (series, ranks) in scales
        for network, second, series, ranks in zip(
            times["network"],
            times["total_s"].round(2),
            times["series"],
            times["ranks"],
            strict=True,
        )
    ]
    return times[~np.array(copies)]


SETTING = ["energy_source", "platform", "network", "nodes", "batch", "nodes_are"]
_RUN = ["run", "repeat", *SETTING]


def _asked(judged: pd.DataFrame, split: str) -> pd.DataFrame:
    """The judged runs as a model sees them: the next scale's work is not known."""
    return judged.assign(samples=np.nan) if split == NEXT_SCALE else judged


def _judge(model: EnergyModel, judged: pd.DataFrame, time: str, split: str) -> pd.DataFrame:
    prediction = model.predict(_asked(judged, split) if time == "predicted" else judged, time)
    rows = judged[_RUN].assign(split=split, time=time, model=model.name)
    rows = rows.assign(
        measured=judged["energy_j"],
        measured_s=judged["total_s"],
        predicted=prediction["predicted_j"],
        predicted_s=prediction["predicted_s"],
        lower=prediction["lower_j"],
        upper=prediction["upper_j"],
    )
    return rows[rows["predicted"].notna()]


def _judge_time(name: str, judged: pd.DataFrame, answer: pd.DataFrame, split: str) -> pd.DataFrame:
    rows = judged[_RUN].assign(split=split, time="predicted", model=name)
    return rows.assign(
        measured=judged["total_s"],
        predicted=answer["predicted_s"],
        lower=answer.get("lower_s", np.nan),
        upper=answer.get("upper_s", np.nan),
    )


@dataclass(frozen=True)
class Evaluation:
    """One row a judged run, split and model (columns: the setting, ``split``, ``time`` given or
    predicted, ``model``, ``measured``, ``predicted``, ``lower`` and ``upper`` of the 90 % interval):
    ``times`` in s, ``energies`` in J, ``ablations`` in J; the fits to all runs; and the settings on platforms
    that a fit did not see (``split, platform, network, nodes``), which are not predicted."""

    times: pd.DataFrame
    energies: pd.DataFrame
    ablations: pd.DataFrame
    full_fits: list[EnergyModel]
    refused: pd.DataFrame


def evaluate(
    observations: pd.DataFrame,
    allreduce: pd.DataFrame,
    watts: dict[str, Watts],
    bootstrap: int = 0,
    splits: Sequence[str] = tuple(SPLITS),
    times: Sequence[str] = TIME,
) -> Evaluation:
    """Fit and judge all models.

    Staged runs of each platform are a campaign of their own; imported runs are one, since what MC2
    learns of them is carried from one workload and platform to the other.

    Args:
        observations: of all runs, polluted ones left out by the caller.
        allreduce: single sums of the all-reduce calibrations.
        watts: of each platform by its name, where they are known.
        bootstrap: resamples behind the intervals of the coefficients of the full fit.
        splits: names of :data:`SPLITS`.
        times: ``given``, ``predicted`` or both.

    Raises:
        ValueError: there is no training run.
    """
    parts = [
        _evaluate(everything, imported, bootstrap, splits, times)
        for everything, imported in campaigns(observations, allreduce, watts)
    ]
    if not parts:
        raise ValueError("no training run to fit")
    return Evaluation(
        _joined([p.times for p in parts]),
        _joined([p.energies for p in parts]),
        _joined([p.ablations for p in parts]),
        [fit for p in parts for fit in p.full_fits],
        pd.concat([p.refused for p in parts]).drop_duplicates(ignore_index=True),
    )


def campaigns(
    observations: pd.DataFrame, allreduce: pd.DataFrame, watts: dict[str, Watts]
) -> Iterator[tuple[Evidence, bool]]:
    """What is fitted together, and whether it was imported: staged runs by platform, and all imported
    ones, with the recorded times of others."""
    trained = is_training(observations)
    of = observations["platform"].where(observations["kind"] != "imported", "imported")
    for name, of_campaign in observations.groupby(of, sort=False):
        imported = name == "imported"
        training = of_campaign[trained[of_campaign.index]].reset_index(drop=True)
        if len(training):
            others = of_campaign[~trained[of_campaign.index]]
            points = allreduce[allreduce["platform"] == name] if len(allreduce) else allreduce
            times = times_of_others(training) if imported else pd.DataFrame()
            yield Evidence(training, others, points, watts.get(str(name), {}), times), imported


def _evaluate(
    everything: Evidence,
    imported: bool,
    bootstrap: int,
    splits: Sequence[str],
    times: Sequence[str],
) -> Evaluation:
    full = mc2_for(imported, bootstrap).fit(everything)
    time_rows, energy_rows, ablation_rows, refused = [], [], [], []
    for name in splits:
        # The splits of energies hold out metered runs; the others of imported ones are there for their times.
        metered = imported and name != NEXT_SCALE
        training = everything.metered if metered else everything.training
        known = replace(everything, training=training)
        if metered:
            dark = everything.training[everything.training["energy_j"].isna()]
            known = replace(known, times=pd.concat([everything.times, dark]))
        for split in SPLITS[name](training):
            judged, evidence = training[split.judged], _evidence(split, known)
            if judged.empty or evidence.training.empty:
                continue
            mc2 = full if name == "in-sample" else mc2_for(imported).fit(evidence)
            # A workload that the fit has not seen at all cannot be timed.
            key = "series" if imported else "workload"
            timed = judged[judged[key].isin(set(evidence.training[key]))]
            if len(timed):
                asked = _asked(timed, name)
                time_rows.append(_judge_time("MC2", timed, mc2.predict(asked, "predicted"), name))
            for rival_name, rival in TIME_MODELS.items() if len(timed) else ():
                guess = rival(evidence.training, _asked(timed, name), key)
                time_rows.append(
                    _judge_time(rival_name, timed, pd.DataFrame({"predicted_s": guess}), name)
                )
            refused.append(_refused(evidence, judged).assign(split=name))
            if evidence.metered.empty or judged["energy_j"].isna().all():
                continue
            models = [mc2, *(rival.fit(evidence) for rival in rivals(mc2))]
            reduced = [model.fit(evidence) for model in ablations(imported)]
            for time in times:
                energy_rows += [_judge(model, judged, time, name) for model in models]
                ablation_rows += [_judge(model, judged, time, name) for model in (mc2, *reduced)]
    return Evaluation(
        _joined(time_rows),
        _joined(energy_rows),
        _joined(ablation_rows),
        [full],
        pd.concat([pd.DataFrame(columns=[*_PLACE, "split"]), *refused]),
    )


_PLACE = ["platform", "network", "nodes"]


def _refused(evidence: Evidence, judged: pd.DataFrame) -> pd.DataFrame:
    """Settings of the judged runs with energy on platforms where the fit saw none."""
    unseen = ~judged["platform"].isin(set(evidence.metered["platform"]))
    return judged.loc[unseen & judged["energy_j"].notna(), _PLACE].drop_duplicates()


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        quantities = ["measured", "measured_s", "predicted", "predicted_s", "lower", "upper"]
        columns = [*_RUN, "split", "time", "model", *quantities]
        return pd.DataFrame(columns=columns)
    return pd.concat(filled, ignore_index=True)


def with_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``difference_percent`` of predicted against measured."""
    difference = 100 * (rows["predicted"] / rows["measured"] - 1)
    return rows.assign(difference_percent=difference.astype(float))


def settings(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """One row a setting of judged runs: means over its repeats, ``difference_percent`` of the means,
    ``mean_absolute_percent`` of the single runs, and ``covered_percent`` of them by the interval."""
    judged = with_errors(rows[rows["measured"].notna() & rows["predicted"].notna()])
    bounded = judged["lower"].notna() if "lower" in judged else pd.Series(False, index=judged.index)
    inside = judged.get("lower", np.nan) <= judged["measured"]
    inside &= judged["measured"] <= judged.get("upper", np.nan)
    # Columns of their own, so that pandas aggregates by itself: a function of ours a setting costs most
    # of the time where there are thousands of them.
    judged = judged.assign(
        covered=100 * inside.where(bounded).astype(float), size=judged["difference_percent"].abs()
    )
    table = (
        judged.groupby(list(by), sort=False, dropna=False)
        .agg(
            runs=("run", "count"),
            measured=("measured", "mean"),
            predicted=("predicted", "mean"),
            mean_absolute_percent=("size", "mean"),
            bounded=("covered", "count"),
            covered_percent=("covered", "mean"),
        )
        .reset_index()
    )
    table["difference_percent"] = 100 * (table["predicted"] / table["measured"] - 1)
    return table


def summarise(cells: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """MAPE, largest and signed difference in percent over settings, and how many of their runs the
    intervals cover, by group; ``cells`` are of :func:`settings`."""
    sized = cells.assign(
        size=cells["difference_percent"].abs(), hits=cells["covered_percent"] * cells["bounded"]
    )
    groups = sized.groupby(list(by), sort=False, dropna=False)
    table = groups.agg(
        settings=("size", "count"),
        runs=("runs", "sum"),
        mape_percent=("size", "mean"),
        median_percent=("size", "median"),
        max_percent=("size", "max"),
        bias_percent=("difference_percent", "mean"),
        bounded=("bounded", "sum"),
        covered_percent=("hits", lambda h: h.sum(min_count=1)),
    ).reset_index()
    table["covered_percent"] = table["covered_percent"] / table.pop("bounded").clip(lower=1)
    return table


@dataclass(frozen=True)
class Comparison:
    """MC2 against one rival on the settings of one split: percentage points of MAPE that MC2 is better
    by, their 90 % interval, and the share of the resamples in which it is better."""

    rival: str
    settings: int
    better_by_points: float
    lower_points: float
    upper_points: float
    better_share: float


def _error_by_model(cells: pd.DataFrame) -> pd.DataFrame:
    sizes = cells.assign(size=cells["difference_percent"].abs())
    index = ["platform", "network", "nodes", "batch"]
    # A log may not tell its batch, and pivoting drops what is not known.
    sizes["batch"] = sizes["batch"].fillna(0.0)
    return sizes.pivot_table(index=index, columns="model", values="size")


def compare(cells: pd.DataFrame, resamples: int = 2000, seed: int = 0) -> list[Comparison]:
    """Paired bootstrap of MC2 against every rival over the settings of one split and kind of time,
    the best rival first, equals by name; each on the settings that it and MC2 both predict.

    The best rival is chosen on the very settings that judge it, which favours the rival.
    """
    errors = _error_by_model(cells)
    if "MC2" not in errors:
        return []
    random = np.random.default_rng(seed)
    compared = []
    for rival in errors.columns.drop("MC2"):
        both = errors[["MC2", rival]].dropna()
        if both.empty:
            continue
        gained = (both[rival] - both["MC2"]).to_numpy(float)
        drawn = gained[random.integers(0, len(gained), (resamples, len(gained)))].mean(axis=1)
        lower, upper = (float(b) for b in np.percentile(drawn, (5, 95)))
        share = float((drawn > 0).mean())
        compared.append(
            Comparison(str(rival), len(gained), float(gained.mean()), lower, upper, share)
        )
    return sorted(compared, key=lambda c: steady(c.better_by_points, beside=1.0))


def run_to_run_cv(training: pd.DataFrame, quantity: str) -> float:
    """Mean coefficient of variation in percent between repeats, of ``quantity`` per unit of work where
    repeats did not do the same: no model can claim less."""
    per_work = training[quantity] / training["samples"]
    keys = [training[key] for key in ("platform", "network", "nodes", "batch")]
    cells = per_work.groupby(keys, dropna=False)
    spread = (cells.std() / cells.mean())[cells.count() > 1]
    return float(100 * spread.mean())
