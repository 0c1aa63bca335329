"""The workflow as its user runs it, in a private copy of the checkout."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest
from conftest import copy_workflow, snakemake

MINIMAL = ("--configfile", "config/minimal.yaml")
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
    # Snakemake takes seconds to start: targets that share their rules are asked for together.
    for targets in (["all"], ["measure"], TARGETS[2:]):
        done = snakemake(workflow_copy, "-n", *targets)
        text = done.stdout + done.stderr
        assert done.returncode == 0, text
        jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
        assert {"train", "train_single", "calibrate"} <= jobs
        assert targets == ["measure"] or {"fit", "judge_simulator", "partition_report"} <= jobs


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


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The minimal campaign, run for real: 9 runs, two ranks."""
    folder = tmp_path_factory.mktemp("campaign")
    copy_workflow(folder)
    done = snakemake(folder, *MINIMAL)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_minimal_campaign_end_to_end(campaign):
    results = campaign / "results/minimal"
    infos = [json.loads(path.read_text()) for path in results.glob("records/*/run.json")]
    assert len(infos) == 9
    assert {info["spec"]["nodes"] for info in infos} == {1, 2}
    assert all(len(i["node_of_rank"]) == i["spec"]["nodes"] for i in infos)
    for name in ("time_error", "energy_error", "energy_summary", "energy_improvement", "scaling"):
        assert len(pd.read_csv(results / f"tables/{name}.csv")) > 0
        assert (results / f"tables/{name}.md").read_text().startswith("# ")
    time_error = pd.read_csv(results / "tables/time_error.csv")
    assert {"in-sample", "leave-one-node-count-out"} <= set(time_error["split"])
    assert time_error[time_error["model"] == "MC2"]["predicted_s"].gt(0).all()
    scaling = pd.read_csv(results / "tables/scaling.csv")
    assert set(scaling["workload"]) == {"resnet18", "vit_ti"}
    for figure in ("stage_times", "stage_energies", "power_trace", "predicted_against_measured"):
        assert (results / f"figures/{figure}.svg").stat().st_size > 5000
    assert "passed" in set(pd.read_csv(results / "checks.csv")["verdict"])
    assert not any(path.name.startswith(".") for path in (results / "records").iterdir())


def test_the_simulator_is_judged_and_forecasts(campaign):
    tables = campaign / "results/minimal/tables"
    error = pd.read_csv(tables / "simulator_error.csv")
    assert set(error["experiment"]) == {"emulated network", "real training"}
    assert set(error["source"]) == {"recorded"}
    mean = error[error["configuration"].str.match(r"\(mean of \d+: all\)")]
    assert (mean["predicted_error_percent"] < 5).all() and (mean["published_percent"] == 3.0).all()
    for name in ("simulator_order", "simulator_ablation", "simulator_speed"):
        assert len(pd.read_csv(tables / f"{name}.csv")) > 0
    forecast = pd.read_csv(tables / "scaling_forecast.csv")
    known = forecast[forecast["platform"] == "hc2"]
    assert set(known["network"]) == {"resnet18", "vit_ti"} and known["step_s"].gt(0).all()
    unknown = forecast[forecast["platform"] != "hc2"]
    assert unknown["step_s"].isna().all() and unknown["why_none"].notna().all()
    for figure in ("simulator_predicted_against_measured", "step_by_node_count"):
        assert (campaign / f"results/minimal/figures/{figure}.svg").stat().st_size > 5000


def test_networks_are_cut_and_a_pipeline_is_run(campaign):
    results = campaign / "results/minimal"
    times = pd.read_csv(results / "tables/partition_time.csv")
    assert set(times["network"]) == {"resnet18", "inception_v3"}
    assert set(times["devices"]) == {4, 8} and times["certified"].all()
    assert set(times["source"]) == {"recorded"} and times["published_paper_s"].notna().all()
    quality = pd.read_csv(results / "tables/partition_quality.csv")
    ratios = quality.filter(like="_ratio").drop(columns="pipedream_ratio")
    assert (ratios >= 1 - 1e-9).all(axis=None) and (quality["bottleneck_us"] > 0).all()
    assert (quality["predicted_speedup_1f1b"] <= quality["speedup_bound"] + 1e-9).all()
    assert set(quality["published_speedup"]) == {3.4, 3.76}
    pipeline = pd.read_csv(results / "tables/partition_pipeline.csv")
    assert list(pipeline["network"]) == ["resnet18"] and list(pipeline["source"]) == ["measured"]
    assert (pipeline[["step_s", "predicted_s", "uncut_s", "capacity"]] > 0).all(axis=None)
    for network in ("resnet18", "inception_v3"):
        assert (results / f"figures/partition_{network}.svg").stat().st_size > 5000


