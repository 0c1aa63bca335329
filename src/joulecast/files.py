"""Files that are either whole or absent: everything is written aside and renamed."""

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from joulecast.errors import JoulecastError
from joulecast.reading import opened

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 10**12


def _aside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        JoulecastError: as :func:`~joulecast.reading.opened`.
    """
    with opened(path, "file", _LARGEST) as file:
        return hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest()


@contextmanager
def explained_disk_errors(target: Path) -> Iterator[None]:
    """Turn a full or forbidden disk into a :class:`JoulecastError` that names ``target``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise JoulecastError(
                f"{target}: the disk is full; nothing was left half-written. Free some space, or "
                "point the configuration key `results` elsewhere, and start again"
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise JoulecastError(f"{target}: may not be written ({error.strerror})") from error
        raise


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Give a temporary path beside ``target``; rename it to ``target`` if the block succeeds."""
    with explained_disk_errors(target):
        partial = _aside(target)
        try:
            yield partial
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(table: "pd.DataFrame", path: Path, **options: Any) -> None:
    """Write a table as CSV that a spreadsheet takes for data.

    A spreadsheet runs a text that begins with ``= + - @``, a tab or a carriage return as a formula; such
    texts get an apostrophe in front. Numbers stay as they are.

    Args:
        table: without its index.
        path: of the file.
        options: of :meth:`pandas.DataFrame.to_csv`.
    """
    plain = table.rename(columns=_no_formula)
    for place, kind in enumerate(plain.dtypes):
        if kind.kind not in "iufb":
            plain.isetitem(place, plain.iloc[:, place].map(_no_formula, na_action="ignore"))
    plain.to_csv(path, index=False, **options)


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # Within a line: readers of CSV take a carriage return for the end of one.
    plain = value.replace("\r", " ")
    if not value.startswith(_FORMULA):
        return plain
    try:
        float(value)
    except ValueError:
        return f"'{plain}"
    return plain


@contextmanager
def directory_written_aside(target: Path) -> Iterator[Path]:
    """The same for a directory; an older ``target`` is replaced only when the block succeeds."""
    with explained_disk_errors(target):
        partial = _aside(target)
        partial.mkdir()
        try:
            yield partial
            if target.exists():
                # Renamed first: a file server keeps files that somebody reads, and removing takes time.
                older = _aside(target)
                os.replace(target, older)
                os.replace(partial, target)
                shutil.rmtree(older, ignore_errors=True)
            else:
                os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
