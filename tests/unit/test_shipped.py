"""What comes with joulecast, and the user's own files before it, as somebody in any folder finds them."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from conftest import ROOT
from typer.testing import CliRunner

import joulecast
from joulecast.app.campaign.config import parse_config
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.partition.task_graph_files import task_graph_file
from joulecast.runs import provenance
from joulecast.runs.files import shipped
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.platforms import find_platform, platform_file, recorded_for


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_name_is_found_from_any_folder_and_ones_own_goes_first(elsewhere):
    assert platform_file("hc2") == ROOT / "config/platforms/hc2.yaml"
    own = write(elsewhere / "config/platforms/hc2.yaml", "name: mine\n")
    assert platform_file("hc2") == own.relative_to(elsewhere)
    assert find_platform("hc2").name == "mine" and find_platform("hc1").name != "mine"
    others = write(elsewhere / "others/hc2.yaml", "name: other\n").parent
    assert find_platform("hc2", others).name == "other"


@pytest.mark.parametrize("given", ["mine.yaml", "./mine.yaml", "mine.yml", "sub/mine"])
def test_what_looks_like_a_path_is_one(elsewhere, given):
    write(elsewhere / given, "name: from a file\n")
    assert find_platform(given).name == "from a file"


def test_an_unknown_platform_is_told_those_that_there_are(elsewhere):
    write(elsewhere / "config/platforms/ours.yaml", "name: ours\n")
    with pytest.raises(JoulecastError, match=r"nowhere.*\(known: .*hc2.*ours.*\).*FILE\.yaml"):
        find_platform("nowhere")
    with pytest.raises(JoulecastError, match=r"^nowhere\.yaml: no such platform file"):
        find_platform("nowhere.yaml")


def test_a_recording_lies_where_its_platform_does(elsewhere):
    assert recorded_for("two-core-vm") == ROOT / "recorded/two-core-vm"
    assert recorded_for("hc2") is None
    write(elsewhere / "config/platforms/lab.yaml", "name: lab\nrecorded: kept/lab\n")
    assert recorded_for("lab") == elsewhere / "kept/lab"
    write(elsewhere / "sub/lab.yaml", "name: lab\nrecorded: kept\n")
    assert recorded_for("sub/lab.yaml") == elsewhere / "sub/kept"


def test_recorded_campaigns_and_task_graphs_have_names(elsewhere):
    kept = ROOT / "recorded/two-core-vm"
    assert recorded_folder(Path("two-core-vm")) == kept
    assert recorded_folder(Path("recorded/two-core-vm")) == kept
    assert recorded_folder(Path("results/two-core-vm")) == Path("results/two-core-vm")
    (elsewhere / "two-core-vm").mkdir()
    assert recorded_folder(Path("two-core-vm")) == Path("two-core-vm"), "a folder of records"
    graph = ROOT / "recorded/task-graphs/resnet50.json"
    assert task_graph_file("resnet50") == graph
    assert task_graph_file("recorded/task-graphs/resnet50.json") == graph
    assert task_graph_file("x/resnet50.json") == Path("x/resnet50.json")
    profile = "recorded/pipedream-profiles/vgg16.txt"
    assert task_graph_file(profile) == ROOT / profile
    own = write(elsewhere / "recorded/task-graphs/resnet50.json", "{}")
    assert task_graph_file("resnet50") == own.relative_to(elsewhere)
    with pytest.raises(JoulecastError, match=r"no such graph; did you mean `resnet50`\?"):
        task_graph_file("resnet5")


@pytest.mark.parametrize(
    "name",
    ["mlperf-power", "mlperf-times", "pipedream-profiles", "training-steps", "zeus-trace"],
)
def test_what_others_measured_is_whole_and_says_where_it_is_from(name):
    folder = ROOT / "recorded" / name
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["licence"] in {"Apache-2.0", "MIT"} and "source" in provenance
    if provenance["licence"] == "MIT":
        assert "Permission is hereby granted" in (folder / provenance["licence_text"]).read_text()
    described = {"provenance.json", provenance.get("licence_text"), *provenance["files"]}
    assert {path.name for path in folder.iterdir()} == described - {None}
    for file, facts in provenance["files"].items():
        content = (folder / file).read_bytes()
        content = gzip.decompress(content) if file.endswith(".gz") else content
        digest = facts.get("sha256") or facts["sha256_unpacked"]
        assert hashlib.sha256(content).hexdigest() == digest, file
        assert facts.get("rows") in (None, content.count(b"\n") - file.endswith(".csv.gz")), file


def test_a_configuration_names_a_platform_or_its_file(elsewhere):
    for platform in ("hc2", "mine.yaml", "../lab/mine.yaml"):
        assert parse_config({"platform": platform}).platform == platform
    for platform in ("a b", "a;b.yaml", "-x.yaml", "~/x.yaml", ""):
        with pytest.raises(JoulecastError, match="platform: "):
            parse_config({"platform": platform})


def test_a_platform_by_its_file_is_planned_by_the_name_in_it(elsewhere):
    hc2 = (ROOT / "config/platforms/hc2.yaml").read_text()
    write(elsewhere / "mine.yaml", hc2)
    asked = {
        "samples": 1e5,
        "devices": [1],
        "precision": "fp32",
        "price_gpu_hour": {"mine.yaml": 2},
    }
    planned = joulecast.plan("alexnet", "mine.yaml", **asked)
    assert planned["platform"] == find_platform("hc2").name
    assert {c["platform"] for c in planned["candidates"]} == {"hc2"}
    assert all(c["cost"] for c in planned["candidates"])


def test_an_installed_package_names_no_commit_of_the_folder_it_lies_in(tmp_path, monkeypatch):
    assert shipped.checkout() == ROOT and provenance.source_state()["git_commit"]
    # An environment in the user's own repository: its commit is not joulecast's.
    installed = tmp_path / "lib/python3/site-packages/joulecast"
    monkeypatch.setattr(shipped, "PACKAGE", installed)
    assert shipped.checkout() is None and shipped.shipped_folder() == installed / "data"
    assert set(provenance.source_state().values()) == {None}


def test_the_version_is_said():
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0 and said.output.startswith("joulecast ")
