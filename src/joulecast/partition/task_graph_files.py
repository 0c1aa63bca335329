"""Reads the two formats of graphs that can be partitioned: our own task graphs, and PipeDream's profiles.

A profile has one line for each node, and one indented line for each edge, in any order. The line of a node is
``nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes or [a; b],
parameter_size=bytes``, sometimes with `` -- stage_id=k`` behind. The line of an edge is
``\\tnodeA -- nodeB``. Source nodes called ``Input`` stand for
the loading of data. They are dropped, as in PipeDream's own optimizer.
"""

import json
import re
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.partition.taskgraph import (
    FORMAT,
    MAX_GRAPH_BYTES,
    Task,
    TaskGraph,
    checked_name,
    checked_number,
    in_order,
    require_few_nodes,
    task_graph_of,
)
from joulecast.runs.files.reading import json_of, read_text
from joulecast.runs.files.shipped import RECORDED, TASK_GRAPHS, find, is_path, known


def read_partitionable(path: Path) -> TaskGraph:
    """Read a task graph of our own, or a PipeDream profile.

    Raises:
        JoulecastError: the file is missing, empty, not valid, or has neither of the two formats. The error
            names the file, and the line or node.
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
            "give the MODULE:FUNCTION that was captured, which is measured first"
        )
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return task_graph_of(path, content)
    raise JoulecastError(
        f"{path}: neither of the formats that can be partitioned: a `{FORMAT}` or a PipeDream graph.txt (top "
        f"level: {json.dumps(content)[:60]})"
    )


_INPUT = "Input"
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_US_PER_MS = 1000


def _values(where: str, text: str) -> dict[str, float]:
    found = dict(re.findall(r"\b(\w++)=(\[[^][]*\]|[^,\s]+)", text))
    values = {}
    for field in _FIELDS:
        if field not in found:
            raise JoulecastError(f"{where}: {field} is missing; was the line cut short?")
        # A list: a node with several outputs.
        parts = found[field].strip("[]").split(";") if "[" in found[field] else [found[field]]
        try:
            values[field] = sum(checked_number(where, field, float(part)) for part in parts)
        except ValueError:
            raise JoulecastError(f"{where}: {field} is {found[field]!r}, no number") from None
    return values


def _task(where: str, line: str) -> Task:
    parts = line.split(" -- ")
    if len(parts) < 3:
        raise JoulecastError(
            f"{where}: is no `node -- description -- times`; was the file cut short?"
        )
    values = _values(f"{where}, {parts[0]}", " -- ".join(parts[2:]))
    return Task(
        name=checked_name(where, "a node", parts[0].strip()),
        description=parts[1],
        reads=(),
        forward_us=round(values["forward_compute_time"] * _US_PER_MS),
        backward_us=round(values["backward_compute_time"] * _US_PER_MS),
        activation_bytes=round(values["activation_size"]),
        parameter_bytes=round(values["parameter_size"]),
    )


def pipedream_graph(path: Path, text: str) -> TaskGraph:
    """The task graph of a PipeDream profile. Times in the file are in milliseconds.

    Raises:
        JoulecastError: a line is neither node nor edge, a time or size is missing or negative, an edge leads
            to an unknown node, a node occurs twice, there is a cycle, or there are only inputs. The error
            names the line.
    """
    tasks: dict[str, Task] = {}
    edges: list[tuple[str, str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        if line[0].isspace():
            ends = [end.strip() for end in line.split(" -- ")]
            if len(ends) != 2 or not all(ends):
                raise JoulecastError(f"{where}: is no edge `node -- node`; was the file cut short?")
            edges.append((where, ends[0], ends[1]))
            continue
        task = _task(where, line)
        if task.name in tasks:
            raise JoulecastError(f"{where}: node `{task.name}` is there twice")
        tasks[task.name] = task
    require_few_nodes(str(path), len(tasks))
    read_by: dict[str, dict[str, None]] = {name: {} for name in tasks}
    for where, source, target in edges:
        for end in (source, target):
            if end not in tasks:
                raise JoulecastError(f"{where}: an edge to the unknown node `{end}`")
        read_by[target][source] = None
    inputs = {n for n, t in tasks.items() if t.description.startswith(_INPUT) and not read_by[n]}
    kept = [
        replace(task, reads=tuple(n for n in read_by[name] if n not in inputs))
        for name, task in tasks.items()
        if name not in inputs
    ]
    if not kept:
        raise JoulecastError(f"{path}: the graph is empty")
    return TaskGraph(name=path.stem, tasks=in_order(str(path), kept), time_unit="ms")


def task_graph_file(graph: str) -> Path:
    """The file of a graph that can be partitioned: a path, or the measured task graph of a network.

    Args:
        graph: the path of a file; or the name of a network. The path may be below the shipped ``recorded``.
            For a name, the user's own graph is taken (``recorded/task-graphs/NAME.json``), or else the
            shipped one.

    Raises:
        JoulecastError: there is no graph of this name. The error lists the known names. A path is not
            checked.
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
