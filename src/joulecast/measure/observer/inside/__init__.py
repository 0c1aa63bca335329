"""The observer inside a training: marks when steps and their parts begin and end.

This package runs in processes whose Python environment is the user's, where joulecast and what it needs may
be missing. It therefore imports the standard library alone, and of torch what the user's program has
imported itself. Its modules import each other by relative names, as it is loaded as `joulecast_inside`.
"""

from __future__ import annotations

from typing import Any

from .hooks import Watch
from .marks import Marks
from .wrapping import after_import

_WATCH: list[Watch] = []
"""That of this process, once its hooks are in."""


def install(folder: str, capture: str | None = None) -> Marks:
    """Observe this process: hooks come in when it imports torch, or at once if it has.

    Args:
        folder: of this host, which gets the marks of each process.
        capture: the function that captures the network that is trained, if that is asked for.
    """
    if not _WATCH:
        _WATCH.append(Watch(Marks(), capture))
        for module, hook in _WATCH[0].by_module().items():
            after_import(module, hook)
    _WATCH[0].begin()
    _WATCH[0].marks.open(folder)
    return _WATCH[0].marks


def note(**facts: Any) -> None:
    """Note facts of what this process trains, as its loss; nothing where it is not observed."""
    if _WATCH:
        _WATCH[0].marks.note(**facts)
