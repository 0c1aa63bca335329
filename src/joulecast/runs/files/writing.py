"""Files that are either whole or absent: everything is written aside, brought to the disk, and renamed.

A process that is killed leaves at most a hidden ``.NAME.xxxxxxxx.partial``. It is never read, and a write of
the same name a day later removes it.
"""

import ctypes
import errno
import glob
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import opened

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 10**12

_PARTIAL = ".partial"
_LEFT_S = 24 * 3600.0
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


def _aside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}{_PARTIAL}"


def sha256_of(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        JoulecastError: as :func:`~joulecast.runs.files.reading.opened`.
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
        if _is_about(error, target):
            raise JoulecastError(f"{target}: cannot be written ({error.strerror})") from error
        raise


def _is_about(error: OSError, target: Path) -> bool:
    """Whether an error names ``target``, its folder, or a file in that."""
    if not isinstance(error.filename, str):
        return False
    named = Path(error.filename)
    return named.parent == target.parent or target.is_relative_to(named)


def _is_aside(path: Path) -> bool:
    """Whether ``path`` lies in a folder that is itself being written aside."""
    return any(part.startswith(".") and part.endswith(_PARTIAL) for part in path.parts[:-1])


def sync_file(path: Path) -> None:
    """Have the content of a file on the disk, not only in the kernel's memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_names(folder: Path) -> None:
    # Some file systems cannot sync a folder; they keep names in order by themselves, or cannot at all.
    with suppress(OSError):
        sync_file(folder)


def _sync(written: Path) -> None:
    """Have a file, or a folder with all that is in it, on the disk."""
    if written.is_symlink():
        return
    if not written.is_dir():
        sync_file(written)
        return
    for folder, _, names in os.walk(written):
        for name in names:
            if not (file := Path(folder, name)).is_symlink():
                sync_file(file)
        _sync_names(Path(folder))


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; ``False`` where the kernel, C library or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    answer = renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE)
    return bool(answer == 0)


def _put(written: Path, target: Path) -> None:
    """Give ``written`` the name ``target``; what had it before then has the name ``written``, or none."""
    if not target.is_dir():
        os.replace(written, target)
    elif not _exchanged(written, target):
        # Renamed first: a file server keeps files that are being read, and removing takes time.
        older = _aside(target)
        os.replace(target, older)
        os.replace(written, target)
        shutil.rmtree(older, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left of ``target``: no write lasts a day."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????{_PARTIAL}"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _LEFT_S:
                _remove(left)


@contextmanager
def _put_in_place(target: Path) -> Iterator[Path]:
    """Give a path beside ``target``; if the block succeeds it gets that name, and is on the disk first."""
    with explained_disk_errors(target):
        partial = _aside(target)
        try:
            yield partial
            if _is_aside(target):  # that folder is brought to the disk as a whole
                _put(partial, target)
                return
            _sync(partial)
            _put(partial, target)
            _sync_names(target.parent)
            _remove_leftovers(target)
        finally:
            _remove(partial)


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Give a temporary path beside ``target``; rename it to ``target`` if the block succeeds.

    The content is on the disk before it has its name.
    """
    with _put_in_place(target) as partial:
        yield partial


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
    """Folder to fill in place of a directory; an older ``target`` is replaced when the block succeeds, in one
    step where the file system can exchange two names (all local ones of Linux can)."""
    with _put_in_place(target) as partial:
        partial.mkdir()
        yield partial


@contextmanager
def directory_added_to(target: Path) -> Iterator[Path]:
    """Folder for new files of a directory that may hold others already.

    Where ``target`` is there already it stays, and each entry is put in it whole, one after the other.
    """
    if not target.exists():
        with directory_written_aside(target) as partial:
            yield partial
        return
    with explained_disk_errors(target):
        partial = _aside(target / "added")
        partial.mkdir()
        try:
            yield partial
            _sync(partial)
            for entry in sorted(partial.iterdir()):
                _put(entry, target / entry.name)
            _sync_names(target)
        finally:
            _remove(partial)
