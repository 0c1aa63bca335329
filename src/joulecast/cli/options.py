"""Options that several commands have, and how their texts are read."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.errors import JoulecastError

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Platforms = Annotated[Path, typer.Option(help="Folder of your platform files.")]
RECORDS_HELP = "Folder of run records, however deep they lie in it; or a recorded campaign."


def whole_numbers(option: str, text: str) -> list[int]:
    """Whole numbers of an option that takes several, as ``1,2,4``.

    Raises:
        JoulecastError: something in ``text`` is no whole number.
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise JoulecastError(f"{option} {text}: give numbers, as 1,2,4") from None


def echo_json(content: dict[str, Any]) -> None:
    """Print plain data as JSON."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))
