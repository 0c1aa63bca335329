"""Measuring power limits inside a training, while it goes on (You et al., Zeus, section 4.2).

Each limit, from the highest to the lowest, gets some steps to settle and then a window of steps and seconds.
Windows know nothing of epochs: one that is not full when an epoch ends pauses for the evaluation and goes on
with the next epoch, so that epochs of a single step are profiled like any other.

::

    epoch     |- - - - - - - -|eval|- - - - - - - -|eval|- - -
    400 W      warm  [measured.....      .....]
    375 W                                      warm [..   ....
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from joulecast.tuning.power_limits import Selector
from joulecast.tuning.trial import EpochAtLimit


@dataclass(frozen=True, slots=True)
class Window:
    """How long a limit is measured: all three have to be met.

    Attributes:
        warmup_steps: before it, under the new limit.
        measured_steps: at least.
        least_s: at least; an energy counter that is renewed every 0.1 s is within some percent then.
    """

    warmup_steps: int = 10
    measured_steps: int = 40
    least_s: float = 5.0


class LimitProfile:
    """Goes through limits while a training takes its steps; keeps the one that is chosen.

    To be told of every step (:meth:`stepped`), and of what is no training in between (:meth:`paused`,
    :meth:`resumed`).

    Args:
        limits_w: at least one; they are taken in descending order.
        set_limit: sets a limit of so many watts.
        seconds: a clock.
        joules: an energy counter; it answers ``None`` when it cannot be read.
        select: chooses among limits that have been measured.
        steps_per_epoch: what windows are scaled to.

    Attributes:
        limits: a whole epoch under each limit that has been measured; ``energy_j`` is ``None`` where the
            counter was not read, or did not move.
        in_force_w: the limit that is set.
    """

    def __init__(
        self,
        limits_w: Sequence[int],
        set_limit: Callable[[int], None],
        seconds: Callable[[], float],
        joules: Callable[[], float | None],
        select: Selector,
        steps_per_epoch: int,
        window: Window | None = None,
    ) -> None:
        self._left = sorted(set(limits_w))
        self._set_limit, self._seconds, self._joules = set_limit, seconds, joules
        self._select, self._steps_per_epoch = select, steps_per_epoch
        self._window = Window() if window is None else window
        self.limits: dict[int, EpochAtLimit] = {}
        self.in_force_w = self._left[-1]
        # Of the window that is open; no steps: there is none any more.
        self._steps: int | None = None
        self._spent_s = 0.0
        self._spent_j: float | None = 0.0
        self._since: tuple[float, float | None] = (0.0, None)
        self._begin_next()

    @property
    def is_over(self) -> bool:
        """Whether every limit has been measured and the chosen one is set."""
        return not self._left and self._steps is None

    @property
    def chosen_w(self) -> int:
        """The choice among what has been measured so far; the limit in force before any has been."""
        return self._select(self.limits) if self.limits else self.in_force_w

    def stepped(self) -> None:
        """The training has taken a step."""
        if self._steps is None:
            return
        self._steps += 1
        taken = self._steps - self._window.warmup_steps
        if taken == 0:
            self.resumed()
        elif taken >= self._window.measured_steps and taken > 0:
            now_s = self._seconds()
            if self._spent_s + now_s - self._since[0] >= self._window.least_s:
                self.paused()
                self._close(taken)

    def paused(self) -> None:
        """What comes now is no training (an evaluation)."""
        if self._is_measuring():
            now_s, now_j = self._seconds(), self._joules()
            self._spent_s += now_s - self._since[0]
            before_j = self._since[1]
            if self._spent_j is None or now_j is None or before_j is None:
                self._spent_j = None
            else:
                self._spent_j += now_j - before_j

    def resumed(self) -> None:
        """The training goes on."""
        if self._is_measuring():
            self._since = self._seconds(), self._joules()

    def _is_measuring(self) -> bool:
        return self._steps is not None and self._steps >= self._window.warmup_steps

    def _begin_next(self) -> None:
        if self._left:
            self._steps, self._spent_s, self._spent_j = 0, 0.0, 0.0
            self._put_in_force(self._left.pop())
            self.resumed()
        else:
            self._steps = None
            self._put_in_force(self.chosen_w)

    def _put_in_force(self, watts: int) -> None:
        self._set_limit(watts)
        self.in_force_w = watts

    def _close(self, taken: int) -> None:
        scale = self._steps_per_epoch / taken
        # A counter that stood still has measured nothing.
        joules = self._spent_j * scale if self._spent_j else None
        self.limits[self.in_force_w] = EpochAtLimit(self._spent_s * scale, joules)
        self._begin_next()
