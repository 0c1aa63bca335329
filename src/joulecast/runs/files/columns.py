"""Reads tables from outside, as CSV or Parquet. A schema says what each column may contain. An error names
the wrong row.

Sizes have absolute limits. For Parquet, they are checked by the footer of the file, before any data is
unpacked.
"""

import gzip
import hashlib
import math
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import opened, read_bytes

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

MAX_TABLE_BYTES = 1_000_000_000
"""The most bytes of the file of a table. The limit is for the packed bytes and for the unpacked bytes."""
_MAX_ROWS = 50_000_000
NOT_PACKED = (gzip.BadGzipFile, EOFError, zlib.error)
"""Errors of Python if a file was cut short, or is not packed although its name says so."""


@dataclass(frozen=True)
class Column:
    """What a column of a table may contain.

    Attributes:
        kind: ``text``, ``whole`` numbers, or ``number`` (finite).
        optional: whether a value may be missing (NaN, or empty text).
        choices: the allowed texts; empty: any text.
        longest: largest number of characters of a text.
        meaning: meaning of a value, for the documentation.
    """

    kind: Literal["text", "whole", "number"]
    least: float = -math.inf
    most: float = math.inf
    optional: bool = False
    choices: tuple[str, ...] = ()
    longest: int = 10_000
    meaning: str = ""

    @property
    def expected(self) -> str:
        """Words that say which values the column may contain, for the error message."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = {"text": "text", "whole": "a whole number", "number": "a finite number"}[self.kind]
        if self.kind == "text":
            words += f" of at most {self.longest:,} characters"
        if self.least > -math.inf:
            words += f" of at least {self.least:g}"
        if self.most < math.inf:
            words += f"{' and' if self.least > -math.inf else ' of'} at most {self.most:g}"
        return words + (", or nothing" if self.optional else "")


Schema = Mapping[str, Column]


def checked_table(table: "pd.DataFrame", columns: Schema, origin: str) -> "pd.DataFrame":
    """The table, after a check of the columns in the schema. They have the types that the schema says. Other
    columns are not changed.

    Raises:
        JoulecastError: a column is missing, or a value is not allowed in its column. The error names the row,
            from 1.
    """
    _require(table.columns, columns, origin)
    if not table.columns.is_unique:
        raise JoulecastError(f"{origin}: has a column twice")
    check = {"text": _texts, "whole": _numbers, "number": _numbers}
    changed = {}
    for name, column in columns.items():
        values = table[name]
        good = check[column.kind](values, column, origin)
        if good is not values:
            changed[name] = good
    return table.assign(**changed) if changed else table


def _require(there: Collection[str], columns: Schema, origin: str) -> None:
    if missing := [name for name in columns if name not in there]:
        raise JoulecastError(
            f"{origin}: lacks the columns {', '.join(missing)}; it has {', '.join(map(str, there))[:200]}"
        )


def _wrong(values: "pd.Series", bad: Any, column: Column, origin: str) -> NoReturn:
    row = int(bad.argmax())
    text = str(values.iloc[row])[:40]
    found = {"nan": "missing", "None": "missing", "<NA>": "missing", "inf": "infinite"}
    raise JoulecastError(
        f"{origin}: {values.name} is {found.get(text.removeprefix('-'), f'`{text}`')} in row {row + 1}, "
        f"expected {column.expected}"
    )


def _texts(values: "pd.Series", column: Column, origin: str) -> "pd.Series":
    import numpy as np
    import pandas as pd

    texts = pd.api.types.is_string_dtype(values) or values.dtype == object
    # Many rows share few names. So each name is checked only once.
    try:
        codes, names = pd.factorize(values if texts else values.astype(str).where(values.notna()))
        choices = column.choices
        good = [
            isinstance(n, str) and len(n) <= column.longest and (not choices or n in choices)
            for n in list(names)
        ]
    except UnicodeDecodeError:
        raise JoulecastError(f"{origin}: {values.name} has text that is not UTF-8") from None
    except TypeError:
        raise JoulecastError(
            f"{origin}: {values.name} holds lists, expected {column.expected}"
        ) from None
    # The code of a missing text is -1.
    bad = ~np.array([*good, column.optional])[codes]
    if bad.any():
        _wrong(values, bad, column, origin)
    return values if texts else values.astype(str).where(values.notna(), None)


def as_numbers(values: "pd.Series") -> "pd.Series":
    """Texts and objects as numbers; NaN if a value is no number."""
    import pandas as pd

    try:
        return pd.to_numeric(values, errors="coerce").astype(float)
    except OverflowError:
        # A whole number has hundreds of digits. Converted from a text, it becomes infinite.
        return pd.to_numeric(values.map(str), errors="coerce").astype(float)


def _numbers(values: "pd.Series", column: Column, origin: str) -> "pd.Series":
    import numpy as np
    import pandas as pd

    absent = values.isna().to_numpy()
    numbers = values
    if values.dtype == bool:
        _wrong(values, ~absent, column, origin)
    if not pd.api.types.is_numeric_dtype(values):
        numbers = as_numbers(values)
    found = numbers.to_numpy(float, na_value=np.nan)
    # Comparisons with NaN are false. So a value that is no number is not good.
    good = (found >= column.least) & (found <= column.most) & np.isfinite(found)
    if column.kind == "whole":
        good &= (found == np.floor(found)) & (np.abs(found) <= 2**53)
    good |= absent & column.optional
    if not good.all():
        _wrong(values, ~good, column, origin)
    if column.kind == "whole" and not absent.any() and numbers.dtype != np.int64:
        return numbers.astype(np.int64)
    return numbers


def read_csv(path: Path, what: str, columns: Schema) -> "pd.DataFrame":
    """A CSV file, with checked columns.

    Raises:
        JoulecastError: an error of :func:`opened` or :func:`checked_table`, or the file is no table.
    """
    return checked_table(next(csv_in_parts(path, what, columns)), columns, str(path))


def csv_in_parts(
    path: Path, what: str, columns: Schema, rows: int | None = None
) -> Iterator["pd.DataFrame"]:
    """A CSV file, in parts of ``rows`` rows. Without ``rows``, there is one part. The columns are not checked
    yet.

    A file whose name ends with ``.gz`` is unpacked while it is read. If all rows are read at once, the
    largest size is a tenth of :data:`MAX_TABLE_BYTES`.

    Raises:
        JoulecastError: an error of :func:`opened`; or a column is missing, or the file is no table.
    """
    import pandas as pd

    texts = {name: str for name, column in columns.items() if column.kind == "text"}
    # A whole table takes several times its size in memory.
    limit = MAX_TABLE_BYTES if rows is not None else MAX_TABLE_BYTES // 10
    with opened(path, what, limit) as kept, unpacked(kept, path, limit) as file:
        try:
            _require(pd.read_csv(file, nrows=0).columns, columns, str(path))
            file.seek(0)
            parts = pd.read_csv(file, dtype=texts, chunksize=rows, low_memory=False)
            yield from [parts] if rows is None else parts
        except (ValueError, OverflowError, MemoryError, *NOT_PACKED) as error:
            raise JoulecastError(f"{path}: is no table: {what}: {error}") from None


class _Unpacked(gzip.GzipFile):
    """A packed file. Reading ends with an error if it unfolds to more than is allowed."""

    def __init__(self, file: IO[bytes], path: Path, max_bytes: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._path, self._max_bytes = path, max_bytes

    def read1(self, size: int = -1) -> bytes:
        """Some unpacked bytes. Python's text readers call this function."""
        part = super().read1(size)
        if self.tell() > self._max_bytes:
            raise JoulecastError(
                f"{self._path}: unfolds to more than {self._max_bytes / 1e6:g} MB; is it the right file?"
            )
        return part

    def read(self, size: int | None = -1) -> bytes:
        """At most ``size`` bytes. Never all at once, because there may be no end."""
        return self.read1(-1 if size is None else size)


