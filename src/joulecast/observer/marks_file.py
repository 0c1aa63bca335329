"""The marks that the observer left in a host's folder, process by process."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.files.reading import read_json_object
from joulecast.observer.inside import marks

MARK = np.dtype([("kind", "u1"), ("start", "<f8"), ("length", "<f8"), ("amount", "<f8")])
"""A mark as :mod:`joulecast.observer.inside.marks` packs it; times in s of the host's monotonic clock."""

Marked = NDArray[np.void]


@dataclass(frozen=True)
class Process:
    """One process that trained: its facts, and its marks (marks,) of type :data:`MARK`."""

    facts: dict[str, Any]
    marks: Marked

    @property
    def rank(self) -> int:
        """Rank, by its launcher; 0 without one."""
        return int(self.facts.get("rank") or 0)

    @property
    def updates(self) -> int:
        """Updates of its first optimizer."""
        return int(((self.marks["kind"] == marks.UPDATE) & (self.marks["amount"] == 0)).sum())


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
