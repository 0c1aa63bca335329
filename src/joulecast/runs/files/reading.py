"""Reads files from outside, once, and checks them: size, types of values, finite numbers.

All files from a user, another machine or another program are read here: records, recorded campaigns,
histories, graphs, platforms, configurations, imported logs. An error is one line. It names the file, the
place in it, and what was expected. A pipe, a device or an endless file is refused before it is read. YAML is
refused if its aliases would unfold to gigabytes. Tables are read by :mod:`joulecast.runs.files.columns`.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from joulecast.errors import JoulecastError

T = TypeVar("T")

MAX_BYTES = 64_000_000
"""The most bytes of a file that is read as a whole. Python's objects need about ten times as much memory as
the text."""
MAX_YAML_BYTES = 500_000
MAX_YAML_NODES = 100_000
"""The most values in a YAML file after its aliases are unfolded."""
MAX_DEPTH = 100
_LARGEST_WHOLE = 10**100


class FrozenContent(BaseModel):
    """The content of a file, or a part of it. Unknown keys are refused, and so are numbers that are not
    finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@contextmanager
def opened(path: Path, what: str, max_bytes: int = MAX_BYTES) -> Iterator[IO[bytes]]:
    """A regular file of at most ``max_bytes``, open for reading.

    Args:
        what: what the file should be, for the error, as "strategy file".

    Raises:
        JoulecastError: the file is missing, unreadable, no regular file, or too large.
    """
    try:
        # Not blocking: to open a pipe that has no writer would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise JoulecastError(f"{path}: no such {what}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise JoulecastError(f"{path}: cannot be read as {what} ({reason})") from None
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        os.close(descriptor)
        raise JoulecastError(f"{path}: is a folder; give the {what} itself")
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(status.st_mode):
            raise JoulecastError(
                f"{path}: is a pipe or a device, expected: {what}; copy what it gives to a file first"
            )
        if status.st_size > max_bytes:
            _too_large(path, what, max_bytes)
        try:
            yield file
        except OSError as error:
            raise JoulecastError(f"{path}: cannot be read as {what} ({error.strerror})") from None


def _too_large(path: Path, what: str, max_bytes: int) -> NoReturn:
    raise JoulecastError(
        f"{path}: has more than {max_bytes / 1e6:g} MB, which no {what} should; is it the right file?"
    )


