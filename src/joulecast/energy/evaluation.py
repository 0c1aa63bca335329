"""Predictions of runs by models that have not seen them.

A split (:mod:`joulecast.energy.splits`) holds out some runs. The models are fitted to the other runs, and
then predict the runs that were held out. :mod:`joulecast.runs.judging` joins the predictions with the runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from joulecast.energy.models import EnergyModel, Evidence, Rivals, ablations, fit_groups, mc2_for
from joulecast.energy.proportional_models import Watts
from joulecast.energy.splits import NEXT_SCALE, SPLITS, Split
from joulecast.energy.time_rivals import predict_seconds
from joulecast.runs.judging import COLUMNS, TIME


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
        # A copy of a judged run under another name would show its result to the fit.
        fitted = without_copies(fitted, training[split.judged])
    return Evidence(
        fitted,
        others[chosen],
        allreduce[allreduce["nodes"].isin(allowed)],
        everything.watts,
        without_copies(everything.times, training[split.judged]),
    )


def without_copies(times: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """The recorded times, without those of the judged runs. A judged run may also be among the recorded
    times: under another name, with another meter, or without a meter. It is recognised by its network and
    time, or by its series and scale."""
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


def _without_work(judged: pd.DataFrame, split: str) -> pd.DataFrame:
    """The judged runs as a model sees them: in the split of the next scale, their work is not known."""
    return judged.assign(samples=np.nan) if split == NEXT_SCALE else judged


@dataclass(frozen=True)
class Evaluation:
    """What all models predict for runs that they have not seen.

    Attributes:
        predictions: a row for each held-out run, split, time and model, with the columns of
            :data:`joulecast.runs.judging.COLUMNS`.
        full_fits: MC2 fitted to all runs of each campaign.
        refused: settings that are not predicted, because their platform was not in the fit (``split,
            platform, network, nodes``).
    """

    predictions: pd.DataFrame
    full_fits: list[EnergyModel]
    refused: pd.DataFrame


def evaluate(
    observations: pd.DataFrame,
    allreduce: pd.DataFrame,
    watts: dict[str, Watts],
    splits: Sequence[str] = tuple(SPLITS),
    times: Sequence[str] = TIME,
) -> Evaluation:
    """For each split, fit all models to the runs that it leaves in, and predict the runs that it holds out.

    Runs with measured stages are fitted for each platform alone. All imported runs are fitted together,
    because MC2 carries what it learns from one workload and platform to the other.

    Args:
        observations: a row for each run that has no fault.
        allreduce: a row for each all-reduce of the calibrations.
        watts: the watts of each platform, by its name, if they are known.
        splits: names of :data:`SPLITS`.
        times: ``given``, ``predicted`` or both.

    Raises:
        ValueError: there is no training run.
    """
    parts = [
        _evaluate(everything, imported, splits, times)
        for everything, imported in fit_groups(observations, allreduce, watts)
    ]
    if not parts:
        raise ValueError("no training run to fit")
    return Evaluation(
        _joined([p.predictions for p in parts]),
        [fit for p in parts for fit in p.full_fits],
        pd.concat([p.refused for p in parts]).drop_duplicates(ignore_index=True),
    )


def _evaluate(
    everything: Evidence,
    imported: bool,
    splits: Sequence[str],
    times: Sequence[str],
) -> Evaluation:
    full = mc2_for(imported).fit(everything)
    rows, refused = [], []
    for name in splits:
        # All splits but next-scale judge energies, so only metered runs count. Imported runs without a meter
        # have only times.
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
            refused.append(_refused(evidence, judged).assign(split=name))
            key = "series" if imported else "workload"
            seen = judged[key].isin(set(evidence.training[key]))
            has_energy = not evidence.metered.empty and judged["energy_j"].notna().any()
            others = Rivals.fit(evidence)
            parts = ablations(imported) if has_energy else []
            parts = [part.fit(evidence) for part in parts]
            # Without energy there are only times to predict, and a workload that the fit has not seen at all
            # cannot be timed.
            timed = judged[seen]
            of = judged if has_energy else timed
            for time in times if has_energy else {"predicted"} & {*times}:
                asked = _without_work(of, name) if time == "predicted" else of
                answer = mc2.predict(asked, time)
                answers = {(mc2.name, "model"): answer}
                if has_energy:
                    guesses = others.predict(asked, time, answer)
                    answers |= {(rival, "rival"): guess for rival, guess in guesses.items()}
                answers |= {(part.name, "ablation"): part.predict(asked, time) for part in parts}
                rows.append(_rows(answers, of, name, time, seen))
            if "predicted" in times and len(timed):
                asked = _without_work(timed, name)
                seconds = predict_seconds(evidence.training, asked, key)
                answers = {
                    (rival, "time rival"): of_rival.to_frame("time_s")
                    for rival, of_rival in seconds.items()
                }
                rows.append(_rows(answers, timed, name, "predicted", seen))
    return Evaluation(
        _joined(rows),
        [full],
        pd.concat([pd.DataFrame(columns=[*_PLACE, "split"]), *refused]),
    )


_PLACE = ["platform", "network", "nodes"]


def _refused(evidence: Evidence, judged: pd.DataFrame) -> pd.DataFrame:
    """Judged runs with energy, on platforms on which the fit saw no energy."""
    unseen = ~judged["platform"].isin(set(evidence.metered["platform"]))
    return judged.loc[unseen & judged["energy_j"].notna(), _PLACE].drop_duplicates()


def _rows(
    answers: dict[tuple[str, str], pd.DataFrame],
    judged: pd.DataFrame,
    split: str,
    time: str,
    seen: pd.Series,
) -> pd.DataFrame:
    """A row for each model and judged run, from the models' answers by name and role."""
    rows = pd.concat(answers, names=["model", "role", "run"]).reset_index()
    runs = rows.pop("run")
    basis = np.where(seen[runs], "own runs", "other runs")
    folders = judged["folder"][runs].to_numpy()
    return rows.assign(folder=folders, split=split, time=time, basis=basis)


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    rows = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()
    return rows.reindex(columns=[*COLUMNS])
