"""Credentials of a management controller, from a file that only its owner may read.

They are kept in memory and handed to the controller alone. Nothing here puts them into an error, and their
text form does not show them.
"""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from joulecast.power.meters import MeterUnavailable

_MOST_BYTES = 20_000
_WHAT = "file of credentials"
_FORM = "write `token: ...` into it, or `user: ...` and `password: ...`, one a line"


@dataclass(frozen=True)
class Credentials:
    """A token, or a user and a password; never shown."""

    token: str | None = field(default=None, repr=False)
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def _lines_of(path: Path, meter: str) -> list[str]:
    # Imported here, as few runs need them and their sampler has to start fast.
    from joulecast.errors import JoulecastError
    from joulecast.files.reading import opened

    try:
        with opened(path, _WHAT, _MOST_BYTES) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid():
                raise MeterUnavailable(f"{meter}: {path} belongs to another user", "copy it")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise MeterUnavailable(
                    f"{meter}: {path} may be read by others than its owner",
                    f"`chmod 600 {path}`, and change what it holds if others had the time to read it",
                )
            return file.read().decode().splitlines()
    except JoulecastError as error:
        raise MeterUnavailable(f"{meter}: {error}", _FORM) from None
    except UnicodeDecodeError:
        raise MeterUnavailable(f"{meter}: {path} is no text", _FORM) from None


def credentials_in(file: str, meter: str) -> Credentials:
    """The credentials in a file.

    Args:
        file: its path; ``~`` is the home folder.
        meter: that needs them, for the error.

    Raises:
        MeterUnavailable: it is missing, others may read it, or it holds no credentials. Shows none of them.
    """
    path = Path(file).expanduser()
    found: dict[str, str] = {}
    for number, line in enumerate(_lines_of(path, meter), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if not colon or key not in ("token", "user", "password") or key in found:
            raise MeterUnavailable(f"{meter}: {path}:{number}: is no credential", _FORM)
        if not value or not value.isascii() or not value.isprintable():
            raise MeterUnavailable(
                f"{meter}: {path}:{number}: `{key}` is empty, or has characters that no header can have",
                _FORM,
            )
        found[key] = value
    if set(found) not in ({"token"}, {"user", "password"}):
        raise MeterUnavailable(f"{meter}: {path} holds no complete credentials", _FORM)
    return Credentials(**found)
