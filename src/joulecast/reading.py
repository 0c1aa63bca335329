"""Files from outside, read once as what they have to be: bounded in size, typed, finite.

All that comes from a user, another machine or another program goes through here: records, recorded
campaigns, histories, graphs, platforms, configurations, imported logs. What is wrong is one line that names
the file, the place in it, and what was expected. A pipe, a device or a file without an end is refused before
it is read; a small file that unfolds to gigabytes (aliases of YAML, Parquet) is refused before it unfolds.
"""

import hashlib
import json
import math
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from joulecast.errors import JoulecastError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

MAX_BYTES = 64_000_000
"""Of a file that is held in memory whole: Python's objects take about ten times the text."""
MAX_YAML_BYTES = 500_000
MAX_YAML_NODES = 100_000
"""Of a YAML file after its aliases are unfolded."""
MAX_TABLE_BYTES = 1_000_000_000
MAX_DEPTH = 100
_FREE_ROWS = 100_000
_LEAST_BYTES_A_ROW = 2
"""Times differ from row to row: not even compressed do they take less."""


@contextmanager
def opened(path: Path, what: str, max_bytes: int = MAX_BYTES) -> Iterator[IO[bytes]]:
    """A regular file of at most ``max_bytes``, open for reading.

    Args:
        path: of the file.
        what: it is to be, for the error, as "strategy file".
        max_bytes: that it may have.

    Raises:
        JoulecastError: missing, unreadable, no regular file, or too large.
    """
    try:
        # Not blocking: to open a pipe that has no writer would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise JoulecastError(f"{path}: no such {what}") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise JoulecastError(f"{path}: cannot be read as a {what} ({said})") from None
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise JoulecastError(f"{path}: is a folder; give the {what} itself")
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(status.st_mode):
            raise JoulecastError(
                f"{path}: is a pipe or a device, expected a {what}; copy what it gives to a file first"
            )
        if status.st_size > max_bytes:
            _too_large(path, what, max_bytes)
        try:
            yield file
        except OSError as error:
            raise JoulecastError(f"{path}: cannot be read as a {what} ({error.strerror})") from None


def _too_large(path: Path, what: str, max_bytes: int) -> NoReturn:
    raise JoulecastError(
        f"{path}: has more than {max_bytes / 1e6:g} MB, which no {what} should; is it the right file?"
    )


