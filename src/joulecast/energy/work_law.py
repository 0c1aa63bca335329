"""Work to quality as a law of the global batch: larger batches need more samples to reach a target.

The samples that a benchmark needs grow as ``w0 (1 + B / B_crit)`` (McCandlish et al., An Empirical Model
of Large-Batch Training, 2018). Far below the critical batch, more samples in a step save as many steps.
Far above it, they save none. All who train a benchmark share the law. A Gaussian process over the
logarithm of the batch says how far a benchmark departs from it. Every submitter has its own level.

``B_crit`` is the only parameter that cannot be solved for. Its prior is the batch that is requested, or the
largest batch that the submitter ran. The reason: at the critical batch, McCandlish et al. say, time and work
are both twice their least, and people choose batches near it. With a probability of one in ten, the work does
not depend on the batch at all.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]

CRITICAL_SD = 0.7
"""Prior standard deviation of the logarithm of the critical batch: a factor of two in either direction."""

DEPARTURE = 0.12
"""Relative standard deviation of the departure of a benchmark's work from the law."""

_DEPARTURE_LENGTH = 0.5
"""Distance in the logarithm of the batch over which a departure from the law stays similar."""

SUBMITTER_SD = 0.03
"""Relative standard deviation of the levels of submitters."""

_NOISE = 0.03
"""Relative standard deviation of the mean work of the runs of one setting."""

_ANY_LEVEL = 100.0
"""Prior variance of the logarithm of ``w0``. It is large, because nothing is known of ``w0``."""

_TAIL = 4.0
"""Degrees of freedom (Student's t) of the noise. The odder the work of a submitter is, the less it counts."""

_GRID = ndtri((np.arange(200) + 0.5) / 200)
"""Equally likely standard normal numbers. Each stands for a critical batch, which gets a weight."""

_NO_DEPENDENCE = 0.1
"""Prior probability that work does not depend on the batch."""

_PRIOR = np.append(np.full(len(_GRID), (1 - _NO_DEPENDENCE) / len(_GRID)), _NO_DEPENDENCE)

_FARTHEST = 32.0
"""The middle of the prior for the critical batch is at most this many times the largest batch that was run,
even if a larger batch is requested."""


@dataclass(frozen=True, eq=False)
class WorkLaw:
    """The law of one benchmark. :meth:`of` fits it. :meth:`draws` gives the work at a batch.

    Attributes:
        points: mean work by ``submitter`` and ``batch``, columns ``submitter, batch, samples``.
    """

    points: pd.DataFrame
    _known: dict[tuple[str, float], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: pd.DataFrame) -> "WorkLaw":
        """Fit to runs of one benchmark in one unit of work: ``submitter``, ``batch``, ``samples``."""
        usable = runs[(runs["batch"] > 0) & (runs["samples"] > 0)]
        by = [usable["submitter"], usable["batch"]]
        return cls(usable["samples"].groupby(by).mean().reset_index())

    def draws(self, submitter: str, batch: float, normal: Floats) -> Floats:
        """Work of a submitter at a batch: one draw for each number in ``normal`` (standard normal numbers).

        NaN if the law was fitted to no run, or if the batch is not known.
        """
        if self.points.empty or np.isnan(batch):
            return np.full(len(normal), np.nan)
        largest = max(self._largest(submitter), 1.0)
        # Beyond the batches that were run, a larger batch never needs less work. So this is the most work of
        # all doublings up to the batch.
        octaves = np.arange(0, max(0, int(np.log2(batch / largest)))) if batch > largest else ()
        smaller = [largest * 2.0**octave for octave in octaves]
        middles = [self._middle(submitter, asked) for asked in (*smaller, batch)]
        return np.asarray(np.exp(np.max([m + sd * normal for m, sd in middles], axis=0)))

    def _largest(self, submitter: str) -> float:
        """The largest batch that the submitter ran; if it ran none, the largest that anyone ran."""
        own = self.points["submitter"] == submitter
        return float(self.points.loc[own if own.any() else slice(None), "batch"].max())

    def _middle(self, submitter: str, batch: float) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of the work."""
        key = submitter, batch
        if key not in self._known:
            means, variance, weights = self._posterior(submitter, batch)
            middle = float(means @ weights)
            sd = float(np.sqrt(variance + (means - middle) ** 2 @ weights))
            self._known[key] = middle, sd
        return self._known[key]

    def _posterior(self, submitter: str, batch: float) -> tuple[Floats, float, Floats]:
        """Logarithm of the work for each critical batch of the grid: means, variance around them, and
        the weights of the critical batches. The last critical batch is infinite."""
        logs = np.log(np.append(self.points["batch"].to_numpy(float), batch))
        names = np.append(self.points["submitter"].to_numpy(object), submitter)
        work = np.log(self.points["samples"].to_numpy(float))
        known = len(work)
        apart = (logs[:, None] - logs[None]) / _DEPARTURE_LENGTH
        alike = DEPARTURE**2 * np.exp(-(apart**2) / 2) + _ANY_LEVEL
        alike = alike + SUBMITTER_SD**2 * (names[:, None] == names[None])
        largest = np.log(self._largest(submitter))
        centre = np.clip(logs[-1], largest, largest + np.log(_FARTHEST))
        law = np.log1p(np.exp(logs[:, None] - centre - CRITICAL_SD * _GRID[None]))
        law = np.concatenate([law, np.zeros((len(logs), 1))], axis=1)
        noise = np.full(known, _NOISE**2)
        residuals = work[:, None] - law[:known]
        weights, inverse = np.empty(0), np.empty(0)
        for _ in range(4):
            inverse = np.linalg.inv(alike[:known, :known] + np.diag(noise))
            likely = -0.5 * (residuals * (inverse @ residuals)).sum(axis=0)
            weights = _PRIOR * np.exp(likely - likely.max())
            weights /= weights.sum()
            left = residuals @ weights
            missed = left - alike[:known, :known] @ inverse @ left
            noise = _NOISE**2 * (_TAIL + missed**2 / _NOISE**2) / (_TAIL + 1)
        towards = alike[known, :known] @ inverse
        means = law[known] + towards @ residuals
        variance = float(alike[known, known] - towards @ alike[:known, known])
        return means, max(variance, 0.0), weights
