"""Recording and replay as a user meets them: measured once here, every table regenerated elsewhere."""

import json
import os
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, copy_workflow, snakemake
from test_dry import TARGETS

from joulecast.attempts import attempts_at
from joulecast.recorded import pack, unpack_all

SHIPPED = ROOT / "recorded/two-core-vm"
LAB = ("--configfile", "config/lab.yaml")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A fresh clone with the shipped campaign, and with the same one as if a sensor had been there."""
    folder = tmp_path_factory.mktemp("clone")
    copy_workflow(folder)
    shutil.copytree(SHIPPED, folder / "recorded/two-core-vm")
    records = unpack_all(SHIPPED, tmp_path_factory.mktemp("lab"))
    for record in records:
        text = (record / "run.json").read_text()
        (record / "run.json").write_text(
            text.replace('"source": "estimated"', '"source": "measured"')
        )
    pack(records, folder / "recorded/lab", name="lab", configurations=[])
    (folder / "config/platforms/lab.yaml").write_text("name: lab\nrecorded: recorded/lab\n")
    ours = (folder / "config/replay-two-core-vm.yaml").read_text()
    # Of the planners, who need no campaign, one network is enough here.
    less = "partition: {networks: [alexnet]}\n"
    (folder / "config/lab.yaml").write_text(ours.replace("two-core-vm", "lab") + less)
    return folder


def test_dry_run_of_all_targets_from_the_shipped_campaign(clone):
    done = snakemake(clone, "-n", "--configfile", "config/replay-two-core-vm.yaml", "--", *TARGETS)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert "replay" in jobs
    assert not jobs & {"train", "train_single", "calibrate", "profile_ops", "run_pipeline"}


def test_every_table_comes_from_the_recorded_campaign(clone):
    done = snakemake(clone, *LAB, "--", "tables")
    assert done.returncode == 0, done.stdout + done.stderr
    results = clone / "results/lab"
    infos = [json.loads(path.read_text()) for path in results.glob("records/*/run.json")]
    assert len(infos) == json.loads((SHIPPED / "campaign.json").read_text())["runs"]
    for info in infos:
        assert {m["source"] for m in info["meters"] if m["available"]} == {"recorded"}
        assert info["source"]["recorded_campaign"] == "lab"
    tables = {path.stem: path.read_text() for path in results.glob("tables/*.csv")}
    for name in ("scaling", "time_error", "energy_error"):
        assert "resnet18" in tables[name] and "vit_ti" in tables[name], name
    assert "recorded" in tables["energy_error"]

    again = snakemake(clone, *LAB, "--", "tables")
    assert "Nothing to be done" in again.stdout + again.stderr
    for path in (clone / "recorded").rglob("*"):
        os.utime(path)  # as a checkout leaves them
    again = snakemake(clone, *LAB, "--", "tables")
    assert "Nothing to be done" in again.stdout + again.stderr, "newer, but the same"

    whole = clone / "recorded/lab/campaign.json"
    whole.write_text(whole.read_text().replace('"note": ""', '"note": "recorded again"'))
    again = snakemake(clone, "-n", *LAB, "--", "tables")
    text = again.stdout + again.stderr
    assert "replay " in text and "fit " in text, "another campaign, and it was not replayed"


def test_a_campaign_that_was_tampered_with_is_not_replayed(clone, tmp_path):
    shutil.copytree(clone, tmp_path / "c", ignore=shutil.ignore_patterns("results", ".snakemake"))
    (tmp_path / "c/recorded/lab/power.parquet").write_bytes(b"PAR1")
    done = snakemake(tmp_path / "c", *LAB, "--", "measure")
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "power.parquet: is not what was recorded" in text
    (tmp_path / "c/recorded/lab/runs.jsonl").unlink()
    done = snakemake(tmp_path / "c", "-n", *LAB)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "runs.jsonl: missing" in text and "Traceback" not in text


def test_a_recording_keeps_what_it_has_and_its_campaign_when_all_is_there(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "workload: {networks: [vit_ti]}\n"
        "scale: {nodes: [1, 2], repeats: 1, batch_size: 2}\n"
        "training: {steps: 1}\n"
        "emulation: null\n"
        "calibration: {batch_sizes: [2], idle_s: 0.3, sleeping_rank_s: 0.2,"
        " allreduce_bytes: [1024], allreduce_repeats: 2}\n"
    )
    kept, work = tmp_path / "kept", tmp_path / "kept.work"
    command = ["joulecast", "record", str(kept), "--config", str(config), "--note", "a test"]
    command += ["--platforms", str(ROOT / "config/platforms")]

    def record(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=240)

    def times():
        return {p.parent.name: p.stat().st_mtime_ns for p in work.glob("records/[!.]*/run.json")}

    # One rank needs no launcher; the runs of two fail.
    done = record("--launcher", "no-such-mpi")
    assert done.returncode == 2 and not kept.exists()
    assert "3 of 5 runs failed and nothing was packed" in done.stderr
    assert "allreduce-n2: run allreduce-n2: no `no-such-mpi` on the PATH" in done.stderr
    assert "Traceback" not in done.stderr
    before = times()
    assert set(before) == {"vit_ti-n1-b2-r1", "idle-n1"}

    done = record()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is there already") == 2
    after = times()
    assert set(after) == {*before, "vit_ti-n2-b4-r1", "allreduce-n2", "sleeping_rank-n2"}
    assert {run: after[run] for run in before} == before, "a finished run was repeated"
    tried = attempts_at(work / "attempts", "allreduce-n2")
    assert [attempt.reason is None for attempt in tried] == [False, True]
    content = json.loads((kept / "campaign.json").read_text())
    assert content["runs"] == 5 and content["note"] == "a test" and content["hosts"]
    assert content["configurations"][0]["workload"]["networks"] == ["vit_ti"]
    assert sum(f["bytes"] for f in content["files"].values()) < 500_000
    infos = [json.loads(line) for line in (kept / "runs.jsonl").read_text().splitlines()]
    assert [info["checks"]["ranks"] for info in infos] == [2, 1, 2, 1, 2]
