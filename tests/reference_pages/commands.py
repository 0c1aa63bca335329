"""The page of the commands: every command with its arguments and options, from the commands themselves."""

from collections.abc import Iterator
from typing import Any

import typer
from reference_pages.words import table

from joulecast.cli.main import app

_HEAD = """# Commands

Each command prints this with `--help`, too. Most have `--json`, and do the same as a function of the [Python API](api.md). In a
checkout, write `./run joulecast` in place of `joulecast`.

"""


def every_command() -> Iterator[tuple[str, Any]]:
    """``(name, command)`` of each command that does something, groups taken apart."""
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            for inner, of_group in command.commands.items():
                yield f"joulecast {name} {inner}", of_group
        else:
            yield f"joulecast {name}", command


def _paragraphs(command: Any) -> list[str]:
    text = (command.help or "").split("\f")[0]
    return [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]


def _value(parameter: Any) -> str:
    """What a parameter takes, in words."""
    if getattr(parameter, "is_flag", False):
        return ""
    metavar = parameter.metavar
    kind = parameter.type
    if metavar:
        return f"`{metavar}`"
    if getattr(kind, "choices", None):
        return ", ".join(f"`{choice}`" for choice in kind.choices)
    words = {"text": "text", "str": "text", "int": "whole number", "integer": "whole number"}
    words |= {"float": "number", "path": "path", "integer range": "whole number"}
    words |= {"float range": "number", "boolean": ""}
    name = words.get(kind.name, kind.name)
    low = getattr(kind, "min", None)
    if low is not None:
        name += f" {'>' if getattr(kind, 'min_open', False) else '≥'} {low:g}"
    return f"{name}, repeatable" if parameter.multiple or parameter.nargs == -1 else name


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if getattr(parameter, "is_flag", False) or default is None or default == () or callable(default):
        return ""
    if isinstance(default, list | tuple):
        return f"`{','.join(map(str, default))}`" if default else ""
    return f"`{getattr(default, 'value', default)}`" if str(default) else ""


def _row(parameter: Any) -> list[str]:
    names = [name for name in (*parameter.opts, *parameter.secondary_opts)]
    if parameter.param_type_name == "argument":
        names = [parameter.metavar or parameter.name.upper()]
    shown = ", ".join(f"`{name}`" for name in names)
    return [shown, _value(parameter), _default(parameter), getattr(parameter, "help", "") or ""]


def _command(name: str, command: Any) -> str:
    parameters = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name != "argument"]
    words = [name, *(["[OPTIONS]"] if options else [])]
    words += [(p.metavar or p.name.upper()).removeprefix("[").removesuffix("]") for p in arguments]
    text = f"## {name}\n\n" + "\n\n".join(_paragraphs(command)) + "\n\n"
    text += f"```text\n{' '.join(words)}\n```\n\n"
    if arguments:
        text += table(["argument", "value", "default", "meaning"], [_row(p) for p in arguments])
        text += "\n"
    if options:
        text += table(["option", "value", "default", "meaning"], [_row(p) for p in options]) + "\n"
    return text


def page() -> str:
    """The page: a line a command, then each command."""
    found = list(every_command())
    lines = [
        [f"[`{name}`](#{name.replace(' ', '-')})", (_paragraphs(command) or [""])[0]]
        for name, command in found
    ]
    parts = [_HEAD, table(["command", "does"], lines), "\n"]
    parts += [_command(name, command) for name, command in found]
    return "".join(parts).rstrip() + "\n"