def test_nothing_is_done_twice(campaign):
    done = snakemake(campaign, *MINIMAL)
    assert "Nothing to be done" in done.stdout + done.stderr


def test_restored_results_need_nothing_in_a_fresh_clone(campaign, tmp_path):
    shutil.copytree(campaign / "results", tmp_path / "results")
    copy_workflow(tmp_path)
    done = snakemake(tmp_path, "-n", *MINIMAL)
    assert "Nothing to be done" in done.stdout + done.stderr, done.stdout + done.stderr


def test_only_what_is_missing_or_changed_is_measured_again(campaign, tmp_path):
    copy_workflow(tmp_path)
    shutil.copytree(campaign / "results", tmp_path / "results")
    shutil.copytree(campaign / ".snakemake/metadata", tmp_path / ".snakemake/metadata")
    shutil.rmtree(tmp_path / "results/minimal/records/vit_ti-n2-b8-r1")
    done = snakemake(tmp_path, "-n", *MINIMAL, "--", "measure")
    text = done.stdout + done.stderr
    assert re.search(r"^train +1$", text, re.M), text
    assert "train_single" not in text and "calibrate" not in text


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _records(folder):
    return {
        path.parent.name: path.stat().st_mtime_ns
        for path in folder.glob("results/minimal/records/[!.]*/run.json")
    }


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again_it_continues(tmp_path, how):
    folder = tmp_path / "k"
    folder.mkdir()
    copy_workflow(folder)
    fewer = ["--config", "workload={networks: [vit_ti]}", "calibration={batch_sizes: [4]}"]
    command = ["snakemake", "--cores", "all", *MINIMAL, *fewer, "--", "measure"]
    with open(folder / "out", "w") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
        deadline = time.monotonic() + 120
        while len(_records(folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(how)
        process.wait(60)
    before = _records(folder)
    assert 2 <= len(before) < 5
    unlock = snakemake(folder, *MINIMAL, *fewer, "--unlock")
    assert unlock.returncode == 0, unlock.stderr
    if how == signal.SIGINT:  # what is missing is to be done, and no more; the other way does it
        planned = snakemake(folder, "-n", *MINIMAL, *fewer, "--", "measure")
        said = planned.stdout + planned.stderr
        counts = dict(re.findall(r"^(train|train_single|calibrate) +(\d+)$", said, re.M))
        assert sum(map(int, counts.values())) == 5 - len(before), said
        return
    done = snakemake(folder, *MINIMAL, *fewer, "--", "measure")
    assert done.returncode == 0, done.stdout + done.stderr
    after = _records(folder)
    assert len(after) == 5, sorted(after)
    assert {run: after[run] for run in before} == before, "a finished run was repeated"


def test_a_failed_run_leaves_its_reason_and_the_others_go_on(tmp_path):
    copy_workflow(tmp_path)
    (tmp_path / "bin").mkdir()
    # A launcher that fails: everything that needs several ranks does, the rest is measured.
    broken = tmp_path / "bin/brokenmpi"
    broken.write_text("#!/bin/sh\necho 'error: the fabric is down' >&2\nexit 7\n")
    broken.chmod(0o755)
    changes = ["--config", "workload={networks: [vit_ti]}", "calibration={batch_sizes: [4]}"]
    done = subprocess.run(
        [
            "snakemake",
            "--cores",
            "all",
            *MINIMAL,
            *changes,
            "--set-resources",
            "train:mpi=brokenmpi",
            "--",
            "measure",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )
    assert done.returncode != 0
    failure = json.loads((tmp_path / "results/minimal/failed/vit_ti-n2-b8-r1.json").read_text())
    assert failure["reason"] == "the fabric is down (ended with exit code 7)"
    records = {path.name for path in (tmp_path / "results/minimal/records").iterdir()}
    assert {"vit_ti-n1-b4-r1", "idle-n1", "allreduce-n2"} <= records
    assert "vit_ti-n2-b8-r1" not in records


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
