"""How commands end when something is wrong."""

import typer

from joulecast.errors import JoulecastError


def failed(error: JoulecastError) -> typer.Exit:
    """Say what is wrong; to be raised, it ends the command with code 2."""
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(2)
