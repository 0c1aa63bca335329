"""The command line, as a user meets it."""

from conftest import ROOT
from typer.main import get_command
from typer.testing import CliRunner

from joulecast.app.cli.main import app

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
    named = "measure meters import forecast advise evaluate simulate search capture partition profile tune"
    assert set(get_command(app).commands) == {*named.split(), "export", "status", "config"}


def test_config_commands(tmp_path):
    assert RUN(app, ["config", "default"]).output == (ROOT / "config/config.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text("scale: {node: [1]}\n")
    said = RUN(app, ["config", "check", str(mine)])
    assert said.exit_code == 2 and "did you mean `nodes`" in said.output
    assert "Traceback" not in said.output
