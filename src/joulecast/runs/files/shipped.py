"""Files that are shipped with joulecast, and the user's own files, which take precedence.

A file has the same name everywhere, such as ``config/platforms/hc2.yaml``. Below the working directory it is
the user's own. In a checkout it is the project's. In an installed package it is package data.
(``pyproject.toml`` lists the files of the project that the wheel has.)
"""

from collections.abc import Iterable
from pathlib import Path

PLATFORMS = Path("config/platforms")
"""Folder of the platform files."""
RECORDED = Path("recorded")
"""Folder of the recorded campaigns, and of what others measured."""
TASK_GRAPHS = RECORDED / "task-graphs"
"""Folder of the measured task graphs."""
ZEUS_TRACE = RECORDED / "zeus-trace"
"""Folder of the traces of the Zeus authors."""

MEASURED = Path("results/measured")
"""Folder of the records of observed trainings, below the working directory."""

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of the package."""


def checkout() -> Path | None:
    """The folder of the checkout from which joulecast runs; ``None`` if joulecast is an installed package."""
    folder = PACKAGE.parent.parent
    is_project = PACKAGE.parent.name == "src" and (folder / "pyproject.toml").is_file()
    return folder if is_project else None


def shipped_folder() -> Path:
    """The folder below which the shipped files are: the checkout, or the package's data."""
    return checkout() or PACKAGE / "data"


def _folders(folder: Path, own: Path | None) -> Iterable[Path]:
    return dict.fromkeys((folder if own is None else own, shipped_folder() / folder))


def find(folder: Path, name: str, own: Path | None = None) -> Path | None:
    """The file or folder of a name: the user's own, or else the shipped one; ``None`` if there is neither.

    Args:
        folder: relative folder of the file, as :data:`PLATFORMS`.
        name: name in the folder, with suffix.
        own: the user's folder. By default ``folder`` below the working directory.
    """
    return next((f / name for f in _folders(folder, own) if (f / name).exists()), None)


def known(folder: Path, suffix: str, own: Path | None = None) -> list[str]:
    """Names, without suffix, of the user's own and the shipped files. Arguments are the same as for
    :func:`find`."""
    found = (path for f in _folders(folder, own) for path in f.glob(f"*{suffix}"))
    return sorted({path.name.removesuffix(suffix) for path in found})


def recorded_folder(given: Path) -> Path:
    """The given folder. If it does not exist: the shipped folder of this name below ``recorded``.

    The name is ``NAME`` or, as in a checkout, ``recorded/NAME``.
    """
    named = given in (Path(given.name), RECORDED / given.name)
    shipped = find(RECORDED, given.name) if named and not given.exists() else None
    return shipped or given


def is_path(text: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a text is a path of a file, and not a name to look up."""
    return "/" in text or text.endswith(suffixes)
