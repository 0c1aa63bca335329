"""Campaigns that are interrupted, in a private copy of the checkout, and a disk that is full."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pytest
from conftest import MINIMAL, ROOT, copy_workflow, make_spec, snakemake
from joulecast.report.tables.failed_runs import failed_runs
from joulecast.training.attempt_to_record import measure

from joulecast.errors import JoulecastError
from joulecast.records.record import read_record, write_record
from joulecast.records.recorded import pack, unpack_all
from joulecast.records.spec import Calibration

# Runs that load no torch; they are measured in this order.
RUNS = ("idle-n1", "allreduce-n2", "sleeping_rank-n2")
# Other tests keep the machine busy: they are not waited for.
AT_ONCE = "quiet={wait_s: 0, repeats: 0}"
LONG = ("--config", "calibration={idle_s: 1, sleeping_rank_s: 120}", AT_ONCE)
SHORT = ("--config", "calibration={idle_s: 1, sleeping_rank_s: 1}", AT_ONCE)


def _records(folder):
    return {
        path.parent.name: path.stat().st_mtime_ns
        for path in folder.glob("results/minimal/records/[!.]*/run.json")
    }


def test_interrupted_and_started_again_it_continues(tmp_path):
    """Interrupted in its last run, which the second campaign makes shorter. What SIGKILL does is tested on
    the cluster."""
    copy_workflow(tmp_path)
    asked = ("--", *(f"results/minimal/records/{run}" for run in RUNS))
    with open(tmp_path / "out", "w") as out:
        first = subprocess.Popen(
            ["snakemake", "--cores", "all", *MINIMAL, *LONG, *asked],
            cwd=tmp_path,
            stdout=out,
            stderr=out,
            start_new_session=True,
            # Who started the tests may ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 200
        last = "results/minimal/attempts/.sleeping_rank-n2-*/spec.json"
        while not any(tmp_path.glob(last)) and time.monotonic() < deadline:
            time.sleep(0.2)
        second = snakemake(tmp_path, *MINIMAL, *LONG, *asked)
        assert second.returncode != 0 and "--unlock" in second.stdout + second.stderr
        os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C does: Snakemake and its jobs
        assert first.wait(90) != 0
    before = _records(tmp_path)
    assert set(before) == {"idle-n1", "allreduce-n2"}
    done = snakemake(tmp_path, *MINIMAL, *SHORT, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    after = _records(tmp_path)
    assert set(after) == set(RUNS)
    assert before.items() <= after.items(), "a finished run was repeated"
    (row,) = pd.read_csv(tmp_path / "results/minimal/tables/failed_runs.csv").itertuples()
    assert (row.run, row.now, row.reason) == ("sleeping_rank-n2", "done", "interrupted")


REPLAY = ("--configfile", "config/replay-two-core-vm.yaml")
COPIES = 2


def _many_runs(folder):
    """The shipped campaign with each run many times, so that its replay takes a while; its run count."""
    records = unpack_all(ROOT / "recorded/two-core-vm", folder / "of-it")
    for path in records:
        record = read_record(path)
        for number in range(COPIES):
            spec = record.info.spec.model_copy(update={"run": f"{record.info.spec.run}-{number}"})
            facts = {"spec": spec, "spec_sha256": spec.digest()}
            copied = replace(record, info=record.info.model_copy(update=facts))
            write_record(folder / "many" / spec.run, copied)
    pack((folder / "many").iterdir(), folder / "two-core-vm", name="many", configurations=[])
    return folder / "two-core-vm", COPIES * len(records)


def test_a_replay_that_is_killed_is_made_again_and_one_that_is_not_whole_is_refused(tmp_path):
    campaign, runs = _many_runs(tmp_path)
    clone, checks = tmp_path / "clone", "results/two-core-vm/checks.csv"
    copy_workflow(clone)
    shutil.copytree(campaign, clone / "recorded/two-core-vm")
    records = clone / "results/two-core-vm/records"
    with open(tmp_path / "out", "w") as out:
        first = subprocess.Popen(
            ["snakemake", "--cores", "all", *REPLAY, "--", checks],
            cwd=clone,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        deadline = time.monotonic() + 200
        # Wherever they are filled: in place, or aside.
        while len(list(records.parent.glob("*records*/*/run.json"))) < 3:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.001)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert not records.exists()
    assert snakemake(clone, *REPLAY, "--unlock").returncode == 0
    done = snakemake(clone, *REPLAY, "--", checks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(records.glob("[!.]*"))) == runs
    assert f"{runs} records and the fits to them" in (clone / checks).read_text()

    # As a version left it that filled the folder in place.
    left = runs // 2
    for record in sorted(records.glob("[!.]*"))[left:]:
        shutil.rmtree(record)
    shutil.rmtree(clone / "results/two-core-vm/fits")
    (clone / checks).unlink()
    done = snakemake(clone, *REPLAY, "--", checks)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in text
    assert f"records: has {left} records, the campaign has {runs} runs" in text


@pytest.mark.long
def test_kills_at_random_moments_change_no_finished_result():
    """Two; the program by itself makes a hundred, and says which seed to repeat."""
    kills = [sys.executable, str(ROOT / "benchmarks/kills.py")]
    few = ["--replay", "1", "--import", "1", "--record", "0", "--campaign", "0"]
    done = subprocess.run([*kills, *few], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root")
def test_a_full_disk_loses_nothing(tmp_path):
    idle = {"kind": "idle", "calibration": Calibration(seconds=0.3)}
    spec = make_spec("idle").model_copy(update={**idle, "workload": None, "training": None})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=True)
    record, attempts = tmp_path / "records/idle", tmp_path / "attempts"
    try:
        (tmp_path / "filler").write_bytes(b"x" * (2 * 1024 * 1024 - 28 * 1024))
        with pytest.raises(JoulecastError, match="the disk is full"):
            measure(spec, record, tmp_path / "log", launcher=None, attempts=attempts)
        assert not record.exists(), "nothing half-written"
        (tmp_path / "filler").unlink()
        measure(spec, record, tmp_path / "log", launcher=None, attempts=attempts)
        assert read_record(record).info.spec == spec
        (row,) = failed_runs(tmp_path).itertuples()
        assert "the disk is full" in row.reason and row.now == "done"
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
