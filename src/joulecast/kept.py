"""Folders of measurements that are kept as data, and sessions that an interrupted one goes on with."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.files import sha256_of, written_aside

PROVENANCE_FILE = "provenance.json"


def checked_provenance(
    folder: Path, version: int, files: Iterable[str], missing: str
) -> dict[str, Any]:
    """The provenance of a folder whose files are as they were when it was written.

    Args:
        folder: has a provenance file with ``format`` and, by file, ``sha256``.
        version: the format that the caller reads.
        files: that have to be there; beside those that the provenance names.
        missing: of what there are no measurements, and where others are or come from, in the message; has
            a place ``{why}``.

    Raises:
        JoulecastError: not such a folder, another format, or a file that is missing or was changed.
    """
    try:
        provenance: dict[str, Any] = json.loads((folder / PROVENANCE_FILE).read_text())
        if provenance["format"] != version:
            raise JoulecastError(
                f"{folder}: format {provenance['format']}, this version reads {version}"
            )
        sums: dict[str, str] = dict(provenance["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{PROVENANCE_FILE}: {error}"
        raise JoulecastError(f"{folder} has {missing.format(why=why)}") from None
    for name in {**dict.fromkeys(files), **sums}:
        try:
            actual = sha256_of(folder / name)
        except OSError as error:
            raise JoulecastError(f"{folder / name}: cannot be read ({error.strerror})") from None
        if actual != sums.get(name):
            raise JoulecastError(
                f"{folder / name} was changed since it was measured (its SHA-256 is not that of "
                f"{PROVENANCE_FILE}); bring it back with git checkout"
            )
    return provenance


def resumed_session(work: Path, fresh: dict[str, Any], same: Sequence[str]) -> dict[str, Any]:
    """The facts of the session that began ``work``, or ``fresh``, which begin it.

    Args:
        work: folder of what was measured so far.
        fresh: facts as they are now.
        same: keys that must not have changed since.

    Raises:
        JoulecastError: one of them has.
    """
    file = work / "session.json"
    if file.is_file():
        begun: dict[str, Any] = json.loads(file.read_text())
        for key in same:
            if begun[key] != fresh[key]:
                raise JoulecastError(
                    f"{work} was begun with another `{key}`: {begun[key]}, now {fresh[key]}; "
                    "measurements do not mix, remove that folder and start again"
                )
        return begun
    with written_aside(file) as partial:
        partial.write_text(json.dumps(fresh, indent=1))
    return fresh
