"""Sources of submissions: a folder, or a git repository without a checkout.

Both are a :class:`Tree`: a list of paths and the bytes of each, so that the rest of the importer
cannot tell them apart. Repositories are in :mod:`joulecast.importers.repository`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_bytes

MAX_FILES = 1_000_000
"""Below one folder, or in one commit."""
MAX_LOG_BYTES = 256_000_000
"""Of one log, which is held in memory."""


class Tree(Protocol):
    """Files by their path with ``/`` between its parts.

    ``root`` holds the names of the folders above the paths, ``provenance`` what says where they are
    from.
    """

    root: tuple[str, ...]
    provenance: dict[str, Any]

    def paths(self) -> Iterator[str]:
        """All paths, in no order.

        Raises:
            JoulecastError: there are more than :data:`MAX_FILES`.
        """

    def read(self, path: str) -> bytes:
        """The content of one.

        Raises:
            JoulecastError: it cannot be read, is no regular file, or is too large.
        """


class FolderTree:
    """The files below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = folder.resolve().parts[1:]
        self.provenance: dict[str, Any] = {"path": str(folder.resolve())}

    def paths(self) -> Iterator[str]:
        seen = 0
        for folder, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            seen += len(names)
            if seen > MAX_FILES:
                raise too_many_files(self._folder)
            above = Path(folder).relative_to(self._folder)
            yield from ((above / name).as_posix() for name in names)

    def read(self, path: str) -> bytes:
        file = self._folder / path
        # A link in a folder from outside must not make us read other files of this machine.
        if not file.resolve().is_relative_to(self._folder.resolve()):
            raise JoulecastError(f"{file}: is a link that leaves {self._folder}; it is not read")
        return read_bytes(file, "log", MAX_LOG_BYTES)


def too_many_files(folder: Path) -> JoulecastError:
    """The error for a source that no submission is."""
    return JoulecastError(f"{folder}: has more than {MAX_FILES:,} files; name a folder inside it")
