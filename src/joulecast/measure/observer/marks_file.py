"""The marks that the observer left in a host's folder, process by process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.measure.observer.inside import marks
from joulecast.runs.files.reading import read_json_object

MARK = np.dtype([("kind", "u1"), ("start", "<f8"), ("length", "<f4"), ("amount", "<f4")])
"""A mark as :mod:`measure.observer.inside.marks` packs it; times in s of the host's monotonic clock."""

Marked = NDArray[np.void]


def _updates(marked: Marked) -> NDArray[np.int64]:
    """Updates of each optimizer, by its number."""
    numbers = marked["amount"][marked["kind"] == marks.UPDATE]
    counted: NDArray[np.int64] = np.bincount(numbers[numbers != marks.PART].astype(np.int64))
    return counted


def main_optimizer(marked: Marked) -> int:
    """Number of the optimizer whose updates end the steps: that with the most updates; of several with as
    many the last one of a step, after which the next batch is fetched or the next backward pass begins.

    Args:
        marked: marks in the order of their starts.
    """
    counts = _updates(marked)
    if not len(counts):
        return 0
    as_many = np.flatnonzero(counts == counts.max())
    if len(as_many) == 1:
        return int(as_many[0])
    begins = marks.FETCH if (marked["kind"] == marks.FETCH).any() else marks.BACKWARD
    edges = marked[np.isin(marked["kind"], (marks.UPDATE, begins))]
    edges = edges[edges["amount"] != marks.PART]
    is_update = edges["kind"] == marks.UPDATE
    is_last = is_update & np.append(~is_update[1:], True)
    lasts = np.bincount(edges["amount"][is_last].astype(np.int64), minlength=len(counts))[as_many]
    return int(as_many[lasts == lasts.max()][-1])


@dataclass(frozen=True)
class Process:
    """One process that trained: its facts, and its marks (marks,) of type :data:`MARK`."""

    facts: dict[str, Any]
    marks: Marked

    @property
    def rank(self) -> int:
        """Rank, by its launcher, or by torch where that knows of more ranks; 0 without either."""
        by_torch = int(self.facts.get("group_ranks") or 1)
        if by_torch > int(self.facts.get("ranks") or 1) or self.facts.get("rank") is None:
            return int(self.facts.get("group_rank") or 0)
        return int(self.facts["rank"])

    @property
    def updates(self) -> int:
        """Updates of its main optimizer."""
        return int(_updates(self.marks).max(initial=0))


def read_processes(folder: Path) -> list[Process]:
    """The processes that trained, in the order of their ranks; a mark that is cut short is left out."""
    found = []
    for path in sorted(folder.glob("*.marks")):
        content = path.read_bytes()
        whole = len(content) // MARK.itemsize * MARK.itemsize
        facts = path.with_suffix(".json")
        known = read_json_object(facts, "facts of a process") if facts.is_file() else {}
        found.append(Process(known, np.frombuffer(content[:whole], MARK)))
    return sorted(found, key=lambda process: (process.rank, -process.updates))
