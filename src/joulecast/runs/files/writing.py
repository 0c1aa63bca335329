"""Writes files that are either whole or absent: a file is written under a temporary name, brought to the
disk, and then renamed.

A process that is killed leaves at most a hidden ``.NAME.xxxxxxxx.partial``, which is never read.
"""

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
from joulecast.runs.files.reading import opened

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 10**12


def _aside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.partial"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file."""
    with opened(path, "file", _LARGEST) as file:
        return hashlib.file_digest(cast("BufferedReader", file), "sha256").hexdigest()


@contextmanager
def explained_disk_errors(target: Path) -> Iterator[None]:
    """If the disk is full or may not be written, raise a :class:`JoulecastError` that names ``target``."""
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
        if _is_about(error, target):
            raise JoulecastError(f"{target}: cannot be written ({error.strerror})") from error
        raise


def _is_about(error: OSError, target: Path) -> bool:
    """Whether an error names ``target``, its folder, or a file in that."""
    if not isinstance(error.filename, str):
        return False
    named = Path(error.filename)
    return named.parent == target.parent or target.is_relative_to(named)


def _sync(written: Path) -> None:
    """Bring a file, or a folder with all that is in it, from the kernel's memory to the disk."""
    for path in (*(written.rglob("*") if written.is_dir() else ()), written):
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            # Some file systems cannot sync a folder: they keep names in order by themselves, or not at all.
            if not path.is_dir():
                raise


def _put(written: Path, target: Path) -> None:
    """Give ``written`` the name ``target``."""
    if target.is_dir():
        # The old folder is renamed before it is removed, because removing takes time, and a file server keeps
        # files that are being read.
        older = _aside(target)
        os.replace(target, older)
        os.replace(written, target)
        _remove(older)
    else:
        os.replace(written, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Make a temporary path next to ``target``; rename it to ``target`` if the block succeeds.

    The content is on the disk before the file is renamed.
    """
    with explained_disk_errors(target):
        partial = _aside(target)
        try:
            yield partial
            _sync(partial)
            _put(partial, target)
        finally:
            _remove(partial)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(table: "pd.DataFrame", path: Path, **options: Any) -> None:
    """Write a table as a CSV file in which a spreadsheet sees only data.

    A spreadsheet runs a text as a formula if it begins with ``= + - @``, a tab or a carriage return. Such
    texts get an apostrophe in front. Numbers are not changed.

    Args:
        table: the table. Its index is not written.
    """
    plain = table.rename(columns=_no_formula)
    for place, kind in enumerate(plain.dtypes):
        if kind.kind not in "iufb":
            plain.isetitem(place, plain.iloc[:, place].map(_no_formula, na_action="ignore"))
    plain.to_csv(path, index=False, **options)


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # Readers of CSV take a carriage return for the end of a line.
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
    """A new folder to fill. When the ``with`` block succeeds, it becomes ``target``, and replaces an older
    ``target``.

    If the process is killed meanwhile, ``target`` is the older folder, the new one, or missing. It is never a
    part of a folder.
    """
    with written_aside(target) as partial:
        partial.mkdir()
        yield partial


@contextmanager
def directory_added_to(target: Path) -> Iterator[Path]:
    """A folder to fill with what can be made again, such as imported records. Its entries are then moved into
    ``target``, which may already have other files.

    A new ``target`` appears with all entries, or not at all. In an existing one, each entry is whole. The
    entries are not synced to the disk first: for thousands of files, this takes minutes.
    """
    with explained_disk_errors(target):
        is_new = not target.exists()
        partial = _aside(target if is_new else target / "added")
        try:
            partial.mkdir()
            yield partial
            if is_new:
                os.replace(partial, target)
            else:
                for entry in sorted(partial.iterdir()):
                    _put(entry, target / entry.name)
        finally:
            _remove(partial)
