"""Policies that need no model, and the interface that all policies have.

A new policy is one class with a ``propose``, and an entry in :mod:`joulecast.tune.policy_registry`.
"""

import random
from math import inf
from typing import Protocol

from joulecast.tune.history import History
from joulecast.tune.trial import Phase, Proposal, SearchSpace


class Policy(Protocol):
    """Proposes what to try next. It keeps no state: everything that it knows is in the history."""

    def propose(self, history: History, rng: random.Random) -> Proposal:
        """The proposal for the next try.

        Args:
            history: all trials that have ended. If this is another try in the same recurrence, the last one
                failed.
            rng: random generator, for policies with random choices.
        """
        ...


class LimitChooser:
    """Chooses the power limits for a batch size: the first time all of them, later only the best one."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    def proposal(
        self, history: History, batch_size: int, bound: float = inf, phase: Phase = "fixed"
    ) -> Proposal:
        """The proposal of a batch size, with its power limits."""
        return Proposal(batch_size, self.limits(history, batch_size), bound, phase)

    def limits(self, history: History, batch_size: int) -> tuple[int, ...]:
        """The power limits to propose for a batch size."""
        arm = history.arms.get(batch_size)
        settable = self.space.limits(batch_size)
        if arm is None or not arm.limits:
            return settable
        best = self.space.best_limit(arm.limits)
        # If a run ended before all limits were profiled, the next one continues with the limits that are
        # left.
        return tuple(watts for watts in settable if watts == best or watts not in arm.limits)


class Default:
    """No tuning: the default batch size under the highest limit."""

    def __init__(self, space: SearchSpace) -> None:
        self._proposal = Proposal(space.default, space.highest_limit(space.default))

    def propose(self, history: History, rng: random.Random) -> Proposal:
        return self._proposal


class PowerLimitOnly:
    """The default batch size under its best limit. The first run finds this limit."""

    def __init__(self, space: SearchSpace) -> None:
        self._limits = LimitChooser(space)

    def propose(self, history: History, rng: random.Random) -> Proposal:
        return self._limits.proposal(history, self._limits.space.default)


class Fixed:
    """Always proposes the same configuration. It is the oracle if this configuration is the best one."""

    def __init__(self, batch_size: int, power_limit_w: int | None) -> None:
        limits = () if power_limit_w is None else (power_limit_w,)
        self._proposal = Proposal(batch_size, limits)

    def propose(self, history: History, rng: random.Random) -> Proposal:
        return self._proposal


class GridSearch:
    """Runs every batch size under every limit once, each for a whole run. Then it always runs the cheapest.

    A batch size that fails is not tried under its other limits.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._grid: list[tuple[int, tuple[int, ...]]] = []
        for batch in space.batch_sizes:
            limits = space.limits(batch)
            self._grid += [(batch, (watts,)) for watts in limits] or [(batch, ())]

    def propose(self, history: History, rng: random.Random) -> Proposal:
        if is_last_cost_unknown(history):
            best_arm = cheapest_arm(history)
            size = self._space.default if best_arm is None else best_arm
            return Proposal(size, self._space.highest_limit(size), phase="best")
        tried, failed = set(), set()
        best: tuple[float, int, tuple[int, ...]] | None = None
        for trial in history.trials:
            asked = trial.proposal
            tried.add((asked.batch_size, asked.power_limits_w))
            if not trial.reached:
                failed.add(asked.batch_size)
            elif trial.cost is not None and (best is None or trial.cost < best[0]):
                best = trial.cost, asked.batch_size, asked.power_limits_w
        for batch, limits in self._grid:
            if (batch, limits) not in tried and batch not in failed:
                return Proposal(batch, limits, phase="sweep")
        if best is None:
            return Proposal(
                self._space.default,
                self._space.highest_limit(self._space.default),
                phase="unbounded",
            )
        return Proposal(best[1], best[2], phase="best")


def cheapest_arm(history: History, window: int | None = None) -> int | None:
    """The batch size with the least mean cost. Only batch sizes that have reached the target count.

    Args:
        window: number of newest costs that count for every batch size; ``None``: all.
    """
    best: tuple[float, int] | None = None
    for batch, arm in history.arms.items():
        if arm.reached and arm.costs:
            costs = arm.costs if window is None else arm.costs[-window:]
            mean = sum(costs) / len(costs)
            if best is None or mean < best[0]:
                best = mean, batch
    return None if best is None else best[1]


def is_last_cost_unknown(history: History) -> bool:
    """Whether the cost of the last trial is not known, because its meter failed.

    Without costs, nothing can be learnt from a new configuration. So policies run known ones until costs are
    known again.
    """
    return bool(history.trials) and history.trials[-1].cost is None


def propose_untried(history: History, limits: LimitChooser) -> Proposal:
    """The proposal if no batch size has reached the target at a known cost.

    It is the untried size that is nearest to the default, in doublings. If no size is left, or if the cost of
    the last trial is not known, it is the default without a bound.
    """
    space, default = limits.space, limits.space.default
    untried = [size for size in space.batch_sizes if size not in history.arms]
    if is_last_cost_unknown(history) or not untried:
        return Proposal(default, space.highest_limit(default), phase="unbounded")
    nearest = min(untried, key=lambda size: max(size / default, default / size))
    return limits.proposal(history, nearest, phase="walk")


class SeededByTrial:
    """A policy whose random choices depend only on the seed and on the number of trials. So a loop that was
    interrupted makes the same choices as without the interruption."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self._policy, self._seed = policy, seed

    def propose(self, history: History, rng: random.Random) -> Proposal:
        return self._policy.propose(history, random.Random(f"{self._seed}/{len(history.trials)}"))
