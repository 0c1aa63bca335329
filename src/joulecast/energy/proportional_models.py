"""The proportional rivals: energy is node-seconds times a power that depends on utilisation.

LP1 to LP4 are the four linear models (a reconstruction after Dayarathna et al. 2016; it is not public which
models the MC2 paper means). The others are models that a user would try first. N is the number of metered
units, T the time of the run in s, and u a mean utilisation from 0 to 1. It is the host's utilisation if the
record has it, and otherwise the parallel efficiency against the workload's smallest node count.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from joulecast.energy.smallest_scale import idle_floors
from joulecast.runs.observations import UTILISATIONS, of_usual_batch

Watts = dict[str, float | None]
"""``idle_w``, ``full_w`` and ``tdp_w`` of a platform; absent or ``None`` where it is not known."""

Curve = Callable[[pd.Series], pd.Series]


def _linear(u: pd.Series) -> pd.Series:
    return u


def _fan_curve(u: pd.Series) -> pd.Series:
    u = u.clip(0, 1)
    return 2 * u - u**1.4


@dataclass(frozen=True)
class Context:
    """What every rival gets: the runs of the fit with their utilisations, the idle power of a metered
    unit, and the platform's watts if they are known."""

    training: pd.DataFrame
    idle_w: float
    full_w: float | None
    tdp_w: float | None

    @classmethod
    def of(cls, training: pd.DataFrame, calibration: pd.DataFrame, watts: Watts) -> "Context":
        """The context of a fit on one platform. The idle power comes from calibration runs; if there are
        none, from the readings around the runs; if there are none, from the platform's watts."""
        training = training[training["energy_j"].notna()]
        idle = calibration[calibration["kind"] == "idle"]
        idle_w = float((idle["energy_j"] / idle["total_s"] / idle["metered_units"]).mean())
        if not np.isfinite(idle_w):
            # Without calibration runs, the idle power is the same as in MC2.
            seen = idle_floors(training) if "lowest_w" in training else {}
            idle_w = float(np.mean([*seen.values()] or [watts.get("idle_w") or 0.0]))
        context = cls(training, idle_w, watts.get("full_w"), watts.get("tdp_w"))
        return cls(
            context.with_utilisation(training, training["total_s"], own=True),
            idle_w,
            watts.get("full_w"),
            watts.get("tdp_w"),
        )

    def with_utilisation(self, runs: pd.DataFrame, total_s: pd.Series, own: bool) -> pd.DataFrame:
        """``runs`` with utilisations. If ``own``, they are the runs' own utilisations. Otherwise, they are
        means over the fit's runs of the same network.

        If no utilisation was read, the parallel efficiency at ``total_s`` is used.
        """
        if runs["u_cpu"].isna().all():
            paces = self.training["nodes"] * self.training["total_s"] / self.training["samples"]
            alone = runs["workload"].map(_of_smallest(self, paces))
            efficiency = alone * runs["samples"] / (runs["nodes"] * total_s)
            # For a workload that the fit did not see, the efficiency is assumed to be 1.
            return runs.assign(u_cpu=efficiency.fillna(1.0))
        if own:
            return runs
        means = self.training.groupby("workload")[list(UTILISATIONS)].mean()
        return runs.assign(**{name: runs["workload"].map(means[name]) for name in UTILISATIONS})


Rival = Callable[[Context, pd.DataFrame, pd.Series], pd.Series]
"""A rival is a function: (context, runs to predict with utilisations, their times in s) -> energy in J."""


