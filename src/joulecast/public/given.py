"""What the public functions share: paths and choices as people give them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from os import PathLike
from pathlib import Path

from joulecast.errors import JoulecastError

AnyPath = str | PathLike[str]
Records = AnyPath | Sequence[AnyPath]
"""A folder of run records, however deep they lie in it, or a recorded campaign; or several of these."""


def paths(records: Records) -> list[Path]:
    """The folders."""
    return [Path(records)] if isinstance(records, str | PathLike) else [Path(r) for r in records]


def path(given: AnyPath | None) -> Path | None:
    """A path, where one is given."""
    return None if given is None else Path(given)


def check(name: str, value: str | None, known: Collection[str]) -> None:
    """Refuse a value that is none of those known."""
    if value is not None and value not in known:
        raise JoulecastError(f"{name} {value!r}: give one of {', '.join(known)}")
