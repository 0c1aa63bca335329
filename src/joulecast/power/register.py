"""An energy register of a device: joules since it was opened, or the reason why it cannot be believed.

A register counts up and may wrap. It can also restart (a driver is loaded anew), run backwards, or stop.
What it says is believed only while the watts that follow from it are possible for the device: a wrap is one
only then. After the first fault it has failed for good, since what it missed is not known.
"""

from joulecast.power.meters import MeterFailed


class Register:
    """One register.

    Args:
        first: its count when it is opened.
        at_s: when that was.
        unit_j: joules of one count.
        most_w: watts that the device cannot exceed.
        renewed_s: how often it is renewed.
        moves_within_s: a register of a device that is on moves at least so often.
        wraps_after: the largest count; ``None``: it does not wrap.
    """

    def __init__(
        self,
        first: int,
        at_s: float,
        *,
        unit_j: float,
        most_w: float,
        renewed_s: float,
        moves_within_s: float,
        wraps_after: int | None = None,
    ) -> None:
        self._last, self._last_s, self._moved_s = first, at_s, at_s
        self._unit_j, self._most_w, self._renewed_s = unit_j, most_w, renewed_s
        self._moves_within_s, self._wraps_after = moves_within_s, wraps_after
        self._counted = 0
        self._fault: str | None = None

    def joules(self, count: int, before_s: float, after_s: float) -> float:
        """Joules since it was opened.

        Args:
            count: what the register says.
            before_s: just before it was read.
            after_s: just after.

        Raises:
            MeterFailed: it cannot be believed, now or earlier.
        """
        if self._fault is None:
            self._fault = self._look(count, before_s, after_s)
        if self._fault is not None:
            raise MeterFailed(self._fault)
        return self._counted * self._unit_j

    def _look(self, count: int, before_s: float, after_s: float) -> str | None:
        step, elapsed_s = count - self._last, after_s - self._last_s
        # The first of two reads may have been of a count that was about to be renewed.
        most_j = self._most_w * (elapsed_s + self._renewed_s)
        if step < 0 and self._wraps_after is not None and count >= 0:
            step += self._wraps_after + 1
        if step < 0 or step * self._unit_j > most_j:
            return (
                f"its counter went from {self._last * self._unit_j:.6g} to {count * self._unit_j:.6g} J "
                f"in {elapsed_s:.3g} s: it restarted or is broken"
            )
        if step > 0:
            self._moved_s = before_s
        elif before_s - self._moved_s > self._moves_within_s:
            return f"its counter did not move for {before_s - self._moved_s:.2g} s: it is broken"
        self._last, self._last_s = count, before_s
        self._counted += step
        return None
