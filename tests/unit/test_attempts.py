"""The journal of attempts: what is told of runs that ended, however they ended."""

import io
import json
import os
import re
import subprocess
import sys
import threading

import psutil
import pytest

from joulecast.attempts import attempt_noted, attempts_at, settle, wait_for_others
from joulecast.errors import JoulecastError
from joulecast.provenance import physical_host


def _open_attempt(folder, pid, started_s, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    line = {
        "id": "a1",
        "started_utc": "2026-01-01T00:00:00+00:00",
        "host": physical_host(),
        "pid": pid,
        "process_started_s": started_s,
    }
    with open(folder / "r.jsonl", "a") as journal:
        journal.write(json.dumps(line | changes) + "\n")


def test_a_run_that_ends_by_itself(tmp_path):
    log = tmp_path / "log"
    log.write_text("of an earlier attempt\n")
    with attempt_noted(tmp_path, "r", log):
        assert attempts_at(tmp_path, "r")[0].ended_utc is None
    with pytest.raises(JoulecastError), attempt_noted(tmp_path, "r", log):
        with open(log, "a") as file:
            file.write("step 1\n")
        raise JoulecastError("run r: the fabric is down")
    good, bad = attempts_at(tmp_path, "r")
    assert good.ended_utc and good.reason is None
    assert bad.reason == "run r: the fabric is down" and bad.log == ["step 1"]


def test_a_killed_process_is_told_from_one_that_works(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _open_attempt(tmp_path, child.pid, psutil.Process(child.pid).create_time())
    assert settle(tmp_path, "r")[0].ended_utc is None
    child.kill()
    child.wait()
    assert "ended without a word" in settle(tmp_path, "r")[0].reason
    assert settle(tmp_path, "r") == attempts_at(tmp_path, "r"), "it is written down once"


def test_another_process_of_the_same_number_is_not_it(tmp_path):
    _open_attempt(tmp_path, os.getpid(), psutil.Process().create_time() - 500)
    assert settle(tmp_path, "r")[0].reason is not None


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("RUNNING", None),
        ("TIMEOUT", "killed by its time limit"),
        ("NODE_FAIL", "a node of its job went down"),
        ("OUT_OF_MEMORY", "mem_mb"),
        ("FAILED", "ended without a word.*SLURM says FAILED"),
    ],
)
def test_slurm_is_asked_for_what_nobody_could_write(tmp_path, monkeypatch, state, said):
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        f'#!/bin/sh\n[ "$4" = 17 ] && echo "JobId=17 JobState={state} Reason=None"\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    _open_attempt(tmp_path / "attempts", 1, 0.0, host="elsewhere:boot", slurm_job="17")
    reason = settle(tmp_path / "attempts", "r")[0].reason
    if said is None:
        assert reason is None
    else:
        assert re.search(said, reason)


def test_a_job_that_slurm_started_again_does_not_wait_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    _open_attempt(tmp_path, 1, 0.0, host="elsewhere:boot", slurm_job="17")
    assert "started its job 17 again" in settle(tmp_path, "r")[0].reason


def test_a_line_that_was_cut_short_is_passed_over(tmp_path):
    with open(tmp_path / "r.jsonl", "w") as journal:
        journal.write('{"id": "a0", "started_')
    with attempt_noted(tmp_path, "r", tmp_path / "log"):
        pass
    (attempt,) = attempts_at(tmp_path, "r")
    assert attempt.ended_utc and attempt.reason is None


def test_an_attempt_that_outlived_its_starter_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.attempts._POLL_S", 0.1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    _open_attempt(tmp_path, child.pid, psutil.Process(child.pid).create_time())
    said = io.StringIO()
    threading.Thread(target=child.wait).start()
    wait_for_others(tmp_path, "r", said)
    assert child.poll() == 0, "it came back before the other had ended"
    assert said.getvalue().count("an earlier attempt goes on on") == 1
