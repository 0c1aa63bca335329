"""Comparing policies: cumulative cost, break-even, regret, and whether a difference is more than chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.tuning.curve import Curve
from joulecast.tuning.expectation import best_configuration, expected, expected_default
from joulecast.tuning.experiment import Setting, replayed
from joulecast.tuning.trial import SearchSpace

Curves = dict[tuple[str, str], NDArray[np.float64]]
_ROUNDING = 1e-9
STEADY = 5
"""Recurrences at the end that count as steady state."""


def by_setting(table: pd.DataFrame, column: str) -> Curves:
    """By setting, an array of seeds by recurrences."""
    return {
        (str(workload), str(gpu)): rows.pivot(
            index="seed", columns="recurrence", values=column
        ).to_numpy(float)
        for (workload, gpu), rows in table.groupby(["workload", "gpu"], sort=False)
    }


def cumulative_ratio(table: pd.DataFrame, settings: Sequence[Setting], eta: float = 0.5) -> Curves:
    """By setting, mean cost of the first n recurrences relative to the default's: seeds by n."""
    defaults = {setting.name: expected_default(setting.trace, eta).cost for setting in settings}
    return {
        name: np.cumsum(costs, axis=1) / np.arange(1, costs.shape[1] + 1) / defaults[name]
        for name, costs in by_setting(table, "cost").items()
    }


def break_even(ratios: NDArray[np.float64]) -> int | None:
    """The recurrence from which on the mean over seeds has not cost more than the default; ``None``: never.

    Args:
        ratios: cumulative ratios, seeds by recurrences.
    """
    above = np.flatnonzero(ratios.mean(axis=0) > 1 + _ROUNDING)
    if len(above) == 0:
        return 1
    first = int(above[-1]) + 2
    return first if first <= ratios.shape[1] else None


def regret(costs: NDArray[np.float64], best: float) -> float:
    """What all recurrences together cost above the oracle, in units of its mean one; mean over seeds."""
    return float((costs - best).sum(axis=1).mean() / best)


def oracle_cost(setting: Setting, eta: float = 0.5) -> float:
    """Expected cost of a recurrence of the best configuration."""
    return expected(setting.trace, *best_configuration(setting.trace, eta), eta).cost


@dataclass(frozen=True)
class PairedDifference:
    """How two policies' cumulative ratios differ over settings at one recurrence.

    Attributes:
        difference: mean over settings, negative when the first is better.
        low, high: 95 % interval over settings drawn again.
        better_in: settings in which the first is better.
    """

    recurrence: int
    difference: float
    low: float
    high: float
    better_in: int
    settings: int


def paired_bootstrap(
    ours: Curves, theirs: Curves, recurrence: int, draws: int = 10_000, seed: int = 1
) -> PairedDifference:
    """Paired bootstrap over settings (Efron and Tibshirani 1993) of the ratio after n recurrences."""
    differences = np.array(
        [
            ours[name][:, recurrence - 1].mean() - theirs[name][:, recurrence - 1].mean()
            for name in theirs
        ]
    )
    rng = np.random.default_rng(seed)
    drawn = differences[rng.integers(len(differences), size=(draws, len(differences)))].mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return PairedDifference(
        recurrence,
        float(differences.mean()),
        float(low),
        float(high),
        int((differences < 0).sum()),
        len(differences),
    )


# What is chosen by the other workloads before the curve policy is judged on one.
Choice = Mapping[str, float]
CHOICES: tuple[Choice, ...] = tuple(
    {"beta": beta, "horizon": horizon, "reach": reach}
    for beta, horizon, reach in product((1.5, 2.0), (5.0, 10.0, 20.0), (1, 2))
)
_JUDGED_AT = 20
HELD_OUT = "curve, held out"


def _chosen(choice: Choice, space: SearchSpace) -> Curve:
    return Curve(space, beta=choice["beta"], horizon=choice["horizon"], reach=int(choice["reach"]))


@dataclass(frozen=True)
class HeldOut:
    """The curve policy with what the other workloads chose for it.

    Attributes:
        table: recurrences of every workload, each with the choice that does not know it.
        choices: by workload.
    """

    table: pd.DataFrame
    choices: dict[str, Choice]


def leave_one_workload_out(
    settings: Sequence[Setting], seeds: int, recurrences: int, eta: float = 0.5
) -> HeldOut:
    """Choose the curve policy's constants on all workloads but one, and replay that one with them.

    The choice is the least mean cumulative ratio after 20 recurrences.
    """
    workloads = list(dict.fromkeys(setting.name[0] for setting in settings))
    tables = [
        replayed(settings, HELD_OUT, seeds, recurrences, eta=eta, make=partial(_chosen, choice))
        for choice in CHOICES
    ]
    at = min(_JUDGED_AT, recurrences) - 1
    means = [
        {
            name: float(ratios[:, at].mean())
            for name, ratios in cumulative_ratio(table, settings, eta).items()
        }
        for table in tables
    ]
    chosen = {}
    for held_out in workloads:
        scores = [
            np.mean([ratio for (workload, _), ratio in mean.items() if workload != held_out])
            for mean in means
        ]
        chosen[held_out] = int(np.argmin(scores))
    return HeldOut(
        pd.concat(
            [tables[index].query(f"workload == {name!r}") for name, index in chosen.items()],
            ignore_index=True,
        ),
        {name: CHOICES[index] for name, index in chosen.items()},
    )
