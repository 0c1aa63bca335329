"""Hooks into torch: waiting for data, backward passes, exchange of gradients, and updates.

Each is a hook that torch offers, or a wrapper around a function. No hook ever waits for a device.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

from .exchange import Collectives, ProfiledSteps, Replicas
from .marks import (
    BACKWARD,
    FETCH,
    PART,
    PREFETCH,
    UPDATE,
    HostClock,
    Marks,
    Moment,
    clock_of,
)
from .network import Network, samples_of, tensors_in
from .wrapping import Hook, is_recorded, wrap

_FUNCTIONAL = (
    *("sgd", "adam", "adamw", "adagrad", "adadelta", "adamax", "nadam", "radam", "rmsprop"),
    *("rprop", "asgd", "adafactor"),
)
"""Optimizers that torch also has as functions, in modules of the same name."""


def _content_of(batch: Any) -> int | None:
    """A number that differs for batches with other contents. ``None`` for a batch of constants, and for one
    on a device, which is not waited for."""
    content, varies = 0, False
    for tensor in tensors_in(batch):
        if getattr(getattr(tensor, "device", "cpu"), "type", "cpu") != "cpu":
            return None
        numbers = tensor.reshape(-1)
        shown = numbers[:: 1 + len(numbers) // 1000].tolist()
        varies = varies or any(number != shown[0] for number in shown)
        content = crc32(repr(shown).encode(), content)
    return content if varies else None


def _trained_by(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _facts_of(optimizer: str, tensors: list[Any], number: int = 0) -> dict[str, Any]:
    """Facts of the tensors that an optimizer trains."""
    return {
        "optimizer": optimizer,
        f"parameters_{number}": sum(p.numel() for p in tensors),
        "precision": str(tensors[0].dtype).removeprefix("torch."),
        "tf32": _are_at_tf32(tensors),
        "device": tensors[0].device.type,
    }


def _are_at_tf32(tensors: list[Any]) -> bool:
    """Whether torch computes most products of these weights at TF32. It can do so with fp32 tensors on
    NVIDIA's GPUs since Ampere. By default, it does so only for convolutions."""
    torch, first = sys.modules["torch"], tensors[0]
    if first.dtype != torch.float32 or first.device.type != "cuda" or torch.version.hip:
        return False
    if torch.cuda.get_device_capability(first.device)[0] < 8:
        return False
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        # Since torch 2.9. The older names fail if a program has set these.
        of_matrices, of_kernels = (each.fp32_precision == "tf32" for each in (matmul, cudnn.conv))
    else:
        of_matrices, of_kernels = matmul.allow_tf32, cudnn.allow_tf32
    kernels, matrices = (sum(p.dim() > 2 for p in tensors), sum(p.dim() == 2 for p in tensors))
    return bool(of_kernels if kernels > matrices else of_matrices)


