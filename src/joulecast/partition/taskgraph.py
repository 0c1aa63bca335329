"""The task graph of a network, which a partitioner cuts. This module needs no torch.

A task is one call in the forward pass of the network (a layer or a function), with its measured forward
and backward times, its parameters and its output. The op graph (:mod:`joulecast.graphs.opgraph`) says how
operators can be split. A task graph says how long whole operators take.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.runs.files.writing import written_aside

FORMAT = "joulecast task graph 1"
MAX_GRAPH_BYTES = 16_000_000
MAX_NODES = 20_000
LARGEST = 1e15
"""Largest time or size: 30 years in microseconds, or a petabyte in bytes."""
_LONGEST_NAME = 500


@dataclass(frozen=True)
class Task:
    """One task.

    ``reads`` has the tasks whose output it takes. ``activation_bytes`` is the size of its own output (its
    gradient has the same size). ``parameter_bytes`` is the size of its parameters. Times are in microseconds,
    for one step with the graph's batch. ``flops`` counts the forward pass only; ``None`` if not counted.
    """

    name: str
    description: str
    reads: tuple[str, ...]
    forward_us: int
    backward_us: int
    activation_bytes: int
    parameter_bytes: int
    flops: int | None = None

    @property
    def work_us(self) -> int:
        """Microseconds of the forward and the backward pass together."""
        return self.forward_us + self.backward_us


@dataclass(frozen=True)
class TaskGraph:
    """Tasks in an order in which they can run.

    ``time_unit`` is the unit in the file from which it was read (``us`` or ``ms``); the tasks always have
    microseconds. ``batch`` is the number of samples for which times and sizes are given; ``None`` if the
    file does not say it.
    """

    name: str
    tasks: tuple[Task, ...]
    batch: int | None = None
    time_unit: str = "us"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each task."""
        return {task.name: position for position, task in enumerate(self.tasks)}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the tasks that read each task's output."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for position, task in enumerate(self.tasks):
            for name in dict.fromkeys(task.reads):
                found[self.index[name]].append(position)
        return tuple(map(tuple, found))

    @property
    def work_us(self) -> int:
        """Microseconds of the forward and backward passes of all tasks."""
        return sum(task.work_us for task in self.tasks)

    def write(self, path: Path) -> None:
        """Write the graph as JSON, with a line for each task."""
        head = {
            "format": FORMAT,
            "name": self.name,
            "batch": self.batch,
            "provenance": dict(self.provenance),
        }
        tasks = ",\n".join(json.dumps(asdict(task)) for task in self.tasks)
        with written_aside(path) as partial:
            partial.write_text(f'{json.dumps(head)[:-1]}, "tasks": [\n{tasks}\n]}}\n')


def in_order(where: str, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Tasks in an order in which they can run. It is as near as possible to the given order.

    The order is depth first, from the end of the list. So branches come one after the other, not
    interleaved, and a cut of the order crosses few tensors.

    Raises:
        JoulecastError: two tasks have the same name, a task reads a task that does not exist, or there is a
            cycle. The error names the tasks.
    """
    by_name: dict[str, Task] = {}
    for task in tasks:
        if task.name in by_name:
            raise JoulecastError(f"{where}: two nodes have the name `{task.name}`")
        by_name[task.name] = task
    placed: dict[str, None] = {}
    for last in tasks:
        # Every name is on the way once; `under_way` keeps the order in which a cycle is reported.
        under_way: dict[str, Iterable[str]] = {}
        to_visit = last.name
        while to_visit:
            if to_visit not in placed and to_visit not in under_way:
                under_way[to_visit] = iter(by_name[to_visit].reads)
            current = next(reversed(under_way), "")
            if not current:
                break
            to_visit = ""
            for name in under_way[current]:
                if name not in by_name:
                    raise JoulecastError(
                        f"{where}: node `{current}` reads `{name}`, which is not in the file"
                    )
                if name in under_way:
                    cycle = [*under_way][[*under_way].index(name) :]
                    raise JoulecastError(
                        f"{where}: the graph has a cycle: {' -> '.join([*cycle, name])} "
                        "(each reads the next)"
                    )
                if name not in placed:
                    to_visit = name
                    break
            if not to_visit:
                placed[current] = None
                del under_way[current]
                to_visit = next(reversed(under_way), "")
    return tuple(by_name[name] for name in placed)


def checked_number(
    where: str, name: str, value: Any, least: float = 0.0, most: float = LARGEST
) -> float:
    """A number from ``least`` to ``most``.

    Raises:
        JoulecastError: the value is no such number. The error names ``where`` and ``name``.
    """
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_sound = is_number and least <= float(value) <= most
    except OverflowError:
        is_sound = False
    if not is_sound:
        raise JoulecastError(
            f"{where}: {name} is {value!r:.50}; it must be a number from {least:g} to {most:g}"
        )
    return float(value)


def checked_name(where: str, what: str, value: Any) -> str:
    """The value as a name, which is printable and not too long.

    Raises:
        JoulecastError: the value is no such name. The error names ``where`` and ``what``.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) <= LARGEST else ""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise JoulecastError(
            f"{where}: {what} without a name of 1 to {_LONGEST_NAME} characters: {value!r:.80}"
        )
    return value


def require_few_nodes(where: str, nodes: int) -> None:
    """Refuse a graph that no partitioner can hold.

    Raises:
        JoulecastError: the graph has more than :data:`MAX_NODES` nodes.
    """
    if nodes > MAX_NODES:
        raise JoulecastError(
            f"{where}: has {nodes} nodes, more than the {MAX_NODES} that can be cut"
        )


def _task_of(where: str, content: Any) -> Task:
    if not isinstance(content, dict):
        raise JoulecastError(f"{where}: a task without a name: {content!r:.80}")
    name = checked_name(where, "a task", content.get("name"))
    here = f"{where}, task `{name}`"

    def number(key: str) -> int:
        if key not in content:
            raise JoulecastError(f"{here}: {key} is missing")
        return round(checked_number(here, key, content[key]))

    reads = content.get("reads")
    if not isinstance(reads, list) or not all(isinstance(name, str) for name in reads):
        raise JoulecastError(f"{here}: reads must be a list of names")
    return Task(
        name=name,
        description=str(content.get("description", "")),
        reads=tuple(reads),
        forward_us=number("forward_us"),
        backward_us=number("backward_us"),
        activation_bytes=number("activation_bytes"),
        parameter_bytes=number("parameter_bytes"),
        flops=None if content.get("flops") is None else number("flops"),
    )


def task_graph_of(path: Path, content: Any) -> TaskGraph:
    """The task graph in a JSON file of our own format.

    Raises:
        JoulecastError: the file has no task graph, or the graph is not valid. The error names the file and
            the task.
    """
    where = str(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise JoulecastError(f"{where}: is no `{FORMAT}`")
    if not isinstance(content.get("tasks"), list) or not content["tasks"]:
        raise JoulecastError(f"{where}: the graph is empty")
    require_few_nodes(where, len(content["tasks"]))
    batch, provenance = content.get("batch"), content.get("provenance") or {}
    if not isinstance(provenance, dict):
        raise JoulecastError(f"{where}: provenance must be an object")
    return TaskGraph(
        name=checked_name(where, "a graph", content.get("name", path.stem)),
        tasks=in_order(where, [_task_of(where, each) for each in content["tasks"]]),
        batch=None if batch is None else round(checked_number(where, "batch", batch, 1)),
        provenance=provenance,
    )
