"""Records held a second time, because Snakemake removes the output of a job before it starts the job.

Another job, which Snakemake has lost track of, may have finished the record in the meantime. The second copy
consists of hard links next to the journal of attempts, which take no space.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_written_aside, explained_disk_errors

ASKED_S = "JOULECAST_ASKED_S"
"""Environment variable: when the campaign was started, in seconds since the epoch."""

_CLOCKS_DIFFER_S = 30.0  # the file server's clock from ours


def _held(folder: Path, run: str) -> Path:
    return folder / f".{run}.record"


def _link(source: Path, target: Path) -> None:
    with directory_written_aside(target) as aside:
        for file in source.iterdir():
            try:
                os.link(file, aside / file.name)
            except OSError:  # a file system without links
                shutil.copy2(file, aside / file.name)


def hold_record(folder: Path, run: str, record: Path) -> None:
    """Link a record into the folder of the journals; a failure is ignored, as the record itself is there."""
    with suppress(OSError, JoulecastError):
        _link(record, _held(folder, run))


def bring_back(folder: Path, run: str, record: Path, since_s: float) -> None:
    """Restore a held record that was finished after ``since_s`` (seconds since the epoch).

    An older one stays removed: the user deleted it to have the run measured again.
    """
    held = _held(folder, run)
    with suppress(FileNotFoundError):
        os.listdir(record.parent)  # makes the client of a file server look again
        newer = (held / "run.json").stat().st_mtime > since_s - _CLOCKS_DIFFER_S
        if newer and not record.exists():
            _link(held, record)


def forget_record(folder: Path, run: str, record: Path) -> None:
    """Remove a record and its held copy, so that the run is measured again."""
    shutil.rmtree(_held(folder, run), ignore_errors=True)
    with explained_disk_errors(record):
        # Renamed first: a removal that is interrupted must not leave half a record under its name.
        away = record.with_name(f".{run}.removed")
        shutil.rmtree(away, ignore_errors=True)
        os.rename(record, away)
        shutil.rmtree(away)
