"""Compares policies: cumulative cost, break-even, regret, and whether a difference is more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from joulecast.quantities import steady
from joulecast.tune.expectation import expected_default, expected_recurrences
from joulecast.tune.policy_experiment import Setting, replayed
from joulecast.tune.trial import PLAIN, Goal

QUANTITIES = {"energy": "energy_j", "time": "time_s", "cost": "cost"}
"""The quantities that are compared with the default, and their columns in a table of recurrences."""
Curves = dict[tuple[str, str], NDArray[np.float64]]
_ROUNDING = 1e-9
_DRAWS = 10_000
"""Number of resampled sets of a bootstrap."""
STEADY = 5
"""Number of recurrences at the end that count as steady state."""


def by_setting(table: pd.DataFrame, column: str) -> Curves:
    """For each setting, an array with a row for each seed and a column for each recurrence."""
    return {
        (str(workload), str(gpu)): rows.pivot(
            index="seed", columns="recurrence", values=column
        ).to_numpy(float)
        for (workload, gpu), rows in table.groupby(["workload", "gpu"], sort=False)
    }


def recurrences_of(
    policy: str,
    table: pd.DataFrame,
    settings: Sequence[Setting],
    column: str,
    goal: Goal = PLAIN,
) -> Curves:
    """For each setting, an array with a row for each seed and a column for each recurrence. If nothing is
    random, it has one row, with expected values.

    Args:
        table: the replayed recurrences.
    """
    curves = by_setting(table, column)
    for setting in settings:
        found = expected_recurrences(setting.trace, policy, goal)
        if found is not None:
            first, later = (getattr(each, column) for each in found)
            after = curves[setting.name].shape[1] - 1
            curves[setting.name] = np.array([[first, *[later] * after]])
    return curves


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and its 95 % interval (Student's t). With a single seed there is no interval."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, by_seed: NDArray[np.float64]) -> "Estimate":
        """The estimate from values, one for each seed."""
        mean, n = float(by_seed.mean()), len(by_seed)
        if n < 2:
            return cls(mean, None, None)
        half = float(stdtrit(n - 1, 0.975) * by_seed.std(ddof=1) / np.sqrt(n))
        return cls(mean, mean - half, mean + half)


def cumulative_ratios(costs: Curves, settings: Sequence[Setting], eta: float = 0.5) -> Curves:
    """Mean cost of the first n recurrences, divided by the default's cost. For each setting, an array with a
    row for each seed and a column for each n.

    Args:
        costs: for each setting, an array with a row for each seed and a column for each recurrence.
    """
    return {
        setting.name: np.cumsum(costs[setting.name], axis=1)
        / np.arange(1, costs[setting.name].shape[1] + 1)
        / expected_default(setting.trace, eta).cost
        for setting in settings
    }


def break_even(ratios: NDArray[np.float64]) -> int | None:
    """The first recurrence after which the mean ratio of all seeds is never above 1 again; ``None`` if there
    is none. Until then, the policy costs more than the default.

    Args:
        ratios: cumulative ratios, with a row for each seed and a column for each recurrence.
    """
    above = np.flatnonzero(ratios.mean(axis=0) > 1 + _ROUNDING)
    if len(above) == 0:
        return 1
    first = int(above[-1]) + 2
    return first if first <= ratios.shape[1] else None


@dataclass(frozen=True)
class PairedDifference:
    """Difference of two policies in their cumulative ratios after a number of recurrences, over all settings.

    Attributes:
        difference: mean over settings; negative if the first policy is better.
        over_settings: 95 % interval, from resampled settings.
        over_workloads: 95 % interval, from resampled workloads. The settings of a workload share its epochs,
            so they are not independent.
        better_in: number of settings in which the first policy is better.
    """

    difference: float
    over_settings: tuple[float, float]
    over_workloads: tuple[float, float]
    better_in: int
    settings: int


def _interval(values: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float]:
    drawn = values[rng.integers(len(values), size=(_DRAWS, len(values)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def paired_bootstrap(ours: Curves, theirs: Curves, recurrence: int) -> PairedDifference:
    """The difference of two policies in their cumulative ratios after ``recurrence`` recurrences, with
    intervals from a paired bootstrap over settings (Efron and Tibshirani 1993)."""
    differences = {
        name: float(ours[name][:, recurrence - 1].mean() - theirs[name][:, recurrence - 1].mean())
        for name in theirs
    }
    by_workload: dict[str, list[float]] = {}
    for (workload, _), difference in differences.items():
        by_workload.setdefault(workload, []).append(difference)
    of_settings = np.array(list(differences.values()))
    of_workloads = np.array([np.mean(each) for each in by_workload.values()])
    rng = np.random.default_rng(1)
    return PairedDifference(
        float(of_settings.mean()),
        _interval(of_settings, rng),
        _interval(of_workloads, rng),
        int((of_settings < 0).sum()),
        len(of_settings),
    )


# The constants that are chosen on the other workloads, before the curve policy is judged on a workload.
Choice = Mapping[str, float]
CHOICES: tuple[Choice, ...] = tuple(
    {"beta": beta, "horizon": horizon, "reach": reach}
    for beta, horizon, reach in product((1.5, 2.0, 2.5), (2.5, 5.0, 10.0), (1, 2, 3))
)
_CHOSEN_AT = 20
HELD_OUT = "curve, held out"


def leave_one_workload_out(
    settings: Sequence[Setting], seeds: int, recurrences: int, eta: float = 0.5
) -> tuple[pd.DataFrame, dict[str, Choice]]:
    """Choose three constants of the curve policy on all workloads but one. Then use these constants to replay
    the workload that was left out. This is done for each workload.

    The choice with the smallest mean cumulative ratio after 20 recurrences is taken. The form of the
    policy and the constants of its prior are not chosen here.

    Returns:
        The recurrences of every workload, and the constants that were chosen for it.
    """
    replay = partial(replayed, name="curve", seeds=seeds, goal=Goal(eta))
    workloads = list(dict.fromkeys(setting.name[0] for setting in settings))
    until = min(_CHOSEN_AT, recurrences)
    means = []
    for choice in CHOICES:
        table = replay(settings, recurrences=until, options=choice)
        ratios = cumulative_ratios(by_setting(table, "cost"), settings, eta)
        means.append({name: float(curve[:, -1].mean()) for name, curve in ratios.items()})
    tables, choices = [], {}
    for held_out in workloads:
        scores = [
            float(np.mean([ratio for (workload, _), ratio in mean.items() if workload != held_out]))
            for mean in means
        ]
        choice = choices[held_out] = CHOICES[int(np.argmin([steady(score) for score in scores]))]
        judged = [setting for setting in settings if setting.name[0] == held_out]
        tables.append(replay(judged, recurrences=recurrences, options=choice))
    return pd.concat(tables, ignore_index=True).assign(policy=HELD_OUT), choices
