"""The folder in which the processes of one launch meet, as `srun -N2 joulecast measure` starts one a host.

Each process writes what it has into files of its own, whole or not at all. The first process of a host
samples the host's meters, and the first of all makes the record when the others have ended.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_json_object
from joulecast.files.writing import written_aside
from joulecast.observer.launch_place import Place
from joulecast.observer.marks_file import Process
from joulecast.records.provenance import physical_host

_LOOK_S = 0.1
MARKS_PREFIX = "joulecast-observer-"
"""Begin of the names of folders for marks."""


def _remove_abandoned(out: Path, host: str) -> None:
    """Remove the folders of launches whose processes were killed, where all of them ran on this host."""
    for folder in out.glob(".job-*"):
        with suppress(JoulecastError, OSError, KeyError):
            left = [
                read_json_object(path, "part of a measurement")
                for path in folder.glob("process-*.json")
            ]
            if left and all(
                part["host"] == host and not psutil.pid_exists(part["pid"]) for part in left
            ):
                for part in left:
                    marks = Path(str(part.get("marks")))
                    # Nothing else is removed, whatever the file says.
                    if marks.name.startswith(MARKS_PREFIX) and not marks.is_symlink():
                        shutil.rmtree(marks, ignore_errors=True)
                shutil.rmtree(folder)


class JobFolder:
    """The folder of one launch, seen from one of its processes."""

    def __init__(self, out: Path, place: Place, pid: int | None = None) -> None:
        """Make it.

        Args:
            out: folder of the records.
            place: of this process.
            pid: process that trains, with its descendants; this one's by default.

        Raises:
            JoulecastError: nothing can be written there.
        """
        self.path = out / f".job-{place.job}"
        self.place = place
        self.host = physical_host()
        _remove_abandoned(out, self.host)
        self._pid = pid or os.getpid()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.arrive()
        except OSError as error:
            raise JoulecastError(
                f"{out}: no record can be written there ({error.strerror}); give another folder by --out"
            ) from None

    def arrive(self, **facts: str) -> None:
        """Leave word of this process: its host, its number, and more facts of it."""
        known = {"host": self.host, "pid": self._pid, **facts}
        self.write(f"process-{self.place.rank}", known)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of plain data."""
        with written_aside(self.path / f"{name}.json") as partial:
            partial.write_text(json.dumps(content))

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a file of plain data; ``None`` if it is not there yet."""
        path = self.path / f"{name}.json"
        if not path.is_file():
            return None
        content: dict[str, Any] = read_json_object(path, "part of a measurement")
        return content

    def is_first_of_host(self) -> bool:
        """Whether this process is the first of its host to ask."""
        name = self.host.replace("/", "_")
        try:
            (self.path / f"sampler-{name}.lock").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait(self, ready: Callable[[], bool], patience_s: float) -> bool:
        """Wait until something is there; says whether it came in time."""
        until_s = time.monotonic() + patience_s
        while not ready():
            if time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def ranks_of_host(self) -> list[int]:
        """The processes of this host, as far as they have come."""
        known = {rank: self.read(f"process-{rank}") for rank in range(self.place.size)}
        return [rank for rank, part in known.items() if part and part["host"] == self.host]

    def pids_of_host(self, patience_s: float) -> tuple[int, ...]:
        """The processes of this host, once all of the launch have come, or after some time."""
        everywhere = range(self.place.size)
        self.wait(lambda: all(self.read(f"process-{rank}") for rank in everywhere), patience_s)
        parts = (self.read(f"process-{rank}") for rank in self.ranks_of_host())
        return tuple(int(part["pid"]) for part in parts if part)

    def hosts(self) -> dict[str, dict[str, Any]]:
        """What the samplers of the hosts have left, by host."""
        found = {}
        for path in sorted(self.path.glob("host-*.json")):
            content = read_json_object(path, "part of a measurement")
            found[str(content["host"])] = content
        return found

    def leave_marks(self, processes: list[Process], code: int | None) -> None:
        """Leave the marks of this process's command for the first process."""
        path = self.path / f"marks-{self.place.rank}.npz"
        with written_aside(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, *[process.marks for process in processes])
        facts = [process.facts for process in processes]
        self.write(f"ended-{self.place.rank}", {"host": self.host, "code": code, "facts": facts})

    def ended(self, rank: int) -> bool:
        """Whether a process has left its marks."""
        return (self.path / f"ended-{rank}.json").is_file()

    def marks_of(self, rank: int) -> tuple[str, int | None, list[Process]]:
        """Host, return code and processes of one process's command.

        Raises:
            JoulecastError: they are not there, or broken.
        """
        ended = self.read(f"ended-{rank}")
        path = self.path / f"marks-{rank}.npz"
        if ended is None:
            raise JoulecastError(f"{path}: is missing")
        with np.load(path) as kept:
            marks = [kept[name] for name in kept.files]
        known = zip(ended["facts"], marks, strict=True)
        return ended["host"], ended["code"], [Process(facts, of) for facts, of in known]

    def remove(self) -> None:
        """Remove the folder."""
        with suppress(OSError):
            shutil.rmtree(self.path)
