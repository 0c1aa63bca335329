"""Files that the ranks of a run write meanwhile: what is left of it if it is killed.

They lie next to the record that is made of them at the end. Those of the newest failed attempt with a step
are kept in ``attempts/RUN.unfinished``.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_written_aside
from joulecast.observer.job_folder import PREFIX
from joulecast.power.samples import SAMPLES
from joulecast.training.stage_clock import ENDING, read_intervals

UNFINISHED = ".unfinished"
"""End of the names of folders with what killed runs have measured."""
SPEC = "spec.json"


def left_of(record: Path, rank: int | str, ending: str) -> Path:
    """File of one rank, or a pattern for those of all ranks (``*``)."""
    return record.with_name(f"{record.name}-rank{rank}{ending}")


def remove_left(record: Path) -> None:
    """Remove what the ranks of a run have left whose record is made."""
    for file in record.parent.glob(left_of(record, "*", ".*").name):
        file.unlink(missing_ok=True)


def _has_steps(file: Path) -> bool:
    if file.suffix != ENDING:
        return file.suffix == ".marks" and file.stat().st_size > 0
    return len(read_intervals(file)[1]["step"]) > 0


def keep_unfinished(attempts: Path, run: str, scratch: Path) -> None:
    """Keep the samples and steps of an attempt without a record, if it has any steps."""
    with suppress(OSError, JoulecastError):
        if not any(_has_steps(path) for path in scratch.rglob("*")):
            return
        with directory_written_aside(attempts / f"{run}{UNFINISHED}") as kept:
            shutil.copy(scratch / SPEC, kept)
            for path in scratch.iterdir():
                if path.name.startswith(PREFIX):
                    shutil.copytree(path, kept / path.name)
                elif path.suffix in (SAMPLES, ENDING):
                    shutil.copy(path, kept)
