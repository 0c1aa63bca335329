"""Campaigns that are killed, and runs that fail, in a private copy of the checkout."""

import os
import signal
import subprocess
import time

import pandas as pd
import pytest
from conftest import MINIMAL, copy_workflow, snakemake


def _records(folder):
    return {
        path.parent.name: path.stat().st_mtime_ns
        for path in folder.glob("results/minimal/records/[!.]*/run.json")
    }


def test_killed_interrupted_and_started_again_it_continues(tmp_path):
    folder = tmp_path / "k"
    folder.mkdir()
    copy_workflow(folder)
    fewer = ["--config", "workload={networks: [vit_ti]}", "calibration={batch_sizes: [4]}"]
    command = ["snakemake", "--cores", "all", *MINIMAL, *fewer, "--", "measure"]

    def stopped_after(records, how):
        with open(folder / "out", "w") as out:
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
            deadline = time.monotonic() + 240
            while len(_records(folder)) < records and time.monotonic() < deadline:
                time.sleep(0.2)
            second = snakemake(folder, *MINIMAL, *fewer, "--", "measure")
            process.send_signal(how)
            process.wait(60)
        return second

    second = stopped_after(1, signal.SIGKILL)
    assert second.returncode != 0 and "--unlock" in second.stdout + second.stderr
    before = _records(folder)
    assert 1 <= len(before) < 5
    unlock = snakemake(folder, *MINIMAL, *fewer, "--unlock")
    assert unlock.returncode == 0, unlock.stderr
    stopped_after(len(before) + 1, signal.SIGINT)
    assert len(_records(folder)) > len(before)
    before |= _records(folder)
    done = snakemake(folder, *MINIMAL, *fewer, "--", "measure")
    assert done.returncode == 0, done.stdout + done.stderr
    after = _records(folder)
    assert len(after) == 5, sorted(after)
    assert {run: after[run] for run in before} == before, "a finished run was repeated"
    failed = pd.read_csv(folder / "results/minimal/tables/failed_runs.csv")
    assert set(failed["now"]) <= {"measured"}
    said = set(failed["reason"])
    assert all("ended without a word" in why or why == "interrupted" for why in said), said


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root")
def test_a_full_disk_loses_nothing(tmp_path):
    copy_workflow(tmp_path)
    disk, run = tmp_path / "results", "results/minimal/records/idle-n1"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    try:
        with open(disk / "filler", "wb") as filler:
            filler.write(b"x" * (2 * 1024 * 1024 - 28 * 1024))
        full = snakemake(tmp_path, *MINIMAL, "--", run)
        said = full.stdout + full.stderr
        assert full.returncode != 0 and "the disk is full" in said and "Traceback" not in said
        assert not _records(tmp_path), "nothing half-written"
        (disk / "filler").unlink()
        done = snakemake(tmp_path, *MINIMAL, "--", run)
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(_records(tmp_path)) == {"idle-n1"}
        (row,) = pd.read_csv(disk / "minimal/tables/failed_runs.csv").itertuples()
        assert "the disk is full" in row.reason and row.now == "measured"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


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
            *(f"results/minimal/records/{run}" for run in ("vit_ti-n2-b8-r1", "idle-n1")),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )
    assert done.returncode != 0
    (row,) = pd.read_csv(tmp_path / "results/minimal/tables/failed_runs.csv").itertuples()
    assert row.run == "vit_ti-n2-b8-r1" and row.now == "missing"
    assert row.reason == "the fabric is down (ended with exit code 7)"
    records = {path.name for path in (tmp_path / "results/minimal/records").iterdir()}
    assert records == {"idle-n1"}
