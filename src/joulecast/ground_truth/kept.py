"""Folders of measurements that are kept as data, and sessions that an interrupted one goes on with."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.files.names import relative_name
from joulecast.files.reading import read_json_object, validated
from joulecast.files.writing import sha256_of, written_aside

PROVENANCE_FILE = "provenance.json"


class _Known(BaseModel):
    """What of a provenance is looked at."""

    format: int
    sha256: dict[Annotated[str, AfterValidator(relative_name)], str]


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
        provenance = read_json_object(folder / PROVENANCE_FILE, "provenance of measurements")
        known = validated(TypeAdapter(_Known), provenance, PROVENANCE_FILE)
    except JoulecastError as error:
        raise JoulecastError(f"{folder} has {missing.format(why=error)}") from None
    if known.format != version:
        raise JoulecastError(f"{folder}: format {known.format}, this version reads {version}")
    for name in {**dict.fromkeys(files), **known.sha256}:
        if sha256_of(folder / name) != known.sha256.get(name):
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
        begun = read_json_object(file, "session of measurements")
        for key in same:
            if begun.get(key) != fresh[key]:
                raise JoulecastError(
                    f"{work} was begun with another `{key}`: {begun.get(key)}, now {fresh[key]}; "
                    "measurements do not mix, remove that folder and start again"
                )
        return begun
    with written_aside(file) as partial:
        partial.write_text(json.dumps(fresh, indent=1))
    return fresh
