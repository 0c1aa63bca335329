"""Three ways to see the exchange between ranks: collectives for which the caller waits, the statistics of
DDP, and a profiler.

The profiler of torch records a few steps. These recordings show the exchange of FSDP, of DeepSpeed, and of
all else that hooks miss. On a GPU, collectives run at the same time as the kernels that compute, in separate
streams. The exchange that nothing hides is the time in which a collective runs and no other kernel does.
Steps 3, 12, 48, 192, ... are recorded. All ranks number the steps in the same way. The first recording of a
process loads the tools of the driver, which takes time. So one empty recording is made in the first step,
which is a warm-up anyway.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .marks import EXCHANGE, HIDDEN, Marks
from .wrapping import wrap

_COLLECTIVES = ("all_", "barrier", "broadcast", "gather", "reduce", "scatter")
"""Beginnings of the names of torch's collectives, which differ between its versions."""
_SHORTEST_S = 1e-5
"""If an exchange keeps its caller waiting for less than this, it has only been put into a queue."""
_READING_SHARE = 1e-3
"""Share of the time that reading DDP's statistics may take."""
_EVERY_ON_A_DEVICE = 20
"""On a GPU: number of steps from one step in which DDP collects statistics to the next such step. In such a
step, DDP waits for the device."""
_FEWEST_READ = 4
"""Number of steps at the beginning whose statistics are all read. After them, some steps are left out."""
_FIRST, _APART = 3, 4
"""First step that is recorded, and the factor from one such step to the next."""
_EXCHANGES = ("nccl", "rccl", "oneccl", "gloo:", "c10d::", "_c10d_functional::")
"""Beginnings of the names of collectives: kernels on a GPU, operators on a CPU."""
_COMPUTES_ON_CPU = "aten::"

Span = tuple[float, float]


