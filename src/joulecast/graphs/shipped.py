"""Graphs that come with joulecast, so that a network can be simulated without torch.

They were captured by :func:`joulecast.graphs.capture.write_shipped`: ImageNet sizes (224 pixels, Inception
299; 1000 classes) and GPT-2 with 1024 tokens, for one sample; ``with_batch`` gives any other number.
"""

from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.graphs.opgraph import OpGraph, read_graph


def names() -> list[str]:
    """Networks whose graphs are shipped."""
    folder = resources.files("joulecast.graphs") / "networks"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name[-5:] == ".json")


def load(name: str) -> OpGraph:
    """The shipped graph of a network, for one sample.

    Raises:
        JoulecastError: there is none of that name; names the nearest one.
    """
    known = names()
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise JoulecastError(
            f"no op graph of `{name}` is shipped{hint} (shipped: {', '.join(known)}); "
            "joulecast.graphs.capture makes one of any network"
        )
    file = resources.files("joulecast.graphs") / "networks" / f"{name}.json"
    with resources.as_file(file) as path:
        return read_graph(Path(path))
