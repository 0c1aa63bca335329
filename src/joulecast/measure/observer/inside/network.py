"""Captures the trained network as an op graph in the first step, if the user asks for it.

This needs joulecast in the program's own environment: the op graph is made in this process, from torch's
export of the module.
"""

from __future__ import annotations

from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from typing import Any
from weakref import ref

from .marks import Marks

_MOST_CALLS = 64
"""Most calls that are remembered for each depth. The first step alone may have many calls."""
_MOST_TENSORS = 16
"""Most tensors of a batch that are looked at."""
_DEEPEST_TENSORS, _MOST_PARTS = 6, 256
"""How deep inside of a batch tensors are looked for, and in how many of its parts at each depth."""
_DEEPEST = 3
"""Number of depths at which calls are remembered. Depth 0 is a call that is inside of no other call. For
example, Lightning's module gets the batch, and calls the network at depth 1."""


def _without_memory(value: Any) -> Any:
    """A copy of a value. Each tensor in the copy has its shape and type, but only one number in memory."""
    if hasattr(value, "new_empty"):
        return value.new_empty(()).expand(value.shape)
    if type(value) is dict or isinstance(value, UserDict):
        return {name: _without_memory(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_memory, value))
    return value


def tensors_in(batch: Any, inner_lists: bool = True) -> list[Any]:
    """The tensors in a batch that have a length: those that are the least deep inside of it.

    Without ``inner_lists``, lists inside of the batch are left out.
    """
    level = [batch]
    for _ in range(_DEEPEST_TENSORS):
        tensors = [each for each in level if getattr(each, "shape", None) is not None]
        if found := [each for each in tensors if len(each.shape)]:
            return found[:_MOST_TENSORS]
        parts = (_parts(each) for each in level if getattr(each, "shape", None) is None)
        level = list(islice(chain.from_iterable(parts), _MOST_PARTS))
        if not inner_lists:
            level = [each for each in level if not isinstance(each, (list, tuple))]
    return []


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping) or hasattr(batch, "items"):
        return list(batch.values())
    if isinstance(batch, (list, tuple)):
        return batch
    return list(vars(batch).values()) if hasattr(batch, "__dict__") else ()


def samples_of(batch: Any) -> int | None:
    """Number of samples in a batch: the length of the first dimension of most of its tensors. ``None`` if no
    length is that of more than half of them, as with graphs of several sizes. (An inner list may have a
    tensor for each sample.)"""
    # The batch may be of a class of the program, with attributes of any kind.
    with suppress(Exception):
        lengths = Counter(int(tensor.shape[0]) for tensor in tensors_in(batch, inner_lists=False))
        length, most = lengths.most_common(1)[0]
        return length if 2 * most > sum(lengths.values()) else None
    return None


def _names(module: Any) -> int:
    """Number of parameter names in a module. A parameter that several layers share has several names."""
    return len(list(module.named_parameters(remove_duplicate=False)))


