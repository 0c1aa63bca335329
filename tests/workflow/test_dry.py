"""What the workflow says before it does anything."""

import re
from pathlib import Path

import pytest
from conftest import snakemake

TARGETS = [
    "all",
    "measure",
    "tables",
    "figures",
    "check",
    "energy_tables",
    "simulator_tables",
    "partition_tables",
    "tuning_tables",
]


def test_dry_run_of_every_target(workflow_copy):
    done = snakemake(workflow_copy, "-n", *TARGETS)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert {"train", "train_single", "calibrate", "fit", "judge_simulator"} <= jobs
    assert {"partition_report", "tuning_report", "tuning_live_report", *TARGETS[1:2]} <= jobs


def test_partitioning_needs_no_campaign(workflow_copy):
    done = snakemake(workflow_copy, "-n", "partition_tables")
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert jobs == {
        "partition_network",
        "run_pipeline",
        "partition_report",
        "partition_tables",
        "total",
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("scal={a: 1}", "did you mean `scale`"),
        ("scale={nodes: [0]}", "node count 0 is below 1"),
        ("workload={networks: [vgg]}", "unknown network `vgg`"),
        ("platform=nowhere", "no such platform file"),
    ],
)
def test_mistakes_in_the_configuration_are_said_in_one_line(workflow_copy, change, said):
    done = snakemake(workflow_copy, "-n", "--config", change)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and said in text and "Traceback" not in text


def test_lint(workflow_copy):
    done = snakemake(workflow_copy, "--lint")
    complaints = re.findall(r"^    \* (.*)$", done.stdout + done.stderr, re.M)
    # One environment serves all rules: ./run makes it from the lock, or conda does.
    assert set(complaints) <= {"Specify a conda environment or container for each rule.:"}
    assert "Traceback" not in done.stderr and "Error" not in done.stderr, done.stderr


def test_profiles_repeat_no_measurement_for_newer_files():
    import yaml

    profile = yaml.safe_load(Path("profiles/default/config.yaml").read_text())
    assert profile["rerun-triggers"] == ["mtime", "params", "input"]
