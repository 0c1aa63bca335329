"""Reads either of the two formats of graphs that can be partitioned, by the content of the file."""

import json
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.graphs.pipedream import pipedream_graph
from joulecast.graphs.taskgraph import FORMAT, MAX_GRAPH_BYTES, TaskGraph, task_graph_of
from joulecast.runs.files.reading import json_of, read_text


def read_partitionable(path: Path) -> TaskGraph:
    """Read a task graph of our own, or a PipeDream profile.

    Raises:
        JoulecastError: missing, empty, neither of the two, or not sound; names the file, and line or node.
    """
    text = read_text(path, "graph", MAX_GRAPH_BYTES)
    if not text.strip():
        raise JoulecastError(f"{path}: the graph is empty")
    if not text.lstrip().startswith(("{", "[")):
        return pipedream_graph(path, text)
    content = json_of(text, str(path))
    if isinstance(content, dict) and {"ops", "tensors"} <= content.keys():
        raise JoulecastError(
            f"{path}: is an op graph of the simulator, which has no times; "
            "`joulecast profile NETWORK OUT` measures one that can be partitioned"
        )
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return task_graph_of(path, content)
    raise JoulecastError(
        f"{path}: neither of the formats that can be partitioned: a `{FORMAT}` or a PipeDream graph.txt (top "
        f"level: {json.dumps(content)[:60]})"
    )
