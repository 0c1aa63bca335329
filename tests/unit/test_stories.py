"""What a person asks before a training runs: the commands of the pages, on files that are made here.

The third story, from two GPUs to 64, is in ``tests/training/test_captured.py``.
"""

import json
import re
import subprocess
from datetime import UTC, datetime

import pytest
from conftest import ROOT
from typer.testing import CliRunner

from joulecast.app.cli.main import app

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def section(page, title):
    """The joulecast commands of a section of a page."""
    text = (ROOT / "docs/how-to" / page).read_text()
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", found, re.S) for line in block.split("\n")
    ]
    assert len([*filter(None, lines)]) <= 4
    return [
        each for line in lines for each in re.findall(r"joulecast ((?:plan|when) [^|)]*)", line)
    ]


def answered(command, *more):
    done = CliRunner().invoke(app, [*command.split(), *more])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_configuration_of_the_hub_with_nothing_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (command,) = section(
        "plan-a-training.md", "A network of the Hugging Face hub, nothing measured"
    )
    planned = json.loads(answered(command, "--json"))
    rows, best = planned["candidates"], planned["best"]
    assert {row["platform"] for row in rows} == {"h100-sxm", "a100-80gb-sxm"}
    assert {row["gpus"] for row in rows} == {8, 16, 32, 64, 128, 256}
    within = [row for row in rows if row["time_high_s"] <= 30 * 86400]
    assert best["cost"] == min(row["cost"] for row in within)
    assert all(row["cost_low"] < row["cost"] < row["cost_high"] for row in rows)


@pytest.mark.parametrize("darkest", [2, 15])
def test_a_training_that_recurs_every_night(tmp_path, monkeypatch, darkest):
    """The grid is cleanest for six hours from another one each night."""
    monkeypatch.chdir(tmp_path)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0).timestamp()
    clean = range(darkest, darkest + 6)
    hours = [(now + 3600 * hour, 100 if hour in clean else 400) for hour in range(24)]
    rows = [f"{datetime.fromtimestamp(at_s, UTC).isoformat()},{co2}" for at_s, co2 in hours]
    (tmp_path / "hours.csv").write_text("\n".join(["time,co2", *rows]) + "\n")
    ask, begin = section("choose-the-hour.md", "A training that recurs every night")
    assert "less CO2e" in answered(ask)
    best = json.loads(answered(begin))["best"]
    assert datetime.fromisoformat(best["start"]).timestamp() == now + 3600 * darkest
    assert best["co2_kg"] == pytest.approx(40 * 0.1)
    # As SLURM takes it: the clock of this machine.
    local = subprocess.run(["date", "-d", best["start"], "+%FT%T"], capture_output=True, text=True)
    assert datetime.fromisoformat(local.stdout.strip()).timestamp() == now + 3600 * darkest
    old = CliRunner().invoke(app, [*begin.split(), "--after", "2020-01-01T00:00"])
    assert old.exit_code == 2 and "give a file that has it" in old.output
