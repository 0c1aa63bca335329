"""What runs a log is of, as the user says it: options for one run, or a table with a row a run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.importers.log_table import LogTable
from joulecast.importers.log_times import Clock, Times

_WHAT = "table of runs"
_MOST_ROWS = 100_000
_COLUMNS = (
    *(
        "run",
        "network",
        "platform",
        "nodes",
        "hosts",
        "batch",
        "start",
        "stop",
        "epochs",
        "samples",
    ),
    *("steps", "repeat", "accelerators", "accelerator", "seed"),
)
_RANGE = re.compile(r"(\d+)-(\d+)")
_MOST_HOSTS = 100_000


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run apart from its log.

    Attributes:
        run: its name.
        network: what was trained.
        platform: name of the node type.
        nodes: how many.
        hosts: their names in the log; none: all that the log has.
        batch: samples of a step, of all nodes together.
        start: of the training.
        stop: of the training.
        epochs: trained between the two; or ``samples``, or ``steps``.
        samples: trained between the two.
        steps: trained between the two.
        repeat: number of the repeat, from 1.
        accelerators: of a node.
        accelerator: their name.
        seed: of its weights.
    """

    run: str | None = None
    network: str | None = None
    platform: str | None = None
    nodes: int | None = None
    hosts: tuple[str, ...] = ()
    batch: int | None = None
    start: Times | None = None
    stop: Times | None = None
    epochs: float | None = None
    samples: float | None = None
    steps: float | None = None
    repeat: int | None = None
    accelerators: int | None = None
    accelerator: str | None = None
    seed: int | None = None

    def over(self, other: "RunFacts") -> "RunFacts":
        """These facts, and those of ``other`` where these say nothing."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(
            other, **{name: value for name, value in own.items() if value not in (None, ())}
        )


def expanded(text: str) -> tuple[str, ...]:
    """The hosts of a list as SLURM writes it, ``n[01-03,07],login1``; also divided by spaces.

    Raises:
        JoulecastError: it is none, or has more hosts than a cluster.
    """
    found: list[str] = []
    for word in re.findall(r"(?:[^\s,\[]+|\[[^\]]*\])+", text):
        names = [""]
        for part in re.findall(r"\[[^\]]*\]|[^\[\]]+", word):
            ends = _numbers(part[1:-1]) if part.startswith("[") else [part]
            names = [name + end for name in names for end in ends]
            if len(names) + len(found) > _MOST_HOSTS:
                raise JoulecastError(f"hosts {text[:40]}: are more than {_MOST_HOSTS:,}")
        found += names
    return tuple(found)


def _numbers(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            numbers.append(part.strip())
        elif int(match[2]) - int(match[1]) > _MOST_HOSTS:
            raise JoulecastError(f"hosts [{text[:40]}]: are more than {_MOST_HOSTS:,}")
        else:
            width = len(match[1])
            numbers += [f"{n:0{width}d}" for n in range(int(match[1]), int(match[2]) + 1)]
    return numbers


def read_runs(path: Path, clock: Clock, delimiter: str | None = None) -> list[RunFacts]:
    """The runs of a table.

    Args:
        path: of a CSV file with some of the columns of :class:`RunFacts`.
        clock: how its times are read.
        delimiter: between its columns; found by itself where it is ``None``.

    Raises:
        JoulecastError: it has a column that is not known, or a value that cannot be; names line and column.
    """
    table = LogTable(path, _WHAT, delimiter=delimiter)
    if odd := [name for name in table.columns if name not in _COLUMNS]:
        raise JoulecastError(
            f"{path}, line 1: `{odd[0][:40]}` is no column of a {_WHAT}; there are: {', '.join(_COLUMNS)}"
        )
    if len(set(table.columns)) < len(table.columns):
        raise JoulecastError(f"{path}, line 1: has a column twice")
    rows = pd.concat([*table.parts(table.columns), pd.DataFrame(columns=table.columns)])
    if not len(rows) or len(rows) > _MOST_ROWS:
        raise JoulecastError(
            f"{path}: has {len(rows)} runs, from 1 to {_MOST_ROWS:,} can be imported"
        )
    found = [_facts(table, line, dict(row), clock) for line, row in rows.iterrows()]
    names = [facts.run for facts in found if facts.run is not None]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise JoulecastError(f"{path}, column run: `{twice[:40]}` is there twice")
    return found


def _facts(table: LogTable, line: object, row: dict[str, object], clock: Clock) -> RunFacts:
    def text(name: str) -> str | None:
        value = row.get(name)
        return value if isinstance(value, str) and value else None

    def number(name: str) -> float | None:
        value = text(name)
        if value is None:
            return None
        try:
            found = float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found <= 1e18:
            raise table.at(name, line, f"`{value[:40]}` is no number of at least 0")
        return found

    def whole(name: str) -> int | None:
        value = number(name)
        if value is not None and (value != int(value) or value < 1):
            raise table.at(name, line, f"`{text(name)}` is no whole number of at least 1")
        return None if value is None else int(value)

    def moment(name: str) -> Times | None:
        value = text(name)
        return (
            None
            if value is None
            else clock.moment(value, f"{table.path}, line {line}, column {name}")
        )

    return RunFacts(
        run=text("run"),
        network=text("network"),
        platform=text("platform"),
        nodes=whole("nodes"),
        hosts=expanded(text("hosts") or ""),
        batch=whole("batch"),
        start=moment("start"),
        stop=moment("stop"),
        epochs=number("epochs"),
        samples=number("samples"),
        steps=number("steps"),
        repeat=whole("repeat"),
        accelerators=whole("accelerators"),
        accelerator=text("accelerator"),
        seed=whole("seed"),
    )


def named(names: Sequence[str], most: int = 5) -> str:
    """Some names in words, no more than ``most`` of them."""
    shown = ", ".join(name[:40] for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
