"""The command line, as a user meets it."""

import json

from conftest import ROOT, make_record, make_spec
from typer.main import get_command
from typer.testing import CliRunner

from joulecast.app.cli import options
from joulecast.app.cli.main import app
from joulecast.runs.files.shipped import MEASURED
from joulecast.runs.record import write_record

RUN = CliRunner().invoke


def test_meters_says_what_is_missing_and_how_to_get_it():
    platform = str(ROOT / "config/platforms/this-machine.yaml")
    said = RUN(app, ["meters", "--platform", platform])
    assert said.exit_code == 0
    assert "estimated" in said.output and "assumed, not measured" in said.output
    for line in said.output.splitlines():
        if " missing " in line:
            assert "to get it:" in said.output


def test_there_are_these_commands_and_no_more():
    named = "measure meters import export status forecast advise evaluate plan when simulate search capture"
    rest = {"partition", "profile", "tune", "config"}
    assert set(get_command(app).commands) == {*named.split(), *rest}


def test_config_commands(tmp_path):
    assert RUN(app, ["config", "default"]).output == (ROOT / "config/config.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text("scale: {node: [1]}\n")
    said = RUN(app, ["config", "check", str(mine)])
    assert said.exit_code == 2 and "did you mean `nodes`" in said.output
    assert "Traceback" not in said.output


def measured(name):
    """A training as `measure` keeps it, below the working directory."""
    for repeat in (1, 2):
        spec = make_spec(f"{name}-n1-run{repeat}", repeat=repeat)
        write_record(MEASURED / spec.run, make_record(spec))


def test_a_folder_without_records_does_not_hide_the_training_of_its_name(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    measured("tiny")
    (tmp_path / "tiny").mkdir()
    said = RUN(app, ["forecast", "tiny", "--nodes", "2"])
    assert said.exit_code == 0, said.output
    (tmp_path / "empty").mkdir()
    assert "empty: holds no run record" in RUN(app, ["forecast", "empty", "--nodes", "2"]).output
    # A folder next to records is named only if it was a record.
    (MEASURED / "tiny-n1-run2" / "run.json").unlink()
    (MEASURED / "data").mkdir()
    said = RUN(app, ["forecast", "--records", str(MEASURED), "--nodes", "2"])
    assert said.exit_code == 0 and "tiny-n1-run2: is left out" in caplog.text
    assert str(MEASURED / "data") not in caplog.text


def test_a_training_without_a_captured_network_is_not_planned_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measured("tiny")
    words = ["--network", "tiny", "--platform", "h100-sxm"]
    for command in (
        ["plan", "--devices", "1", "--samples", "9"],
        ["simulate", "--strategy", "dp=1"],
    ):
        said = RUN(app, [*command, *words])
        assert said.exit_code == 2 and "--capture" in said.output and "llama" not in said.output


def test_a_campaigns_results_are_its_own_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part, workload in (("records", "resnet18"), ("metered/records", "vgg16")):
        spec = make_spec("a-n1-run1", workload={"network": workload})
        write_record(tmp_path / "mine" / part / spec.run, make_record(spec))
    said = RUN(app, ["forecast", "mine", "--nodes", "2"]).output
    assert "resnet18" in said and "vgg16" not in said
    assert "--records" in RUN(app, ["advise", "mine"]).output


def test_an_error_about_an_option_lists_no_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measured("tiny")
    said = RUN(app, ["advise", "tiny", "--objective", "cost"]).output
    assert "--objective cost: no price is known" in said and "results" not in said


def test_a_command_without_a_training_says_how_to_name_one():
    for command, flag in (("advise", "--network"), ("forecast", "--records")):
        said = RUN(app, [command]).output.strip()
        way = "give it, or the NAME of a training that `measure` ran"
        assert said == f"error: {flag} is missing; {way}"


def test_a_long_search_says_that_it_goes_on(monkeypatch):
    monkeypatch.setattr(options, "PATIENCE_S", 0.0)
    asked = "search --network gpt2 --platform h100-sxm --devices 8 --global-batch 8 --json"
    said = RUN(app, asked.split())
    assert said.exit_code == 0
    assert "8 devices" in said.stderr and json.loads(said.stdout)["feasible"]
