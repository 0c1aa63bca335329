"""Wrappers that look like what they wrap."""

from __future__ import annotations

from typing import Any, TypeVar

Wrapped = TypeVar("Wrapped")


def named_as(wrapper: Wrapped, own: Any) -> Wrapped:
    """The wrapper with the name and the text of what it wraps."""
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(own, name):
            setattr(wrapper, name, getattr(own, name))
    return wrapper
