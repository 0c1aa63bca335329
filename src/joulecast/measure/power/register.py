"""An energy register of a device: joules since it was opened, or the reason why it cannot be believed.

A register counts up. It can also restart (a driver is loaded anew), run backwards, jump, or stop. What it
says is believed only while the power between two readings is possible for the device. After a fault it counts
on from what it says then; what it missed is not known, so that joules from before a fault to after it are
none.
"""

from dataclasses import dataclass

from joulecast.measure.power.meters import MeterFailed


@dataclass(frozen=True)
class Limits:
    """What is possible for a device and its register.

    Attributes:
        least_w: watts that a device which is on cannot fall below, as a mean over ``moves_within_s``.
        most_w: watts that it cannot exceed.
        renewed_s: how often the register is renewed.
        moves_within_s: how long its count may stay the same.
    """

    least_w: float
    most_w: float
    renewed_s: float
    moves_within_s: float


class Register:
    """One register.

    Args:
        first: its count when it is opened.
        at_s: when that was.
        unit_j: joules of one count.
        limits: what is possible.
    """

    def __init__(
        self,
        first: int,
        at_s: float,
        *,
        unit_j: float,
        limits: Limits,
    ) -> None:
        self._last, self._last_s = first, at_s
        self._unit_j, self._limits = unit_j, limits
        self._counted = self._seen = 0
        self._seen_s = at_s

    def joules(self, count: int, before_s: float, after_s: float) -> float:
        """Joules since it was opened.

        Args:
            count: what the register says.
            before_s: just before it was read.
            after_s: just after.

        Raises:
            MeterFailed: it cannot be believed.
        """
        fault = self._look(count, before_s, after_s)
        if fault is not None:
            self._last, self._last_s = count, before_s
            self._seen, self._seen_s = self._counted, after_s
            raise MeterFailed(fault)
        return self._counted * self._unit_j

    def _look(self, count: int, before_s: float, after_s: float) -> str | None:
        step, elapsed_s = count - self._last, after_s - self._last_s
        # The first of two reads may have been of a count that was about to be renewed.
        most_j = self._limits.most_w * (elapsed_s + self._limits.renewed_s)
        if step < 0 or step * self._unit_j > most_j:
            return (
                f"its counter went from {self._last * self._unit_j:.6g} to {count * self._unit_j:.6g} J "
                f"in {elapsed_s:.3g} s: it restarted or is broken"
            )
        self._last, self._last_s = count, before_s
        self._counted += step
        # A slow read may be of its end: only what lies surely between two reads counts as standing still.
        stood_s, moved_j = before_s - self._seen_s, (self._counted - self._seen) * self._unit_j
        if stood_s > self._limits.moves_within_s:
            if moved_j < self._limits.least_w * stood_s:
                return f"its counter moved by {moved_j:.2g} J in {stood_s:.2g} s: it stands still"
            self._seen, self._seen_s = self._counted, after_s
        return None