def read_bytes(path: Path, what: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file; arguments and errors as :func:`opened`."""
    with opened(path, what, max_bytes) as file:
        # Files of the kernel call themselves empty, and some of them never end.
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        _too_large(path, what, max_bytes)
    return content


def read_text(path: Path, what: str, max_bytes: int = MAX_BYTES) -> str:
    """The content of a text file; arguments and errors as :func:`opened`, and for text that is not UTF-8."""
    content = read_bytes(path, what, max_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JoulecastError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; expected a {what}"
        ) from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def json_of(text: str | bytes, origin: str) -> Any:
    """The value of a JSON text, its numbers finite.

    Raises:
        JoulecastError: no JSON, cut short, nested too deeply, or a number that is NaN or infinite; begins
            with ``origin``.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        _require_shallow(value, MAX_DEPTH)
        _require_text(text, value)
        return value
    except json.JSONDecodeError as error:
        raise JoulecastError(
            f"{origin}, line {error.lineno}: is not JSON, or was cut short: {error.msg}"
        ) from None
    except RecursionError:
        raise JoulecastError(f"{origin}: is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise JoulecastError(f"{origin}: is not JSON with finite numbers: {error}") from None


def _require_text(text: str | bytes, value: Any) -> None:
    """JSON can escape half a character, which nothing can write again."""
    escape = b"\\ud" if isinstance(text, bytes) else "\\ud"
    if escape in text.lower():  # type: ignore[operator]
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half a character (a lone surrogate)") from None


def _require_shallow(value: Any, depth: int) -> None:
    """What writes or compares it later goes down recursively."""
    if depth == 0:
        raise RecursionError
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return
    for inner in value:
        if isinstance(inner, dict | list):
            _require_shallow(inner, depth - 1)


def read_json(path: Path, what: str, max_bytes: int = MAX_BYTES) -> Any:
    """The value of a JSON file; errors as :func:`read_text` and :func:`json_of`."""
    return json_of(read_text(path, what, max_bytes), str(path))


def read_json_object(path: Path, what: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The same of a file that has to hold an object."""
    value = read_json(path, what, max_bytes)
    if not isinstance(value, dict):
        raise JoulecastError(f"{path}: expected the JSON object of a {what}")
    return value


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file.

    Raises:
        JoulecastError: as :func:`read_text`; or no YAML, or one that unfolds to more than it may.
    """
    text = read_text(path, what, MAX_YAML_BYTES)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _unfolded(node, {}, MAX_DEPTH) > MAX_YAML_NODES:
            raise JoulecastError(
                f"{path}: its aliases unfold to more than {MAX_YAML_NODES} values; write out what is meant"
            )
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise JoulecastError(f"{path}: is not YAML: {_mistake(error)}") from None
    except RecursionError:
        raise JoulecastError(
            f"{path}: is nested more than {MAX_DEPTH} deep, or holds an alias of itself"
        ) from None
    except (ValueError, OverflowError, TypeError) as error:
        # A date that is none, an integer of thousands of digits, a key that is a list.
        raise JoulecastError(f"{path}: is not YAML that can be read: {error}") from None


def _unfolded(node: Any, seen: dict[int, int], depth: int) -> int:
    """How many values a node and all below it are, each alias counted wherever it stands."""
    if depth == 0:
        raise RecursionError
    if id(node) in seen:
        return seen[id(node)]
    children: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    seen[id(node)] = 1 + sum(_unfolded(child, seen, depth - 1) for child in children)
    return seen[id(node)]


def _mistake(error: yaml.YAMLError) -> str:
    """What is wrong, and in which line."""
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    mark = getattr(error, "problem_mark", None)
    return (
        problem if mark is None else f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    )


def require_few_values(content: Any, origin: str) -> None:
    """Refuse what somebody else read from YAML, if its aliases unfold to more than they may.

    Raises:
        JoulecastError: they do; begins with ``origin``.
    """
    seen: dict[int, int] = {}

    def unfolded(value: Any, depth: int) -> int:
        if depth == 0:
            raise RecursionError
        if id(value) not in seen:
            inner = value.values() if isinstance(value, dict) else value
            children = inner if isinstance(value, dict | list) else ()
            seen[id(value)] = 1 + sum(unfolded(child, depth - 1) for child in children)
        return seen[id(value)]

    try:
        too_many = unfolded(content, MAX_DEPTH) > MAX_YAML_NODES
    except RecursionError:
        raise JoulecastError(f"{origin}: is nested more than {MAX_DEPTH} deep") from None
    if too_many:
        raise JoulecastError(
            f"{origin}: its aliases unfold to more than {MAX_YAML_NODES} values; write out what is meant"
        )


def validated(kind: TypeAdapter[T], content: Any, origin: str) -> T:
    """Content as what it has to be.

    Raises:
        JoulecastError: names the first wrong key, after ``origin``.
    """
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        raise JoulecastError(f"{origin}: {first_mistake(error)}") from None
    except RecursionError:
        raise JoulecastError(f"{origin}: is nested too deeply") from None


def first_mistake(error: ValidationError) -> str:
    """The first wrong key and what is wrong with it."""
    first = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    # Of several keys together: the message names them.
    message = first["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if key else message


@dataclass(frozen=True)
class Column:
    """What a column of a table holds.

    Attributes:
        kind: ``text``, ``whole`` numbers, or ``number``: finite.
        least: the least number.
        most: the greatest number.
        optional: a value may be missing (NaN, or empty text).
        choices: the texts that there are; none: any.
    """

    kind: Literal["text", "whole", "number"]
    least: float = -math.inf
    most: float = math.inf
    optional: bool = False
    choices: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """In words, for the error."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = {"text": "text", "whole": "a whole number", "number": "a finite number"}[self.kind]
        if self.least > -math.inf:
            words += f" of at least {self.least:g}"
        if self.most < math.inf:
            words += f"{' and' if self.least > -math.inf else ' of'} at most {self.most:g}"
        return words + (", or nothing" if self.optional else "")


def checked_table(
    table: "pd.DataFrame", columns: Mapping[str, Column], origin: str
) -> "pd.DataFrame":
    """The table with its columns as they have to be; others stay as they are.

    Raises:
        JoulecastError: a column is missing, or a value is not what its column holds; names the row, from 1.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise JoulecastError(f"{origin}: lacks the columns {', '.join(missing)}")
    if not table.columns.is_unique:
        raise JoulecastError(f"{origin}: has a column twice")
    changed = {}
    for name, column in columns.items():
        values = table[name]
        good = (
            _texts(values, column, origin)
            if column.kind == "text"
            else _numbers(values, column, origin)
        )
        if good is not values:
            changed[name] = good
    return table.assign(**changed) if changed else table


def _wrong(values: "pd.Series", bad: Any, column: Column, origin: str) -> NoReturn:
    row = int(bad.argmax())
    found = str(values.iloc[row])[:40]
    raise JoulecastError(
        f"{origin}: {values.name} is {found!r} in row {row + 1}, expected {column.expected}"
    )


def _texts(values: "pd.Series", column: Column, origin: str) -> "pd.Series":
    import pandas as pd

    absent = values.isna()
    texts = pd.api.types.is_string_dtype(values) or values.dtype == object
    # Few names in many rows: each is looked at once.
    codes, names = pd.factorize(values if texts else values.astype(str))
    wrong = {
        code
        for code, name in enumerate(names)
        if not isinstance(name, str) or (column.choices and name not in column.choices)
    }
    bad = pd.Series(codes).isin(wrong).to_numpy() | (absent.to_numpy() & (not column.optional))
    if bad.any():
        _wrong(values, bad, column, origin)
    return values if texts else values.astype(str).where(~absent, None)


def _numbers(values: "pd.Series", column: Column, origin: str) -> "pd.Series":
    import numpy as np
    import pandas as pd

    absent = values.isna().to_numpy()
    if pd.api.types.is_numeric_dtype(values) and values.dtype != bool:
        numbers = values
    elif pd.api.types.is_string_dtype(values) or values.dtype == object:
        numbers = pd.to_numeric(values, errors="coerce")
    else:
        _wrong(values, ~absent | True, column, origin)
    try:
        found = numbers.to_numpy(float, na_value=np.nan)
    except OverflowError:
        # Whole numbers of hundreds of digits; as texts they are infinite.
        numbers = pd.to_numeric(values.map(str), errors="coerce").astype(float)
        found = numbers.to_numpy()
    # Comparisons with NaN are false, so that what is no number is never good.
    good = (found >= column.least) & (found <= column.most) & np.isfinite(found)
    if column.kind == "whole":
        good &= (found == np.floor(found)) & (np.abs(found) <= 2**53)
    if column.optional:
        good |= absent
    if not good.all():
        _wrong(values, ~good, column, origin)
    if column.kind == "whole" and not absent.any() and numbers.dtype != np.int64:
        return numbers.astype(np.int64)
    return numbers


def read_csv(
    path: Path,
    what: str,
    columns: Mapping[str, Column],
    *,
    max_bytes: int = MAX_TABLE_BYTES // 10,
) -> "pd.DataFrame":
    """A CSV file whose columns hold what they have to.

    Raises:
        JoulecastError: as :func:`opened` and :func:`checked_table`; or no table.
    """
    return checked_table(
        next(csv_in_parts(path, what, columns, max_bytes=max_bytes)), columns, str(path)
    )


def csv_in_parts(
    path: Path,
    what: str,
    columns: Mapping[str, Column],
    *,
    rows: int | None = None,
    max_bytes: int = MAX_TABLE_BYTES,
) -> Iterator["pd.DataFrame"]:
    """A CSV file, ``rows`` at a time, its columns not yet checked; without ``rows`` all at once.

    Raises:
        JoulecastError: as :func:`opened`; a column is missing, or the file is no table.
    """
    import pandas as pd

    texts = {name: str for name, column in columns.items() if column.kind == "text"}
    with opened(path, what, max_bytes) as file:
        try:
            head = pd.read_csv(file, nrows=0)
            missing = [name for name in columns if name not in head.columns]
            if missing:
                raise JoulecastError(f"{path}: lacks the columns {', '.join(missing)}")
            file.seek(0)
            parts = pd.read_csv(file, dtype=texts, chunksize=rows, low_memory=False)
            yield from [parts] if rows is None else parts
        except (ValueError, OverflowError, MemoryError) as error:
            raise JoulecastError(f"{path}: is not the table of a {what}: {error}") from None


def parquet_file(
    path: Path, what: str, columns: Mapping[str, Column], sha256: str | None = None
) -> Any:
    """A Parquet file in memory, as :class:`pyarrow.parquet.ParquetFile`; nothing of it is unfolded yet.

    Args:
        path: of the file.
        what: it is to be, for the error.
        columns: that it has to have.
        sha256: of the file as it was written; it is not looked into where it is another.

    Raises:
        JoulecastError: as :func:`opened`; another file than was written, no Parquet, a column missing, too
            many or of another type, or more rows than its bytes can hold.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_bytes(path, what, MAX_TABLE_BYTES)
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise JoulecastError(
            f"{path}: is not what was written (its SHA-256 is another); restore the file, or delete the "
            "folder to repeat the run"
        )
    # One text that fills millions of rows stays one text.
    texts = [name for name, column in columns.items() if column.kind == "text"]
    try:
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
        schema, rows = file.schema_arrow, file.metadata.num_rows
        unfolded = sum(
            file.metadata.row_group(group).total_byte_size
            for group in range(file.metadata.num_row_groups)
        )
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        raise JoulecastError(f"{path}: is not the Parquet of a {what}: {error}") from None
    if (
        rows > max(_FREE_ROWS, len(content) // _LEAST_BYTES_A_ROW)
        or unfolded > MAX_TABLE_BYTES // 2
    ):
        raise JoulecastError(
            f"{path}: unfolds to {rows} rows and {unfolded / 1e6:.0f} MB from {len(content)} bytes, which no "
            f"{what} does"
        )
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise JoulecastError(f"{path}: lacks the columns {', '.join(missing)}")
    if len(schema.names) > len(columns):
        more = ", ".join(sorted({*schema.names} - {*columns})) or "one of its own twice"
        raise JoulecastError(f"{path}: has more columns than a {what} keeps: {more}")
    for name, column in columns.items():
        found = schema.field(name).type
        text = pa.types.is_dictionary(found) or pa.types.is_string(found)
        number = pa.types.is_integer(found) or pa.types.is_floating(found)
        right = text if column.kind == "text" else number
        if rows and not right and not (column.optional and pa.types.is_null(found)):
            raise JoulecastError(f"{path}: {name} is of type {found}, expected {column.expected}")
    return file


def parquet_table(
    file: Any, path: Path, columns: Mapping[str, Column], groups: Collection[int] | None = None
) -> "pd.DataFrame":
    """The columns of a file of :func:`parquet_file`, or some of its row groups, as they have to be.

    Raises:
        JoulecastError: broken, or as :func:`checked_table`.
    """
    import pyarrow as pa

    groups = range(file.metadata.num_row_groups) if groups is None else groups
    try:
        # Threads cost more than they bring on files of this size.
        table = file.read_row_groups(list(groups), columns=list(columns), use_threads=False)
        for place, name in enumerate(table.schema.names):
            if columns[name].kind == "text" and pa.types.is_dictionary(table.schema.types[place]):
                texts = _unfolded_texts(table[name], f"{path}: {name}")
                table = table.set_column(place, name, texts)
        frame = table.to_pandas(ignore_metadata=True)
    except (OSError, ValueError, pa.ArrowException, MemoryError) as error:
        raise JoulecastError(f"{path}: is broken: {error}") from None
    return checked_table(frame, columns, str(path))


def _unfolded_texts(texts: Any, origin: str) -> Any:
    """Texts of a dictionary as texts, where they fit into memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for chunk in texts.chunks:
        longest = pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0
        if longest * len(chunk) > MAX_TABLE_BYTES // 2:
            raise JoulecastError(f"{origin} has texts of {longest} bytes in {len(chunk)} rows")
    return texts.cast(pa.string())
