"""The rate of runs: how long a step takes. It is learnt from own runs and from runs of others.

A step has B samples on n accelerators of N nodes, so ``b = B / n`` samples on each accelerator. It takes, by
MC2's terms::

    c [ b/b0 (1 + k m) + tau + d m (1 + g log2 N) ]        m = 1 on several nodes, else 0

``c`` is the time to compute b0 samples; b0 is the number of samples of an accelerator at the smallest own
scale. ``tau``, ``k`` and ``d`` are shares of ``c``: ``tau`` is the fixed cost of a step, ``k`` stands for
exchanges that grow with the samples, and ``d`` is the exposed exchange of gradients. ``g`` is the growth of
``d`` with the nodes. A run takes work/B such steps, and ``start_s`` seconds that no scale shortens. These are
the seconds in which the run stands still, if its log shows them.

Two own scales cannot determine all these values. So many sets of values are kept. Each set has a weight. It
says how well the set agrees with the own runs, and with beliefs about the size of the values: a step on one
node is nearly all computing. Other submitters who ran the same benchmark on several scales count, too, each
with its own ``c``. They count less if their accelerator is another one. Other benchmarks of the submitter
count only if a series on one scale has no such neighbour, because their shares say little about this one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from joulecast.energy.intervals import Z90, judged_widths
from joulecast.runs.observations import most_frequent

Floats = NDArray[np.float64]

BELIEFS = {
    "tau": (0.01, 1.5),
    "k": (0.03, 1.0),
    "d": (0.03, 1.2),
    "g": (0.1, 1.0),
    "start": (0.01, 1.0),
}
"""For each value, before any evidence: its median, and the standard deviation of its logarithm. ``start`` is
a share of the shortest own run, if its log does not show the start. The docstring of the module defines the
other values. All numbers here are round, and were written down before the first fit."""

OWN_NOISE = 0.02
"""Relative error (standard deviation) of the equation of this module, for the mean time of an own setting."""

ALIKE_NOISE, UNLIKE_NOISE = 0.03, 0.2
"""Relative errors (standard deviations) of the equation of this module for the runs of others: for runs with
the same accelerator, and for runs with another one. The first number follows from how much faster several
nodes are than one: in this ratio, submitters of one benchmark differ by 4 % (median of the recorded
benchmarks), and a ratio has two scales."""

_OTHER_NOISE = 0.3
"""Relative error (standard deviation) of the equation of this module for other benchmarks of the
submitter."""

_TAIL = 4.0
"""Degrees of freedom (Student's t) of the errors for the runs of others, so that odd runs count little."""

_UNKNOWN_BATCH = 0.1
"""Relative error of the equation of this module for each doubling beyond the own scales, if the logs do not
show the batch."""

_LEAST_SPREAD = 0.005
"""Least relative spread of the time between repeats of a run."""

_LEAST_START = 0.001
"""Least ``start_s``, as a share of the shortest own run. If the own runs did not stand still, another run may
still do so."""

_CANDIDATES = 1 << 12
_ROUNDS = 3
DRAWS = 2000

SCALE = ["nodes", "ranks", "batch"]
"""Columns that define a scale. ``ranks`` is the number of accelerators."""


@cache
def _sobol(count: int, dimensions: int, seed: int) -> Floats:
    """Standard normal numbers (count, dimensions) that fill the space evenly."""
    from scipy.stats import qmc  # takes as long to load as pandas

    uniform = qmc.Sobol(dimensions, seed=seed).random(count)
    return np.asarray(ndtri(np.clip(uniform, 1e-9, 1 - 1e-9)))


def _means(values: Floats, group: NDArray[np.intp], groups: int) -> Floats:
    """Mean of the known values (runs,) of each group; NaN where none is known."""
    known = np.isfinite(values)
    counts = np.bincount(group[known], minlength=groups)
    sums = np.bincount(group[known], values[known], groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True)
class _Scales:
    """Mean times of some runs by scale, as arrays. ``stalled_s`` is NaN if the log does not show it.
    ``spread`` is the relative spread of the means."""

    nodes: Floats
    ranks: Floats
    batch: Floats
    work: Floats
    total_s: Floats
    stalled_s: Floats
    spread: Floats

    @classmethod
    def of(cls, runs: pd.DataFrame) -> "_Scales":
        """The scales of runs whose batch is known. If at most one scale has a batch, the batch is
        assumed to be the same on all."""
        if "stalled_s" not in runs:
            runs = runs.assign(stalled_s=np.nan)
        known = runs[runs["batch"].notna()]
        if known["ranks"].nunique() > 1:
            runs = known
        else:
            runs = runs.assign(
                batch=runs["batch"].fillna(most_frequent(known["batch"])).fillna(1.0)
            )
        # By numpy: a fit asks this hundreds of times, and pandas takes longer to group than all the rest.
        scales, of_run = np.unique(runs[SCALE].to_numpy(float), axis=0, return_inverse=True)
        work, total_s, stalled_s = (
            _means(runs[name].to_numpy(float), of_run, len(scales))
            for name in ("samples", "total_s", "stalled_s")
        )
        apart = (runs["total_s"].to_numpy(float) - total_s[of_run]) ** 2
        counts = np.bincount(of_run, minlength=len(scales))
        variance = np.bincount(of_run, apart, len(scales)) / np.maximum(counts - 1, 1)
        spread = np.sqrt(variance / counts) / total_s
        nodes, ranks, batch = scales.T
        return cls(nodes, ranks, batch, work, total_s, stalled_s, spread)

    @property
    def samples_each(self) -> Floats:
        """Samples of an accelerator in a step."""
        return self.batch / self.ranks

    @property
    def smallest_share(self) -> float:
        """Samples of an accelerator in a step at the smallest scale: ``b0``."""
        return float(self.samples_each[np.argmin(self.ranks)])


def _in_steps(scales: _Scales, b0: float, beliefs: Floats) -> Floats:
    """Seconds of a step, divided by ``c``: the time that one device needs to compute ``b0`` samples. Each row
    is a scale, each column a candidate."""
    tau, k, d, g = np.exp(beliefs[:, :4]).T
    several = (scales.nodes > 1)[:, None]
    doublings = np.log2(np.maximum(scales.nodes, 1))[:, None]
    share = (scales.samples_each / b0)[:, None]
    return np.asarray(share * (1 + k * several) + tau + d * several * (1 + g * doublings))


def _usual_start_s(own: _Scales) -> float:
    """The middle of the prior of ``start_s``: what the own runs show, else a share of the shortest run."""
    shortest_s = float(own.total_s.min())
    shown = np.isfinite(own.stalled_s)
    if shown.any():
        return max(float(own.stalled_s[shown].mean()), _LEAST_START * shortest_s)
    return BELIEFS["start"][0] * shortest_s


def _residuals(
    scales: _Scales, b0: float, usual_s: float, beliefs: Floats
) -> tuple[Floats, Floats]:
    """Logarithms of measured over predicted time, minus their mean; and this mean, the logarithm of c."""
    start_s, stalled_s = usual_s * np.exp(beliefs[:, 4]), scales.stalled_s[:, None]
    start_s = np.where(np.isnan(stalled_s), start_s, stalled_s)
    total_s, steps = scales.total_s[:, None], (scales.work / scales.batch)[:, None]
    working_s = np.maximum(total_s - start_s, 1e-3 * total_s)
    logs = np.log(working_s / (steps * _in_steps(scales, b0, beliefs)))
    level = logs.mean(axis=0)
    return logs - level, level


@dataclass(frozen=True)
class Rate:
    """What is known about the rate of one series of runs.

    ``beliefs`` are draws of the values, all equally likely. A row is a draw: logarithms, in the order of
    :data:`BELIEFS`. The draws also have the logarithm of c. ``own`` has the scales to which the rate was
    fitted. ``spread`` is the relative spread of single runs.
    """

    beliefs: Floats
    level: Floats
    b0: float
    own: _Scales
    knows_batch: bool
    spread: float

    def seconds(self, scale: pd.Series, work: Floats | float) -> Floats:
        """Seconds of a run with this work at a scale (``nodes``, ``ranks``, ``batch``), one for each draw."""
        asked = self._scale_of(scale)
        step_s = np.exp(self.level) * _in_steps(asked, self.b0, self.beliefs)[0]
        return np.asarray(work / asked.batch * step_s + self._start_s(float(scale["nodes"])))

    def _start_s(self, nodes: float) -> Floats | float:
        """Seconds that no scale shortens. They are interpolated (by the logarithm) between own node
        counts whose logs show them."""
        shown = np.isfinite(self.own.stalled_s)
        if not shown.any():
            return np.asarray(_usual_start_s(self.own) * np.exp(self.beliefs[:, 4]))
        order = np.argsort(self.own.nodes[shown])
        known = np.log(self.own.nodes[shown][order]), self.own.stalled_s[shown][order]
        return float(np.interp(np.log(nodes), *known))

    def computing_share(self, scale: pd.Series) -> float:
        """Node-seconds of a step on one node, divided by node-seconds of a step at a scale, with the same
        batch."""
        asked = self._scale_of(scale)
        alone = replace(asked, nodes=np.ones(1), ranks=asked.ranks / asked.nodes)
        step, on_one = (_in_steps(s, self.b0, self.beliefs)[0] for s in (asked, alone))
        return float(np.median(on_one / (asked.nodes * step)))

    def _scale_of(self, scale: pd.Series) -> _Scales:
        kept = not self.knows_batch or np.isnan(scale["batch"])
        values = (
            scale["nodes"],
            scale["ranks"],
            self.own.batch[0] if kept else scale["batch"],
            1.0,
            1.0,
            0.0,
            0.0,
        )
        return _Scales(*(np.array([float(value)]) for value in values))

    def noise(self, ranks: float, work: str) -> float:
        """Relative standard deviation of single runs around the expected time.

        Args:
            work: ``given`` or ``predicted``.
        """
        doublings = np.abs(np.log2(ranks / self.own.ranks))
        if not self.knows_batch:
            # The batch may have grown with the nodes or not. This is not known between the scales, either.
            beyond = doublings[np.argmax(self.own.ranks)]
            return float(np.hypot(self.spread, _UNKNOWN_BATCH * max(1.0, beyond)))
        away = judged_widths().of_times[work] / Z90 * np.sqrt(doublings.min())
        return float(np.hypot(self.spread, away))


@dataclass(frozen=True)
class Neighbours:
    """Runs outside of a series, in three tables: runs of the same benchmark with the same accelerator
    (``alike``), runs of the same benchmark with another accelerator (``unlike``), and runs of other
    benchmarks by the same submitter."""

    alike: list[pd.DataFrame]
    unlike: list[pd.DataFrame]
    other_benchmarks: list[pd.DataFrame]


def rate_of(own: pd.DataFrame, neighbours: Neighbours) -> Rate:
    """Give each set of values a weight. It says how well the set agrees with the runs of one series
    (``nodes``, ``ranks``, ``batch``, ``samples``, ``total_s``), and with the runs of its neighbours."""
    scales = _Scales.of(own)
    b0, usual_s = scales.smallest_share, _usual_start_s(scales)
    own_noise = np.hypot(OWN_NOISE, scales.spread)[:, None]
    others = [
        (theirs, noise, b0, usual_s)
        for tables, noise in ((neighbours.alike, ALIKE_NOISE), (neighbours.unlike, UNLIKE_NOISE))
        for theirs in map(_Scales.of, tables)
    ]
    if len(scales.ranks) == 1 and not neighbours.alike:
        others += [
            (theirs, _OTHER_NOISE, theirs.smallest_share, _usual_start_s(theirs))
            for theirs in map(_Scales.of, neighbours.other_benchmarks)
        ]

    def likely(beliefs: Floats) -> Floats:
        residuals, _ = _residuals(scales, b0, usual_s, beliefs)
        logs = -0.5 * ((residuals / own_noise) ** 2).sum(axis=0)
        for theirs, noise, of_b0, of_start_s in others:
            residuals, _ = _residuals(theirs, of_b0, of_start_s, beliefs)
            odd = np.log1p((residuals / noise) ** 2 / _TAIL)
            logs = logs - (_TAIL + 1) / 2 * odd.sum(axis=0)
        return np.asarray(logs)

    beliefs = _weighed(likely)
    spread = own["total_s"].groupby([own[c].fillna(-1.0) for c in SCALE])
    relative = (spread.std() / spread.mean()).dropna()
    return Rate(
        beliefs,
        _residuals(scales, b0, usual_s, beliefs)[1],
        b0,
        scales,
        bool(own["batch"].notna().any()),
        max(_LEAST_SPREAD, float(relative.median()) if len(relative) else OWN_NOISE),
    )


def _weighed(likely: Callable[[Floats], Floats]) -> Floats:
    """Draw equally likely values from the posterior, by importance sampling in rounds.

    Each round draws half of its candidates near the posterior of the last round, and half from the prior.
    """
    # The median of the start is 1, because it is a factor of the usual seconds.
    medians = np.log([1.0 if name == "start" else m for name, (m, _) in BELIEFS.items()])
    sds = np.array([sd for _, sd in BELIEFS.values()])
    size = len(BELIEFS)
    centre, root = np.zeros(size), np.eye(size)
    candidates, logs = np.empty((0, size)), np.empty(0)
    for turn in range(_ROUNDS):
        drawn = _sobol(_CANDIDATES, size, seed=turn)
        half = len(drawn) // 2 if turn else 0
        # In units of the prior: standard normal before any evidence.
        drawn = np.concatenate([drawn[:half] @ root.T + centre, drawn[half:]])
        prior = -0.5 * (drawn**2).sum(axis=1)
        away = np.linalg.solve(root, (drawn - centre).T).T
        aimed = -0.5 * (away**2).sum(axis=1) - np.log(abs(np.linalg.det(root)))
        proposed = np.logaddexp(prior, aimed) - np.log(2) if turn else prior
        candidates = drawn
        logs = likely(medians + sds * drawn) + prior - proposed
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        centre = weights @ candidates
        apart = candidates - centre
        spread = (apart * weights[:, None]).T @ apart + 1e-4 * np.eye(size)
        root = np.linalg.cholesky(1.5 * spread)
    chosen = np.searchsorted(np.cumsum(weights), (np.arange(DRAWS) + 0.5) / DRAWS)
    return np.asarray(medians + sds * candidates[np.minimum(chosen, len(candidates) - 1)])