class Collectives:
    """The collectives of ``torch.distributed``, and the time for which the caller waits for them.

    Args:
        is_timed: returns whether the time of a call shows the time of its exchange. On a GPU it does not:
            there, the caller waits only for the launch.
    """

    def __init__(self, marks: Marks, is_timed: Callable[[], bool]) -> None:
        self._marks, self._is_timed = marks, is_timed
        self._inside = False
        self.are_timed = False
        """Whether any exchange has been seen since this was last set to ``False``."""

    def watch(self, module: Any) -> None:
        """Wrap the collectives of ``torch.distributed.distributed_c10d``."""
        self._module, package = module, sys.modules.get("torch.distributed")
        names = [
            name
            for name, own in vars(module).items()
            if name.startswith(_COLLECTIVES) and callable(own) and not isinstance(own, type)
        ]
        for name in (*names, "init_process_group"):
            own = getattr(module, name)
            wrap(module, name, self._timed if name in names else self._noting_rank)
            # torch.distributed copies the names of this module. If it has done so already, its copy is
            # replaced, too.
            if getattr(package, name, None) is own:
                setattr(package, name, getattr(module, name))
        # What was started without waiting is waited for here.
        wrap(module.Work, "wait", self._timed)

    def _noting_rank(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note the rank that torch gives this process. If a program starts its ranks itself, the environment
        may not contain the rank."""
        result = own(*args, **kwargs)
        rank, ranks = self._module.get_rank(), self._module.get_world_size()
        self._marks.note(group_rank=rank, group_ranks=ranks)
        return result

    def _timed(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return own(*args, **kwargs)
        start = time.monotonic()
        self._inside = True
        try:
            return own(*args, **kwargs)
        finally:
            self._inside = False
            stop = time.monotonic()
            if stop - start > _SHORTEST_S and self._is_timed():
                self.are_timed = True
                self._marks.add(EXCHANGE, start, stop)


class Replicas:
    """The replicas of DistributedDataParallel in this process, and their statistics of the exchange."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._known: list[weakref.ref[Any]] = []
        self._read_next, self._last_s, self._read_ns = 2, 0.0, 0
        self._rated = 0

    @property
    def are_known(self) -> bool:
        """Whether the process has made any replica."""
        return bool(self._known)

    def begin(self) -> None:
        """Begin with a new training. From now on, updates are counted from 1 again."""
        self._read_next = 2

    def watch(self, module: Any) -> None:
        """Note every replica: the ones that exist already, and the ones that the program makes later."""
        kind = module.DistributedDataParallel

        def noted_init(own: Any, replica: Any, *args: Any, **kwargs: Any) -> None:
            own(replica, *args, **kwargs)
            self._note(replica)

        wrap(kind, "__init__", noted_init)
        if "torch.nn.parallel" in sys.modules:
            for thing in gc.get_objects():
                if type(thing) is kind:
                    self._note(thing)

    def _note(self, replica: Any) -> None:
        self._known.append(weakref.ref(replica))
        self._marks.note(wrapper="DistributedDataParallel")

    def read(self, update: int) -> None:
        """Read the statistics of the previous step. Reading takes time, so only some steps are read: few
        enough that reading takes a very small share of the time."""
        now = time.monotonic()
        step_s, self._last_s = now - self._last_s, now
        replicas = [replica for known in self._known if (replica := known()) is not None]
        for replica in replicas[self._rated :]:
            every = 1 if replica.device_type == "cpu" else _EVERY_ON_A_DEVICE
            replica._set_ddp_runtime_logging_sample_rate(every)
            self._rated += 1
        if update < self._read_next:
            return
        for replica in replicas:
            self._read(replica)
        between = 1
        if update > _FEWEST_READ:
            took_s = time.monotonic() - now
            between = max(1, int(took_s / (_READING_SHARE * max(step_s, 1e-6))))
        self._read_next = update + between

    def _read(self, replica: Any) -> None:
        logged = replica._get_ddp_logging_data()
        stop_ns = logged.get("backward_comm_time_end")
        if stop_ns is None or stop_ns == self._read_ns:
            return
        self._read_ns = stop_ns
        hidden = logged["backward_compute_comm_overlap_time"] / 1e9
        exposed = logged["backward_comm_time"] / 1e9 - hidden
        if replica.device_type != "cpu":
            # On a GPU, DDP knows only the lengths. Its moments are moments of the host.
            self._marks.add(HIDDEN, 0.0, hidden, exposed)
            return
        # DDP reads the wall clock. The marks need the monotonic clock.
        lag = time.time() - time.monotonic()
        stop = stop_ns / 1e9 - lag
        self._marks.add(EXCHANGE, stop - exposed, stop)
        self._marks.add(HIDDEN, stop - exposed - hidden, stop - exposed, exposed)


def _length(spans: Iterable[Span]) -> float:
    """Total length of the union of the spans: where spans overlap, the time counts once."""
    length, until = 0.0, float("-inf")
    for start, stop in sorted(spans):
        length += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return length


def hidden_and_exposed(exchange: Sequence[Span], computing: Sequence[Span]) -> tuple[float, float]:
    """How long an exchange runs at the same time as computing (hidden), and how long it runs alone (exposed).
    Both times are in the unit of the spans."""
    exposed = _length([*exchange, *computing]) - _length(computing)
    return _length(exchange) - exposed, exposed


class ProfiledSteps:
    """The steps that torch's profiler records. If the program uses the profiler, no step is recorded."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._running: Any = None
        self._is_ours = self._off = False
        self._on_device = False

    def watch(self, module: Any) -> None:
        """Notice profilers that the program makes, because there can be only one at a time."""

        def noted_init(own: Any, profiler: Any, *args: Any, **kwargs: Any) -> None:
            if not self._is_ours:
                self._give_up("the program uses torch's profiler itself")
            own(profiler, *args, **kwargs)

        wrap(module.profile, "__init__", noted_init)

    def warm_up(self, device: str) -> None:
        """Load the driver's tools by one empty recording, if steps will be recorded."""
        self._on_device = device == "cuda"
        if self._is_wanted():
            self._start()
            self._stop(keep=False)

    def after_step(self, steps: int, is_seen: bool) -> None:
        """End the recording of the step that has ended. Begin a recording of the next step, if this step is
        to be recorded.

        Args:
            is_seen: whether the exchange of this process is seen without the profiler.
        """
        if self._running is not None:
            # If hooks have seen the exchange, it must not count twice.
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
        # The profiler's library writes to standard error. A user would think that the program wrote this.
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
        exchange, computing = list[Span](), list[Span]()
        for event in events:
            if ("CPU" in str(event.device_type())) == self._on_device:
                continue
            name, start = event.name().lower(), event.start_ns() / 1e9
            span = start, start + event.duration_ns() / 1e9
            if name.startswith(_EXCHANGES):
                exchange.append(span)
            elif self._on_device or name.startswith(_COMPUTES_ON_CPU):
                computing.append(span)
        if exchange:
            hidden, exposed = hidden_and_exposed(exchange, computing)
            # Only the lengths are kept. Each step gets their mean.
            self._marks.add(HIDDEN, 0.0, hidden, exposed)
            self._marks.note(exchange_by="profiler")

    def _give_up(self, why: str) -> None:
        self._off = True
        self._stop(keep=False)
        self._marks.note(not_profiled=why)
