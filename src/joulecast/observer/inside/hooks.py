"""Hooks into torch: waiting for data, backward passes, exchange of gradients, and updates.

All are those that torch offers, or wrappers around one function. They read the host's clock and never wait
for a device.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .imports import Hook
from .marks import BACKWARD, EXCHANGE, FETCH, HIDDEN, PREFETCH, UPDATE, Marks

_COLLECTIVES = ("all_", "barrier", "broadcast", "gather", "reduce", "scatter")
"""Beginnings of the names of torch's collectives, which differ between its versions."""
_SHORTEST_S = 1e-5
"""An exchange that keeps its caller for less has only been put into a queue."""
_FUNCTIONAL = (
    *(
        "sgd",
        "adam",
        "adamw",
        "adagrad",
        "adadelta",
        "adamax",
        "nadam",
        "radam",
        "rmsprop",
        "rprop",
    ),
    *("asgd", "adafactor"),
)
"""Optimizers that torch also has as functions, in modules of the same name."""
Wrapped = TypeVar("Wrapped")

_READING_SHARE = 1e-3
"""Share of the time that reading DDP's statistics may take."""
_EVERY_ON_A_DEVICE = 20
"""DDP collects its statistics of so many steps once on a GPU, as it waits for the device then."""
_FEWEST_READ = 4
"""Steps whose statistics are read one after the other, before some are left out."""