@contextmanager
def unpacked(file: IO[bytes], path: Path, max_bytes: int) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The content of a file. If its name ends with ``.gz``, it is unpacked while it is read, to at most
    ``max_bytes``."""
    if path.suffix == ".gz":
        with _Unpacked(file, path, max_bytes) as inner:
            yield inner
    else:
        yield file


def read_parquet(
    path: Path, what: str, columns: Schema, sha256: str | None = None
) -> "pd.DataFrame":
    """The checked columns of a Parquet file, which may have no others.

    Args:
        sha256: SHA-256 of the file when it was written. If it differs, the file is not parsed.

    Raises:
        JoulecastError: an error of :func:`opened` or :func:`checked_table`; the file was changed, is no
            Parquet, or is too large; or a column is missing or has another type.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_bytes(path, what, MAX_TABLE_BYTES)
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise JoulecastError(
            f"{path}: is not what was written (its SHA-256 is another); restore the file"
        )
    try:
        footer = pq.read_metadata(pa.BufferReader(content))
        # One text that fills millions of rows stays one text.
        texts = [n for n in footer.schema.names if n in columns and columns[n].kind == "text"]
        file = pq.ParquetFile(pa.BufferReader(content), metadata=footer, read_dictionary=texts)
        schema = file.schema_arrow
        unfolded = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        raise JoulecastError(f"{path}: is not Parquet: {what}: {error}") from None
    if footer.num_rows > _MAX_ROWS or unfolded > MAX_TABLE_BYTES:
        raise JoulecastError(
            f"{path}: unfolds to {footer.num_rows:,} rows and {unfolded / 1e6:.0f} MB; at most {_MAX_ROWS:,} "
            f"and {MAX_TABLE_BYTES / 1e6:.0f} MB are read"
        )
    _require(schema.names, columns, str(path))
    if more := sorted({*schema.names} - {*columns}):
        raise JoulecastError(f"{path}: has more columns than a {what} keeps: {', '.join(more)}")
    for name, column in columns.items():
        found = schema.field(name).type if schema.names.count(name) == 1 else "there twice"
        text = pa.types.is_dictionary(found) or pa.types.is_string(found)
        number = pa.types.is_integer(found) or pa.types.is_floating(found)
        right = text if column.kind == "text" else number
        if footer.num_rows and not right and not (column.optional and pa.types.is_null(found)):
            raise JoulecastError(f"{path}: {name} is of type {found}, expected {column.expected}")
    try:
        # Threads cost more than they bring on files of this size.
        table = file.read(columns=list(columns), use_threads=False)
        frame = pd.DataFrame(
            {name: _values(table.column(name)) for name in table.column_names}, copy=False
        )
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        raise JoulecastError(f"{path}: is broken: {error}") from None
    return checked_table(frame, columns, str(path))


