"""Replays traces: what would a recurrence have cost? The number of epochs is drawn at random from recorded
runs."""

import random
from math import floor, inf

from joulecast.errors import JoulecastError
from joulecast.tune.traces import Trace
from joulecast.tune.trial import PLAIN, CostModel, EpochAtLimit, Goal, Proposal, Trial


class Replay:
    """An environment that draws each run from a trace.

    An epoch in which several power limits are tried costs the mean over them. The other epochs cost what
    they cost under the limit that is kept.

    Args:
        trace: the trace of one workload on one GPU.
        rng: random generator that chooses the run to replay.
        goal: what to minimise, and how to choose among the power limits that were tried.
    """

    def __init__(
        self,
        trace: Trace,
        rng: random.Random,
        *,
        goal: Goal = PLAIN,
    ) -> None:
        self.trace = trace
        self.space = trace.space(goal)
        self._rng = rng
        # By batch size and proposed limits: first epoch, later epochs, limit kept.
        self._epochs: dict[tuple[int, tuple[int, ...]], tuple[EpochAtLimit, EpochAtLimit, int]] = {}

    def epochs_of(self, proposal: Proposal) -> tuple[EpochAtLimit, EpochAtLimit, int]:
        """The first epoch of a proposal, its later epochs, and the power limit of the later epochs."""
        key = (proposal.batch_size, proposal.power_limits_w)
        found = self._epochs.get(key)
        if found is None:
            at_limit = self.trace.at_limit.get(proposal.batch_size, {})
            limits = proposal.power_limits_w or tuple(at_limit)[:1]
            if not limits or not set(limits) <= set(at_limit):
                raise JoulecastError(
                    f"the trace of {self.trace.workload} on {self.trace.gpu} has no batch size "
                    f"{proposal.batch_size} under {limits or 'any limit'} W"
                )
            tried = {watts: at_limit[watts] for watts in limits}
            kept = self.space.best_limit(tried)
            first = EpochAtLimit(
                sum(epoch.time_s for epoch in tried.values()) / len(tried),
                sum(epoch.energy_j or 0.0 for epoch in tried.values()) / len(tried),
            )
            found = self._epochs[key] = first, tried[kept], kept
        return found

    def _profile(self, proposal: Proposal) -> dict[int, EpochAtLimit]:
        at_limit = self.trace.at_limit[proposal.batch_size]
        return {
            watts: EpochAtLimit(at_limit[watts].time_s, at_limit[watts].energy_j or 0.0)
            for watts in proposal.power_limits_w
        }

    def run(self, proposal: Proposal, recurrence: int) -> Trial:
        batch = proposal.batch_size
        first, later, kept = self.epochs_of(proposal)
        cost = self.space.cost
        runs = self.trace.epochs[batch]
        to_target = runs[int(self._rng.random() * len(runs))]
        allowed = affordable_epochs(cost, first, later, proposal.cost_bound)
        last = min(self.trace.max_epochs, allowed)
        reached = to_target is not None and to_target <= last
        epochs = to_target if reached and to_target is not None else last
        time_s = energy_j = 0.0
        if epochs:
            time_s = first.time_s + (epochs - 1) * later.time_s
            energy_j = (first.energy_j or 0.0) + (epochs - 1) * (later.energy_j or 0.0)
        several = len(proposal.power_limits_w) > 1 and epochs > 0
        return Trial(
            recurrence,
            proposal,
            reached,
            "target"
            if reached
            else "not_started"
            if epochs == 0
            else "cost_bound"
            if allowed < self.trace.max_epochs
            else "max_epochs",
            epochs,
            time_s,
            energy_j,
            "recorded",
            cost.of(time_s, energy_j),
            kept,
            self._profile(proposal) if several else {},
        )


def affordable_epochs(
    cost: CostModel, first: EpochAtLimit, later: EpochAtLimit, bound: float
) -> int:
    """Number of whole epochs that cost at most ``bound``."""
    if bound == inf:
        return 10**9
    of_first = cost.of(first.time_s, first.energy_j) or 0.0
    if of_first > bound:
        return 0
    of_later = cost.of(later.time_s, later.energy_j) or 0.0
    return 1 + floor((bound - of_first) / of_later + 1e-12)
