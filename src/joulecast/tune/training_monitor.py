"""The monitor of a live training: it reads the meter, profiles power limits, and enforces the cost bound."""

from collections.abc import Callable
from math import inf

from joulecast.measure.power.energy_counter import EnergyCounter
from joulecast.tune.limit_measurement import LimitProfile
from joulecast.tune.trial import CostModel, Proposal


class TrainingWatch:
    """The monitor of one training.

    Args:
        counter, seconds: an energy counter and a clock.
        set_limit: sets the device's power limit in watts; ``None``: the power limit is not changed.
        profile_of: function that gives the profile of the proposal's batch size, new or continued. Its
            argument is the function that sets limits.

    Attributes:
        profile: profile of the proposal's power limits, if it has several.
    """

    def __init__(
        self,
        proposal: Proposal,
        cost: CostModel,
        counter: EnergyCounter,
        seconds: Callable[[], float],
        steps_per_epoch: int,
        set_limit: Callable[[int], None] | None,
        profile_of: Callable[[Callable[[int], None]], LimitProfile],
    ) -> None:
        self._proposal, self._cost = proposal, cost
        self._counter, self._seconds = counter, seconds
        self._steps_per_epoch = steps_per_epoch
        self._set_limit, self._profile_of = set_limit, profile_of
        self.profile: LimitProfile | None = None
        self._limit_w: int | None = None
        self._first: tuple[float, float | None] | None = None
        self._last: tuple[float, float | None] | None = None

    @property
    def limit_w(self) -> int | None:
        """The power limit of the training; ``None`` if it was not changed."""
        return self._limit_w if self.profile is None else self.profile.chosen_w

    def begun(self) -> None:
        """Everything is prepared. The clock and the meter start."""
        limits_w = self._proposal.power_limits_w
        if self._set_limit is not None:
            self._limit_w = max(limits_w)
            if len(limits_w) == 1:
                self._set_limit(self._limit_w)
            else:
                self.profile = self._profile_of(self._set_limit)
        self._first = self._seconds(), self._counter.begin()

    def ended(self) -> None:
        """The last evaluation is over. What comes after it does not belong to the training."""
        self._last = self._seconds(), self._counter.read()

    def stepped(self, done: int) -> None:
        """A step is over. After the last step of an epoch, an evaluation begins."""
        if self.profile is not None and not self.profile.is_over:
            self.profile.stepped()
            if done % self._steps_per_epoch == 0:
                self.profile.paused()

    def may_continue(self, done: int, accuracy: float) -> bool:
        """Whether the cost would stay within the bound after another epoch. It is assumed that this epoch
        costs as much as the mean of the epochs so far."""
        bound = self._proposal.cost_bound
        if bound < inf and self._first is not None:
            spent_s = self._seconds() - self._first[0]
            # A rough figure is good enough here. So the shortest time of the counter is not checked.
            joules, _ = self._counter.between(self._first[1], self._counter.read())
            # Without its energy, a training costs at least its time.
            spent = self._cost.of(spent_s, joules) or self._cost.of(spent_s, 0.0) or 0.0
            epochs = done / self._steps_per_epoch
            if spent * (epochs + 1) / epochs > bound:
                return False
        if self.profile is not None:
            self.profile.resumed()
        return True

    def energy(self) -> tuple[float | None, str | None]:
        """Joules from begin to end of the training; or ``None`` and the reason."""
        if self._first is None:
            return None, self._counter.why_not or "the training broke before its first step"
        if self._last is None:
            self.ended()
        assert self._last is not None
        return self._counter.between(
            self._first[1], self._last[1], over_s=self._last[0] - self._first[0]
        )
