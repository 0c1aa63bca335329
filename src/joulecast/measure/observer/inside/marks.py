"""Marks of one process: what it did from when to when, appended to a file as it happens.

A mark is 17 bytes: its kind, its start on the host's monotonic clock (s), its length (s) and an amount. A
million steps take less than 100 MiB. Each step is written by one call, so that a process that is killed
loses the step that it was in. A mark that cannot be written is lost, and the training runs on.
"""

from __future__ import annotations

import json
import os
import struct
import time
from contextlib import suppress
from typing import Any

ROW = struct.Struct("<Bdff")
"""Kind, start (s), length (s), amount."""

FETCH, BACKWARD, UPDATE, EXCHANGE, HIDDEN, PREFETCH = range(6)
"""Kinds of marks, with their amounts: waiting for a batch (its samples), a backward pass, an update
(the number of its optimizer), an exchange that nothing hid, one that computing hid (the seconds of the same
exchange that nothing hid), and a batch that another thread has fetched (its samples)."""

PART = -1
"""In the place of an optimizer's number: one more part of an update, which ends no step."""

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def _first_number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None


class Marks:
    """The marks of this process while a folder is open for them; a process that was forked has its own."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._rows: list[bytes] = []
        self._file: int | None = None
        self._facts: dict[str, Any] = {}
        os.register_at_fork(after_in_child=self._forget)

    def open(self, folder: str) -> None:
        """Write into ``folder`` from now on; facts that were noted stay known."""
        self.close()
        self._folder = folder

    def close(self) -> None:
        """Write what is left, and note nothing from now on."""
        self.write()
        if self._file is not None:
            os.close(self._file)
        self._rows, self._file, self._folder = [], None, None

    def _forget(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._rows, self._file = [], None

    def add(self, kind: int, start: float, stop: float, amount: float = 0.0) -> None:
        """Add a mark; it is written with its step."""
        if self._folder is not None:
            self._rows.append(ROW.pack(kind, start, max(0.0, stop - start), amount))

    def write(self) -> None:
        """Write the marks of a step."""
        if not self._rows:
            return
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(
                    self._path("marks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
                )
                self._save()
            os.write(self._file, b"".join(self._rows))
        self._rows.clear()

    def note(self, **facts: Any) -> None:
        """Note facts of this process, the newest of each name."""
        new = {name: value for name, value in facts.items() if self._facts.get(name) != value}
        self._facts.update(new)
        if new and self._file is not None:
            with suppress(OSError):
                self._save()

    def _save(self) -> None:
        known = {
            "pid": os.getpid(),
            "rank": _first_number(_RANKS),
            "ranks": _first_number(_SIZES),
            "local_rank": _first_number(("LOCAL_RANK", "SLURM_LOCALID")),
            "noted_s": time.monotonic(),
            **self._facts,
        }
        partial = self._path("partial")
        with open(partial, "w") as file:
            json.dump(known, file)
        os.replace(partial, self._path("json"))

    def _path(self, ending: str) -> str:
        return os.path.join(self._folder or "", f"{os.getpid()}.{ending}")
