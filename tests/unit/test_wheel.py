"""The wheel, built and tried in an environment and a folder that know nothing of the checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

MOST_BYTES = 10_000_000
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


def test_the_wheel_has_what_its_commands_read_and_is_small(wheel):
    assert wheel.stat().st_size < MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("config/platforms", "config/published", "config/external"):
        for file in (ROOT / folder).glob("*.yaml"):
            assert f"joulecast/data/{folder}/{file.name}" in names
    for folder in ("recorded/task-graphs", "recorded/two-core-vm"):
        for file in (ROOT / folder).iterdir():
            assert f"joulecast/data/{folder}/{file.name}" in names
    assert "joulecast/py.typed" in names and "joulecast/graphs/networks/resnet50.json" in names
    assert not [name for name in names if name.startswith(("tests", "results", "src"))]


def test_what_is_tried_is_the_wheel(python, joulecast, tmp_path):
    said = subprocess.run(
        [python, "-c", "import joulecast; print(joulecast.__file__, joulecast.__version__)"],
        cwd=tmp_path,
        env=outside(python),
        capture_output=True,
        text=True,
    )
    file, version = said.stdout.split()
    assert Path(file).is_relative_to(python.parents[1]), said
    assert joulecast("--version").stdout == f"joulecast {version}\n"


HC2 = ("--network", "alexnet", "--platform", "hc2")
DP = ("--strategy", "dp=8", "--json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate", *HC2, "--strategy", "dp=8"), r"ms a step"),
        (("search", "--network", "vgg16", "--platform", "hc1", "--devices", "4"), r"\bdp=4\b"),
        (
            ("advise", *HC2, "--samples", "1e5", "--nodes", "1", "--deadline", "600"),
            r"choose \d node",
        ),
        (("advise", "--network", "resnet18", "--records", "two-core-vm"), r"choose \d node"),
        (("partition", "resnet50", "--devices", "4"), r"resnet50: 4 stages"),
        (("partition", "recorded/task-graphs/vgg16.json", "--devices", "2"), r"2 stages"),
        (("forecast", "--records", "recorded/two-core-vm", "--nodes", "4"), r"vit_ti +4 "),
        (("replay", "two-core-vm", "records"), r"records: 9 run records"),
        (("meters",), r"estimated .* \(watts: assumed, not measured\)"),
        (("meters", "--platform", "hc2"), r"estimated +missing"),
        (("config", "default"), r"platform: this-machine"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, tuple) else "",
)
def test_commands_know_what_is_shipped(joulecast, arguments, said):
    assert re.search(said, joulecast(*arguments).stdout)


def test_ones_own_files_go_before_what_is_shipped(joulecast, tmp_path):
    shipped = json.loads(joulecast("simulate", *HC2, *DP).stdout)
    own = yaml.safe_load((ROOT / "config/platforms/hc2.yaml").read_text())
    own |= {"name": "slower"}
    own["cluster"]["device"]["peak_flops"]["fp32"] /= 100
    text = yaml.safe_dump(own)
    (tmp_path / "mine.yaml").write_text(text)
    asked = ("simulate", "--network", "alexnet", "--platform", "./mine.yaml", *DP)
    mine = json.loads(joulecast(*asked).stdout)
    assert mine["platform"] == "slower" and mine["step_s"] > 2 * shipped["step_s"]
    (tmp_path / "config/platforms").mkdir(parents=True)
    (tmp_path / "config/platforms/hc2.yaml").write_text(text)
    assert json.loads(joulecast("simulate", *HC2, *DP).stdout) == mine
    # The others are still there.
    joulecast("simulate", "--network", "alexnet", "--platform", "hc1", *DP)
    graph = (ROOT / "recorded/task-graphs/resnet18.json").read_text()
    (tmp_path / "recorded/task-graphs").mkdir(parents=True)
    (tmp_path / "recorded/task-graphs/resnet50.json").write_text(graph)
    assert "resnet18: 2 stages" in joulecast("partition", "--devices", "2", "resnet50").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate", "--network", "vgg16", "--platform", "hc9", *DP[:2]), "known: dgx-h100, "),
        (("partition", "resnet5", "--devices", "2"), "did you mean `resnet50`?"),
        (("advise", "--network", "vgg16", "--platform", "hc9"), "known: dgx-h100, "),
    ],
)
def test_unknown_names_are_told_in_one_line_with_those_that_there_are(joulecast, arguments, said):
    stderr = joulecast(*arguments, code=2).stderr
    assert said in stderr and len(stderr.splitlines()) == 1


def test_a_campaign_is_measured_and_recorded(joulecast, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "campaign: mine\n"
        "workload: {networks: [vit_ti]}\n"
        "scale: {nodes: [1], repeats: 1, batch_size: 2}\n"
        "training: {steps: 1}\n"
        "calibration: {batch_sizes: [2], idle_s: 0.2}\n"
    )
    assert "all right" in joulecast("config", "check", "mine.yaml").stdout
    assert ": 2 runs" in joulecast("record", "kept", "--config", "mine.yaml").stdout
    runs = [json.loads(line) for line in (tmp_path / "kept/runs.jsonl").read_text().splitlines()]
    assert {run["spec"]["platform"]["name"] for run in runs} == {"this-machine"}
    assert {run["source"]["git_commit"] for run in runs} == {None}


def test_a_script_that_is_checked_strictly_can_use_it(python, tmp_path):
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\n\n"
        "import joulecast\n\n"
        "names: list[str] = [r.info.spec.run for r in joulecast.read_records(Path('records'))]\n"
        "fitted = joulecast.fit(['a', Path('b')], bootstrap=20)\n"
        "fitted.save(Path('fits'))\n"
        "step = joulecast.simulate('resnet50', 'hc2', 'dp=8', links={'nic': 1e9}, fits='fits')\n"
        "seconds: float = step['step_s']\n"
        "stages = joulecast.partition('resnet50', 4)['stages']\n"
        "version: str = joulecast.__version__\n"
        "joulecast.evaluate('records', split='no such split')\n"
        "joulecast.nothing\n"
    )
    strictly = ["--strict", "--python-executable", str(python), "script.py"]
    command = [sys.executable, "-m", "mypy", *strictly]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = [line.split(":")[1] for line in done.stdout.splitlines() if " error: " in line]
    assert errors == ["12", "13"], done.stdout + done.stderr
