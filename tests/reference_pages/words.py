"""Parts that the pages of the reference share: code in Markdown, cells of tables, descriptions of fields."""

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter


def markdown(text: str) -> str:
    """A docstring's text as Markdown: code, and names of functions as links."""
    text = re.sub(r":func:`(?:joulecast\.)?(\w+)`", r"[`\1`](#\1)", text)
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`")


def cell(text: str) -> str:
    """A text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines) + "\n"


def described(model: type) -> dict[str, str]:
    """The description of each field of a model: the string below it, or that of its schema."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base.__module__.startswith("joulecast."):
            found |= _described(base)
    return found


def _described(model: type) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        text = _string(below)
        for keyword in field.value.keywords if isinstance(field.value, ast.Call) else ():
            if keyword.arg == "description":
                text = ast.literal_eval(keyword.value)
        found[field.target.id] = markdown(text or "")
    return found


def _string(node: ast.stmt | None) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return inspect.cleandoc(str(node.value.value))
    return None


def kind_of(schema: dict[str, Any], links: dict[str, str]) -> str:
    """The type of a field in words, from its JSON schema; ``links`` has the models by name."""
    if "$ref" in schema:
        return links.get(schema["$ref"].rsplit("/", 1)[-1], "map")
    if "anyOf" in schema:
        parts = [kind_of(part, links) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"{len(schema['prefixItems'])} of {kind_of(schema['prefixItems'][0], links)}"
        return f"list of {kind_of(schema['items'], links)}" if schema.get("items") else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"map to {kind_of(values, links)}" if isinstance(values, dict) and values else "map"
    words = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "yes or no",
    }
    return words.get(str(kind), "any") + _bounds(schema)


def fields(model: type, links: dict[str, str]) -> list[list[str]]:
    """A row a field of a model: name, type, meaning.

    Raises:
        AssertionError: a field has no description.
    """
    texts, rows = described(model), []
    made = issubclass(model, BaseModel)
    schema = model.model_json_schema() if made else TypeAdapter(model).json_schema()
    for name, of_field in schema["properties"].items():
        assert texts.get(name), f"{model.__name__}.{name} has no description below it"
        kind = kind_of(of_field, links)
        if any(part.get("type") == "null" for part in of_field.get("anyOf", ())):
            kind += "; optional"
        rows.append([f"`{name}`", kind, texts[name]])
    return rows


def anchor(heading: str) -> str:
    """The anchor that MkDocs gives a heading."""
    return "".join(c for c in heading.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _bounds(schema: dict[str, Any]) -> str:
    """The bounds that a person should know: those of 10^5 and more only keep nonsense out."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [
        f"{sign} {schema[key]:g}"
        for key, sign in signs.items()
        if key in schema and abs(schema[key]) < 1e5
    ]
    return f", {', '.join(found)}" if found else ""
