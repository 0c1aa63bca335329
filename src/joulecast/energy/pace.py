"""How much slower work is done on more nodes: the time model of runs that only have a log.

Node-seconds per unit of work grow as ``1 + rho (N - 1) B_0/B``: a step of B samples computes for as long as
its samples take, and each node beyond the first adds to the time that all of them wait in it.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.energy.calibrated import Calibrated
from joulecast.energy.priors import Gaussian

Floats = NDArray[np.float64]

_RHO_PRIOR = 0.06
"""Exposed over computing seconds that each node beyond the first adds to a step, before any evidence."""

_RHO_PRIOR_SD = 0.7
"""Of the logarithm of the mean rho."""

RHO_SPREAD = 0.3
"""Of the logarithm of rho between workloads."""

_RHO_NOISE = 0.2
"""Of the logarithm of a workload's own rho, at most."""

_RHO_LEAST = 0.003
"""Nothing divides perfectly; what seems to is taken for this."""

_PACE_NOISE = 0.01
"""Relative: how well the pace of a setting is known."""

RHO = Gaussian(math.log(_RHO_PRIOR), _RHO_PRIOR_SD)
"""Logarithm of the mean rho of all workloads, before any evidence."""


def slower(rho: Floats | float, more: float) -> Floats:
    """Node-seconds per unit of work over those of one node, with ``more`` nodes beyond the first that
    divide the calibration's batch."""
    return np.maximum(1 + np.asarray(rho) * more, 1e-3)


def batch_ratio(calibrated: float, batch: Any) -> Floats:
    """``B_0 / B``; 1 where a log does not tell its batch."""
    ratio = calibrated / np.asarray(batch, dtype=float)
    return np.where(np.isfinite(ratio), ratio, 1.0)


def rho_of(larger: pd.DataFrame, base: Calibrated) -> Gaussian:
    """Logarithm of rho of a workload, from the paces at its larger node counts."""
    more = (larger["nodes"] - 1) * batch_ratio(base.batch, larger["batch"])
    slowdown = larger["nodes"] * larger["training_s"] / larger["samples"] / base.pace
    # slowdown = (1 + rho more) / (1 + rho (base.nodes - 1)), solved for rho
    growth = more - slowdown * (base.nodes - 1)
    usable = growth > 0.1
    if not usable.any():
        return RHO
    grown = float(growth[usable].mean())
    rho = max(_RHO_LEAST, float((slowdown[usable] - 1).mean()) / grown)
    # The less there is to wait for, the less its logarithm is known, and the less that matters.
    return Gaussian(math.log(rho), min(_RHO_NOISE, _PACE_NOISE / (rho * grown)))


def evaluating_rho_of(larger: pd.DataFrame, base: Calibrated, rho: float) -> float:
    """Factor by which a workload's evaluations lose more by division than its training."""
    if base.evaluating_pace <= 0:
        return 1.0
    spent = larger["nodes"] * larger["evaluating_s"] / larger["samples"]
    slowdown = spent / base.evaluating_pace
    growth = larger["nodes"] - 1 - slowdown * (base.nodes - 1)
    own = ((slowdown - 1) / growth)[(growth > 0.1) & (slowdown > 0)]
    return max(0.0, float(own.mean())) / rho if len(own) else 1.0
