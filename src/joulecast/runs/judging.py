"""Predictions, and how they are judged: they are joined with what was measured.

A prediction is a row for a setting and a model. Every model answers with the columns of :data:`ANSWER`. If
the setting was run, the prediction also has the other :data:`COLUMNS`. Its ``folder`` is the key of the run
in the runs table. (A prediction of a measured step has another key.) Errors are computed for settings:
repeats of a workload on a node count are averaged first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from joulecast.quantities import steady

ANSWER = {
    "time_s": "time of the run",
    "time_low_s": "lower end of its 90 % interval",
    "time_high_s": "upper end",
    "energy_j": "energy of all nodes",
    "energy_low_j": "lower end of its 90 % interval",
    "energy_high_j": "upper end",
    "work": "work that the time and the energy are for",
}
"""The columns with a model's answer for a setting. A value is NaN if the model does not answer."""

COLUMNS = {
    "folder": "folder of the run whose setting is predicted",
    "split": "what the fit did not see",
    "time": "`given` to the models, or `predicted` (by MC2, for all models)",
    "model": "name of the model",
    "role": "`model` (MC2), `rival` in energy, `time rival`, or `ablation` (MC2 without a part)",
    "basis": "whether the fit saw runs of the same workload (`own runs`), or only other runs (`other runs`)",
    **ANSWER,
}
"""The columns of predictions that are judged."""

TIME = ("given", "predicted")
MEASURED = ("measured", "recorded", "imported")
"""Sources of energies by which a model may be judged. An estimate only shows that the pipeline works."""

OURS = "MC2"
"""Our model. The other models are its rivals."""

SETTING = ["platform", "network", "nodes", "batch", "nodes_are"]
"""Columns that are equal for all repeats of a run."""
OF_ENERGY = ["energy_source", *SETTING]
"""Columns that are equal for all repeats of a run if joules are compared: :data:`SETTING`, and the source of
the energy, because joules of different sources are not compared."""
_RUN = ["run", "repeat", *OF_ENERGY]
_RESAMPLES = 2000
FEWEST = 5
"""Least number of settings for an interval from resamples. With fewer settings, the interval would be little
more than the least and the largest value."""
_ROLES = {
    "time": ("model", "time rival"),
    "energy": ("model", "rival"),
    "ablation": ("model", "ablation"),
}


def judge(
    predictions: pd.DataFrame, runs: pd.DataFrame, of: Literal["time", "energy", "ablation"]
) -> pd.DataFrame:
    """Join predictions with the runs that were made.

    Args:
        predictions: a table with the columns of :data:`COLUMNS`.
        of: ``time``: predictions of MC2 and the time rivals for workloads that the fit saw; ``energy``:
            predictions of MC2 and its rivals; ``ablation``: energies of MC2, and of MC2 without a part.

    Returns:
        A row for each prediction, in the form of :func:`join_references`, with the run and its setting.
    """
    made = runs[["folder", *_RUN, "energy_j"]].assign(time_s=runs["total_s"])
    asked = predictions[predictions["role"].isin(_ROLES[of])]
    if of == "time":
        asked = asked[(asked["time"] == "predicted") & (asked["basis"] == "own runs")]
        return join_references(asked, made, "folder", "time_s")
    return join_references(asked[asked["energy_j"].notna()], made, "folder", "energy_j")


def join_references(
    predictions: pd.DataFrame,
    references: pd.DataFrame,
    key: str,
    quantity: Literal["time_s", "energy_j"],
) -> pd.DataFrame:
    """Join predictions with what they are compared with.

    Args:
        predictions: a table with the column ``key``, and with the columns of :data:`ANSWER` that the models
            fill.
        references: a row for each value of ``key``, with ``time_s`` and, if joules are judged,
            ``energy_j``.
        key: name of the column that identifies what is predicted.

    Returns:
        A row for each prediction: ``measured``, ``predicted``, ``lower`` and ``upper`` in s or J,
        ``measured_s`` and ``predicted_s``, and the other columns of both tables.
    """
    name, unit = quantity.split("_")
    answers = predictions.reindex(columns=[*ANSWER])
    answered = predictions.drop(columns=[*ANSWER], errors="ignore").assign(
        predicted=answers[quantity],
        predicted_s=answers["time_s"],
        lower=answers[f"{name}_low_{unit}"],
        upper=answers[f"{name}_high_{unit}"],
    )
    known = references.drop(columns=[*ANSWER], errors="ignore").assign(
        measured=references[quantity], measured_s=references["time_s"]
    )
    return answered.merge(known, on=key, how="left", validate="many_to_one")


