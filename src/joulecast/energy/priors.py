"""Priors for a number, such as kappa. Every workload has this number, but the runs of only a few workloads
show it.

If the runs of a workload show the number, it is weighed against the prior, by their precisions. Another
workload gets the prior.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNSEEN = ""
"""Key of what is believed of a workload that no fit has seen."""

_TAIL = 4.0
"""Degrees of freedom (Student's t) of the differences between workloads, because few workloads are known."""

KAPPA_RANGE = (0.0, 3.0)
"""Least and largest kappa that is possible. Below it, a device at partial duty would draw less than the
straight line to idle says. Above it, a device at a duty of 0.7 would draw more than at full duty."""

_UNSEEN_SPREAD = 0.03
"""Least relative spread of the excess power at full duty between workloads."""

_UNSEEN_DRIFT_PER_DOUBLING = 0.03
"""Relative spread that each doubling of the nodes adds for a workload that was not run: on more nodes, it may
not be at full duty."""


@dataclass(frozen=True)
class Gaussian:
    """A belief about one number."""

    mean: float
    sd: float


def weighed(prior: Gaussian, seen: Gaussian) -> Gaussian:
    """The belief about a number after it was seen. Prior and observation are weighed by their precisions."""
    weights = np.array([prior.sd, seen.sd]) ** -2.0
    mean = float(np.average([prior.mean, seen.mean], weights=weights))
    return Gaussian(mean, float(weights.sum() ** -0.5))


def spread_of_unseen(excess_w: Sequence[float], smallest: float, nodes: float) -> float:
    """Relative spread of the excess power of a workload that was not run.

    Args:
        excess_w: excess powers of the workloads that did run.
        smallest: node count of the calibrations of these workloads.
        nodes: node count of the workload that is requested.
    """
    mean = float(np.mean(excess_w))
    among = float(np.std(excess_w)) / mean if mean > 0 else 0.0
    doublings = max(0.0, math.log2(nodes / smallest))
    return math.hypot(max(among, _UNSEEN_SPREAD), _UNSEEN_DRIFT_PER_DOUBLING * doublings)


def drawn_kappas(kappa: Gaussian, random: np.random.Generator, draws: int) -> Floats:
    """Draws of kappa. Only a few workloads show how workloads differ, so the tails are heavy."""
    drawn = kappa.mean + kappa.sd * random.standard_t(_TAIL, draws)
    return np.asarray(np.clip(drawn, *KAPPA_RANGE))
