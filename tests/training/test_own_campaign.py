"""Campaigns of a command of the user's own."""

import sys
from pathlib import Path

import pytest

import joulecast
from joulecast.runs.observations import observe
from joulecast.runs.record import read_record

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/own-training/train.py"


def test_a_campaign_of_a_command_keeps_what_was_measured_and_says_what_failed(tmp_path):
    command = (
        f"test {{nodes}}{{gpus}} = 12 || exit 3; {sys.executable} -m torch.distributed.run "
        f"--nproc-per-node {{gpus}} {EXAMPLE} --batch {{batch_per_rank}} --steps {{steps}}"
    )
    configuration = {
        "results": str(tmp_path / "results"),
        "workload": {"command": command, "name": "letters"},
        "scale": {"nodes": [1, 2], "repeats": 1, "batch_size": 4},
        "training": {"steps": 8},
        "emulation": None,
        "calibration": {"batch_sizes": [4], "idle_s": 1},
        "quiet": {"wait_s": 0, "repeats": 0},
    }

    with pytest.raises(joulecast.JoulecastError, match="1 of 3 runs failed") as failed:
        joulecast.measure_campaign(configuration, tell=lambda line: None)
    assert "letters-n1-b4-r1" in str(failed.value) and "exit code 3" in str(failed.value)
    folders = sorted((tmp_path / "results/records").iterdir())
    rows = {row["run"]: row for row in map(observe, map(read_record, folders))}
    assert sorted(rows) == ["idle-n1", "letters-n2-b8-r1"]
    two = rows["letters-n2-b8-r1"]
    assert (two["nodes"], two["batch"], two["steps"]) == (2, 8, 7)
