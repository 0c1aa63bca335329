"""The observer inside a training: it notes when steps and their parts begin and end.

This package runs in processes with the user's Python environment. There, joulecast and the packages that it
needs may be missing. So it imports only the standard library. It uses a module of torch only if the user's
program has imported this module. Its modules import each other by relative names, because it is loaded as
`joulecast_inside`.
"""

from __future__ import annotations

from typing import Any

from .hooks import Watch
from .marks import Marks
from .wrapping import after_import

_WATCH: list[Watch] = []
"""The hooks of this process. Empty until they are added."""


def install(folder: str, capture: str | None = None) -> Marks:
    """Observe this process. Hooks are added when it imports torch, or at once if torch is already imported.

    Args:
        folder: the folder of this host, for the marks of each process.
        capture: the function that captures the trained network, if the user asked for a capture.
    """
    if not _WATCH:
        _WATCH.append(Watch(Marks(), capture))
        for module, hook in _WATCH[0].by_module().items():
            after_import(module, hook)
    _WATCH[0].begin()
    _WATCH[0].marks.open(folder)
    return _WATCH[0].marks


def note(**facts: Any) -> None:
    """Note facts about what this process trains, such as its loss. Does nothing if this process is not
    observed."""
    if _WATCH:
        _WATCH[0].marks.note(**facts)
