"""Meters that take their time: a thread asks each of them, and the sampler takes what it has.

A management controller answers in tenths of a second to seconds, and sometimes not at all. The sampler must
not wait for it, as its other meters are read meanwhile.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from joulecast.measure.power.meters import Meter, MeterFailed, NothingNew, ReadFailed, Reading
from joulecast.measure.power.register import Register
from joulecast.runs.covers import Covers

Ask = Callable[[], Reading]
"""Asks a slow meter once, with a bound on how long that takes; raises ``ReadFailed``."""

_FINISH_S = 6.0
"""Seconds that the end of a run waits for the last answers of all slow meters together."""
_MEDIAN_OF = 15
_MOST_KEPT = 1000


class BackgroundMeter:
    """A slow meter of a node, asked every ``every_s`` by a thread of its own.

    Its first reading is there when it is made. Readings carry the time in the middle of the asking.

    Args:
        name: of the meter.
        node: that it belongs to.
        ask: asks it once.
        every_s: seconds from one question to the next, where the answers are faster.
        counter: whether its joules count on by themselves.
        identity: of the device.

    Raises:
        ReadFailed: it gives nothing now.
    """

    source = "measured"
    covers: Covers | None = "node"
    remark: str | None = None

    def __init__(
        self, name: str, node: str, ask: Ask, *, every_s: float, counter: bool, identity: str | None
    ) -> None:
        self.name, self.node, self.counter, self.identity = name, node, counter, identity
        self._ask, self._every_s = ask, every_s
        self._answers: deque[Reading | ReadFailed] = deque(maxlen=_MOST_KEPT)
        self._took_s: deque[float] = deque(maxlen=_MEDIAN_OF)
        self._wake, self._is_over = threading.Event(), threading.Event()
        self._answers.append(self._once())
        self._thread: threading.Thread | None = None

    @property
    def renewed_s(self) -> float:
        """Seconds from one reading to the next, as it usually answers."""
        return max(self._every_s, median(self._took_s) if self._took_s else 0.0)

    def _once(self) -> Reading:
        before_s = time.monotonic()
        reading = self._ask()
        after_s = time.monotonic()
        self._took_s.append(after_s - before_s)
        return reading._replace(at_s=(before_s + after_s) / 2)

    def _keep_asking(self) -> None:
        next_s = time.monotonic() + self._every_s
        while True:
            self._wake.wait(max(0.0, next_s - time.monotonic()))
            is_last = self._wake.is_set()
            next_s = time.monotonic() + self._every_s
            try:
                self._answers.append(self._once())
            except ReadFailed as failed:
                self._answers.append(failed)
            except Exception as error:
                # A fault of the meter's own code ends it, with its reason.
                self._answers.append(MeterFailed(f"{type(error).__name__}: {error}"))
                break
            if is_last:
                break
        self._is_over.set()

    def read(self) -> Reading:
        """The oldest reading that was not given before.

        Raises:
            NothingNew: all were given.
            ReadFailed: that question got no answer.
        """
        if self._thread is None:
            # A meter that was only opened, to see whether it is there, has no thread.
            self._thread = threading.Thread(target=self._keep_asking, daemon=True)
            self._thread.start()
        if not self._answers:
            raise NothingNew("no answer since the last one")
        answer = self._answers.popleft()
        if isinstance(answer, ReadFailed):
            raise answer
        return answer

    def ask_last(self) -> None:
        """Ask once more, and then no more."""
        self._wake.set()

    def wait(self, until_s: float) -> None:
        """Wait for the last answer, at most until the monotonic clock shows ``until_s``."""
        if self._thread is not None:
            self._is_over.wait(max(0.0, until_s - time.monotonic()))


def finish_all(meters: Sequence[Meter]) -> bool:
    """Have the last answers of all slow meters, or as many of them as come in time; return whether there are
    slow meters."""
    slow = [meter for meter in meters if isinstance(meter, BackgroundMeter)]
    for meter in slow:
        meter.ask_last()
    until_s = time.monotonic() + _FINISH_S
    for meter in slow:
        meter.wait(until_s)
    return bool(slow)


class CountedJoules:
    """Joules of a slow counter since its first reading, each checked as :class:`Register` does."""

    def __init__(self, make: Callable[[int, float], Register]) -> None:
        self._make = make
        self._register: Register | None = None

    def since_first(self, count: int, before_s: float, after_s: float) -> float:
        """Joules; the first call gives 0.

        Raises:
            MeterFailed: the counter cannot be believed.
        """
        if self._register is None:
            self._register = self._make(count, before_s)
            return 0.0
        return self._register.joules(count, before_s, after_s)
