"""The wheel, built and tried in an environment and a folder that know nothing of the checkout."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from wheel_fixtures import joulecast, outside, python, wheel

__all__ = ["joulecast", "python", "wheel"]
MOST_BYTES = 10_000_000
SHIPPED = (
    *("task-graphs", "two-core-vm", "one-h100"),
    *("mlperf-power", "mlperf-times", "pipedream-profiles", "training-steps", "zeus-trace"),
)


def test_the_wheel_has_what_its_commands_read_and_is_small(wheel):
    assert wheel.stat().st_size < MOST_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("config/platforms", "config/published"):
        for file in (ROOT / folder).glob("*.yaml"):
            assert f"joulecast/data/{folder}/{file.name}" in names
    for name in SHIPPED:
        for file in (ROOT / "recorded" / name).iterdir():
            assert f"joulecast/data/recorded/{name}/{file.name}" in names
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


KNOWN = [
    (("simulate", *HC2, "--strategy", "dp=8"), r"ms .*a step"),
    (("search", "--network", "vgg16", "--platform", "hc1", "--devices", "4"), r"\bdp=4\b"),
    (
        ("plan", *HC2, "--samples", "1e5", "--devices", "4", "--precision", "fp32"),
        r"choose 4 x hc2",
    ),
    (("advise", "--network", "resnet18", "--records", "two-core-vm"), r"choose \d node"),
    (("partition", "resnet50", "--devices", "4"), r"resnet50: 4 stages"),
    (("partition", "recorded/task-graphs/vgg16.json", "--devices", "2"), r"2 stages"),
    (("partition", "recorded/pipedream-profiles/vgg16.txt", "--devices", "2"), r"2 stages"),
    (("tune", "--workload", "cifar100", "--gpu", "v100", "--seeds", "2"), r"default"),
    (("import", "mlperf", "mlperf-power", "records"), r"50 runs imported"),
    (("forecast", "--records", "recorded/two-core-vm", "--nodes", "4"), r"vit_ti +4 "),
    (("forecast", "--records", "one-h100"), r"resnet50 +1 +64 .*recorded"),
    (("meters",), r"estimated .*watts: assumed, not measured\)"),
    (("meters", "--platform", "hc2"), r"estimated +missing"),
    (("config", "default"), r"platform: this-machine"),
    (
        ("simulate", "--network", "vgg16", "--platform", "hc9", *DP[:2]),
        r"\Aerror: .*known: dgx-h100, .*\n\Z",
    ),
    (("partition", "resnet5", "--devices", "2"), r"\Aerror: .*did you mean `resnet50`\?.*\n\Z"),
]
# One process for all of them, as each start takes longer than most of these commands. None of them needs what
# only the extra `campaign` installs.
ALL_OF_THEM = """
import json, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "mpi4py", "snakemake"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from typer.testing import CliRunner
from joulecast.app.cli.main import app
print(json.dumps([CliRunner().invoke(app, words).output for words in json.loads(sys.argv[1])]))
"""


def answers(python, folder, commands):
    words = [python, "-c", ALL_OF_THEM, json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, env=outside(python), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_commands_know_what_is_shipped_and_what_there_is(python, tmp_path):
    found = answers(python, tmp_path, [arguments for arguments, _ in KNOWN])
    for (arguments, said), answer in zip(KNOWN, found, strict=True):
        assert re.search(said, answer), f"{arguments}: {answer}"


def test_ones_own_files_go_before_what_is_shipped(python, tmp_path):
    own = yaml.safe_load((ROOT / "config/platforms/hc2.yaml").read_text())
    own |= {"name": "slower"}
    own["cluster"]["device"]["peak_flops"]["fp32"] /= 100
    text = yaml.safe_dump(own)
    (tmp_path / "mine.yaml").write_text(text)
    asked = ("simulate", "--network", "alexnet", "--platform", "./mine.yaml", *DP)
    shipped, mine = map(json.loads, answers(python, tmp_path, [("simulate", *HC2, *DP), asked]))
    mine["request"]["platform"] = "hc2"
    assert mine["platform"] == "slower" and mine["step_s"] > 2 * shipped["step_s"]
    (tmp_path / "config/platforms").mkdir(parents=True)
    (tmp_path / "config/platforms/hc2.yaml").write_text(text)
    graph = (ROOT / "recorded/task-graphs/resnet18.json").read_text()
    (tmp_path / "recorded/task-graphs").mkdir(parents=True)
    (tmp_path / "recorded/task-graphs/resnet50.json").write_text(graph)
    asked = [("simulate", *HC2, *DP), ("partition", "--devices", "2", "resnet50")]
    again, stages = answers(python, tmp_path, asked)
    assert json.loads(again) == mine and "resnet18: 2 stages" in stages


def test_a_configuration_is_checked_without_the_workflow(joulecast, tmp_path):
    (tmp_path / "mine.yaml").write_text("campaign: mine\n")
    checked = joulecast("config", "check", "mine.yaml").stdout
    assert "all right" in checked and "no dry run: there is no Snakefile here" in checked
    (tmp_path / "mine.yaml").write_text("workload: {dataset: cifar10, data_root: nowhere}\n")
    assert "nowhere is no folder" in joulecast("config", "check", "mine.yaml", code=2).stderr


@pytest.mark.long
def test_a_script_that_is_checked_strictly_can_use_it(python, tmp_path):
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\n\n"
        "import joulecast\n\n"
        "names: list[str] = [r.info.spec.run for r in joulecast.read_records(Path('records'))]\n"
        "fitted = joulecast.fit(['a', Path('b')])\n"
        "fitted.save(Path('fits'))\n"
        "step = joulecast.simulate_step('resnet50', 'hc2', 'dp=8', links={'nic': 1e9})\n"
        "seconds: float = step['step_s']\n"
        "stages = joulecast.partition_network('resnet50', 4)['stages']\n"
        "version: str = joulecast.__version__\n"
        "joulecast.EvaluateRequest(records=(Path('records'),), split='no such split')\n"
        "joulecast.nothing\n"
    )
    strictly = ["--strict", "--python-executable", str(python), "script.py"]
    command = [sys.executable, "-m", "mypy", *strictly]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    errors = [line.split(":")[1] for line in done.stdout.splitlines() if " error: " in line]
    assert errors == ["12", "13"], done.stdout + done.stderr
