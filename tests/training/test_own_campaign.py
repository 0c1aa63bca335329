"""Campaigns of a command of the user's own."""

import sys
from pathlib import Path

from launching import two_ranks

from joulecast.app.campaign.config import parse_config
from joulecast.app.campaign.runs import campaign_runs
from joulecast.errors import JoulecastError
from joulecast.measure.training.measure_run import measure_run
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.observations import observe
from joulecast.runs.record import read_record

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/own-training/train.py"


def test_a_campaign_of_a_command_keeps_what_was_measured_and_says_what_failed(tmp_path):
    command = (
        "test {nodes}{gpus} = 12 || exit 3; "
        + two_ranks(
            sys.executable, str(EXAMPLE), *["--batch", "{batch_per_rank}", "--steps", "{steps}"]
        )[-1]
    )
    configuration = {
        "workload": {"command": command, "name": "letters"},
        "scale": {"nodes": [1, 2], "repeats": 1, "batch_size": 4},
        "training": {"steps": 8},
        "emulation": None,
        "calibration": {"batch_sizes": [4], "idle_s": 1},
        "quiet": {"wait_s": 0, "repeats": 0},
    }

    failed = {}
    for spec in campaign_runs(parse_config(configuration), PLATFORMS):
        try:
            measure_run(spec, tmp_path / f"records/{spec.run}", tmp_path / f"logs/{spec.run}.log")
        except JoulecastError as error:
            failed[spec.run] = str(error)
    assert list(failed) == ["letters-n1-b4-run1"] and "exit code 3" in failed["letters-n1-b4-run1"]
    folders = sorted((tmp_path / "records").iterdir())
    rows = {row["run"]: row for row in map(observe, map(read_record, folders))}
    assert sorted(rows) == ["idle-n1", "letters-n2-b8-run1"]
    two = rows["letters-n2-b8-run1"]
    assert (two["nodes"], two["batch"], two["steps"]) == (2, 8, 7)