def _unit_seconds(runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    return runs["metered_units"] * total_s


def _mean_power(context: Context) -> pd.Series:
    runs = context.training
    return runs["energy_j"] / _unit_seconds(runs, runs["total_s"])


def _dynamic_power(context: Context, runs: pd.DataFrame, curve: Curve) -> pd.Series:
    """Watts above idle at utilisation 1. They follow from the platform's full watts or, if these are not
    known, from the fit's runs of each network."""
    if context.full_w is not None:
        return pd.Series(context.full_w - context.idle_w, index=runs.index)
    seen = context.training
    slope = (_mean_power(context) - context.idle_w) / curve(seen["u_cpu"])
    by_workload = slope.groupby(seen["workload"]).median()
    return runs["workload"].map(by_workload).fillna(float(slope.median()))


def lp1(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T P_TDP``. If no nameplate is known, P_TDP is the platform's full watts or, if these are not known,
    the highest mean power of the fit's runs."""
    highest = context.full_w if context.full_w is not None else float(_mean_power(context).max())
    nameplate = context.tdp_w if context.tdp_w is not None else highest
    return _unit_seconds(runs, total_s) * nameplate


def lp2(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T P_max u``."""
    highest = context.idle_w + _dynamic_power(context, runs, _linear)
    return _unit_seconds(runs, total_s) * highest * runs["u_cpu"]


def lp3(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T (P_0 + (P_max - P_0) u)``."""
    dynamic = _dynamic_power(context, runs, _linear) * runs["u_cpu"]
    return _unit_seconds(runs, total_s) * (context.idle_w + dynamic)


def lp4(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T (P_0 + sum c_i u_i)`` over CPU, memory and network, non-negative coefficients."""
    columns = list(UTILISATIONS)
    observed = context.training[columns].fillna(0.0).to_numpy(float)
    scale = np.where(observed.max(axis=0) > 0, observed.max(axis=0), 1.0)
    excess = (_mean_power(context) - context.idle_w).clip(lower=0).to_numpy(float)
    coefficients = nnls(observed / scale, excess)[0] / scale
    dynamic = runs[columns].fillna(0.0).to_numpy(float) @ coefficients
    return _unit_seconds(runs, total_s) * (context.idle_w + dynamic)


def fan(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T (P_0 + (P_max - P_0)(2 u - u^1.4))``, Fan et al. 2007."""
    dynamic = _dynamic_power(context, runs, _fan_curve) * _fan_curve(runs["u_cpu"])
    return _unit_seconds(runs, total_s) * (context.idle_w + dynamic)


def node_hours(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """``N T P_1``. For each network, P_1 is the mean power on the fit's smallest node count."""
    power = _of_smallest(context, _mean_power(context))
    return _unit_seconds(runs, total_s) * runs["workload"].map(power)


def work(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """The number of samples, multiplied by joules per sample. For each network, the joules per sample come
    from the fit's smallest node count."""
    training = context.training
    return runs["samples"] * runs["workload"].map(
        _of_smallest(context, training["energy_j"] / training["samples"])
    )


def mean_joules(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """The number of samples, multiplied by joules per sample. For each network, the joules per sample are the
    mean over the fit's runs."""
    training = context.training
    per_sample = (training["energy_j"] / training["samples"]).groupby(training["workload"]).mean()
    return runs["samples"] * runs["workload"].map(per_sample)


def power_law(context: Context, runs: pd.DataFrame, total_s: pd.Series) -> pd.Series:
    """The number of samples, multiplied by the joules per sample on the fit's smallest node count, and by a
    power of the node count (divided by the smallest one).

    If the network ran on several counts, the exponent is its own. Otherwise it is the mean of the exponents
    of the other networks.
    """
    training = of_usual_batch(context.training)
    joules = np.log(training["energy_j"] / training["samples"])
    exponents = {
        name: float(np.polyfit(np.log(of["nodes"].astype(float)), joules[of.index], 1)[0])
        for name, of in training.groupby("workload")
        if of["nodes"].nunique() > 1
    }
    usual = float(np.mean([*exponents.values()] or [0.0]))
    fewest = runs["workload"].map(training.groupby("workload")["nodes"].min())
    times = (runs["nodes"] / fewest) ** runs["workload"].map(exponents).fillna(usual)
    return work(context, runs, total_s) * times


def _of_smallest(context: Context, quantity: pd.Series) -> pd.Series:
    training = context.training
    smallest = training.groupby("workload")["nodes"].transform("min") == training["nodes"]
    # A sweep over batches is left out: only MC2 needs it.
    usual = of_usual_batch(training)
    chosen = usual[smallest[usual.index]]
    return quantity[chosen.index].groupby(chosen["workload"]).mean()


MODELS: dict[str, Rival] = {
    "LP1": lp1,
    "LP2": lp2,
    "LP3": lp3,
    "LP4": lp4,
    "Fan": fan,
    "node-hours": node_hours,
    "work": work,
    "mean-J/sample": mean_joules,
    "energy power law": power_law,
}
"""Rivals by name: (context, runs to predict, their times) -> energy in J."""
