"""A commit of a git repository as a :class:`~joulecast.importers.sources.Tree`, without its configuration.

A repository from another person may hold commands: git runs what its ``config`` names as transports, hooks,
filters and monitors. So git never opens it. It opens an empty repository of our own, in a temporary folder,
that borrows the foreign objects; the refs are read here and copied. Nothing is fetched, and nothing is
written to the foreign folder.
"""

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from joulecast.errors import JoulecastError
from joulecast.files.reading import read_text
from joulecast.importers.sources import MAX_FILES, MAX_LOG_BYTES, too_many_files

_MAX_STORE_FILES = 1_000_000
_MAX_REFS = 100_000
_MAX_REF_BYTES = 4_096
_MAX_LINKS = 5
"""From a symbolic ref to the next."""
_MAX_ALLOCATION = 512_000_000
_TIMEOUT_S = 60

_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# What `git check-ref-format` allows, and plain.
_REF = re.compile(r"refs(/(?!\.)[^\s\x00-\x1f\x7f~^:?*\[\\/]+(?<!\.lock)(?<!\.))+")

_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\thooksPath = /dev/null
\tfsmonitor = false
\tcommitGraph = false
\tmultiPackIndex = false
[protocol]
\tallow = never
"""


class GitTree:
    """The files of one commit of a repository."""

    root: tuple[str, ...] = ()

    def __init__(
        self, folder: Path, ours: Path, commit: str, batch: "subprocess.Popen[bytes]"
    ) -> None:
        self._folder, self._ours, self._commit, self._batch = folder, ours, commit, batch
        self._objects: dict[str, tuple[str, bytes]] = {}
        self.provenance: dict[str, Any] = {"path": str(folder.resolve()), "git commit": commit}

    def paths(self) -> Iterator[str]:
        for entry in self._entries():
            facts, _, path = entry.partition(b"\t")
            kind = facts.split()
            # 120000 is a link; what it points to is another file, or none.
            is_file = len(kind) == 4 and kind[1] == b"blob" and kind[0] != b"120000"
            if is_file and path.endswith((b".txt", b".json")):
                name = os.fsdecode(path)
                self._objects[name] = kind[2].decode(), kind[3]
                yield name

    def _entries(self) -> Iterator[bytes]:
        """What `ls-tree` lists, read as it comes: a few small trees can name billions of paths."""
        # With -t the trees count too: those that hold no file would take for ever without a word.
        words = ("ls-tree", "-r", "-t", "-l", "-z", self._commit)
        with _started(self._folder, self._ours, *words) as listing:
            _, answered = _pipes(listing)
            rest, seen = b"", 0
            while part := answered.read(1 << 16):
                *entries, rest = (rest + part).split(b"\0")
                seen += len(entries)
                if seen > MAX_FILES or len(rest) > MAX_LOG_BYTES:
                    listing.kill()
                    raise too_many_files(self._folder)
                yield from entries
        if listing.returncode:
            raise JoulecastError(
                f"{self._folder}: the files of commit {self._commit[:12]} cannot be listed; objects are "
                "missing or broken (a partial clone has only some: make a full one)"
            )

    def read(self, path: str) -> bytes:
        object_, size = self._objects[path]
        if not size.isdigit():
            raise JoulecastError(
                f"{self._folder}: has no object for {path}, and none is fetched; make a full clone"
            )
        if int(size) > MAX_LOG_BYTES:
            raise JoulecastError(
                f"{self._folder}: {path} has {int(size) / 1e6:.0f} MB, which no log should"
            )
        asked, answered = _pipes(self._batch)
        try:
            # By object, not by path: a path may hold what the batch protocol would take for its own.
            asked.write(f"{object_}\n".encode())
            asked.flush()
            head = answered.readline().split()
            content = answered.read(int(size)) if head[1:] == [b"blob", size] else b""
            answered.read(1)
        except OSError:
            head, content = [], b""
        if head[1:] != [b"blob", size] or len(content) != int(size):
            raise JoulecastError(f"{self._folder}: the object for {path} is broken")
        return content


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None and process.stdout is not None
    return process.stdin, process.stdout


def _environment(ours: Path) -> dict[str, str]:
    """The environment in which git sees our repository, and no other configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_DIR": str(ours),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(ours / "foreign"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        # Of one object: a delta of a few bytes may stand on one of many gigabytes.
        "GIT_ALLOC_LIMIT": str(_MAX_ALLOCATION),
        "LC_ALL": "C",
    }


