"""The wheel in a fresh environment, and its command in an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT

Joulecast = Callable[..., subprocess.CompletedProcess[str]]


def uv(*arguments: object) -> None:
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout; nothing is fetched."""
    out = tmp_path_factory.mktemp("wheel")
    given = ("--no-build-isolation", "--python", sys.executable, "--out-dir", out)
    uv("build", "--wheel", "--offline", *given, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel, and the packages that it needs."""
    home = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(home, with_pip=False)
    fresh = home / "bin/python"
    uv("pip", "install", "--offline", "--no-index", "--no-deps", "--python", fresh, wheel)
    # Dependencies come from here. No .pth of that folder is read, so that the checkout is not to be seen.
    (packages,) = home.glob("lib/python*/site-packages")
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(here)) + "\n")
    return fresh


def outside(python: Path) -> dict[str, str]:
    """An environment in which nothing leads back to the checkout but the MPI on the PATH."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    # MPI is installed beside Python, not among its packages.
    libraries = f"{sys.prefix}/lib:{kept.get('LD_LIBRARY_PATH', '')}".strip(":")
    path = f"{python.parent}:{kept['PATH']}"
    return kept | {"PATH": path, "LD_LIBRARY_PATH": libraries, "COLUMNS": "300"}


@pytest.fixture
def joulecast(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Joulecast:
    """The installed command, in an empty folder, which is the one to work in."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(python.parent / "joulecast"), *arguments],
            cwd=tmp_path,
            env=outside(python),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run
