"""The three descriptions of the environment say the same."""

import re
import subprocess
import tomllib

import yaml
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def locked():
    """Every version that the lock holds for a package, by name."""
    versions = {}
    for line in LOCK.splitlines():
        if match := re.match(r"([A-Za-z0-9_.-]+)==([^ ;\\]+)", line):
            versions.setdefault(match[1].lower().replace("_", "-"), []).append(match[2])
    return versions


def test_every_dependency_is_in_the_lock_and_within_its_range():
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["mpich"], *extras["dev"]]
    versions = locked()
    for text in wanted:
        requirement = Requirement(text)
        found = versions.get(requirement.name.lower().replace("_", "-"))
        assert found, f"{requirement.name} is not in requirements.lock"
        assert all(requirement.specifier.contains(v, prereleases=True) for v in found), text


def test_the_lock_has_hashes_and_no_addresses():
    packages = re.findall(r"^[A-Za-z0-9].*==", LOCK, re.M)
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", LOCK)[1:]
    assert len(blocks) == len(packages) and all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"https?://|--index|--find-links|file:", LOCK)


def test_conda_users_get_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    python, pip, from_pip = environment["dependencies"]
    assert pip == "pip" and from_pip == {"pip": ["-r requirements.lock"]}
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python=") + ".0")


def test_no_registry_is_named_in_what_is_tracked():
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "-lE", r"pypi\.org|files\.pythonhosted|/simple/"],
        capture_output=True,
        text=True,
    ).stdout.split()
    assert [name for name in tracked if name != "tests/unit/test_environment.py"] == []
