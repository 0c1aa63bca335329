"""Measuring without the checkout: from the wheel, and by the public functions."""

import json

import pytest
from api_examples import MEASURING, assert_prints_what_the_page_says
from wheel_fixtures import joulecast, python, wheel

__all__ = ["joulecast", "python", "wheel"]


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("function", MEASURING)
def test_the_example_of_the_page(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_prints_what_the_page_says(function)
