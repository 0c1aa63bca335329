"""Data from outside, as submissions to import: from a local folder, or by address and checksum."""

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from joulecast.campaign.config import Config
from joulecast.campaign.sections import Download
from joulecast.errors import JoulecastError
from joulecast.files.names import without_secrets
from joulecast.files.reading import opened
from joulecast.files.writing import sha256_of, written_aside

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
    """The local path of external data ``name`` (a path below the folder, as ``submissions/x.txt``).

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
