"""Zeus: pruning of batch sizes in two rounds, then Gaussian Thompson sampling (You et al., NSDI 2023).

The authors' program can get stuck in some states. So this one differs in four points:

- The bound on a try expires if it stops a size that was chosen because it is cheap.
- A recurrence that failed does not lower the bound.
- If no size survives the pruning, the best known size is run. If no size is known to be good, an untried one
  is run.
- While costs are not known, nothing new is tried.
"""

import random
from math import inf, sqrt

from joulecast.errors import JoulecastError
from joulecast.tune.history import History
from joulecast.tune.policies import (
    LimitChooser,
    cheapest_arm,
    is_last_cost_unknown,
    propose_untried,
)
from joulecast.tune.trial import Proposal, SearchSpace, Trial

_ROUNDS = 2


def prune(space: SearchSpace, trials: list[Trial]) -> tuple[int | None, list[int]]:
    """Replay the pruning over its trials (section 4.4 of the paper, algorithm 3).

    Args:
        trials: all trials. Trials of other phases are skipped.

    Returns:
        The next size to try; or ``None``, and the sizes that remain.
    """
    ended = iter([trial for trial in trials if trial.proposal.phase == "prune"])
    sizes, start = list(space.batch_sizes), space.default
    for _ in range(_ROUNDS):
        survivors: dict[int, float] = {}
        at = sizes.index(start)
        # Downwards from the start, then upwards from the next larger size.
        for way in (sizes[at::-1], sizes[at + 1 :]):
            for size in way:
                trial = next(ended, None)
                if trial is None:
                    return size, []
                if not trial.reached:
                    break
                survivors[size] = inf if trial.cost is None else trial.cost
        if not survivors:
            return None, []
        sizes = sorted(survivors)
        start = min(survivors, key=lambda size: survivors[size])
    return None, sizes


class Zeus:
    """Zeus, as in its paper.

    Args:
        space: what can be chosen.
        beta: a try is stopped when it costs more than this many times the cheapest training so far.
        window: number of newest costs that count for every batch size, and of newest recurrences that count
            for the bound; ``None``: all.

    Raises:
        JoulecastError: ``beta`` is not above 1, or the window is below 2.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        beta: float = 2.0,
        window: int | None = None,
    ) -> None:
        check_beta(beta)
        if window is not None and window < 2:
            raise JoulecastError(
                f"a drift window of {window} costs has no variance; give 2 or more"
            )
        self._space, self._beta, self._window = space, beta, window
        self._limits = LimitChooser(space)

    def propose(self, history: History, rng: random.Random) -> Proposal:
        space = self._space
        best = cheapest_arm(history, self._window)
        known_to_work = space.default if best is None else best
        if is_last_cost_unknown(history):
            return self._limits.proposal(history, known_to_work, inf, "best")
        bound = bound_of(history, self._beta, self._window)
        next_size, remaining = prune(space, history.trials)
        if next_size is not None:
            return self._limits.proposal(history, next_size, bound, "prune")
        survivors = [size for size in remaining if history.arms[size].costs]
        if survivors:
            sampled = self._sampled(history, survivors, rng)
            return self._limits.proposal(history, sampled, bound, "sample")
        # All sizes were removed: by chance, or because the default and all larger sizes fail.
        if best is not None:
            return self._limits.proposal(history, best, bound, "best")
        return propose_untried(history, self._limits)

    def _sampled(self, history: History, sizes: list[int], rng: random.Random) -> int:
        """The size whose mean cost, drawn from its posterior, is least."""
        drawn = {}
        for size in sizes:
            costs = history.arms[size].costs
            if self._window is not None:
                costs = costs[-self._window :]
            drawn[size] = self._draw(costs, rng)
        return min(drawn, key=lambda size: drawn[size])

    def _draw(self, costs: list[float], rng: random.Random) -> float:
        """Draw the mean cost from its posterior. The prior is flat, and single costs are assumed to have the
        variance of the costs seen."""
        n = len(costs)
        mean = sum(costs) / n
        variance = sum([(cost - mean) ** 2 for cost in costs]) / n
        if variance == 0:
            return mean
        return rng.gauss(mean, sqrt(variance / n))


def check_beta(beta: float) -> None:
    """Refuse a ``beta`` of 1 or less. With it, the bound would stop every try that is not cheaper than all
    before.

    Raises:
        JoulecastError: ``beta`` is not above 1.
    """
    if not beta > 1:
        raise JoulecastError(
            f"beta is {beta}; it has to be above 1: a try is stopped when it costs beta times the cheapest "
            "recurrence so far"
        )


def bound_of(history: History, beta: float, window: int | None = None) -> float:
    """The most that a try may cost: ``beta`` times the cheapest recurrence. There is no bound if costs have
    drifted.

    Costs have drifted if the bound has just stopped a size that is known to be cheap: one that was sampled,
    or the cheapest one that reached the target. So the bound must be wrong.
    """
    if history.trials:
        last = history.trials[-1]
        if last.stopped_by in ("cost_bound", "not_started"):
            trusted = last.proposal.phase == "sample"
            if trusted or last.proposal.batch_size == cheapest_arm(history, window):
                return inf
    return beta * history.least_total(window)
