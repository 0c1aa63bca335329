"""How commands end when something is wrong."""

import re

import typer

from joulecast.errors import JoulecastError

# Names from outside may hold anything; lines of our own go on with two spaces.
_BREAKS = re.compile(r"\n(?!  )|[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def shown(error: JoulecastError) -> str:
    """What is wrong, without characters that a terminal obeys."""
    return _BREAKS.sub(" ", str(error))


def failed(error: JoulecastError) -> typer.Exit:
    """Say what is wrong; to be raised, it ends the command with code 2."""
    typer.echo(f"error: {shown(error)}", err=True)
    return typer.Exit(2)
