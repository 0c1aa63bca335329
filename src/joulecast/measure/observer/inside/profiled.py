"""Exchange in a few steps that torch's profiler records: of FSDP, DeepSpeed and whatever else hooks miss.

On a GPU collectives run at the same time as the kernels that compute, in streams of their own. The exchange
that nothing hides is the time in which some collective runs and no other kernel does. Steps 3, 12, 48, 192,
... are recorded, which all ranks count alike. The first recording of a process is made in its first step,
which is a warm-up anyway, as it loads the tools of the driver.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from .marks import HIDDEN, Marks
from .wrapping import named_as

_FIRST, _APART = 3, 4
"""First step that is recorded, and the factor from one such step to the next."""
_EXCHANGES = ("nccl", "rccl", "oneccl", "gloo:", "c10d::", "_c10d_functional::")
"""Beginnings of the names of collectives: kernels on a GPU, operators on a CPU."""
_COMPUTES_ON_CPU = "aten::"

Span = tuple[float, float]


def _union(spans: Iterable[Span]) -> list[Span]:
    """The same times as spans that do not overlap, in order."""
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def hidden_and_exposed(exchange: Iterable[Span], computing: Iterable[Span]) -> tuple[float, float]:
    """Time of some exchange that computing hides, and time that it does not, in the unit of the spans."""
    exchanging, busy = _union(exchange), _union(computing)
    hidden, place = 0.0, 0
    for start, stop in exchanging:
        while place < len(busy) and busy[place][1] <= start:
            place += 1
        following = place
        while following < len(busy) and busy[following][0] < stop:
            hidden += min(stop, busy[following][1]) - max(start, busy[following][0])
            following += 1
    return hidden, sum(stop - start for start, stop in exchanging) - hidden


def _spans(events: Iterable[Any], on_device: bool) -> tuple[list[Span], list[Span]]:
    """Spans of exchange and of computing among the profiler's events, in s."""
    exchange, computing = [], []
    for event in events:
        if ("CPU" in str(event.device_type())) == on_device:
            continue
        name, start = event.name().lower(), event.start_ns() / 1e9
        span = start, start + event.duration_ns() / 1e9
        if name.startswith(_EXCHANGES):
            exchange.append(span)
        elif on_device or name.startswith(_COMPUTES_ON_CPU):
            computing.append(span)
    return exchange, computing


class ProfiledSteps:
    """The steps that torch's profiler records; it leaves the profiler to the program if that uses it."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._running: Any = None
        self._is_ours = self._off = False
        self._on_device = False

    def watch(self, module: Any) -> None:
        """Notice profilers that the program makes, as there can be one at a time."""
        kind = module.profile
        own = kind.__init__

        def noted_init(profiler: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_ours:
                self._give_up("the program uses torch's profiler itself")
            own(profiler, *args, **kwargs)

        kind.__init__ = named_as(noted_init, own)

    def warm_up(self, device: str) -> None:
        """Record nothing once, so that the driver's tools are loaded, where steps will be recorded."""
        self._on_device = device == "cuda"
        if self._is_wanted():
            self._start()
            self._stop(keep=False)

    def after_step(self, steps: int, is_seen: bool) -> None:
        """End the recording of the step that has ended, and begin that of the next one if it is its turn.

        Args:
            steps: that have ended.
            is_seen: whether the exchange of this process is seen without the profiler.
        """
        if self._running is not None:
            # What hooks have seen meanwhile would count twice.
            self._stop(keep=not is_seen)
        turn = steps + 1
        while turn > _FIRST and turn % _APART == 0:
            turn //= _APART
        if turn == _FIRST and not is_seen and self._is_wanted():
            self._start()

    def _is_wanted(self) -> bool:
        distributed = sys.modules.get("torch.distributed")
        if self._off or distributed is None or not distributed.is_initialized():
            return False
        if "NSYS_PROFILING_SESSION_ID" in os.environ:
            self._give_up("another profiler observes the program")
        return not self._off and int(distributed.get_world_size()) > 1

    def _start(self) -> None:
        # Its library writes to standard error what would seem to come from the program.
        os.environ.setdefault("KINETO_LOG_LEVEL", "9")
        torch: Any = sys.modules["torch"]
        self._is_ours = True
        try:
            activity = torch.profiler.ProfilerActivity
            kind = activity.CUDA if self._on_device else activity.CPU
            running = torch.profiler.profile(activities=[kind])
            running.start()
            self._running = running
        except Exception as error:
            self._give_up(f"torch's profiler did not start ({error})")
        finally:
            self._is_ours = False

    def _stop(self, keep: bool) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.stop()
            if keep:
                self._keep(running.profiler.kineto_results.events())
        except Exception as error:
            self._give_up(f"torch's profiler could not be read ({error})")

    def _keep(self, events: Iterable[Any]) -> None:
        exchange, computing = _spans(events, self._on_device)
        if exchange:
            hidden, exposed = hidden_and_exposed(exchange, computing)
            # Lengths alone: the mean is what each step gets.
            self._marks.add(HIDDEN, 0.0, hidden, exposed)
            self._marks.note(exchange_by="profiler")

    def _give_up(self, why: str) -> None:
        self._off = True
        self._stop(keep=False)
        self._marks.note(not_profiled=why)
