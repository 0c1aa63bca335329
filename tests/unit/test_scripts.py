"""What runs a workflow script: its arguments by name, its log, its exit code; and the rules' params."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

from joulecast.app.campaign.content_versions import content_version, kept_task_graph
from joulecast.app.campaign.scripts import run_script, script_arguments
from joulecast.errors import JoulecastError


def job(folder, **parts):
    empty = {part: {} for part in ("input", "output", "params", "wildcards", "resources")}
    return SimpleNamespace(**{**empty, **parts}, log=[str(folder / "logs/job.log")])


def test_arguments_come_by_name_and_as_the_declared_types(tmp_path):
    seen = []

    def main(fits: Path, records: list[Path], network: str, runs: int | None, log: Path):
        seen.extend([fits, records, network, runs, log])
        print("said")

    given = job(
        tmp_path,
        input={"fits": "results/fits", "records": ["a", "b"]},
        params={"runs": None, "version": "not read"},
        wildcards={"network": "alexnet"},
    )
    run_script(given, main)
    log = tmp_path / "logs/job.log"
    assert seen == [Path("results/fits"), [Path("a"), Path("b")], "alexnet", None, log]
    assert log.read_text() == "said\n"


@pytest.mark.parametrize("given", [{}, {"training": []}])
def test_an_input_that_a_campaign_does_not_have_leaves_the_default(tmp_path, given):
    def main(training: Path | None = None):
        """Take one input."""

    assert script_arguments(job(tmp_path, input=given), main) == {}


def test_a_name_that_is_missing_or_there_twice_is_refused(tmp_path):
    def main(tables: Path):
        """Take one folder."""

    with pytest.raises(TypeError, match="0 values named `tables`"):
        run_script(job(tmp_path), main)
    twice = job(tmp_path, output={"tables": "x"}, params={"tables": "y"})
    with pytest.raises(TypeError, match="2 values named `tables`"):
        run_script(twice, main)
    assert "Traceback" in (tmp_path / "logs/job.log").read_text()


def test_an_error_of_ours_is_one_line_and_code_2(tmp_path, capsys):
    def main():
        raise JoulecastError("no such file")

    with pytest.raises(SystemExit) as ended:
        run_script(job(tmp_path), main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: no such file\n"
    assert (tmp_path / "logs/job.log").read_text() == "error: no such file\n"


def test_the_version_of_kept_data_follows_its_content_alone(tmp_path):
    file, folder = tmp_path / "file", tmp_path / "folder"
    folder.mkdir()
    assert content_version(file) is None and content_version(folder) is None
    for path, content in ((file, file), (folder, folder / "provenance.json")):
        content.write_text("1")
        before = content_version(path)
        content.touch()
        assert content_version(path) == before
        content.write_text("2")
        assert content_version(path) not in (None, before)


def test_a_kept_task_graph_is_ours_or_a_profile(tmp_path):
    assert kept_task_graph(tmp_path, "vgg16") == tmp_path / "vgg16.json"
    (tmp_path / "vgg16.txt").touch()
    assert kept_task_graph(tmp_path, "vgg16") == tmp_path / "vgg16.txt"
    (tmp_path / "vgg16.json").touch()
    assert kept_task_graph(tmp_path, "vgg16") == tmp_path / "vgg16.json"


def _rules():
    """Text of each rule by its name, with the base of a rule that is derived from another."""
    text = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    starts = r"^ *(?:rule|checkpoint|use rule) (?:(\w+) as )?(\w+)(?: with)?:\n"
    parts = re.split(starts, text, flags=re.M)[1:]
    return {parts[k + 1]: (parts[k], parts[k + 2]) for k in range(0, len(parts), 3)}


def _params(body):
    section = re.search(r"^( *)params:\n((?:\1 .*\n)+)", body, re.M)
    if section is None:
        return set()
    return set(re.findall(rf"^{section[1]}    (\w+)=", section[2], re.M))


def _read_by(script):
    tree = ast.parse((ROOT / "workflow/scripts" / script).read_text())
    (main,) = (node for node in tree.body if getattr(node, "name", "") == "main")
    return {argument.arg for argument in main.args.args}


def _script(rules, name):
    base, body = rules[name]
    found = re.search(r"scripts/(\w+\.py)", body)
    return found[1] if found else _script(rules, base)


def test_scripts_read_all_params_but_the_versions():
    rules = _rules()
    assert len(rules) > 15
    for name, (_, body) in rules.items():
        unread = _params(body) - _read_by(_script(rules, name)) - {"version", "source"}
        assert not unread, (name, unread)


def test_rules_with_a_kept_input_have_its_version():
    for name, (_, body) in _rules().items():
        if re.search(r"\.files\b", body):
            assert "version" in _params(body), name
