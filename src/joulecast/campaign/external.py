"""Public data that we may not ship: taken from a local folder, or fetched by address and checksum."""

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, TypeAdapter

from joulecast.campaign.config import Config
from joulecast.campaign.sections import Download
from joulecast.errors import JoulecastError
from joulecast.files.names import relative_name, without_secrets
from joulecast.files.reading import opened, read_yaml, validated
from joulecast.files.writing import sha256_of, written_aside

_FileName = Annotated[str, AfterValidator(relative_name)]


_MAX_BYTES = 100_000_000_000
"""Largest size of a download, as a server may send without end."""


@contextmanager
def _asked(url: str) -> Iterator[IO[bytes]]:
    """The content at an address; a local file is checked like any other, as it may be a pipe."""
    parts = urlsplit(url)
    with ExitStack() as stack:
        if parts.scheme == "file":
            file = opened(Path(unquote(parts.path)), "file of external data", _MAX_BYTES)
            try:
                answer = stack.enter_context(file)
            except JoulecastError as error:
                raise urllib.error.URLError(str(error)) from None
        else:
            answer = stack.enter_context(urllib.request.urlopen(url, timeout=60))
        yield answer


def _fetch(name: str, download: Download, target: Path) -> None:
    address = without_secrets(download.url)
    try:
        with _asked(download.url) as answer, written_aside(target) as aside:
            with open(aside, "wb") as file:
                for part in iter(lambda: answer.read(1 << 20), b""):
                    file.write(part)
                    if file.tell() > _MAX_BYTES:
                        raise JoulecastError(
                            f"external_data {name}: {address} has more than {_MAX_BYTES / 1e9:g} GB; "
                            "nothing was kept"
                        )
            found = sha256_of(aside)
            if found != download.sha256:
                raise JoulecastError(
                    f"external_data {name}: {address} has sha256 {found}, the configuration "
                    f"says {download.sha256}; nothing was kept"
                )
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError) as error:
        reason = without_secrets(str(getattr(error, "reason", None) or repr(error)))
        raise JoulecastError(
            f"external_data {name}: {address} cannot be fetched ({reason}); set "
            "`external_data` to a folder that holds the file"
        ) from None


def locate_folder(config: Config, name: str) -> Path:
    """The local folder of external data ``name``, with all configured downloads below it.

    Raises:
        JoulecastError: an error of :func:`locate` for the folder or for one of its files.
    """
    source = config.external_data
    if not isinstance(source, dict):
        return locate(config, name)
    below = [file for file in source if file.startswith(f"{name}/")]
    if not below:
        raise JoulecastError(
            f"external data {name}: `external_data` names no download below it (it has: "
            f"{', '.join(source)})"
        )
    for file in below:
        locate(config, file)
    return Path(config.results) / "external" / name


def locate(config: Config, name: str) -> Path:
    """The local path of external data ``name`` (a path below the folder, as ``zeus_trace/x.csv``).

    Raises:
        JoulecastError: no external data is configured; the file is missing, cannot be fetched, or has
            another checksum than in the configuration (names both).
    """
    source = config.external_data
    if source is None:
        raise JoulecastError(
            f"external data {name}: the configuration key `external_data` is null; set it to a "
            "folder that holds the file, or to its address and sha256"
        )
    if isinstance(source, str):
        path = Path(source) / name
        if not path.exists():
            hint = ""
            if Path(source).name == name:
                hint = f"; `external_data` is the folder that holds {name}: {Path(source).parent}"
            raise JoulecastError(
                f"external data {name}: {path} is not there (`external_data`){hint}"
            )
        return path
    if name not in source:
        raise JoulecastError(
            f"external data {name}: `external_data` names no download of it (it has: "
            f"{', '.join(source)})"
        )
    target = Path(config.results) / "external" / name
    if not target.is_file() or sha256_of(target) != source[name].sha256:
        _fetch(name, source[name], target)
    return target


def listed_downloads(path: Path) -> dict[str, Download]:
    """The files in a list of ``config/external``, with address and sha256.

    Raises:
        JoulecastError: the list is missing or invalid.
    """
    listed = TypeAdapter(dict[_FileName, Download])
    return validated(listed, read_yaml(path, "list of downloads"), str(path))


def bring_listed(config: Config, downloads: dict[str, Download], folder: Path) -> None:
    """Copy listed files into ``folder`` from its namesake below `external_data`, or fetch them.

    A download that ``external_data`` gives for one of them is fetched instead.

    Raises:
        JoulecastError: a file is missing, cannot be fetched, or has another checksum (names both).
    """
    source = config.external_data
    for name, download in downloads.items():
        if not isinstance(source, str):
            _fetch(name, (source or {}).get(f"{folder.name}/{name}", download), folder / name)
            continue
        local = locate(config, f"{folder.name}/{name}")
        found = sha256_of(local)
        if found != download.sha256:
            raise JoulecastError(
                f"{local}: has sha256 {found}, and should have {download.sha256}; bring back the file, or "
                "point `external_data` elsewhere"
            )
        with written_aside(folder / name) as aside:
            shutil.copyfile(local, aside)


def why_unavailable(config: Config, folder: str, listed: dict[str, Download]) -> str:
    """Why external data is not available now, and what to do; empty if it is.

    Listed files are fetched, checked and not kept; of other data, the folder or its downloads must be there.

    Args:
        config: configuration with ``external_data``.
        folder: name of the data's folder, below it.
        listed: files of the data with addresses, if the project has them (``config/external``).
    """
    try:
        if listed:
            with TemporaryDirectory() as scratch:
                bring_listed(config, listed, Path(scratch) / folder)
        else:
            locate_folder(config, folder)
    except JoulecastError as error:
        return str(error)
    return ""