def by_setting(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """A row for each setting of judged runs: means over its repeats, ``difference_percent`` (of the means),
    ``mean_absolute_percent`` (of the single runs), and ``covered_percent`` (share of the single runs inside
    the interval)."""
    judged = rows[rows["measured"].notna() & rows["predicted"].notna()]
    difference = 100 * (judged["predicted"] / judged["measured"] - 1).astype(float)
    inside = judged["measured"].between(judged["lower"], judged["upper"])
    # These are columns, so that pandas can aggregate them. A Python function for each of thousands of
    # settings would take most of the time.
    judged = judged.assign(
        covered=100 * inside.where(judged["lower"].notna()).astype(float), size=difference.abs()
    )
    table = (
        judged.groupby(list(by), sort=False, dropna=False)
        .agg(
            runs=("measured", "count"),
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
    """For each group of settings: MAPE, largest difference and mean signed difference in percent, and the
    share of runs inside the intervals. ``cells`` come from :func:`by_setting`."""
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


def rank(rows: pd.DataFrame, by: Sequence[str], fewest: int) -> pd.DataFrame:
    """Judge whether predictions order settings as the measurements do, in each group of rows.

    Args:
        rows: a row for each setting in each group.
        by: columns. Rows with the same values in them are a group.
        fewest: smallest number of settings in a group that is ranked.

    Returns:
        ``settings``, their number; ``chosen``, the index of the row with the smallest prediction; ``least``,
        the index of the row with the smallest measurement; ``regret_percent``, by how much the measurement of
        ``chosen`` is larger than the measurement of ``least``; ``kendall_tau``.
    """
    ranked = []
    for names, group in rows.groupby(list(by), sort=False):
        if len(group) < fewest:
            continue
        measured, predicted = group["measured"], group["predicted"].map(steady)
        chosen, least = predicted.idxmin(), measured.idxmin()
        ranked.append(
            {
                **dict(zip(by, names, strict=True)),
                "settings": len(group),
                "chosen": chosen,
                "least": least,
                "regret_percent": 100 * float(measured[chosen] / measured[least] - 1),
                "kendall_tau": float(measured.corr(predicted, method="kendall")),
            }
        )
    found = ["settings", "chosen", "least", "regret_percent", "kendall_tau"]
    return pd.DataFrame(ranked, columns=[*by, *found])


@dataclass(frozen=True)
class Comparison:
    """MC2 compared with one rival, on the settings of one split that both predict.

    It has the mean error of the rival on these settings, and by how many percentage points the mean error of
    MC2 is smaller. It also has the 90 % interval of this number, and the share of the resamples in which MC2
    is better. These two are ``None`` if there are fewer than :data:`FEWEST` settings.
    """

    rival: str
    best_rival: bool
    """Whether this is the strongest rival, of those that predict at least half of the settings. The same
    settings choose the rival and judge it. This favours the rival."""
    settings: int
    rival_percent: float
    better_by_points: float
    lower_points: float | None
    upper_points: float | None
    better_share: float | None

    @property
    def mc2_percent(self) -> float:
        """Mean error of MC2 on the settings that MC2 and this rival predict."""
        return self.rival_percent - self.better_by_points


def compare(cells: pd.DataFrame) -> list[Comparison]:
    """Paired bootstrap of MC2 against every rival, over the settings of one split and kind of time.

    The strongest rival comes first: the one over which MC2 gains least. Equal rivals are ordered by name.
    """
    # A log may not contain the batch, and pivoting drops rows with missing values.
    sizes = cells.assign(size=cells["difference_percent"].abs(), batch=cells["batch"].fillna(0.0))
    errors = sizes.pivot_table(index=SETTING, columns="model", values="size")
    if OURS not in errors:
        return []
    random = np.random.default_rng(0)
    compared = []
    for rival in errors.columns.drop(OURS):
        both = errors[[OURS, rival]].dropna()
        if both.empty:
            continue
        gained = (both[rival] - both[OURS]).to_numpy(float)
        lower, upper, share = None, None, None
        if len(gained) >= FEWEST:
            drawn = gained[random.integers(0, len(gained), (_RESAMPLES, len(gained)))].mean(axis=1)
            lower, upper = (float(b) for b in np.percentile(drawn, (5, 95)))
            share = float((drawn > 0).mean())
        error, gain = float(both[rival].mean()), float(gained.mean())
        compared.append(
            Comparison(str(rival), False, len(gained), error, gain, lower, upper, share)
        )
    compared.sort(key=lambda c: steady(c.better_by_points, relative_to=1.0))
    fewest = errors[OURS].count() / 2
    best = next((c for c in compared if c.settings >= fewest), None)
    return [replace(c, best_rival=c is best) for c in compared]


def best_rival(cells: pd.DataFrame) -> Comparison | None:
    """The comparison of MC2 with its strongest rival, on the settings of one split and kind of time."""
    return next((each for each in compare(cells) if each.best_rival), None)


def run_to_run_cv(training: pd.DataFrame, quantity: str) -> float:
    """Mean coefficient of variation of ``quantity`` between repeats, in percent, per unit of work. No model
    can claim to be better than this."""
    per_work = training[quantity] / training["samples"]
    cells = per_work.groupby([training[key] for key in SETTING], dropna=False)
    spread = (cells.std() / cells.mean())[cells.count() > 1]
    return float(100 * spread.mean())
