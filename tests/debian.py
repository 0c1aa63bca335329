"""Debian packages for tests that need a program: installed where that is possible, else a reason to skip."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


def why_not_installed(programs: Sequence[str], packages: Sequence[str]) -> str | None:
    """Why there can be no such programs here; ``None`` after they are installed."""
    # Tests that run beside these may be installing too.
    with open(Path(tempfile.gettempdir()) / "joulecast-tests-apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all(map(shutil.which, programs)):
            return None
        named = " ".join(packages)
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            return f"there is no {programs[0]}; on Debian: apt-get install {named} (as root the tests do it)"
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(command, env=quiet, capture_output=True, text=True)
        if done.returncode != 0:
            why = f"apt-get cannot install {named}: {done.stderr.strip()[-200:]}"
            # What CI must show is not skipped there.
            assert not os.environ.get("CI"), why
            return why
        return None
