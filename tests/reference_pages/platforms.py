"""The page of a platform's file: every key, from the models."""

from joulecast.runs.platforms import platform
from joulecast.runs.platforms.platform import Platform
from reference_pages.words import anchor, fields, markdown, table

_HEAD = """# Platform files

A platform is one YAML file of facts about a node type. A fact that is not known stays `null`, and a command
that needs it says so. [Add a platform](../how-to/add-a-platform.md) has a complete example.

These platforms are shipped: `hc1`, `hc2`, `hc3` (of the Proteus paper), `dgx-h100`, `dgx-h200`,
`tianhe3-mt`, `tianhe3-ft`, and `this-machine`. Each file names its sources. The link rates of Tianhe-3 are
not published, so they stay `null`.
`--platform` also takes [GPUs by name](simulator.md#gpus-by-name).

"""
MODELS: dict[type, str] = {
    Platform: "Top level",
    platform.Cluster: "cluster",
    platform.Device: "cluster.device",
    platform.Architecture: "cluster.device.architecture",
    platform.Link: "cluster.links",
    platform.Ring: "cluster.rings",
}


def page() -> str:
    """The page: a table a part of the file."""
    links = {model.__name__: f"[map](#{anchor(heading)})" for model, heading in MODELS.items()}
    text = _HEAD
    for model, heading in MODELS.items():
        about = markdown(" ".join((model.__doc__ or "").split()))
        rows = fields(model, links)
        text += f"## {heading}\n\n{about}\n\n"
        text += table(["key", "type", "unit", "meaning"], rows) + "\n"
    return text.rstrip() + "\n"
