"""HDF5 files, read by h5py where it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.files.reading import opened
from joulecast.importers.log_table import MAX_LOG_BYTES
from joulecast.importers.traps import Floats

_MOST_VALUES = 200_000_000


@contextmanager
def opened_hdf5(path: Path, what: str) -> Iterator[Any]:
    """An HDF5 file, open for reading, as :class:`h5py.File`.

    Raises:
        JoulecastError: h5py is not installed; or the file is missing, or no HDF5.
    """
    try:
        import h5py
    except ImportError:
        raise JoulecastError(
            f"{path}: HDF5 is read by h5py, which is not installed; pip install 'joulecast[hdf5]'"
        ) from None
    with opened(path, what, MAX_LOG_BYTES) as file:
        try:
            with h5py.File(file, "r") as found:
                yield found
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())[:150]
            raise JoulecastError(f"{path}: cannot be read as {what}: {text}") from None


def numbers_of(data: Any) -> Floats:
    """The numbers of a data set with one dimension.

    Raises:
        ValueError: it has no numbers, or far too many.
    """
    if data.dtype.kind not in "iuf" or data.ndim != 1 or data.size > _MOST_VALUES:
        raise ValueError(f"{data.name} is no row of numbers")
    return np.asarray(data[:], dtype=float)


def attribute(group: Any, name: str) -> str:
    """An attribute as text; empty where there is none."""
    value = group.attrs.get(name, "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
