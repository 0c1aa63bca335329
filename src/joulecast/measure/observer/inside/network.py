"""Captures the trained network as an op graph in the first step, if the user asks for it.

This needs joulecast in the program's own environment: the op graph is made in this process, from torch's
export of the module.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import ref

from .marks import Marks
from .wrapping import named_as

_MOST_CALLS = 64
"""Calls that are remembered; those of the first step alone can be many."""


def _without_samples(value: Any) -> Any:
    """A tensor without samples in place of one with samples. Only its shape and type are needed."""
    new_empty = getattr(value, "new_empty", None)
    return value if new_empty is None or not value.shape else new_empty((0, *value.shape[1:]))


class Network:
    """Notes the modules that are called before the first update, and captures the module that this update
    trains.

    Args:
        capture: name of the function that makes the op graph, as ``package.module:function``. It takes a
            module and the arguments of its call. The graph that it returns has a method to write it to a
            path.
    """

    def __init__(self, marks: Marks, capture: str) -> None:
        self._marks = marks
        self._capture = capture
        self._depth = 0
        self._called: list[tuple[ref[Any], tuple[Any, ...], dict[str, Any]]] = []
        self._unwatch: Callable[[], None] | None = None

    def watch(self, module: Any) -> None:
        """Wrap the call of ``torch.nn.modules.module.Module`` until the network is captured."""
        kind = module.Module
        own = kind.__call__

        def noted_call(called: Any, *args: Any, **kwargs: Any) -> Any:
            # torch.fx keeps the call that it finds when it is imported, and traces with it.
            if self._unwatch is None:
                return own(called, *args, **kwargs)
            if self._depth == 0:
                shapes = tuple(map(_without_samples, args))
                named = {name: _without_samples(value) for name, value in kwargs.items()}
                self._called.append((ref(called), shapes, named))
                del self._called[:-_MOST_CALLS]
            self._depth += 1
            try:
                return own(called, *args, **kwargs)
            finally:
                self._depth -= 1

        kind.__call__ = named_as(noted_call, own)
        self._unwatch = lambda: setattr(kind, "__call__", own)

    def capture(self, tensors: list[Any], path: str) -> None:
        """Write the op graph of the module that contains most of the updated tensors."""
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch, called, self._called = None, self._called, []
        trained = {id(tensor) for tensor in tensors}
        try:
            known = [(module(), args, kwargs) for module, args, kwargs in called]
            shares = [
                # A compiled module has no truth value if it has no length.
                0
                if module is None
                else sum(id(tensor) in trained for tensor in module.parameters())
                for module, _, _ in known
            ]
            if not any(shares):
                raise ValueError("no module that was called has the parameters that were updated")
            module, args, kwargs = known[shares.index(max(shares))]
            package, _, function = self._capture.partition(":")
            graph = getattr(import_module(package), function)(module, args, kwargs)
            graph.write(Path(path))
        except Exception as error:
            self._marks.note(not_captured=f"{type(error).__name__}: {error}"[:1000])
