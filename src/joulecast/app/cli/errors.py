"""How commands end when something is wrong: one line on the terminal, and code 2."""

import re
from typing import Any

import typer
from typer.core import TyperGroup

from joulecast.errors import JoulecastError

# A name from outside may contain any character. In our own messages, two spaces follow each line break.
_BREAKS = re.compile(r"\n(?!  )|[\x00-\x09\x0b-\x1f\x7f-\x9f]")

_OF_CAMPAIGNS = ("torch", "torchvision", "mpi4py")
"""Packages that only the extra ``campaign`` installs."""


def shown(error: JoulecastError) -> str:
    """Text of an error, without control characters of a terminal."""
    return _BREAKS.sub(" ", str(error))


class Commands(TyperGroup):
    """A group of commands. If a command raises a :class:`JoulecastError`, it ends with one line and code
    2."""

    def invoke(self, context: Any) -> Any:
        """Call the command, and return its result."""
        try:
            return super().invoke(context)
        except JoulecastError as error:
            said = shown(error)
        except ModuleNotFoundError as error:
            if error.name not in _OF_CAMPAIGNS:
                raise
            said = (
                f"this needs {error.name}; install joulecast with its extra, as joulecast[campaign]"
            )
        typer.echo(f"error: {said}", err=True)
        raise typer.Exit(2)
