"""Files that grow by blocks of columns: what a process saw so far, also if it is killed.

A block holds facts (JSON) and columns of numbers. The numbers are whole multiples of a millionth (floats), or
of one (integers, and columns with a number above 2e12); a writer may ask for billionths. They are stored as
differences, with their bytes sorted by place, and compressed by zlib: a reading of a meter takes about five
bytes. Each block has its length and its checksum, so that a reader leaves out a last block that was cut
short. Writing loads nothing but the standard library: the process that samples a training must stay small.
"""

import json
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import gcd, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import JoulecastError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"joulecast blocks 1\n"
_HEAD = struct.Struct("<II")
_FACTS = struct.Struct("<I")
_USUAL = 1_000_000
_MOST = 2**61
_LARGEST_BLOCK = 2**30

Column = Sequence[float | int | None]


def _scaled(values: Column, unit: int) -> tuple[list[int], list[int], int]:
    """Whole numbers, places without a number (there, the number before is repeated), and units in 1."""
    known = [value for value in values if value is not None]
    whole = all(isinstance(value, int) for value in known)
    if whole or any(abs(value) >= _MOST / unit for value in known):
        unit = 1
    numbers, missing, last = [], [], 0
    for place, value in enumerate(values):
        if value is not None and isfinite(value) and abs(value) < _MOST:
            last = round(value * unit)
        else:
            missing.append(place)
        numbers.append(last)
    return numbers, missing, unit


def encoded(
    facts: Mapping[str, Any], columns: Mapping[str, Column], per_unit: int = _USUAL
) -> bytes:
    """The bytes of one block.

    Args:
        facts: plain data.
        columns: numbers by name; ``None`` for one that is not known.
        per_unit: steps that a unit of a float is divided into.
    """
    kept: dict[str, list[int | list[int]]] = {}
    differences = array("Q")
    last = 0
    for name, values in columns.items():
        if all(value is None for value in values):
            kept[name] = [len(values)]
            continue
        numbers, missing, unit = _scaled(values, per_unit)
        divisor = gcd(*numbers) or 1
        kept[name] = (
            [len(numbers), unit, divisor, missing] if missing else [len(numbers), unit, divisor]
        )
        for number in numbers:
            number //= divisor
            step, last = number - last, number
            # Small numbers for small steps in both directions.
            differences.append(2 * step if step >= 0 else -2 * step - 1)
    raw = differences.tobytes()
    head = json.dumps({"facts": facts, "columns": kept}).encode()
    shuffled = b"".join(raw[place::8] for place in range(8))
    body = zlib.compress(_FACTS.pack(len(head)) + head + shuffled, 6)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


class BlockWriter:
    """A file of blocks that one process appends to.

    A block that cannot be written (a full disk) waits for the next one; ``waiting`` says why.

    Args:
        path: of the file; what it held is lost.
        per_unit: as of :func:`encoded`.
    """

    def __init__(self, path: Path, *, per_unit: int = _USUAL) -> None:
        self._per_unit = per_unit
        self.waiting: OSError | None = None
        self._pending = _MAGIC
        self._end = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def append(self, facts: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
        """Add a block."""
        self._pending += encoded(facts, columns, self._per_unit)
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        try:
            while self._pending:
                written = os.pwrite(self._file, self._pending, self._end)
                self._end += written
                self._pending = self._pending[written:]
            # Begins to bring it to the disk. Waiting for the end of that may take a busy disk a minute.
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            self.waiting = error
        else:
            self.waiting = None

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.flush()
        with suppress(OSError):
            os.close(self._file)


def _decoded(body: bytes) -> tuple[dict[str, Any], "dict[str, NDArray[Any]]"]:
    import numpy as np

    content = zlib.decompress(body)
    (length,) = _FACTS.unpack_from(content)
    head = json.loads(content[_FACTS.size : _FACTS.size + length])
    shuffled = np.frombuffer(content, np.uint8, offset=_FACTS.size + length)
    steps = np.ascontiguousarray(shuffled.reshape(8, -1).T).view(np.uint64).ravel()
    half = (steps >> np.uint64(1)).astype(np.int64)
    signed = np.where(steps & np.uint64(1), -half - 1, half)
    numbers = np.cumsum(signed)
    known = [(count, *coding) for count, *coding in head["columns"].values() if coding]
    counts = [count for count, *_ in known]
    units, divisors = ([coding[place] for coding in known] for place in (1, 2))
    values = numbers * np.repeat(np.array(divisors, np.int64), counts) / np.repeat(units, counts)
    columns, begin = {}, 0
    for name, (count, *coding) in head["columns"].items():
        if not coding:
            columns[name] = np.full(count, np.nan)
            continue
        columns[name] = values[begin : begin + count]
        begin += count
        if len(coding) > 2:
            columns[name][coding[2]] = np.nan
    return head["facts"], columns


class BlockReader:
    """Reads a file of blocks, also while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> "Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]":
        """Facts and columns (values,) of each block that was not read before, NaN where no number is known.

        A block that is cut short, or whose checksum is wrong, ends the reading: nothing behind it is certain.

        Raises:
            JoulecastError: no such file, or it holds something else.
        """
        try:
            with self._path.open("rb") as file:
                if self._at == 0:
                    magic = file.read(len(_MAGIC))
                    if not _MAGIC.startswith(magic):
                        raise JoulecastError(f"{self._path}: is no file of samples of joulecast")
                    if len(magic) < len(_MAGIC):
                        return
                    self._at = len(_MAGIC)
                file.seek(self._at)
                while len(head := file.read(_HEAD.size)) == _HEAD.size:
                    length, checksum = _HEAD.unpack(head)
                    body = file.read(length) if length <= _LARGEST_BLOCK else b""
                    if len(body) < length or zlib.crc32(body) != checksum:
                        return
                    self._at += _HEAD.size + length
                    yield _decoded(body)
        except OSError as error:
            raise JoulecastError(f"{self._path}: cannot be read ({error.strerror})") from None
