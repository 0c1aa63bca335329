"""Work to quality as a law of the global batch: larger batches need more samples to reach a target.

The samples that a benchmark needs grow as ``w0 (1 + B / B_crit)`` (McCandlish et al., An Empirical Model
of Large-Batch Training, 2018): below the critical batch more samples a step save as many steps, far above it
none. All who train a benchmark share the law. A Gaussian process over the logarithm of the batch holds
how far a benchmark departs from it, and every submitter has a level of its own.

``B_crit`` is the one parameter that cannot be solved for. Before any evidence it is the largest batch that
is in use: at the critical batch, McCandlish et al. say, both time and work are twice their least, and people
choose batches about there.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import norm

Floats = NDArray[np.float64]

CRITICAL_SD = 0.7
"""Of the logarithm of the critical batch over the largest batch in use: a factor of two either way."""

DEPARTURE = 0.12
"""Relative: how far the work of a benchmark departs from the law."""

_DEPARTURE_LENGTH = 0.5
"""Distance in the logarithm of the batch over which such a departure lasts."""

SUBMITTER_SD = 0.03
"""Relative: how far the level of one submitter is from that of the others."""

_NOISE = 0.03
"""Relative: mean work of the runs of one setting."""

_ANY_LEVEL = 100.0
"""Prior variance of the logarithm of ``w0``: nothing is known of it."""

_TAIL = 4.0
"""Degrees of freedom of the noise: one submitter that trains oddly is left out by degrees."""

_GRID = norm.ppf((np.arange(200) + 0.5) / 200)
"""Equally likely values of a standard normal: the critical batches that are weighed."""


@dataclass(frozen=True)
class WorkLaw:
    """The law of one benchmark; :meth:`of` fits it, :meth:`draws` asks for the work at a batch.

    Attributes:
        points: mean work by ``submitter`` and ``batch``, columns ``submitter, batch, samples``.
    """

    points: pd.DataFrame

    @classmethod
    def of(cls, runs: pd.DataFrame) -> "WorkLaw":
        """Fit to runs of one benchmark in one unit of work: ``submitter``, ``batch``, ``samples``."""
        usable = runs[(runs["batch"] > 0) & (runs["samples"] > 0)]
        by = [usable["submitter"], usable["batch"]]
        return cls(usable["samples"].groupby(by).mean().reset_index())

    def draws(self, submitter: str, batch: float, normal: Floats) -> Floats:
        """Work of a submitter at a batch, one draw for each of the standard normal ``normal``.

        NaN where the law was fitted to no run.
        """
        if self.points.empty:
            return np.full(len(normal), np.nan)
        means, variance, weights = self._posterior(submitter, batch)
        middle = float(means @ weights)
        sd = float(np.sqrt(variance + (means - middle) ** 2 @ weights))
        return np.asarray(np.exp(middle + sd * normal))

    def _posterior(self, submitter: str, batch: float) -> tuple[Floats, float, Floats]:
        """Logarithm of the work for each critical batch of the grid: means, variance around them, and
        the weights of the critical batches."""
        logs = np.log(np.append(self.points["batch"].to_numpy(float), batch))
        names = np.append(self.points["submitter"].to_numpy(object), submitter)
        work = np.log(self.points["samples"].to_numpy(float))
        known = len(work)
        apart = (logs[:, None] - logs[None]) / _DEPARTURE_LENGTH
        alike = DEPARTURE**2 * np.exp(-(apart**2) / 2) + _ANY_LEVEL
        alike = alike + SUBMITTER_SD**2 * (names[:, None] == names[None])
        # The largest batch in use by the one who asks: others may use less of the same machine.
        own = names == submitter
        critical = logs[own].max() + CRITICAL_SD * _GRID
        law = np.log1p(np.exp(logs[:, None] - critical[None]))
        noise = np.full(known, _NOISE**2)
        residuals = work[:, None] - law[:known]
        weights, inverse = np.empty(0), np.empty(0)
        for _ in range(4):
            inverse = np.linalg.inv(alike[:known, :known] + np.diag(noise))
            likely = -0.5 * (residuals * (inverse @ residuals)).sum(axis=0)
            weights = np.exp(likely - likely.max())
            weights /= weights.sum()
            left = residuals @ weights
            missed = left - alike[:known, :known] @ inverse @ left
            noise = _NOISE**2 * (_TAIL + missed**2 / _NOISE**2) / (_TAIL + 1)
        towards = alike[known, :known] @ inverse
        means = law[known] + towards @ residuals
        variance = float(alike[known, known] - towards @ alike[:known, known])
        return means, max(variance, 0.0), weights
