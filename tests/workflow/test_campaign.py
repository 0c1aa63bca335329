"""The minimal campaign, run as its user runs it. Other tests keep the machine busy: it waits for no quiet."""

import json
import re
import shutil
import statistics
import subprocess

import pandas as pd
import pytest
import yaml
from conftest import MINIMAL, copy_workflow, judge_less, snakemake

from joulecast.partition.makespan import makespan
from joulecast.runs.provenance import usable_cores

# All that a measured campaign makes but the simulator's tables, which tests/workflow/test_replay.py makes.
MADE = ("--", "tables", "partition_tables", "results/minimal/tables/tuning_live", "overview")


def fresh_clone(folder):
    """What a clone holds, with one network to measure, and less that others measured to judge."""
    copy_workflow(folder)
    judge_less(folder)
    file = folder / "config/minimal.yaml"
    config = yaml.safe_load(file.read_text()) | {"quiet": {"wait_s": 0, "repeats": 0}}
    config["workload"]["networks"] = ["vit_ti"]
    config["calibration"]["batch_sizes"] = [4]
    config["evaluation"] = {"series_splits": 1}
    file.write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The minimal campaign of one network, run for real: 5 runs, two ranks."""
    folder = tmp_path_factory.mktemp("campaign")
    fresh_clone(folder)
    done = snakemake(folder, *MINIMAL, *MADE)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_minimal_campaign_end_to_end(campaign):
    results = campaign / "results/minimal"
    infos = [json.loads(path.read_text()) for path in results.glob("records/*/run.json")]
    assert len(infos) == 5
    assert {info["spec"]["nodes"] for info in infos} == {1, 2}
    assert all(len(i["node_of_rank"]) == i["spec"]["nodes"] for i in infos)
    for name in ("time_error", "energy_error", "energy_summary", "energy_improvement", "scaling"):
        assert len(pd.read_parquet(results / f"tables/energy/{name}.parquet")) > 0
        assert (results / f"tables/energy/{name}.md").read_text().startswith("# ")
    time_error = pd.read_parquet(results / "tables/energy/time_error.parquet")
    assert {"in-sample", "leave-one-node-count-out"} <= set(time_error["split"])
    assert time_error[time_error["model"] == "MC2"]["predicted_s"].gt(0).all()
    scaling = pd.read_parquet(results / "tables/energy/scaling.parquet")
    assert set(scaling["workload"]) == {"vit_ti"}
    assert "passed" in set(pd.read_parquet(results / "tables/checks/checks.parquet")["verdict"])
    assert not any(path.name.startswith(".") for path in (results / "records").iterdir())


def test_networks_are_cut_and_a_pipeline_is_run(campaign):
    results = campaign / "results/minimal"
    quality = pd.read_parquet(results / "tables/partition/partition_quality.parquet")
    assert set(quality["network"]) == {"resnet18"}
    assert set(quality["devices"]) == {4, 8} and quality["certified"].all()
    assert set(quality["source"]) == {"recorded"}
    ratios = quality.filter(like="_ratio").drop(columns="pipedream_ratio")
    assert (ratios >= 1 - 1e-9).all(axis=None) and (quality["bottleneck_us"] > 0).all()
    assert (quality["predicted_speedup_1f1b"] <= quality["speedup_bound"] + 1e-9).all()
    pipeline = pd.read_parquet(results / "tables/partition/partition_pipeline.parquet")
    assert list(pipeline["network"]) == ["resnet18"] and list(pipeline["source"]) == ["measured"]
    assert (pipeline[["step_s", "predicted_s", "uncut_s", "capacity"]] > 0).all(axis=None)


def test_a_pipeline_s_record_is_of_what_was_measured(campaign):
    (file,) = (campaign / "results/minimal/pipelines").glob("*.json")
    record = json.loads(file.read_text())
    assert (record["label"], record["ranks"]) == ("measured", 2)
    assert record["oversubscribed"] == (usable_cores() < 2)
    assert len(record["at_once_s"]) == min(2, usable_cores())
    summary, median = record["summary"], statistics.median
    stages = [[median(times) for times in record[phase]] for phase in ("forward_s", "backward_s")]
    assert summary["predicted_makespan_s"] == makespan(*stages, "1f1b", 2)
    assert summary["speedup"] == median(record["whole_s"]) / median(record["pipeline_s"])
    # The stages together do what the whole network does; wide bounds, as machines are noisy.
    assert 0.2 < 2 * sum(map(sum, stages)) / median(record["whole_s"]) < 5


def test_a_training_is_tuned_live(campaign):
    results = campaign / "results/minimal"
    live = pd.read_parquet(results / "tables/tuning_live/tuning_live.parquet")
    assert len(live) == 3 and live["cost"].gt(0).all() and live["reached"].all()
    assert (live["energy_j"].isna() == live["why_no_energy"].notna()).all()


def test_everything_stands_on_one_page(campaign):
    page = (campaign / "results/minimal/index.html").read_text()
    assert "vit_ti" in page and page.count('class="chart"') >= 4
    assert "Traceback" not in page


def test_nothing_is_done_twice(campaign):
    done = snakemake(campaign, *MINIMAL, *MADE)
    assert "Nothing to be done" in done.stdout + done.stderr


@pytest.mark.long
def test_a_lost_record_of_the_tuning_comes_from_its_history(campaign, tmp_path):
    fresh_clone(tmp_path)
    shutil.copytree(campaign / "results", tmp_path / "results")
    record = tmp_path / "results/minimal/tuning/live.json"
    before = json.loads(record.read_text())["recurrences"]
    record.unlink()
    wanted = ("results/minimal/tuning/live.json", "results/minimal/tables/tuning_live")
    again = snakemake(tmp_path, *MINIMAL, "--", *wanted)
    assert again.returncode == 0, again.stdout + again.stderr
    assert json.loads(record.read_text())["recurrences"] == before, "nothing is trained twice"


@pytest.mark.long
def test_restored_results_need_only_what_is_removed_in_a_fresh_clone(campaign, tmp_path):
    fresh_clone(tmp_path)  # newer than the results, which keep their times
    shutil.copytree(campaign / "results", tmp_path / "results")
    done = snakemake(tmp_path, "-n", *MINIMAL, *MADE)
    assert "Nothing to be done" in done.stdout + done.stderr, done.stdout + done.stderr
    shutil.rmtree(tmp_path / "results/minimal/records/idle-n1")
    again = snakemake(tmp_path, "-n", *MINIMAL)
    text = again.stdout + again.stderr
    assert re.search(r"^train +1$", text, re.M) and re.search(r"^fit +1$", text, re.M), text


def test_a_broken_record_is_named_and_it_alone_is_measured_again(campaign, tmp_path):
    fresh_clone(tmp_path)
    shutil.copytree(campaign / "results", tmp_path / "results")
    shutil.copytree(campaign / ".snakemake/metadata", tmp_path / ".snakemake/metadata")
    results = tmp_path / "results/minimal"
    broken = results / "records/vit_ti-n2-b8-run1"
    (broken / "stages.parquet").write_bytes(b"PAR1 cut short")
    shutil.rmtree(results / "fits")
    done = snakemake(tmp_path, *MINIMAL, "--", "results/minimal/fits")
    assert done.returncode != 0 and f"delete {broken.relative_to(tmp_path)}" in done.stderr
    shutil.rmtree(broken)
    again = snakemake(tmp_path, "-n", *MINIMAL, "--", "measure")
    text = again.stdout + again.stderr
    assert re.search(r"^train +1$", text, re.M) and re.search(r"^total +2$", text, re.M), text


@pytest.mark.long
def test_it_is_packed_and_replayed(campaign, tmp_path):
    fresh_clone(tmp_path)
    shutil.copytree(campaign / "results", tmp_path / "results")
    done = snakemake(tmp_path, *MINIMAL, "--", "record")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = tmp_path / "results/minimal/recorded"
    content = json.loads((kept / "campaign.json").read_text())
    assert content["runs"] == 5 and content["hosts"]
    assert content["configurations"][0]["workload"]["networks"] == ["vit_ti"]
    assert (kept / "records.zip").stat().st_size < 500_000
    (tmp_path / "config/platforms/kept.yaml").write_text(f"name: kept\nrecorded: {kept}\n")
    (tmp_path / "config/again.yaml").write_text("results: results/again\nplatform: kept\n")
    done = snakemake(tmp_path, "--configfile", "config/again.yaml", "--", "measure")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("results/again/records/*/run.json"))) == 5


@pytest.mark.long
def test_a_campaign_of_disturbed_runs_ends_with_marked_tables_and_page(campaign, tmp_path):
    """What a busy machine leaves: everything is made, marked, and only the disturbed runs are repeated."""
    folder = tmp_path / "busy"
    shutil.copytree(campaign, folder, symlinks=True)
    results = folder / "results/minimal"
    for path in results.glob("records/*/run.json"):
        info = json.loads(path.read_text())
        info["disturbed"] = ["other programs kept 1.9 cores busy (stress-ng) before the run"]
        path.write_text(json.dumps(info))
    shutil.rmtree(results / "fits")
    done = snakemake(folder, *MINIMAL, "--", "tables", "overview")
    ended = done.stdout + done.stderr
    assert done.returncode == 0, ended
    for name in ("time_error", "scaling", "energy_summary"):
        text = (results / f"tables/energy/{name}.md").read_text()
        assert "other programs were at work during 3 of 3 training runs" in text
    page = (results / "index.html").read_text()
    assert "Other programs disturbed these measurements" in page
    assert re.search(r"6 runs disturbed by other programs; to repeat only these: ", ended)
    (command,) = re.findall(r"(rm -r results/minimal/records\S+(?: results\S+)*), and", ended)
    subprocess.run(command, shell=True, cwd=folder, check=True)
    again = snakemake(folder, "-n", *MINIMAL)
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", again.stdout + again.stderr, re.M))
    assert jobs["train"] == "6"
