"""Beliefs about a number of each workload, such as kappa, that the runs of few workloads show.

A workload whose runs show the number keeps it. Another inherits the mean of those that do. While these are
few, a prior counts too. All weigh by their precision; an odd workload weighs little, so that it moves the
mean by less than the spread between workloads.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNSEEN = ""
"""Key of what is believed of a workload that no fit has seen."""

SPREAD_WORTH = 4.0
"""The number of workloads that the guess of the spread between them is worth."""

_TAIL = 3.0
"""Degrees of freedom of how workloads differ: the fewer, the less an odd one counts."""

_ODD = 3.0
"""Spreads from the prior beyond which a workload says nothing more of the spread between workloads."""

KAPPA_RANGE = (0.0, 3.0)
"""What a device can do: at no duty may it draw less than the line to idle says, nor, at 0.7, more than
at 1."""

_UNSEEN_SPREAD = 0.03
"""Relative: excess power at full duty between workloads."""

_UNSEEN_DRIFT_PER_DOUBLING = 0.03
"""Relative half width added for a workload that was not run: it may not be at full duty on more nodes."""


@dataclass(frozen=True)
class Gaussian:
    """A belief about one number."""

    mean: float
    sd: float


def _combined(prior: Gaussian, values: Floats, sds: Floats) -> Gaussian:
    """Normal posterior of a mean: prior and observations weigh by their precisions."""
    weights = np.concatenate([[prior.sd**-2], sds**-2.0])
    mean = float(np.average(np.concatenate([[prior.mean], values]), weights=weights))
    return Gaussian(mean, float(weights.sum() ** -0.5))


def _pooled(prior: Gaussian, spread: float, values: dict[str, Gaussian]) -> tuple[Gaussian, float]:
    """Belief about the mean over workloads, and their spread around it."""
    if not values:
        return prior, spread
    means = np.array([v.mean for v in values.values()])
    sds = np.array([v.sd for v in values.values()])
    mean = prior
    for _ in range(20):
        # Student's distribution by weights: what lies far from the mean counts as measured badly.
        apart = ((means - mean.mean) / np.hypot(sds, spread)) ** 2
        widened = np.hypot(sds, spread) * np.sqrt((_TAIL + apart) / (_TAIL + 1))
        mean = _combined(prior, means, widened)
    away = np.clip(means - mean.mean, -_ODD * spread, _ODD * spread)
    between = SPREAD_WORTH * spread**2 + float((away**2).sum())
    return mean, float(np.sqrt(between / (SPREAD_WORTH + len(means))))


def beliefs_of(
    prior: Gaussian,
    spread: float,
    seen: dict[str, Gaussian],
    workloads: Iterable[str],
    pooled: bool = True,
) -> dict[str, Gaussian]:
    """Belief about a parameter of every workload: from itself where it shows it, and from the others."""
    beliefs = {}
    for network in (*workloads, UNSEEN):
        others = {name: value for name, value in seen.items() if name != network}
        mean, between = _pooled(prior, spread, others if pooled else {})
        of_any = Gaussian(mean.mean, float(np.hypot(mean.sd, between)))
        own = seen.get(network)
        beliefs[network] = (
            of_any if own is None else _combined(of_any, np.array([own.mean]), np.array([own.sd]))
        )
    return beliefs


def spread_of_unseen(excess_w: Sequence[float], smallest: float, nodes: float) -> float:
    """Relative spread of the excess power of a workload that was not run.

    Args:
        excess_w: excess powers of the workloads that were run.
        smallest: node count of their calibrations.
        nodes: of the workload that is asked for.
    """
    mean = float(np.mean(excess_w))
    among = float(np.std(excess_w)) / mean if mean > 0 else 0.0
    doublings = max(0.0, math.log2(nodes / smallest))
    return math.hypot(max(among, _UNSEEN_SPREAD), _UNSEEN_DRIFT_PER_DOUBLING * doublings)


def drawn_kappas(kappa: Gaussian, random: np.random.Generator, draws: int) -> Floats:
    """Draws of kappa; few workloads say how workloads differ, so the tails are heavy."""
    drawn = kappa.mean + kappa.sd * random.standard_t(SPREAD_WORTH, draws)
    return np.asarray(np.clip(drawn, *KAPPA_RANGE))