def samples_of(batch: Any, depth: int = 0) -> int | None:
    """Samples of a batch: the length of the first tensor in it; ``None`` where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth > 4:
        return None
    if isinstance(batch, Mapping) or hasattr(batch, "items"):
        parts: Any = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = batch
    else:
        parts = list(vars(batch).values()) if hasattr(batch, "__dict__") else []
    for part in parts:
        found = samples_of(part, depth + 1)
        if found is not None:
            return found
    return None


class Watch:
    """The hooks of one process."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._begun = 0.0
        self._in_update = False
        self._has_gradients = False
        self._thread = threading.main_thread().ident
        self._backward_depth = 0
        self._in_collective = False
        self._optimizers: dict[int, int] = {}
        self._replicas: list[weakref.ref[Any]] = []
        self._steps, self._read_next, self._last_s = 0, 0, 0.0
        self._read_ns = 0

    def by_module(self) -> dict[str, Hook]:
        """The hooks by the module of torch that they are for."""
        return {
            "torch.optim.optimizer": self._watch_optimizers,
            "torch.autograd": self._watch_backward,
            "torch.utils.data.dataloader": self._watch_loaders,
            "torch.nn.parallel.distributed": self._watch_replicas,
            "torch.distributed.distributed_c10d": self._watch_collectives,
            "torch.amp.autocast_mode": self._watch_autocast,
            **{f"torch.optim.{name}": self._watch_functional(name) for name in _FUNCTIONAL},
            "mpi4py.MPI": lambda module: self._marks.note(mpi=True),
        }

    # Updates

    def _watch_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self._before_update)
        module.register_optimizer_step_post_hook(self._after_update)

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        self._begun = time.monotonic()
        self._in_update = True

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        number = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
        self._updated(number)
        if self._steps <= 1 and number == len(self._optimizers) - 1:
            self._marks.note(**_facts_of(optimizer, number))

    def _watch_functional(self, name: str) -> Hook:
        """Updates by a function of torch, outside of any optimizer object."""

        def hook(module: Any) -> None:
            own = getattr(module, name)

            def timed_update(*args: Any, **kwargs: Any) -> Any:
                if self._in_update:
                    return own(*args, **kwargs)
                self._begun = time.monotonic()
                result = own(*args, **kwargs)
                # Some call it once for each tensor: the first call after a backward pass is a step.
                number = 0 if self._has_gradients else 1
                self._updated(number)
                if self._steps == 1 and number == 0:
                    tensors = args[0] if args else kwargs.get("params", ())
                    self._marks.note(optimizer=name, **_facts_of_tensors(list(tensors), 0))
                return result

            setattr(module, name, _as(timed_update, own))

        return hook

    def _updated(self, number: int) -> None:
        stop = time.monotonic()
        self._in_update = self._has_gradients = False
        self._thread = threading.get_ident()
        self._marks.add(UPDATE, self._begun, stop, number)
        if number == 0:
            self._steps += 1
            self._read_replicas(stop)
        self._marks.write()

    # Computing

    def _watch_backward(self, module: Any) -> None:
        module.backward = self._timed(module.backward)

    def _timed(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def timed_backward(*args: Any, **kwargs: Any) -> Any:
            start = time.monotonic()
            self._backward_depth += 1
            try:
                return backward(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                if self._backward_depth == 0:
                    self._has_gradients = True
                    self._marks.add(BACKWARD, start, time.monotonic())

        return _as(timed_backward, backward)

    def _watch_autocast(self, module: Any) -> None:
        enter = module.autocast.__enter__
        marks = self._marks

        def noted_enter(autocast: Any) -> Any:
            if getattr(autocast, "_enabled", True):
                marks.note(autocast=str(autocast.fast_dtype).removeprefix("torch."))
            return enter(autocast)

        module.autocast.__enter__ = _as(noted_enter, enter)

    # Materials

    def _watch_loaders(self, module: Any) -> None:
        kind = module._BaseDataLoaderIter
        following = kind.__next__
        watch = self

        def timed_next(iterator: Any) -> Any:
            start = time.monotonic()
            batch = following(iterator)
            # What another thread fetches keeps nobody waiting until the training asks for it.
            own = threading.get_ident() == watch._thread
            watch._marks.add(
                FETCH if own else PREFETCH, start, time.monotonic(), samples_of(batch) or 0
            )
            return batch

        kind.__next__ = _as(timed_next, following)

    # Exchange

    def _watch_collectives(self, module: Any) -> None:
        for name, own in list(vars(module).items()):
            if name.startswith(_COLLECTIVES) and callable(own) and not isinstance(own, type):
                setattr(module, name, self._timed_collective(own))
        # What was started without waiting is waited for here.
        module.Work.wait = self._timed_collective(module.Work.wait)

    def _timed_collective(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def timed_collective(*args: Any, **kwargs: Any) -> Any:
            if self._in_collective:
                return own(*args, **kwargs)
            start = time.monotonic()
            self._in_collective = True
            try:
                return own(*args, **kwargs)
            finally:
                self._in_collective = False
                stop = time.monotonic()
                if stop - start > _SHORTEST_S:
                    self._marks.add(EXCHANGE, start, stop)

        return _as(timed_collective, own)

    def _watch_replicas(self, module: Any) -> None:
        kind = module.DistributedDataParallel
        own = kind.__init__
        watch = self

        def noted_init(replica: Any, *args: Any, **kwargs: Any) -> None:
            own(replica, *args, **kwargs)
            watch._replicas.append(weakref.ref(replica))
            watch._marks.note(wrapper="DistributedDataParallel")

        kind.__init__ = _as(noted_init, own)

    def _read_replicas(self, now: float) -> None:
        """Read DDP's statistics of the step before, in as many steps as cost next to nothing."""
        step_s, self._last_s = now - self._last_s, now
        if self._steps < self._read_next:
            return
        replicas = [replica for reference in self._replicas if (replica := reference()) is not None]
        for replica in replicas:
            if self._steps == 1:
                on_cpu = replica.device_type == "cpu"
                replica._set_ddp_runtime_logging_sample_rate(1 if on_cpu else _EVERY_ON_A_DEVICE)
            else:
                self._read(replica)
        every = 1
        if self._steps > _FEWEST_READ:
            took_s = time.monotonic() - now
            every = max(1, int(took_s / (_READING_SHARE * max(step_s, 1e-6))))
        self._read_next = self._steps + every

    def _read(self, replica: Any) -> None:
        logged = replica._get_ddp_logging_data()
        stop_ns = logged.get("backward_comm_time_end")
        if stop_ns is None or stop_ns == self._read_ns:
            return
        self._read_ns = stop_ns
        # DDP has the wall clock; marks have the monotonic one.
        lag = time.time() - time.monotonic()
        stop = stop_ns / 1e9 - lag
        hidden = logged["backward_compute_comm_overlap_time"] / 1e9
        exposed = logged["backward_comm_time"] / 1e9 - hidden
        self._marks.add(EXCHANGE, stop - exposed, stop)
        self._marks.add(HIDDEN, stop - exposed - hidden, stop - exposed, exposed)
        self._marks.note(gradient_bytes=logged.get("total_parameter_size_bytes"))


def _as(wrapper: Wrapped, own: Any) -> Wrapped:
    """The wrapper with the name and the text of what it wraps."""
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(own, name):
            setattr(wrapper, name, getattr(own, name))
    return wrapper


def _facts_of(optimizer: Any, number: int) -> dict[str, Any]:
    """Facts of what an optimizer trains."""
    tensors = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not tensors:
        return {}
    known = {"optimizer": type(optimizer).__name__}
    return known | _facts_of_tensors(tensors, number)


def _facts_of_tensors(tensors: list[Any], number: int) -> dict[str, Any]:
    return {
        f"parameters_{number}": sum(p.numel() for p in tensors),
        f"parameter_bytes_{number}": sum(p.numel() * p.element_size() for p in tensors),
        "precision": str(tensors[0].dtype).removeprefix("torch."),
        "device": tensors[0].device.type,
    }
