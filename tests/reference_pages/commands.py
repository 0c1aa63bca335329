"""The page of the commands: every command with its arguments and options, from the commands themselves."""

import html
import re
import subprocess
import sys

from reference_pages.words import table

_HEAD = """# Commands

Each command also prints its part of this page with `--help`. In a checkout, write `./run joulecast`.

"""
_GROUPS = "**Commands**:"
_ENTRY = re.compile(r"^\* `(?P<names>.+?)`: (?P<help>.*?)(?:  \[(?P<notes>[^\[\]]*)\])?$")
_LINKED_FROM = 2
_EVERYWHERE = ("--help", "--version")


def _printed() -> str:
    """All commands, as typer prints them in Markdown."""
    words = ["-m", "typer", "joulecast.app.cli.main", "utils", "docs", "--name", "joulecast"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return html.unescape(done.stdout)


def _row(entry: re.Match[str]) -> list[str]:
    names, _, value = entry["names"].partition(" <")
    default, bounds = "", []
    for note in (entry["notes"] or "").split("; "):
        if note.startswith("default: "):
            default = f" Default: `{note.removeprefix('default: ')}`."
        elif note == "required":
            default = " Required."
        elif note:
            bounds.append(note.replace("x>=", "≥ ").replace("x<=", "≤ ").replace("x>", "> "))
    kind = value.rstrip(">").removesuffix(" range")
    kind = re.sub(r"^list\[(\w+)\]$", r"\1, repeatable", kind)
    words = {"str": "text", "int": "whole number", "float": "number", "path": "path"}
    kind = re.sub(r"^\w+", lambda found: words.get(found[0], found[0]), kind)
    kind = kind.replace(">=", "≥ ").replace("<=", "≤ ").replace(" >", " > ")
    kind = {"": "(flag)", "text": "", "path": ""}.get(kind, kind)
    shown = " ".join(filter(None, [f"`{names}`", kind, *bounds]))
    return [shown, entry["help"] + default]


def _tables(part: str) -> str:
    """A command's text, with its arguments and options in tables."""
    text, rows, head = "", [], "option"
    for line in part.splitlines():
        entry = _ENTRY.match(line)
        if entry and entry["names"].split(" ")[0] not in _EVERYWHERE:
            row = _row(entry)
            row[0] = re.sub(r"^`\w+`", lambda name: name[0].upper(), row[0])
            rows.append(row)
            continue
        if rows and line and not entry:
            text += table([head, "meaning"], rows) + "\n"
            rows = []
        if line in ("**Arguments**:", "**Options**:"):
            head = line.strip("*:").lower().rstrip("s")
        elif line.startswith("$ "):
            # Arguments stand in braces; people write them in capitals.
            usage = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), line[2:])
            text += f"`{usage}`\n"
        elif line != "**Usage**:" and not line.startswith("```") and not entry:
            text += f"{line}\n"
    if rows:
        text += table([head, "meaning"], rows) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def _without_shown(command: str, text: str, shown: dict[str, list[str]]) -> str:
    """A command's text and one table; rows that an earlier command has become a link to that command."""
    lines = text.splitlines()
    rows = _rows(text)
    made = "\n".join(line for line in lines if not line.startswith("|"))
    made = re.sub(r"`joulecast [\w -]+ \[OPTIONS\]`\n", "", f"{made}\n")
    links = ""
    kept = rows
    for other, theirs in shown.items():
        link = f"[`{other}`](#{other.replace(' ', '-')})"
        shared = [row for row in kept if row in theirs]
        if shared and len(shared) >= min(_LINKED_FROM, len(kept)):
            kept = [row for row in kept if row not in theirs]
            lacking = [row for row in theirs if row not in rows]
            listed = ", ".join(f"`{row.split('`')[1]}`" for row in min(shared, lacking, key=len))
            how = ", without" if len(lacking) < len(shared) else ":"
            links += f"\nAs for {link}{f'{how} {listed}' if listed else ''}.\n"
    shown[command] = rows
    head = "| option | meaning |\n| --- | --- |\n" if kept else ""
    made = f"{made}\n{head}" + "".join(f"{row}\n" for row in kept) + links
    return re.sub(r"\n{3,}", "\n\n", made).strip()


def page() -> str:
    """The page: each command. Commands with the same table share a section."""
    parts = re.split(r"^#{2,3} `([^`]+)`\n", _printed(), flags=re.M)[1:]
    made: dict[str, str] = {}
    alike: dict[str, list[str]] = {}
    shown: dict[str, list[str]] = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        if _GROUPS in part:
            continue  # a group of commands does nothing itself
        text = _tables(part).strip()
        rows = _rows(text)
        same = next((other for other, theirs in shown.items() if rows and rows == theirs), name)
        if same == name:
            made[name] = f"## {name}\n\n{_without_shown(name, text, shown)}\n\n"
        else:
            alike.setdefault(same, []).append(f"`{name}`")
    for name, others in alike.items():
        made[name] += f"The same arguments and options: {', '.join(others)}.\n\n"
    return f"{_HEAD}{''.join(made.values())}".rstrip() + "\n"
