"""Versions of the files that the project keeps, and of its code, by their content."""

from hashlib import sha256
from pathlib import Path

from joulecast.runs.files.shipped import PACKAGE
from joulecast.runs.files.writing import sha256_of

_NAMES_THE_REST = "provenance.json"
"""A file in a folder of measurements. It is written again with each measurement."""


def content_version(path: Path) -> str | None:
    """The sha256 of a kept file, or of a kept folder's ``provenance.json``; ``None`` if it is missing."""
    file = path / _NAMES_THE_REST if path.is_dir() else path
    return sha256_of(file) if file.exists() else None


def package_version() -> str:
    """The sha256 of the package's files, by name and content; their dates do not count."""
    digest = sha256()
    for file in sorted(PACKAGE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(PACKAGE)} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def kept_task_graph(folder: Path, network: str) -> Path:
    """The file of a network in a folder of kept task graphs: a graph of ours, or a PipeDream profile.

    If there is neither, the result is the path that the graph should have.
    """
    files = [folder / f"{network}{suffix}" for suffix in (".json", ".txt")]
    return next((file for file in files if file.exists()), files[0])
