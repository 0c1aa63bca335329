"""Where submissions are read from: a folder, or a git repository without a checkout.

Both are a :class:`Tree`: a list of paths and the bytes of each, so that the rest of the importer
cannot tell them apart. A repository is read through one ``git cat-file --batch`` process, a bare one
too; nothing is written to it.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from joulecast.errors import JoulecastError


class Tree(Protocol):
    """Files by their path with ``/`` between its parts.

    ``root`` holds the names of the folders above the paths, ``provenance`` what says where they are
    from.
    """

    root: tuple[str, ...]
    provenance: dict[str, Any]

    def paths(self) -> Iterator[str]:
        """All paths, in no order."""

    def read(self, path: str) -> bytes:
        """The content of one; :class:`OSError` where it cannot be read."""


class FolderTree:
    """The files below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = folder.resolve().parts[1:]
        self.provenance: dict[str, Any] = {"path": str(folder.resolve())}

    def paths(self) -> Iterator[str]:
        for folder, inner, names in os.walk(self._folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            above = Path(folder).relative_to(self._folder)
            yield from ((above / name).as_posix() for name in names)

    def read(self, path: str) -> bytes:
        return (self._folder / path).read_bytes()


class GitTree:
    """The files of one commit of a repository."""

    root: tuple[str, ...] = ()

    def __init__(self, folder: Path, commit: str, batch: "subprocess.Popen[bytes]") -> None:
        self._folder, self._commit, self._batch = folder, commit, batch
        self._objects: dict[str, str] = {}
        self.provenance: dict[str, Any] = {"path": str(folder.resolve()), "git commit": commit}

    def paths(self) -> Iterator[str]:
        listed = _git(self._folder, "ls-tree", "-r", "-z", self._commit)
        for entry in listed.split(b"\0"):
            facts, _, path = entry.partition(b"\t")
            kind = facts.split()
            if len(kind) == 3 and kind[1] == b"blob" and path.endswith((b".txt", b".json")):
                name = os.fsdecode(path)
                self._objects[name] = kind[2].decode()
                yield name

    def read(self, path: str) -> bytes:
        asked, answered = _pipes(self._batch)
        # By object, not by path: a path may hold what the batch protocol would take for its own.
        asked.write(f"{self._objects[path]}\n".encode())
        asked.flush()
        head = answered.readline().split()
        if len(head) != 3:
            raise OSError(f"git has no object for {path}")
        content = answered.read(int(head[2]))
        answered.read(1)
        return content


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


def _environment(folder: Path) -> dict[str, str]:
    """An environment in which git sees this repository and no other: neither the one whose hook we
    may run in, nor one that the folder lies in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent), "LC_ALL": "C"}


def _git(folder: Path, *words: str) -> bytes:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            check=True,
            capture_output=True,
            env=_environment(folder),
        ).stdout
    except FileNotFoundError:
        raise JoulecastError(
            f"{folder}: is a git repository, and there is no git here; install it, or check the "
            "repository out elsewhere and name the folder"
        ) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise JoulecastError(f"{folder}: git {words[0]} failed: {said}") from None


def is_repository(folder: Path) -> bool:
    """Whether ``folder`` itself is a git repository, with a working tree or bare."""
    return (folder / ".git").exists() or (
        (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    )


@contextmanager
def git_tree(folder: Path, revision: str) -> Iterator[GitTree]:
    """Open a repository at ``revision``.

    Raises:
        JoulecastError: git is missing, or knows no such revision.
    """
    named = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    with subprocess.Popen(
        ["git", "-C", str(folder), "cat-file", "--batch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(folder),
    ) as batch:
        try:
            yield GitTree(folder, named.decode().strip(), batch)
        finally:
            _pipes(batch)[0].close()
