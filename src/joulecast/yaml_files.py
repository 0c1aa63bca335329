"""YAML files as what they have to be; a mistake is said in one line with file and key."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from joulecast.errors import JoulecastError

T = TypeVar("T")


def read_yaml(path: Path, what: str) -> Any:
    """The content of a file.

    Args:
        path: of the file.
        what: it is to be, for the error, as "strategy file".

    Raises:
        JoulecastError: missing, unreadable, or no YAML.
    """
    if path.is_dir():
        raise JoulecastError(f"{path}: is a folder; give the {what} itself")
    try:
        return yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise JoulecastError(f"{path}: no such {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise JoulecastError(f"{path}: cannot be read as a {what} ({error})") from None
    except yaml.YAMLError as error:
        raise JoulecastError(f"{path}: is not YAML: {_mistake(error)}") from None


def _mistake(error: yaml.YAMLError) -> str:
    """What is wrong, and in which line."""
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    mark = getattr(error, "problem_mark", None)
    return (
        problem if mark is None else f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
    )


def validated(kind: TypeAdapter[T], content: Any, origin: str) -> T:
    """Content as what it has to be.

    Raises:
        JoulecastError: names the first wrong key, after ``origin``.
    """
    try:
        return kind.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise JoulecastError(f"{origin}: {key}: {first['msg']}") from None
