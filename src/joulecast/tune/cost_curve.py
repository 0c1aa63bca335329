"""Predicts the cost of batch sizes from the costs of a few others, by a Bayesian curve over the batch size.

The logarithm of the mean cost is modelled as a parabola in x = log2(batch size / default) that opens upwards,
plus a deviation for every size. The reasons for this form: below some size, a step no longer fills the
device; above some size, more samples in a step save no epochs (McCandlish et al. 2018, "An empirical model of
large-batch training"). The three coefficients have a normal prior (Rasmussen and Williams 2006, section 2.1).
The prior is the same for all workloads.
"""

from collections.abc import Mapping, Sequence
from math import erf, exp, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

# The belief about cost curves before anything is tried, all in log cost: the standard deviation of the level;
# of the slope, for each doubling of the batch size; the mean and the standard deviation of the curvature, for
# each doubling squared; and the standard deviation of a batch size from the parabola.
_LEVEL_SD, _SLOPE_SD, _CURVATURE, _CURVATURE_SD, _DEVIATION_SD = 2.0, 0.3, 0.05, 0.06, 0.1
# A curve relative to earlier costs has only this share of the slope and the curvature.
_EARLIER_SHARE = 0.3
# A normal distribution is divided into eight slices of equal probability. These are their means.
_SLICES = (-1.65, -0.9, -0.49, -0.16, 0.16, 0.49, 0.9, 1.65)


class CostCurve:
    """Beliefs about the cost of every batch size.

    Args:
        batch_sizes: batch sizes, ascending.
        default: the batch size at x = 0.
        earlier: by batch size, the log cost of earlier runs on another device. The curve then describes the
            ratio to these costs.

    Attributes:
        shape: expected log cost of every batch size before anything is seen, up to a constant.
    """

    def __init__(
        self, batch_sizes: Sequence[int], default: int, earlier: Mapping[int, float] | None
    ) -> None:
        x = np.log2(np.array(batch_sizes, float) / default)
        share = 1.0 if earlier is None else _EARLIER_SHARE
        features = np.stack([np.ones_like(x), x, x**2])
        spread = np.array([_LEVEL_SD, share * _SLOPE_SD, share * _CURVATURE_SD]) ** 2
        self._covariance = features.T @ (spread[:, None] * features)
        self._covariance += _DEVIATION_SD**2 * np.eye(len(x))
        self.shape = _CURVATURE * x**2
        if earlier is not None:
            known = np.array([batch in earlier for batch in batch_sizes])
            costs = np.array([earlier.get(batch, 0.0) for batch in batch_sizes])
            if known.any():
                # Between known sizes, the curve is interpolated. Beyond them, it is constant.
                self.shape = np.interp(x, x[known], costs[known])
        self._index = {batch: i for i, batch in enumerate(batch_sizes)}

    def believe(
        self, seen: Mapping[int, tuple[float, float]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Normal beliefs about the logarithm of the mean cost, after some costs were seen: the mean for every
        batch size, and the covariance of all batch sizes.

        Args:
            seen: by batch size, the logarithm of the mean cost, and the variance of this logarithm.
        """
        at = [self._index[batch] for batch in seen]
        log_costs = np.array([cost for cost, _ in seen.values()])
        variances = np.array([variance for _, variance in seen.values()])
        prior = self.shape + (log_costs[0] - self.shape[at[0]])
        of_seen = self._covariance[at]
        weights = np.linalg.solve(of_seen[:, at] + np.diag(variances), of_seen)
        mean = prior + (log_costs - prior[at]) @ weights
        return mean, self._covariance - of_seen.T @ weights


def expected_improvement(better_by: float, sd: float) -> float:
    """Mean of the positive part of a normal variable (Jones et al. 1998).

    Args:
        better_by: mean of the variable.
        sd: standard deviation of the variable.
    """
    z = better_by / sd
    return better_by * 0.5 * (1 + erf(z / sqrt(2))) + sd * exp(-z * z / 2) / sqrt(2 * pi)


def expected_excess(better_by: float, sd: float, beta: float) -> float:
    """Expected extra cost of trying a size once, in place of the best known size. It is divided by the cost
    of the best size.

    A try that reaches ``beta`` times the best cost is stopped. Then the best size has to be run after it.

    Args:
        better_by: expected difference: log of the best cost minus log of the cost of the try.
        sd: standard deviation of this difference.
    """
    costs = [exp(sd * slice_ - better_by) for slice_ in _SLICES]
    return sum(cost - 1 if cost <= beta else beta for cost in costs) / len(costs)


def pooled_variance(logs: Sequence[Sequence[float]], first_sd: float, least_sd: float) -> float:
    """Variance of the log cost within a batch size. It is assumed to be the same for all sizes.

    Args:
        logs: log costs of every batch size.
        first_sd: standard deviation before anything is seen. It has the weight of two observations.
        least_sd: smallest allowed standard deviation.
    """
    squares, n = 2 * first_sd**2, 2
    for values in logs:
        if len(values) > 1:
            mean = sum(values) / len(values)
            squares += sum([(value - mean) ** 2 for value in values])
            n += len(values) - 1
    return max(squares / n, least_sd**2)


def log_mean(values: Sequence[float]) -> float:
    """Logarithm of the mean of some values."""
    return log(sum(values) / len(values))
