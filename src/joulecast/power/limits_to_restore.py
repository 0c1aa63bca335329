"""Power limits as they were found, kept on disk for the case that the process which changed them is killed.

One small file a GPU in the temporary folder, locked while its writer lives. A later process that finds it
without a lock puts the limit back. A reboot resets limits, so a file of another boot is ignored; so is one
that belongs to another user.
"""

import fcntl
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.records.provenance import physical_host


class FoundLimit:
    """The file of one GPU, opened and locked.

    Args:
        gpu: its UUID.
        index: as nvidia-smi has it, for messages.

    Attributes:
        left_mw: the limit that an earlier process found and did not put back; ``None``: there is none.

    Raises:
        JoulecastError: a process that lives has changed the limit of this GPU and will put it back.
    """

    def __init__(self, gpu: str, index: int) -> None:
        name = f"joulecast-power-limit-{os.getuid()}-{gpu}.json"
        self._path = Path(tempfile.gettempdir()) / name
        self._file: int | None = None
        self.left_mw: int | None = None
        try:
            # No file or link of another user is followed: its content would be set, perhaps by root.
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            if os.fstat(self._file).st_uid != os.geteuid():
                self.close()
                return
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise JoulecastError(
                f"GPU {index}: another process of this user has changed its power limit and will put it "
                "back; wait for its end"
            ) from None
        except OSError:
            # No folder to write in: what is killed outright leaves its limit behind then.
            self.close()
            return
        self.left_mw = self._read(self._file)

    def _read(self, file: int) -> int | None:
        try:
            content = json.loads(os.pread(file, 4096, 0))
            found = content["found_mw"]
            return found if content["boot"] == physical_host() and isinstance(found, int) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, found_mw: int) -> None:
        """Write down what is to be put back, before it is changed."""
        if self._file is not None:
            content = json.dumps({"boot": physical_host(), "found_mw": found_mw}).encode()
            with suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, content, 0)

    def close(self) -> None:
        """Let go of the file; the limit that stands there is still to be put back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """The limit is as it was found: there is nothing to be put back."""
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink()
            self.close()
