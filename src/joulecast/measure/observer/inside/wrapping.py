"""Hooks that run after a module was imported, and wrappers around functions.

In a process that never imports the module, its hook costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hook = Callable[[Any], None]


class _Loader(Loader):
    """Loads a module with the module's own loader, and then calls a hook with the module."""

    def __init__(self, own: Any, hook: Hook) -> None:
        self._own, self._hook = own, hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._own.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        # Tools ask a module for its loader (its source, its resources): they get its own.
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        try:
            self._hook(module)
        except Exception as error:
            sys.stderr.write(f"joulecast: {module.__name__} is not observed: {error}\n")


class _Finder(MetaPathFinder):
    """Finds a module as the other finders do, and adds its hook to the module's loader."""

    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, hook)
                return spec
        return None


_FINDER = _Finder()


def after_import(name: str, hook: Hook) -> None:
    """Call ``hook`` with the module ``name`` after it was imported. If it is already imported, call it at
    once."""
    module = sys.modules.get(name)
    if module is not None:
        hook(module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.hooks[name] = hook


def is_recorded() -> bool:
    """Whether the GPU's stream now records a CUDA graph. Then nothing runs yet, and to ask an event whether
    the device has passed it would end the training."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function of torch, or of a library that uses torch. ``around`` is called in its place, with
    the function and its arguments. A compiler that traces the program gets the function itself, and so does a
    CUDA graph."""
    own, torch = getattr(owner, name), sys.modules["torch"]

    @wraps(own)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or is_recorded():
            return own(*args, **kwargs)
        return around(own, *args, **kwargs)

    setattr(owner, name, wrapped)
