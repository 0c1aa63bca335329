"""Measures power limits during trainings (You et al., Zeus, section 4.2).

Each limit, from the highest to the lowest, gets some steps to settle, and then a window of steps and seconds.
If a window is not full when an epoch ends, it pauses during the evaluation, and continues in the next epoch.
So epochs of a single step can be profiled, too. If a window is not full when the training ends, it continues
in the next training with this batch size, after some steps to settle. So trainings of a second can be
profiled, over several recurrences.

::

    epoch     |- - - - - - - -|eval|- - - - - - - -|eval|- - -
    400 W      warm  [measured.....      .....]
    375 W                                      warm [..   ....
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from joulecast.tune.trial import EpochAtLimit


@dataclass(frozen=True, slots=True)
class LimitWindow:
    """The length of the measurement of a limit. All three conditions have to be met.

    Attributes:
        warmup_steps: number of steps under the new limit before the measurement.
        measured_steps: smallest number of measured steps.
        least_s: shortest time of the measurement in s. An energy counter that is renewed every 0.1 s is then
            within some percent. This also holds if the window has several pieces, because the errors at the
            begin and at the end of a piece cancel.
    """

    warmup_steps: int = 10
    measured_steps: int = 40
    least_s: float = 5.0


@dataclass(slots=True)
class _Measured:
    """The pieces of a window so far; ``joules`` is ``None`` once a reading failed."""

    steps: int = 0
    seconds: float = 0.0
    joules: float | None = 0.0


class LimitProfile:
    """Goes through the limits during trainings with one batch size. Then it sets the chosen limit.

    It is notified of every step (:meth:`stepped`), of pauses for an evaluation (:meth:`paused`,
    :meth:`resumed`), and of the next training (:meth:`again`).

    Args:
        limits_w: one or more limits. They are measured in descending order.
        set_limit: function that sets a limit in W.
        seconds: a clock.
        joules: an energy counter. It returns ``None`` if it cannot be read.
        select: function that chooses among the measured limits.
        steps_per_epoch: number of steps to which the figures of a window are scaled.
        measured: limits that were already measured.

    Attributes:
        limits: time and energy of a whole epoch under each measured limit. ``energy_j`` is ``None`` if the
            counter was not read, or did not move.
        in_force_w: the limit that is set now.
    """

    def __init__(
        self,
        limits_w: Sequence[int],
        set_limit: Callable[[int], None],
        seconds: Callable[[], float],
        joules: Callable[[], float | None],
        select: Callable[[Mapping[int, EpochAtLimit]], int],
        steps_per_epoch: int,
        window: LimitWindow,
        measured: Mapping[int, EpochAtLimit],
    ) -> None:
        self._seconds, self._joules = seconds, joules
        self._select, self._steps_per_epoch = select, steps_per_epoch
        self._window = window
        self.limits = dict(measured)
        self._pieces: dict[int, _Measured] = {}
        # These belong to the open window, if there is one: the steps since the limit was set, and the piece
        # that is measured now (its steps, and the readings at its start).
        self._open: _Measured | None = None
        self._steps, self._piece = 0, 0
        self._since: tuple[float, float | None] | None = None
        self.again(limits_w, set_limit)

    def again(self, limits_w: Sequence[int], set_limit: Callable[[int], None]) -> None:
        """Begin another training. Of the proposed limits, only the unmeasured ones are measured.

        If there are none, all proposed limits are measured again.
        """
        self._proposed = set(limits_w)
        if self._proposed <= set(self.limits):
            self.limits = {w: e for w, e in self.limits.items() if w not in self._proposed}
        self._set_limit = set_limit
        self._left = sorted(self._proposed - set(self.limits))
        self.in_force_w = max(limits_w)
        self._begin_next()

    @property
    def is_over(self) -> bool:
        """Whether every limit was measured, and the chosen one is set."""
        return self._open is None

    @property
    def chosen_w(self) -> int:
        """The choice among the limits that were measured so far. Before the first measurement, the limit that
        is set."""
        if self.limits:
            # A limit is compared with all measured limits, and used only if it is proposed.
            chosen = self._select(self.limits)
            if chosen in self._proposed:
                return chosen
            usable = {w: epoch for w, epoch in self.limits.items() if w in self._proposed}
            if usable:
                return self._select(usable)
        return self.in_force_w

    def stepped(self) -> None:
        """The training has taken a step."""
        if self._open is None:
            return
        self._steps += 1
        taken = self._steps - self._window.warmup_steps
        if taken == 0:
            self.resumed()
        elif taken > 0 and self._since is not None:
            self._piece += 1
            if self._open.steps + self._piece >= self._window.measured_steps:
                spent_s = self._open.seconds + self._seconds() - self._since[0]
                if spent_s >= self._window.least_s:
                    self.paused()
                    self._close(self._open)

    def paused(self) -> None:
        """An evaluation begins, which is not a part of the training."""
        if self._open is None or self._since is None:
            return
        window, (before_s, before_j) = self._open, self._since
        now_s, now_j = self._seconds(), self._joules()
        window.steps += self._piece
        window.seconds += now_s - before_s
        if window.joules is None or now_j is None or before_j is None:
            window.joules = None
        else:
            window.joules += now_j - before_j
        self._since = None

    def resumed(self) -> None:
        """The training continues."""
        if self._open is not None and self._steps >= self._window.warmup_steps:
            self._piece, self._since = 0, (self._seconds(), self._joules())

    def _begin_next(self) -> None:
        # If a training failed, the piece that it had begun does not count.
        self._steps, self._piece, self._since = 0, 0, None
        if self._left:
            watts = self._left.pop()
            self._open = self._pieces.setdefault(watts, _Measured())
            self._put_in_force(watts)
            self.resumed()
        else:
            self._open = None
            self._put_in_force(self.chosen_w)

    def _put_in_force(self, watts: int) -> None:
        self._set_limit(watts)
        self.in_force_w = watts

    def _close(self, window: _Measured) -> None:
        scale = self._steps_per_epoch / window.steps
        # A counter that stood still has measured nothing.
        joules = window.joules * scale if window.joules else None
        self.limits[self.in_force_w] = EpochAtLimit(window.seconds * scale, joules)
        del self._pieces[self.in_force_w]
        self._begin_next()
