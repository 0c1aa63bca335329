"""Debian's Chromium for the browser tests: installed where that is possible, else a reason to skip."""

import os
import shutil
import subprocess

_PACKAGE = "chromium"


def why_not() -> str | None:
    """Why there can be no browser here; ``None`` after it is installed."""
    if shutil.which(_PACKAGE):
        return None
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "there is no chromium; on Debian: apt-get install chromium (tests running as root do it)"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Tests of the cluster may be installing at the same time.
    waiting = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq"]
    for command in (
        [*waiting, "update"],
        [*waiting, "install", "-y", "--no-install-recommends", _PACKAGE],
    ):
        done = subprocess.run(command, env=quiet, capture_output=True, text=True)
    if done.returncode != 0:
        return f"apt-get cannot install {_PACKAGE}: {done.stderr.strip()[-200:]}"
    return None


def executable() -> str:
    """The browser's path."""
    found = shutil.which(_PACKAGE)
    assert found is not None
    return found