def _values(column: Any) -> "np.ndarray | pd.Series":
    """The values of an Arrow column. A text that fills millions of rows is one object: it is not unfolded."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    # pandas' own conversion takes twice as long for the small frames of thousands of runs.
    if not pa.types.is_dictionary(column.type):
        values: np.ndarray = column.to_numpy()
        return values
    parts = [np.empty(0, object)]
    for chunk in column.chunks:
        # The code -1 of a missing text takes the last of the names.
        names = np.array([*chunk.dictionary.to_pylist(), None], object)
        parts.append(names[chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
    # Without dtype=object, pandas would convert them to its own type of text, and copy every text.
    return pd.Series(np.concatenate(parts), dtype=object)


def read_frame(path: Path, what: str, columns: Collection[str] | None = None) -> "pd.DataFrame":
    """A Parquet file that joulecast itself has written. Its size is limited, and its columns are not checked.

    Raises:
        JoulecastError: an error of :func:`read_bytes`; or the file is no Parquet, or lacks a column.
    """
    import pandas as pd

    content = BytesIO(read_bytes(path, what, MAX_TABLE_BYTES))
    try:
        return pd.read_parquet(content, columns=None if columns is None else list(columns))
    except (OSError, ValueError, KeyError, MemoryError) as error:
        raise JoulecastError(f"{path}: is not Parquet: {what} ({error})") from None