@contextmanager
def _started(folder: Path, ours: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    try:
        process = subprocess.Popen(
            ["git", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ours,
            env=_environment(ours),
        )
    except FileNotFoundError:
        raise JoulecastError(
            f"{folder}: is a git repository, and there is no git here; install it, or check the "
            "repository out elsewhere and name the folder"
        ) from None
    try:
        yield process
    except BaseException:
        process.kill()
        raise
    finally:
        for pipe in _pipes(process):
            # It may have died with words of ours still in the pipe.
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_repository(folder: Path) -> bool:
    """Whether ``folder`` itself is a git repository, with a working tree or bare."""
    return os.path.lexists(folder / ".git") or (
        (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    )


@contextmanager
def git_tree(folder: Path, revision: str) -> Iterator[GitTree]:
    """Open a repository at ``revision``: a branch, a tag, a full or short hash, ``HEAD``.

    Raises:
        JoulecastError: git is missing, or knows no such revision; the repository keeps refs or objects
            outside of ``folder``, or in a form that is not read.
    """
    store = _store(folder)
    _require_plain(folder, store / "objects")
    refs = _refs(store)
    head = _resolved(_head(store), refs)
    with TemporaryDirectory(prefix="joulecast-git-") as scratch:
        ours = Path(scratch)
        _make_ours(ours, store / "objects", refs, head)
        # A message that shows only what was asked for; git's own names our folder.
        commit = _commit(folder, ours, revision)
        with _started(folder, ours, "cat-file", "--batch") as batch:
            yield GitTree(folder, ours, commit, batch)


def _store(folder: Path) -> Path:
    """The folder of a repository's refs and objects, which lies in ``folder``."""
    inner = folder / ".git"
    if not os.path.lexists(inner):
        return folder
    store = inner.resolve()
    if store.is_file():
        pointer = read_text(store, "`.git` file", _MAX_REF_BYTES)
        if not pointer.startswith("gitdir:"):
            raise JoulecastError(f"{inner}: is neither a folder nor a `gitdir:` line")
        store = (folder / pointer.removeprefix("gitdir:").strip()).resolve()
    inside = store.is_relative_to(folder.resolve())
    if not inside or not store.is_dir() or (store / "commondir").exists():
        raise JoulecastError(
            f"{folder}: its `.git` points to {store}, which is not read; of a worktree or a submodule name "
            "the main repository, and the commit with --revision"
        )
    return store


def _require_plain(folder: Path, objects: Path) -> None:
    """Refuse objects that git would look for, or wait for, elsewhere.

    Raises:
        JoulecastError: alternates, links, pipes or devices among them, or no objects at all.
    """
    if objects.is_symlink() or not objects.is_dir():
        raise JoulecastError(f"{folder}: has no folder of objects of its own; clone it in full")
    if os.path.lexists(objects / "info" / "alternates"):
        raise JoulecastError(
            f"{folder}: borrows objects from elsewhere (objects/info/alternates), which are not read; in "
            "a repository of your own run `git repack -a -d` and remove that file"
        )
    seen = 0
    for above, folders, names in os.walk(objects):
        for name in (*folders, *names):
            seen += 1
            mode = os.lstat(os.path.join(above, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise JoulecastError(
                    f"{os.path.join(above, name)}: is a link, a pipe or a device among git's objects; the "
                    "repository is not read"
                )
        if seen > _MAX_STORE_FILES:
            raise JoulecastError(f"{folder}: has more than {_MAX_STORE_FILES:,} loose objects")


def _said(file: Path, max_bytes: int = _MAX_REF_BYTES) -> str:
    """What a regular file of the store says; nothing where it is a link or not there."""
    if file.is_symlink() or not os.path.lexists(file):
        return ""
    return read_text(file, "file of git refs", max_bytes).strip()


def _head(store: Path) -> str:
    return _said(store / "HEAD")


def _refs(store: Path) -> dict[str, str]:
    """Hash, or `ref: ANOTHER`, by the name of each ref; what has an odd name is left out."""
    found: dict[str, str] = {}
    for line in _said(store / "packed-refs", 64_000_000).splitlines():
        value, _, name = line.partition(" ")
        if _HASH.fullmatch(value) and _REF.fullmatch(name):
            found[name] = value
    for above, folders, names in os.walk(store / "refs"):
        # Walked, but not through links.
        folders[:] = [name for name in folders if not (Path(above) / name).is_symlink()]
        for name in names:
            file = Path(above) / name
            ref = file.relative_to(store).as_posix()
            if _REF.fullmatch(ref) and (value := _said(file)):
                found[ref] = value
        if len(found) > _MAX_REFS:
            raise JoulecastError(f"{store}: has more than {_MAX_REFS:,} refs")
    return found


def _resolved(value: str, refs: dict[str, str]) -> str | None:
    """The hash that a ref's value stands for; ``None`` where it leads nowhere."""
    for _ in range(_MAX_LINKS):
        if _HASH.fullmatch(value):
            return value
        value = refs.get(value.removeprefix("ref:").strip(), "")
    return None


def _make_ours(ours: Path, objects: Path, refs: dict[str, str], head: str | None) -> None:
    """An empty repository with copies of the refs, which borrows the objects."""
    known = {name: _resolved(value, refs) for name, value in refs.items()}
    values = [value for value in (head, *known.values()) if value is not None]
    long = any(len(value) == 64 for value in values)
    (ours / "objects").mkdir()
    (ours / "refs").mkdir()
    # A link of ours, since the path of the objects may hold what separates paths for git.
    (ours / "foreign").symlink_to(objects.resolve())
    config = _CONFIG.format(version=1 if long else 0)
    (ours / "config").write_text(config + ("[extensions]\n\tobjectFormat = sha256\n" * long))
    (ours / "HEAD").write_text(f"{head or 'ref: refs/heads/none'}\n")
    lines = [f"{value} {name}\n" for name, value in sorted(known.items()) if value is not None]
    (ours / "packed-refs").write_bytes(os.fsencode("".join(lines)))


def _commit(folder: Path, ours: Path, revision: str) -> str:
    words = ("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    try:
        with _started(folder, ours, *words) as process:
            found = process.communicate(timeout=_TIMEOUT_S)[0].decode(errors="replace").strip()
    except (ValueError, subprocess.TimeoutExpired):
        found = ""
    if not _HASH.fullmatch(found):
        raise JoulecastError(
            f"{folder}: has no commit for the revision {revision!r}; give a branch, a tag or a hash whose "
            "objects are there"
        )
    return found
