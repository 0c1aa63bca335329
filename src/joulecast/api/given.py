"""What the public functions share: paths and choices as people give them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
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


MOST_NODES = 10**7
MOST_SAMPLES = 10**18


def check_counts(name: str, values: Iterable[int | None], most: int) -> None:
    """Refuse a count that is below 1, or that nothing has."""
    for value in values:
        if value is not None and not 1 <= value <= most:
            raise JoulecastError(
                f"{name} {str(value)[:20]}: must be at least 1 and at most {most:g}"
            )


def check_amounts(name: str, values: Iterable[float | None]) -> None:
    """Refuse an amount that is negative, infinite or no number."""
    for value in values:
        if value is not None and not 0 <= value <= 1e30:
            raise JoulecastError(f"{name} {value:g}: give a finite number of at least 0")


def check(name: str, value: str | None, known: Collection[str]) -> None:
    """Refuse a value that is none of those known."""
    if value is not None and value not in known:
        raise JoulecastError(f"{name} {value!r}: give one of {', '.join(known)}")
