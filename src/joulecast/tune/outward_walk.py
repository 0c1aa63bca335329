"""Outward walk: from the default batch size, one step down, one step up, as long as it gets cheaper.

A policy of this project; afterwards Thompson sampling among those within 1.5 times the
cheapest, with one coefficient of variation for all batch sizes.
"""

import random
from math import inf, sqrt

from joulecast.errors import JoulecastError
from joulecast.tune.history import History
from joulecast.tune.policies import LimitChooser, cheapest_arm, is_blind, what_is_left
from joulecast.tune.trial import Phase, Proposal, SearchSpace, Trial
from joulecast.tune.zeus import bound_of, check_beta

_CLOSE_TO_BEST = 1.5
_FIRST_CV, _LEAST_CV = 0.12, 0.02


class OutwardWalk:
    """Walks outward from the default batch size, then samples.

    Args:
        beta: a try is stopped when it costs more than this many times the cheapest mean.
        patience: steps in a direction that need not be cheaper before it is given up.

    Raises:
        JoulecastError: ``beta`` not above 1, or a negative patience.
    """

    def __init__(self, space: SearchSpace, *, beta: float = 1.5, patience: int = 1) -> None:
        check_beta(beta)
        if patience < 0:
            raise JoulecastError(f"a patience of {patience} steps is below 0")
        self._space, self._beta, self._patience = space, beta, patience
        self._limits = LimitChooser(space)

    def propose(self, history: History, rng: random.Random) -> Proposal:
        best = cheapest_arm(history)
        if best is None:
            return what_is_left(self._space, history, self._limits)
        if is_blind(history):
            return self._proposal(history, best, inf, "best")
        last = history.trials[-1]
        bound = self._beta * mean_cost(history, best)
        if not last.reached:
            # A try that failed is followed by what is known to work, not by another experiment.
            if bound_of(history, self._beta) == inf:
                bound = inf
            return self._proposal(history, best, bound, "best")
        following = self._next_step(history.trials)
        if following is not None:
            return self._proposal(history, following, bound, "walk")
        return self._proposal(history, self._sampled(history, rng), inf, "sample")

    def _proposal(self, history: History, size: int, bound: float, phase: Phase) -> Proposal:
        return Proposal(size, self._limits.limits(history, size), bound, phase)

    def _next_step(self, trials: list[Trial]) -> int | None:
        """The next size of the walk; ``None`` when both directions are closed."""
        sizes, at = self._space.batch_sizes, self._space.batch_sizes.index(self._space.default)
        ways = {-1: list(sizes[:at][::-1]), 1: list(sizes[at + 1 :])}
        worse = {-1: 0, 1: 0}
        tried = {trial.proposal.batch_size for trial in trials}
        least, turn = inf, -1
        for trial in trials:
            cost = inf if trial.cost is None or not trial.reached else trial.cost
            size = trial.proposal.batch_size
            for way, left in ways.items():
                if trial.proposal.phase == "walk" and left and left[0] == size:
                    left.pop(0)
                    if not trial.reached:
                        left.clear()
                    worse[way] = 0 if cost < least else worse[way] + 1
                    if worse[way] > self._patience:
                        left.clear()
                    turn = way if cost < least else -way
            least = min(least, cost)
        for way in (turn, -turn):
            left = [size for size in ways[way] if size not in tried]
            if left:
                return left[0]
        return None

    def _sampled(self, history: History, rng: random.Random) -> int:
        arms = {
            size: (mean_cost(history, size), len(arm.costs))
            for size, arm in history.arms.items()
            if arm.reached and arm.costs
        }
        best = min(mean for mean, _ in arms.values())
        cv = pooled_cv(history)
        drawn = {
            size: rng.gauss(mean, cv * mean / sqrt(n))
            for size, (mean, n) in arms.items()
            if mean <= _CLOSE_TO_BEST * best
        }
        return min(drawn, key=lambda size: drawn[size])


def mean_cost(history: History, size: int) -> float:
    """Mean cost of the trials of a batch size."""
    costs = history.arms[size].costs
    return sum(costs) / len(costs)


def pooled_cv(history: History) -> float:
    """Coefficient of variation of costs, the same for all batch sizes."""
    squares, n = 2 * _FIRST_CV**2, 2
    for arm in history.arms.values():
        if arm.reached and len(arm.costs) > 1:
            mean = sum(arm.costs) / len(arm.costs)
            squares += sum((cost / mean - 1) ** 2 for cost in arm.costs)
            n += len(arm.costs) - 1
    return max(_LEAST_CV, sqrt(squares / n))
