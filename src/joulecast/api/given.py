"""What the public functions share: paths and choices as people give them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def naming(*given: AnyPath | None) -> Iterator[None]:
    """Name the files that were given in an error that names none of them."""
    try:
        yield
    except JoulecastError as error:
        files = [str(each) for each in given if each is not None and Path(each).exists()]
        if not files or any(file in str(error) for file in files):
            raise
        raise JoulecastError(f"{error} (from {', '.join(files)})") from None


def check(name: str, value: str | None, known: Collection[str]) -> None:
    """Refuse a value that is none of those known."""
    if value is not None and value not in known:
        raise JoulecastError(f"{name} {value!r}: give one of {', '.join(known)}")
