"""Times on a GPU: events in its stream, whose times are read when it has passed them.

The host launches kernels long before they run. So a moment of the training is an event in the stream.
Its time on the host's clock follows from the device's own clock: the time of an event before it, plus what
the device counts between the two. The host waits for the device once, at the first event, to relate the
clocks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

_FURTHEST_S = 60.0
"""Longest time between two events that are compared: the device counts in single precision."""
_MOST = 100_000

Resolved = Callable[[float, float], None]


class Moment:
    """A moment on the host's clock, and the event that the device passes when it gets there."""

    __slots__ = ("event", "host_s")

    def __init__(self, host_s: float, event: Any = None) -> None:
        self.host_s, self.event = host_s, event


class HostClock:
    """Moments on the host's clock alone."""

    def now(self) -> Moment:
        """This moment."""
        return Moment(time.monotonic())

    def add(self, start: Moment, stop: Moment, resolved: Resolved) -> None:
        """Call ``resolved`` with both times, in s."""
        resolved(start.host_s, stop.host_s)

    def read(self) -> None:
        """Nothing is left to read."""


class DeviceClock(HostClock):
    """Moments of a device's stream.

    Args:
        new_event: makes an event that is recorded, as ``torch.cuda.Event`` with timing.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event
        self._known = new_event()
        self._known.synchronize()
        self._known_s = time.monotonic()
        self._waiting: deque[tuple[Moment, Moment, Resolved]] = deque(maxlen=_MOST)

    def now(self) -> Moment:
        return Moment(time.monotonic(), self._new_event())

    def add(self, start: Moment, stop: Moment, resolved: Resolved) -> None:
        self._waiting.append((start, stop, resolved))

    def read(self) -> None:
        """Resolve what the device has passed; never waits."""
        while self._waiting:
            start, stop, resolved = self._waiting[0]
            if stop.event is not None and not stop.event.query():
                return
            self._waiting.popleft()
            resolved(self._time(start), self._time(stop))
            if stop.event is not None:
                stop_s = self._time(stop)
                if stop_s - self._known_s > _FURTHEST_S:
                    self._known, self._known_s = stop.event, stop_s

    def _time(self, moment: Moment) -> float:
        if moment.event is None:
            # From before the device was known.
            return moment.host_s
        return self._known_s + float(self._known.elapsed_time(moment.event)) / 1e3


def clock_of(device: str) -> HostClock:
    """The clock for what is trained on a device, as torch names its type."""
    import sys

    torch = sys.modules.get("torch")
    if device != "cuda" or torch is None:
        return HostClock()

    def new_event() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return DeviceClock(new_event)
