"""What the public functions share: paths and choices as people give them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.files.shipped import recorded_folder

AnyPath = str | PathLike[str]
Records = AnyPath | Sequence[AnyPath]
"""A folder of run records, however deep they lie in it, a recorded campaign, or the name of an observed
training, whose records lie in ``results/measured``; or several of these."""


def paths(records: Records) -> list[Path]:
    """The folders."""
    given = [records] if isinstance(records, str | PathLike) else list(records)
    return [folder for one in given for folder in _folders(Path(one))]


def _folders(given: Path) -> list[Path]:
    """The folder that is given; where there is none, those of the observed training of that name."""
    if given.exists() or len(given.parts) != 1:
        return [given]
    from joulecast.records.record import MEASURED, measured_names, measured_records

    found = measured_records(given.name)
    if found or recorded_folder(given).exists():
        return found or [given]
    known = ", ".join(measured_names()) or f"{MEASURED} has none"
    raise JoulecastError(
        f"{given}: holds no run record, and is no training that `joulecast measure` has run ({known}); "
        "give a folder of run records, the name of a recorded campaign, or of such a training"
    )


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