def _trainable(module: Any) -> int:
    """Number of parameters of a module that require a gradient. ZeRO 3 of DeepSpeed divides a tensor between
    the ranks, and keeps the size of the whole tensor as ``ds_numel``."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights)


class Network:
    """Notes the modules that are called before the first update. Then it captures one of them: the module
    with most of the parameters that the update trains.

    Args:
        capture: name of the function that makes the op graph, as ``package.module:function``. It takes a
            module and the arguments of its call. The graph that it returns has a method to write it to a
            path.
    """

    def __init__(self, marks: Marks, capture: str) -> None:
        self._marks = marks
        self._capture = capture
        self._depth = 0
        self._called: list[list[tuple[Any, ...]]] = [[] for _ in range(_DEEPEST)]
        """For each depth, the calls at this depth: the module, whether gradients were recorded, and the
        inputs."""
        self._samples: Counter[int] = Counter()
        """Total number of samples in the calls of a module, by the id of the module."""
        self._unwatch: Callable[[], None] | None = None

    def begin_batch(self) -> None:
        """Count samples from 0 again. Earlier calls, such as a trial call of the network, are not part of the
        step."""
        self._samples.clear()

    def watch(self, module: Any) -> None:
        """Wrap the call of ``torch.nn.modules.module.Module`` until the network is captured."""
        kind = module.Module
        own = kind.__call__

        @wraps(own)
        def noted_call(called: Any, *args: Any, **kwargs: Any) -> Any:
            # torch.fx may have kept this function, and may call it later. A compiler would compile what is
            # done here, too, and would compile again once the network is captured.
            if module.torch.compiler.is_compiling() or self._unwatch is None:
                return own(called, *args, **kwargs)
            if self._depth < _DEEPEST:
                # Some kinds of tensors (nested ones) have no single shape.
                with suppress(Exception):
                    records = module.torch.is_grad_enabled()
                    given, named = _without_memory(args), _without_memory(kwargs)
                    notes = self._called[self._depth]
                    notes.append((ref(called), records, given, named))
                    del notes[:-_MOST_CALLS]
                    self._samples[id(called)] += (
                        samples_of([*given, *named.values()]) or 0
                    ) * records
            self._depth += 1
            try:
                return own(called, *args, **kwargs)
            finally:
                self._depth -= 1

        kind.__call__ = noted_call
        self._unwatch = lambda: setattr(kind, "__call__", own)

    def capture(self, tensors: list[Any], path: str) -> None:
        """Write the op graph of the module that contains most of the updated tensors."""
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch, called = None, [each for notes in self._called for each in notes]
        self._called = []
        trained = {id(tensor): tensor.numel() for tensor in tensors}
        try:
            known = [(own, *given) for module, *given in called if (own := module()) is not None]
            shares = [
                sum(trained.get(id(tensor), 0) for tensor in module.parameters())
                for module, *_ in known
            ]
            if not any(shares):
                # DeepSpeed and Megatron update copies of the weights. Each rank updates a part of the copies.
                updated = sum(trained.values())
                sizes = [_trainable(module) if records else 0 for module, records, *_ in known]
                shares = [size if size >= updated else 0 for size in sizes]
                network = known[shares.index(max(shares))][0] if any(shares) else None
                kinds = [weight.dtype for weight in network.parameters()] if network else []
                self._marks.note(copies_of=str(kinds[0]).removeprefix("torch.") if kinds else None)
            if not any(shares):
                raise ValueError(
                    "no module that was called has the parameters that were updated. Calls in a compiled "
                    "function are not seen"
                )
            # Calls without gradients come last: a training may try its network first, such as a policy in
            # its environment.
            order = sorted(
                range(len(known)), key=lambda place: (shares[place], known[place][1]), reverse=True
            )
            package, _, function = self._capture.partition(":")
            make = getattr(import_module(package), function)
            # One call of each module, the outermost first.
            first = dict[int, int]()
            for place in order:
                first.setdefault(id(known[place][0]), place)
            tried = [(*known[place], shares[place]) for place in first.values()]
            self._write(make, tried, Path(path))
        except Exception as error:
            self._marks.note(not_captured=f"{type(error).__name__}: {error}"[:1000])

    def _write(self, make: Callable[..., Any], tried: list[tuple[Any, ...]], path: Path) -> None:
        """Write the op graph of the first call for which ``make`` succeeds. If it succeeds for no call, raise
        its error for the first call."""
        faults: list[Exception] = []
        for module, _, args, kwargs, share in tried[:_DEEPEST]:
            # A module with a tied head has more names: the head has a second name for a layer's weights.
            if share < tried[0][-1] or _names(module) < _names(tried[0][0]):
                break
            try:
                make(module, args, kwargs).write(path)
            except Exception as error:
                faults.append(error)
            else:
                samples = self._samples[id(module)] or None
                self._marks.note(captured_parameters=share, captured_samples=samples)
                return
        raise faults[0]
