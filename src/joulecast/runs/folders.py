"""Folders of run records: finds them, and checks which one answers a specification."""

import logging
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.runs.files.shipped import MEASURED
from joulecast.runs.record import read_info, read_record
from joulecast.runs.spec import RunSpec

_LOG = logging.getLogger(__name__)


def record_folders(above: Path) -> list[Path]:
    """All run records in a folder and its subfolders. A warning names the records that lost their run.json.

    Raises:
        JoulecastError: there is no record.
    """
    folders, with_frames = (_folders_of(above, name) for name in ("run.json", "activity.parquet"))
    if not folders:
        raise JoulecastError(
            f"{above}: holds no run record (a folder with run.json); import or measure some"
        )
    for folder in sorted(with_frames - folders):
        _LOG.warning("warning: %s: is left out, because it has no run.json", folder)
    return sorted(folders)


def _folders_of(above: Path, name: str) -> set[Path]:
    files = (path.relative_to(above) for path in above.rglob(name))
    # A hidden folder is not finished.
    return {above / f.parent for f in files if not any(part.startswith(".") for part in f.parts)}


_MEASURED = re.compile(r"(.+)-n(\d+)-run(\d+)")


def measured_records(name: str) -> list[Path]:
    """The records of the observed training ``name``, ordered by node count, and then by the number of the
    run."""
    paths = MEASURED.glob("*")
    found = [(match, path) for path in paths if (match := _MEASURED.fullmatch(path.name))]
    own = [(int(match[2]), int(match[3]), path) for match, path in found if match[1] == name]
    return [path for _, _, path in sorted(own)]


def measured_names() -> list[str]:
    """The names of the observed trainings that have records."""
    found = (_MEASURED.fullmatch(path.name) for path in MEASURED.glob("*"))
    return sorted({match[1] for match in found if match})


def campaign_records(above: Sequence[Path], digests: Sequence[str]) -> list[Path]:
    """The records of a campaign. They are below one folder, or each folder is a record.

    Args:
        digests: digests of the specifications of all runs.

    Raises:
        JoulecastError: there are fewer or more records, or a record answers another specification.
    """
    folders = [folder for path in above for folder in record_folders(path)]
    if len(folders) != len(digests):
        raise JoulecastError(
            f"{above[0] if len(above) == 1 else above[0].parent}: has {len(folders)} records, the "
            f"campaign has {len(digests)} runs; a replay was cut short, or records were removed or added: "
            "delete that folder and start again"
        )
    known = set(digests)
    # Snakemake does not know what a record answers if it was killed meanwhile, or if results were copied.
    others = [str(folder) for folder in folders if read_info(folder).spec_sha256 not in known]
    if others:
        raise JoulecastError(
            f"{shlex.join(others)}: measured with another configuration; start again with that one, or "
            "delete what is named here"
        )
    return folders


def answers(folder: Path, spec: RunSpec) -> bool:
    """Whether ``folder`` holds a valid record of exactly this specification."""
    try:
        # The text of run.json is checked first, because it takes long to read a whole record.
        if read_info(folder).spec_sha256 != spec.digest():
            return False
        read_record(folder)
    except JoulecastError:
        return False
    return True
