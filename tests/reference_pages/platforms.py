"""The page of a platform's file: every key, from the models."""

from joulecast.runs.platforms import platform
from joulecast.runs.platforms.platform import Platform
from reference_pages.words import anchor, fields, markdown, table

_HEAD = """# Platform files

A platform is one YAML file of facts about a node type. Units are in the names of the keys. A fact that is not
known stays `null`. [Add a platform](../how-to/add-a-platform.md) has a complete example.

Shipped platforms: `hc1`, `hc2`, `hc3` (of the Proteus paper), `dgx-h100`, `dgx-h200`, `tianhe3-mt`,
`tianhe3-ft`, `this-machine`, and `two-core-vm` (a recorded campaign). `--platform`
also takes [GPUs by name](simulator.md#gpus-by-name).

"""
MODELS: dict[type, str] = {
    Platform: "Top level",
    platform.Cluster: "cluster",
    platform.Device: "cluster.device",
    platform.Link: "cluster.links",
}


def page() -> str:
    """The page: a table a part of the file."""
    links = {model.__name__: f"[map](#{anchor(heading)})" for model, heading in MODELS.items()}
    text = _HEAD
    for model, heading in MODELS.items():
        about = markdown(" ".join((model.__doc__ or "").split()))
        rows = fields(model, links)
        text += f"## {heading}\n\n{about}\n\n"
        text += table(["key", "type", "meaning"], rows) + "\n"
    return text.rstrip() + "\n"