class Watch:
    """The hooks of one process."""

    def __init__(self, marks: Marks, capture: str | None = None) -> None:
        self.marks = marks
        self._network = Network(marks, capture) if capture else None
        self._clock = HostClock()
        self._begun = self._clock.now()
        self._updating: Any = None
        """The optimizer that is making an update. Another optimizer inside of it, such as that of a
        ``ZeroRedundancyOptimizer``, is a part of it."""
        self._has_gradients = False
        self._passes = 0
        """Number of backward passes that have begun."""
        self._ended_by: dict[int, tuple[int, int]] = {}
        """What the newest step of an optimizer ended with, by the number of the optimizer: the number of
        passes, and the id of the first tensor that was updated."""
        self._thread = threading.main_thread().ident
        self._backward_depth = 0
        self._optimizers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Number of each optimizer of torch that has made an update and still exists."""
        self._newest = 0
        self._largest: Counter[int] = Counter()
        """Number of parameters by the number of the optimizer: the largest, if several had this number."""
        self._updates = 0
        self._whole, self._parts = 0, 1
        """Number of parameters of the largest network of DeepSpeed, and the largest number of parts into
        which FSDP 1 divides a network."""
        self._has_loaded = False
        self._device = "cpu"
        self._replicas = Replicas(marks)
        # On a GPU, the caller waits only for the launch of a collective. This time does not show the
        # exchange.
        self._collectives = Collectives(marks, lambda: self._device == "cpu")
        self._profiled = ProfiledSteps(marks)
        self._steps = 0

    def by_module(self) -> dict[str, Hook]:
        """For each module of a library, by its name: the function that adds the hooks to it."""
        network = self._network
        return {
            **({"torch.nn.modules.module": network.watch} if network else {}),
            "torch._dynamo.trace_rules": self._hide_from_compiler,
            "torch.optim.optimizer": self._watch_optimizers,
            "torch.autograd": self._watch_backward,
            "torch.autograd.profiler": self._profiled.watch,
            "torch.utils.data.dataloader": self._watch_loaders,
            "torch.nn.parallel.distributed": self._replicas.watch,
            "torch.distributed.distributed_c10d": self._collectives.watch,
            "torch.amp.autocast_mode": self._watch_autocast,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self._watch_fsdp,
            "torch.distributed.fsdp._fully_shard._fully_shard": self._watch_fully_shard,
            "deepspeed.runtime.engine": self._watch_deepspeed,
            "torch.utils.checkpoint": self._watch_checkpoints,
            **{f"torch.optim.{name}": self._watch_functional(name) for name in _FUNCTIONAL},
            "keras.src.backend.torch.optimizers.torch_parallel_optimizer": self._watch_keras,
            "fastai.optimizer": self._watch_fastai,
            "mpi4py.MPI": self._note_mpi,
        }

    def _hide_from_compiler(self, module: Any) -> None:
        """A compiled function of the program may call hooks, which need no compiling. It compiles the
        wrappers of :func:`wrap`, so that it finds the functions in them."""
        for name in ("exchange", "hooks", "marks", "network"):
            module.add(f"{__package__}.{name}")

    def _note_mpi(self, module: Any) -> None:
        if module.Is_initialized():
            self.marks.note(mpi_ranks=module.COMM_WORLD.Get_size())

    def begin(self) -> None:
        """Begin with a new training: forget what was noted about an earlier one."""
        self._optimizers.clear()
        self._largest.clear()
        self._newest = self._updates = self._steps = 0
        self._has_gradients = self._has_loaded = False
        self._ended_by.clear()
        self._replicas.begin()

    def _add(self, kind: int, start: Moment, amount: float = 0.0) -> None:
        """Add a mark from ``start`` to now. On a device, "now" is a point in its stream. The mark is then
        added after the device has passed this point."""
        marks = self.marks
        self._clock.add(start, self._clock.now(), lambda a, b: marks.add(kind, a, b, amount))

    def _watch_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self._before_update)
        module.register_optimizer_step_post_hook(self._after_update)

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        if is_recorded():
            self.marks.note(replayed=True)
            return
        if self._updating in (None, optimizer):
            self._updating, self._begun = optimizer, self._clock.now()

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if self._updating is not optimizer:
            return
        if optimizer not in self._optimizers:
            self._add_optimizer(optimizer)
        tensors = [
            tensor for group in optimizer.param_groups for tensor in list(group["params"])[:1]
        ]
        self._updated(self._optimizers[optimizer], tensors)

    def _add_optimizer(self, optimizer: Any) -> None:
        """Number a new optimizer. It takes the place of the newest one if that no longer exists: a program
        may make an optimizer for each fold, or for each batch."""
        if self._newest in self._optimizers.values():
            self._newest += 1
        number = self._optimizers[optimizer] = self._newest
        self._ended_by.pop(number, None)
        tensors = _trained_by(optimizer)
        facts = _facts_of(type(optimizer).__name__, tensors, number) if tensors else {}
        self._largest |= Counter({number: facts.get(f"parameters_{number}", 0)})
        if self._largest[number] < max(self._largest.values()):
            # The optimizer with the most parameters says with which precision and device a run trains.
            facts = {}
        self._note(facts | {f"parameters_{number}": self._largest[number]})
        self._capture(tensors)

    def _watch_functional(self, name: str) -> Hook:
        """Watch updates that a function of torch makes, without an optimizer object."""

        def timed_update(own: Any, *args: Any, **kwargs: Any) -> Any:
            if self._updating is not None:
                return own(*args, **kwargs)
            self._begun = self._clock.now()
            result = own(*args, **kwargs)
            tensors = list(args[0] if args else kwargs.get("params", ()))
            if self._has_gradients and self._updates == 0:
                self._note(_facts_of(name, tensors))
                self._capture(tensors)
            # Without backward passes, such as in evolution strategies, each call is a step.
            self._updated(0, tensors if self._passes else ())
            return result

        return lambda module: wrap(module, name, timed_update)

    def _watch_other(self, owner: Any, name: str, trained: Callable[..., list[Any]]) -> None:
        """Watch updates of a library that has its own optimizers.

        Args:
            owner: the class of its optimizers.
            name: the method that makes an update.
            trained: gives the trained tensors, from the arguments of the method.
        """

        def timed_update(own: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._begun = self._clock.now()
            result = own(optimizer, *args, **kwargs)
            if self._updates == 0:
                tensors = trained(optimizer, *args)
                self._note(_facts_of(type(optimizer).__name__, tensors))
                self._capture(tensors)
            self._updated(0)
            return result

        wrap(owner, name, timed_update)

    def _watch_keras(self, module: Any) -> None:
        self._watch_other(
            module.TorchParallelOptimizer,
            "_backend_update_step",
            lambda _, gradients, variables, *others: [variable.value for variable in variables],
        )

    def _watch_fastai(self, module: Any) -> None:
        self._watch_other(
            module.Optimizer,
            "step",
            lambda optimizer, *_: [parameter for parameter, *_ in optimizer.all_params()],
        )

    def _capture(self, tensors: list[Any]) -> None:
        """Capture the network with these tensors, if it is asked for and not captured yet."""
        if self._network is not None:
            # The capture takes seconds. They belong to the first step, which is a warm-up.
            self._network.capture(tensors, self.marks.path("graph"))

    def _note(self, facts: dict[str, Any]) -> None:
        """Note what is trained, and from now on take times on the device where it is trained."""
        self.marks.note(**facts)
        device = facts.get("device", self._device)
        if device != self._device:
            self._device, self._clock = device, clock_of(device)
        if self._updates == 0:
            compiler = sys.modules.get("torch._dynamo.utils")
            self.marks.note(compiled=bool(compiler and compiler.counters))
            self._profiled.warm_up(self._device)

    def _updated(self, number: int, tensors: Sequence[Any] = ()) -> None:
        self._updating, self._has_gradients = None, False
        # Some make one update by several calls: one for each tensor, or one for each group of them (ZeRO of
        # DeepSpeed). The first call is the step, and the others are its parts.
        passes, first = self._passes, id(tensors[0]) if tensors else 0
        known = self._ended_by.get(number)
        if known is not None and known[0] == passes and known[1] != first:
            number = PART
        else:
            self._ended_by[number] = passes, first
        self._thread = threading.get_ident()
        self._add(UPDATE, self._begun, number)
        self._clock.read()
        self._updates += 1
        self._replicas.read(self._updates)
        if number == 0:
            self._steps += 1
            is_seen = self._replicas.are_known or self._collectives.are_timed
            self._profiled.after_step(self._steps, is_seen)
            if self._steps == 1:
                # What was exchanged before the first step is over tells nothing of the others.
                self._collectives.are_timed = False
        self.marks.write()

    def _watch_backward(self, module: Any) -> None:
        def timed_backward(own: Any, *args: Any, **kwargs: Any) -> Any:
            start = self._clock.now()
            self._passes += self._backward_depth == 0
            self._backward_depth += 1
            try:
                return own(*args, **kwargs)
            finally:
                self._backward_depth -= 1
                if self._backward_depth == 0:
                    self._has_gradients = True
                    self._add(BACKWARD, start)

        def noted_grad(own: Any, *args: Any, **kwargs: Any) -> Any:
            # The call may be a part of the forward pass. So it does not count as a backward pass.
            self._has_gradients = True
            self._passes += 1
            return own(*args, **kwargs)

        wrap(module, "backward", timed_backward)
        wrap(module, "grad", noted_grad)

    def _watch_autocast(self, module: Any) -> None:
        def noted_enter(enter: Any, autocast: Any) -> Any:
            if getattr(autocast, "_enabled", True):
                self.marks.note(autocast=str(autocast.fast_dtype).removeprefix("torch."))
            return enter(autocast)

        wrap(module.autocast, "__enter__", noted_enter)

    def _note_policy(self, policy: Any) -> None:
        """Note that FSDP computes with weights of another type than the updated ones."""
        dtype = getattr(policy, "param_dtype", None)
        if dtype is not None:
            self.marks.note(copies_of=str(dtype).removeprefix("torch."))

    def _watch_fully_shard(self, module: Any) -> None:
        def noted(own: Any, network: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_policy(kwargs.get("mp_policy"))
            return own(network, *args, **kwargs)

        wrap(module, "fully_shard", noted)

    def _watch_fsdp(self, module: Any) -> None:
        """Watch FSDP 1. There, the size of a tensor is that of the rank's part. Under FSDP 2 and all others,
        it is that of the whole tensor."""

        def noted_init(own: Any, replica: Any, *args: Any, **kwargs: Any) -> None:
            own(replica, *args, **kwargs)
            self._note_policy(replica.mixed_precision)
            if replica.sharding_strategy is not module.ShardingStrategy.NO_SHARD:
                self._parts = max(self._parts, replica.process_group.size())
                self.marks.note(parts=self._parts)

        wrap(module.FullyShardedDataParallel, "__init__", noted_init)

    def _watch_deepspeed(self, module: Any) -> None:
        """Its optimizers update copies of the weights. With ZeRO, those of a rank are only a part."""

        def noted_init(own: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
            own(engine, *args, **kwargs)
            weights = [weight for weight in engine.module.parameters() if weight.requires_grad]
            whole = sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights)
            # Of several networks, such as actor and critic, the largest counts. A reference model has no
            # weights that are trained.
            if whole > self._whole:
                self._whole = whole
                copies_of = str(weights[0].dtype).removeprefix("torch.")
                self.marks.note(copies_of=copies_of, whole=whole)

        wrap(module.DeepSpeedEngine, "__init__", noted_init)

    def _watch_checkpoints(self, module: Any) -> None:
        def noted(own: Any, *args: Any, **kwargs: Any) -> Any:
            self.marks.note(recomputes=True)
            return own(*args, **kwargs)

        # Both ways of torch's `checkpoint` pass here. A compiler knows the function itself, which stays.
        wrap(module._CheckpointFrame, "__init__", noted)
        wrap(module, "check_backward_validity", noted)

    def _watch_loaders(self, module: Any) -> None:
        # Samples of the batches that an iterator has asked for and not given yet.
        asked: WeakKeyDictionary[Any, deque[int]] = WeakKeyDictionary()
        # Whether the first batch of an iterator has a row for each item.
        rows_are_items: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

        def noted_index(next_index: Any, iterator: Any) -> Any:
            index = next_index(iterator)
            # An item of a data set is a sample, unless the data set itself makes batches.
            if getattr(iterator, "_auto_collation", False) and hasattr(index, "__len__"):
                asked.setdefault(iterator, deque()).append(len(index))
            return index

        def timed_next(following: Any, iterator: Any) -> Any:
            start = self._clock.now()
            batch = following(iterator)
            waiting = asked.get(iterator)
            samples = waiting.popleft() if waiting else None
            if not module.torch.is_grad_enabled():
                # No training computes without gradients: the batch is one of an evaluation.
                return batch
            streams = iterator._dataset_kind == module._DatasetKind.Iterable
            if samples is None or (streams and rows_are_items.get(iterator, True)):
                # A stream gives fewer items than were asked for if it ends.
                rows = samples_of(batch)
                is_number = samples is None or rows_are_items.setdefault(iterator, rows == samples)
                samples = rows if is_number else samples
            if not self._has_loaded:
                self._has_loaded = True
                # A batch may be of any class: reading it must not end the training.
                with suppress(Exception):
                    self.marks.note(first_batch=_content_of(batch))
            # If another thread fetches the batch, the training waits only when it asks for the batch.
            own = threading.get_ident() == self._thread
            if own and self._network is not None and not self._has_gradients:
                self._network.begin_batch()
            self._add(FETCH if own else PREFETCH, start, samples or 0)
            return batch

        wrap(module._BaseDataLoaderIter, "_next_index", noted_index)
        wrap(module._BaseDataLoaderIter, "__next__", timed_next)
