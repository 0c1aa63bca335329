"""Provenance of a record: host, versions, and state of the source."""

import hashlib
import os
import platform as host_platform
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from joulecast.runs.files.shipped import checkout

_PACKAGES = ("torch", "torchvision", "numpy", "mpi4py", "mpich", "nvidia-ml-py", "scikit-learn")

_CODE = (
    *("src", "workflow", "Snakefile", "profiles", "pyproject.toml", "requirements.lock"),
    *("config/published", "config/platforms", "recorded"),
)
"""Paths whose files decide what a run does. The user's own configuration files do not count as changes."""


def boot_id() -> str | None:
    """Boot id of the running kernel; ``None`` if not known. It is the same in all containers of a machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def physical_host() -> str:
    """Host name and boot id. They identify a physical machine, also if it has several node names.

    Containers with different names count as different hosts, because they share no memory. If they read the
    same devices, the ``identity`` of the meters shows it.
    """
    return f"{socket.gethostname()}:{boot_id() or 'unknown-boot'}"


def cpu_model() -> str:
    """The processor's name, from the kernel."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return host_platform.processor() or host_platform.machine()


def usable_cores() -> int:
    """Number of cores that this process may use, by its affinity and the limits of a container."""
    return len(os.sched_getaffinity(0))


def nvidia_gpus(driver: Path = Path("/proc/driver/nvidia")) -> list[str]:
    """The names of NVIDIA's GPUs, from files of the driver. Other makers have no such files."""
    names = []
    for file in sorted(driver.glob("gpus/*/information")):
        with suppress(OSError):
            lines = (line.partition(":") for line in file.read_text().splitlines())
            names += [value.strip() for key, _, value in lines if key == "Model"]
    return names


def gpus_in_words(host: Mapping[str, Any]) -> str:
    """The GPUs of a host in a record, as ``, 8 x NVIDIA H200``; empty if none are known."""
    return "".join(f", {count} x {name}" for name, count in Counter(host.get("gpus", [])).items())


def host_fingerprint() -> dict[str, Any]:
    """Facts of this host that decide how fast a run is."""
    return {
        "host": physical_host(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": nvidia_gpus(),
        "system": f"{host_platform.system()} {host_platform.release()}",
    }


def _git(project: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(project), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def source_state() -> dict[str, Any]:
    """Commit of the checkout, whether it had changes, and the hash of the lock.

    ``None`` if joulecast runs from an installed package without a checkout.
    """
    project = checkout()
    if project is None:
        # The environment may be inside of another repository, which is not joulecast's.
        return {"git_commit": None, "git_dirty": None, "lock_sha256": None}
    lock = project / "requirements.lock"
    changes = _git(project, "status", "--porcelain", "--", *_CODE)
    return {
        "git_commit": _git(project, "rev-parse", "HEAD"),
        "git_dirty": None if changes is None else bool(changes),
        "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide what a run does."""
    return {"python": sys.version.split()[0], **{name: _version(name) for name in _PACKAGES}}
