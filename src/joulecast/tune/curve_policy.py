"""The policy ``curve``: it tries a batch size only if the curve of costs says that this is worth it. So it
pays back sooner.

Zeus runs every batch size twice before it samples. This policy asks two questions about each untried size.
How much will it probably save in later recurrences? How much more will it probably cost in this one? (This is
the knowledge gradient of Frazier et al. 2008, one step deep.) At first, power limits are tried from the
highest down to the middle. Later, only limits around the best known one are tried. If the best limit is at
the edge of the tried ones, the next ones are tried.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, log, sqrt

from joulecast.errors import JoulecastError
from joulecast.quantities import steady
from joulecast.tune.cost_curve import (
    CostCurve,
    expected_excess,
    expected_improvement,
    log_mean,
    pooled_variance,
)
from joulecast.tune.history import History
from joulecast.tune.policies import LimitChooser, is_last_cost_unknown, propose_untried
from joulecast.tune.trial import Proposal, SearchSpace, Trial
from joulecast.tune.zeus import check_beta

FIRST_SD, LEAST_SD = 0.05, 0.02
# If a bound stopped a size, its real log cost is higher than that of the bound by about this number.
_ABOVE_BOUND, _ABOVE_BOUND_SD = 0.3, 0.3
_CLOSE_TO_BEST = 1.5
# A try of a size that is known to work may cost this many times the bound of an experiment.
_KNOWN_TO_WORK = 2.0


class NarrowLimits(LimitChooser):
    """Chooses power limits for a batch size, a few at a time."""

    def limits(self, history: History, batch_size: int) -> tuple[int, ...]:
        """The power limits to propose for a batch size."""
        space = self.space
        settable = space.limits(batch_size)
        if len(settable) < 2:
            return settable
        arm = history.arms.get(batch_size)
        if arm is not None and arm.limits:
            best = settable.index(space.best_limit(arm.limits))
            around = settable[max(best - 1, 0) : best + 2]
            return tuple(w for w in around if w == settable[best] or w not in arm.limits)
        profiled = [size for size, arm in history.arms.items() if arm.limits]
        if not profiled:
            return settable[: len(settable) // 2 + 1]
        nearest = min(profiled, key=lambda b: max(b / batch_size, batch_size / b))
        best_w = space.best_limit(history.arms[nearest].limits)
        best = min(range(len(settable)), key=lambda i: abs(settable[i] - best_w))
        return settable[max(best - 1, 0) : best + 2]


@dataclass(slots=True)
class _Size:
    """The figures that follow from the trials of one batch size."""

    epochs: list[float] = field(default_factory=list)
    """Numbers of epochs of the trials that reached the target."""
    failed_epochs: list[float] = field(default_factory=list)
    cost_of_epoch: float = inf
    stopped_at: float = 0.0

    @property
    def cost(self) -> float:
        """Mean cost of reaching the target, with the tries that failed."""
        return self.cost_of_epoch * sum(self.epochs + self.failed_epochs) / len(self.epochs)


class Curve:
    """Tries a size if the curve of costs says that it is worth it. Otherwise, it samples among the sizes that
    were tried.

    Args:
        earlier: by batch size, the log cost of earlier runs on another device (:func:`earlier_costs`).
        horizon: number of recurrences for which a better batch size will probably be used.
        reach: largest distance, in sizes, of an untried size from a size that has reached the target.
        beta: the try of a new size is stopped when it costs more than this many times the best size.
        window: number of newest trials that count for every batch size; ``None``: all.

    Raises:
        JoulecastError: ``beta`` is not above 1, or a horizon, reach or window is below 1.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        earlier: Mapping[int, float] | None = None,
        horizon: float = 5.0,
        reach: int = 3,
        beta: float = 2.0,
        window: int | None = None,
    ) -> None:
        check_beta(beta)
        given_window = 1 if window is None else window
        for name, value in (("horizon", horizon), ("reach", reach), ("window", given_window)):
            if value < 1:
                raise JoulecastError(
                    f"the curve policy's {name} is {value}; it has to be at least 1"
                )
        self._space, self._beta, self._horizon, self._reach = space, beta, horizon, reach
        self._window = window
        self._warm = earlier is not None
        self._curve = CostCurve(space.batch_sizes, space.default, earlier)
        self._limits = NarrowLimits(space)

    def propose(self, history: History, rng: random.Random) -> Proposal:
        known = self._known(history.trials)
        worked = {b: size for b, size in known.items() if size.epochs and size.cost_of_epoch < inf}
        if not worked:
            return self._first(history)
        costs = {batch: size.cost for batch, size in worked.items()}
        best = min(costs, key=lambda batch: costs[batch])
        if is_last_cost_unknown(history):
            return self._limits.proposal(history, best, inf, "best")
        last = history.trials[-1]
        if not last.reached:
            # After a failed experiment, the best known size is run. If the best known size itself has failed,
            # costs have drifted.
            drifted = last.proposal.batch_size == best
            bound = inf if drifted else _KNOWN_TO_WORK * self._beta * costs[best]
            return self._limits.proposal(history, best, bound, "best")
        bound = self._beta * costs[best]
        variance = pooled_variance(
            [[log(epochs) for epochs in size.epochs] for size in worked.values()],
            FIRST_SD,
            LEAST_SD,
        )
        worth_it = self._worth_trying(known, costs, variance)
        if worth_it is not None:
            return self._limits.proposal(history, worth_it, bound, "walk")
        sampled = self._sampled(worked, costs, variance, rng)
        return self._limits.proposal(history, sampled, _KNOWN_TO_WORK * bound, "sample")

    def _first(self, history: History) -> Proposal:
        """The first size: the default, or the size that earlier runs would choose. If all have failed, a
        size that was not tried."""
        space = self._space
        if self._warm and not history.trials:
            cheapest = space.batch_sizes[int(self._curve.shape.argmin())]
            return self._limits.proposal(history, cheapest, inf, "walk")
        return propose_untried(history, self._limits)

    def _known(self, trials: list[Trial]) -> dict[int, _Size]:
        """What is known of each batch size; the newest trial gives the cost of an epoch."""
        known: dict[int, _Size] = {}
        for trial in trials:
            size = known.setdefault(trial.proposal.batch_size, _Size())
            if trial.cost is None:
                continue
            if trial.reached:
                size.epochs.append(trial.epochs)
            else:
                size.failed_epochs.append(trial.epochs)
                bound = trial.proposal.cost_bound
                size.stopped_at = max(size.stopped_at, trial.cost, bound if bound < inf else 0.0)
            if self._window is not None:
                del size.epochs[: -self._window], size.failed_epochs[: -self._window]
            if trial.limits:
                at_limits = [
                    self._space.cost.of(epoch.time_s, epoch.energy_j)
                    for epoch in trial.limits.values()
                ]
                known_costs = [cost for cost in at_limits if cost is not None]
                if known_costs:
                    size.cost_of_epoch = min(known_costs)
            elif trial.epochs:
                size.cost_of_epoch = trial.cost / trial.epochs
        return known

    def _worth_trying(
        self, known: dict[int, _Size], costs: dict[int, float], variance: float
    ) -> int | None:
        """The untried size with the largest expected saving, after subtraction of the expected extra cost of
        the try; ``None`` if no size saves anything."""
        sizes = self._space.batch_sizes
        seen = {
            batch: (log(cost), variance / len(known[batch].epochs)) for batch, cost in costs.items()
        }
        for batch, size in known.items():
            if batch not in seen and size.stopped_at > 0:
                seen[batch] = log(size.stopped_at) + _ABOVE_BOUND, _ABOVE_BOUND_SD**2
        mean, spread = self._curve.believe(seen)
        worked = [i for i, batch in enumerate(sizes) if batch in costs]
        best = min(worked, key=lambda i: mean[i])
        most, choice = 0.0, None
        for i, batch in enumerate(sizes):
            if batch in known or min(abs(i - j) for j in worked) > self._reach:
                continue
            doubt = max(spread[i, i] + spread[best, best] - 2 * spread[i, best], 1e-9)
            better_by = float(mean[best] - mean[i])
            gain = self._horizon * expected_improvement(better_by, sqrt(doubt))
            excess = expected_excess(better_by, sqrt(doubt + variance), self._beta)
            net = steady(gain - excess, relative_to=gain)
            if net > most:  # if two sizes are equal, the smaller one is chosen
                most, choice = net, batch
        return choice

    def _sampled(
        self,
        worked: dict[int, _Size],
        costs: dict[int, float],
        variance: float,
        rng: random.Random,
    ) -> int:
        """Thompson sampling among the sizes that are close to the best."""
        close = _CLOSE_TO_BEST * min(costs.values())
        drawn = {
            batch: rng.gauss(cost, cost * sqrt(variance / len(worked[batch].epochs)))
            for batch, cost in costs.items()
            if cost <= close
        }
        return min(drawn, key=lambda batch: drawn[batch])


def earlier_costs(history: History) -> dict[int, float]:
    """Log costs by batch size, from the history of another device. A warm start begins with them.

    If a size never reached the target there, its cost is assumed to be higher than the cost of its tries.
    """
    return {
        batch: log_mean(arm.costs) + (0.0 if arm.reached else _ABOVE_BOUND)
        for batch, arm in history.arms.items()
        if arm.costs
    }