def read_bytes(path: Path, what: str, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file. Arguments and errors are the same as for :func:`opened`."""
    with opened(path, what, max_bytes) as file:
        # Files of the kernel have the size 0, and some of them never end.
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        _too_large(path, what, max_bytes)
    return content


_GZIP = b"\x1f\x8b"
"""The first bytes of a file that gzip packed."""


def read_text(path: Path, what: str, max_bytes: int = MAX_BYTES) -> str:
    """The content of a text file. Arguments and errors are the same as for :func:`opened`. Text that is not
    UTF-8 is an error, too."""
    content = read_bytes(path, what, max_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        if content.startswith(_GZIP):
            raise JoulecastError(f"{path}: is packed by gzip; unpack it") from None
        line = content.count(b"\n", 0, error.start) + 1
        raise JoulecastError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; expected: {what}"
        ) from None


def _no_constant(_: str) -> float:
    raise ValueError("a number is not finite")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def json_of(text: str | bytes, origin: str) -> Any:
    """The value of a JSON text. All its numbers are finite.

    Raises:
        JoulecastError: the text is no JSON, is cut short or nested too deeply, or a number is NaN or
            infinite. The message begins with ``origin``.
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
    """Refuse lone surrogates (half of a character). JSON can escape them, but they cannot be written as
    UTF-8."""
    escape = b"\\ud" if isinstance(text, bytes) else "\\ud"
    if escape in text.lower():  # type: ignore[operator]
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half a character (a lone surrogate)") from None


def _require_shallow(value: Any, depth: int) -> None:
    """Refuse deep nesting. Functions that write or compare the value later are recursive."""
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
    """The value of a JSON file. It raises the errors of :func:`read_text` and :func:`json_of`."""
    return json_of(read_text(path, what, max_bytes), str(path))


def read_json_object(path: Path, what: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The object in a JSON file. It raises the errors of :func:`read_json`. If the value is no object, this
    is an error, too."""
    value = read_json(path, what, max_bytes)
    if not isinstance(value, dict):
        raise JoulecastError(f"{path}: expected a JSON object: {what}")
    return value


def read_yaml(path: Path, what: str) -> Any:
    """The content of a YAML file.

    Raises:
        JoulecastError: an error of :func:`read_text`; or the file is no YAML, or unfolds to more values than
            allowed.
    """
    text = read_text(path, what, MAX_YAML_BYTES)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        require_few_values(node, str(path))
        content = loader.construct_document(node)
        require_few_values(content, str(path))
        return content
    except yaml.YAMLError as error:
        raise JoulecastError(f"{path}: is not YAML: {_mistake(error)}") from None
    except RecursionError:
        raise JoulecastError(
            f"{path}: is nested more than {MAX_DEPTH} deep, or holds an alias of itself"
        ) from None
    except (ValueError, OverflowError, TypeError) as error:
        # For example an impossible date, an integer of thousands of digits, or a list as a key.
        raise JoulecastError(f"{path}: is not YAML that can be read: {error}") from None


def require_few_values(content: Any, origin: str) -> None:
    """Refuse the content of a YAML file if its aliases unfold to too many values. (Snakemake may have parsed
    the file.)

    Raises:
        JoulecastError: there are too many values, a whole number is too large, or a text cannot be encoded.
            The message begins with ``origin``.
    """
    try:
        too_many = _unfolded(content, {}, MAX_DEPTH) > MAX_YAML_NODES
    except RecursionError:
        raise JoulecastError(
            f"{origin}: is nested more than {MAX_DEPTH} deep, or holds an alias of itself"
        ) from None
    except OverflowError:
        raise JoulecastError(f"{origin}: has a whole number of hundreds of digits") from None
    except UnicodeEncodeError:
        raise JoulecastError(f"{origin}: has half a character (a lone surrogate)") from None
    if too_many:
        raise JoulecastError(
            f"{origin}: its aliases unfold to more than {MAX_YAML_NODES} values; write out what is meant"
        )


def _unfolded(value: Any, seen: dict[int, int], depth: int) -> int:
    """Number of all values inside of a value, at any depth. An alias counts each time that it is used."""
    if depth == 0:
        raise RecursionError
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        raise OverflowError
    if isinstance(value, str):
        value.encode()
    if id(value) in seen:
        return seen[id(value)]
    children: Iterable[Any] = ()
    if isinstance(value, yaml.MappingNode):
        children = [part for pair in value.value for part in pair]
    elif isinstance(value, yaml.SequenceNode | yaml.ScalarNode):
        # The text of a scalar is checked, too.
        children = value.value if isinstance(value.value, list) else [value.value]
    elif isinstance(value, dict):
        children = [part for pair in value.items() for part in pair]
    elif isinstance(value, list):
        children = value
    seen[id(value)] = 1 + sum(_unfolded(child, seen, depth - 1) for child in children)
    return seen[id(value)]


def _mistake(error: yaml.YAMLError) -> str:
    """An error of the YAML parser in words, with its line and column."""
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    mark = getattr(error, "problem_mark", None)
    return (
        problem if mark is None else f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    )


def validated(kind: TypeAdapter[T], content: Any, origin: str) -> T:
    """The content, after it was checked against its type.

    Raises:
        JoulecastError: a key is wrong. The message begins with ``origin``, and names the first wrong key.
    """
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key, message = key_and_message(first)
        named = ": ".join(filter(None, (origin, key, message)))
        raise JoulecastError(f"{named}{_number_given(first)}") from None
    except RecursionError:
        raise JoulecastError(f"{origin}: is nested too deeply") from None


def key_and_message(problem: Mapping[str, Any]) -> tuple[str, str]:
    """The key and the message of one error of pydantic. If several keys are wrong together, the key is
    empty."""
    key = ".".join(str(part) for part in problem["loc"])
    return key, problem["msg"].removeprefix("Value error, ")


def _number_given(problem: Mapping[str, Any]) -> str:
    """The wrong value in words, if it is a number. A text is not shown, because it may contain secrets."""
    value = problem["input"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f" (given: {value!r:.20})" if is_number else ""
