"""The page of the configuration: every key with its default and meaning, from the model."""

import json
from typing import Any

from pydantic import BaseModel

from joulecast.app.campaign.config import Config
from reference_pages.words import kind_of, table

_HEAD = """# Configuration

The file of a campaign needs only the keys that differ from the default
([run a campaign](../how-to/run-a-campaign.md)). `joulecast config check FILE` checks a file. Editors complete
keys with `config/schema.json`.

This page has the sections that a campaign of your own needs. `joulecast config default` prints all of them,
also `calibration`, `simulator`, `partition` and `tuning`.

"""


_RARE = ("calibration", "simulator", "partition", "tuning")
"""Sections that judge and show the models. They are left to the configuration that joulecast prints."""
_LONGEST = 60
"""Characters of the longest default that fits into the table."""


def _shown(value: Any) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) > _LONGEST:
        return "in `config/config.yaml`"
    return f"`{text}`" if text else ""


def _sections(
    model: BaseModel, path: str, schema: dict[str, Any]
) -> list[tuple[str, list[list[str]]]]:
    """Heading and rows of a section and of those in it."""
    rows, below = [], []
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), f"{path}{name}"
        described = schema["properties"][name]
        referred = described.get("$ref", "").rsplit("/", 1)[-1]
        if key in _RARE:
            continue
        if isinstance(value, BaseModel) and referred:
            inner = {**schema["$defs"][referred], "$defs": schema["$defs"]}
            # A section without keys of its own in the default is one value: `emulation`.
            below += _sections(value, f"{key}.", inner)
            continue
        # A default shows its type, unless it is one of several words, or none.
        kind, meaning = kind_of(described, {}), field.description or ""
        if kind.startswith("`"):
            meaning += f" One of {kind}."
        elif value is None:
            meaning += f" Type: {kind}."
        rows.append([f"`{key}`", _shown(value), meaning])
    return [(path.rstrip("."), rows), *below]


def page() -> str:
    """The page: a table a section."""
    text = _HEAD
    for name, rows in _sections(Config(), "", Config.model_json_schema()):
        if rows:
            text += f"## {name or 'Top level'}\n\n{table(['key', 'default', 'meaning'], rows)}\n"
    return text.rstrip() + "\n"
