"""Beliefs about a number that every workload has its own value of, and that few of them show.

A workload that shows it is believed itself, one that does not inherits the mean of the others, and a
prior stands in until they are enough: each weighs by its precision. One that is odd weighs little: it
moves the mean by less than the spread between workloads.
"""

from collections.abc import Iterable
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
