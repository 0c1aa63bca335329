"""Campaigns that are killed, and runs that fail, in a private copy of the checkout."""

import json
import os
import signal
import subprocess
import time

from conftest import MINIMAL, copy_workflow, snakemake


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


def test_killed_and_started_again_it_continues(tmp_path):
    folder = tmp_path / "k"
    folder.mkdir()
    copy_workflow(folder)
    fewer = ["--config", "workload={networks: [vit_ti]}", "calibration={batch_sizes: [4]}"]
    command = ["snakemake", "--cores", "all", *MINIMAL, *fewer, "--", "measure"]
    with open(folder / "out", "w") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
        deadline = time.monotonic() + 240
        while len(_records(folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    before = _records(folder)
    assert 2 <= len(before) < 5
    unlock = snakemake(folder, *MINIMAL, *fewer, "--unlock")
    assert unlock.returncode == 0, unlock.stderr
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
            *(f"results/minimal/records/{run}" for run in ("vit_ti-n2-b8-r1", "idle-n1")),
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
    assert records == {"idle-n1"}
