"""Graphs that come with joulecast: op graphs, so that a network can be simulated without torch, and task
graphs, so that it can be cut without being measured.

The op graphs were captured by :func:`joulecast.graphs.capture.write_shipped`: ImageNet sizes (224 pixels,
Inception 299; 1000 classes) and GPT-2 with 1024 tokens, for one sample; ``with_batch`` gives any other
number.
"""

from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.files.shipped import RECORDED, TASK_GRAPHS, find, is_path, known
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
    shipped = names()
    if name not in shipped:
        near = get_close_matches(name, shipped, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise JoulecastError(
            f"no op graph of `{name}` is shipped{hint} (shipped: {', '.join(shipped)}); "
            "joulecast.graphs.capture makes one of any network"
        )
    file = resources.files("joulecast.graphs") / "networks" / f"{name}.json"
    with resources.as_file(file) as path:
        return read_graph(Path(path))


def op_graph(graph: str) -> OpGraph:
    """An op graph: the shipped one of a network, or a file whose path has a ``/`` or ends in ``.json``.

    Raises:
        JoulecastError: as :func:`load` and :func:`joulecast.graphs.opgraph.read_graph`.
    """
    return read_graph(Path(graph)) if is_path(graph, (".json",)) else load(graph)


def task_graph_file(graph: str) -> Path:
    """The file of a graph that can be partitioned: a path, or the measured task graph of a network.

    Args:
        graph: the path of a file, which may be a shipped one below ``recorded``; or a network's name, whose
            graph is the user's own (``recorded/task-graphs/NAME.json``) or the shipped one.

    Raises:
        JoulecastError: no graph of that name; lists those that there are. A path is not looked at.
    """
    path = Path(graph)
    if path.is_file():
        return path
    if is_path(graph, (".json", ".txt")) and path.parent != TASK_GRAPHS:
        shipped = find(path.parent, path.name) if path.is_relative_to(RECORDED) else None
        return shipped or path
    network = path.name.removesuffix(".json")
    file = find(TASK_GRAPHS, f"{network}.json")
    if file is None:
        names = known(TASK_GRAPHS, ".json")
        near = get_close_matches(network, names, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise JoulecastError(
            f"{graph}: no such graph{hint} (by name: {', '.join(names)}); name one of them or a file, or "
            "measure one with `joulecast profile NETWORK OUT`"
        )
    return file
