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

from joulecast.campaign.journal import (
    attempt_noted,
    attempts_at,
    settle,
    wait_for_earlier,
)
from joulecast.errors import JoulecastError
from joulecast.records.provenance import physical_host


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


def slurm_says(tmp_path, monkeypatch, script):
    """A scontrol that knows one job, and no sacct."""
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\n{script}\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:/bin")
    return tmp_path / "attempts"


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
    known = f'[ "$4" = 17 ] && echo "JobId=17 Restarts=0 JobState={state} Reason=None"'
    folder = slurm_says(tmp_path, monkeypatch, known)
    _open_attempt(folder, 1, 0.0, host="elsewhere:boot", slurm_job="17")
    reason = settle(folder, "r")[0].reason
    if said is None:
        assert reason is None
    else:
        assert re.search(said, reason)


def test_a_job_that_slurm_has_forgotten_is_over(tmp_path, monkeypatch):
    folder = slurm_says(tmp_path, monkeypatch, "echo Invalid job id specified >&2; exit 1")
    _open_attempt(folder, 1, 0.0, host="elsewhere:boot", slurm_job="17")
    assert "SLURM has forgotten it" in settle(folder, "r")[0].reason


def test_as_long_as_slurm_cannot_be_asked_nothing_is_settled(tmp_path, monkeypatch):
    folder = slurm_says(
        tmp_path, monkeypatch, "echo Unable to contact slurm controller >&2; exit 1"
    )
    _open_attempt(folder, 1, 0.0, host="elsewhere:boot", slurm_job="17")
    assert settle(folder, "r")[0].ended_utc is None


def test_what_an_attempt_says_of_itself_counts_more_than_what_others_took_it_for(tmp_path):
    _open_attempt(tmp_path, 1, 0.0)
    assert settle(tmp_path, "r")[0].reason is not None
    with open(tmp_path / "r.jsonl", "a") as journal:
        journal.write('{"id": "a1", "ended_utc": "2026-01-01T00:01:00+00:00"}\n')
        journal.write('{"id": "a1", "ended_utc": "x", "reason": "killed?", "settled": true}\n')
    (attempt,) = settle(tmp_path, "r")
    assert attempt.reason is None and attempt.ended_utc == "2026-01-01T00:01:00+00:00"


def test_a_job_that_slurm_started_again_does_not_wait_for_itself(tmp_path, monkeypatch):
    again = slurm_says(tmp_path, monkeypatch, 'echo "JobId=17 Restarts=1 JobState=RUNNING"')
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    _open_attempt(again, 1, 0.0, host="elsewhere:boot", slurm_job="17")
    assert "started its job 17 again" in settle(again, "r")[0].reason


def test_a_line_that_was_cut_short_is_passed_over(tmp_path):
    with open(tmp_path / "r.jsonl", "w") as journal:
        journal.write('{"id": "a0", "started_')
    with attempt_noted(tmp_path, "r", tmp_path / "log"):
        pass
    (attempt,) = attempts_at(tmp_path, "r")
    assert attempt.ended_utc and attempt.reason is None


def test_earlier_attempts_are_waited_for_and_later_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.campaign.journal._POLL_S", 0.1)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    _open_attempt(tmp_path, child.pid, psutil.Process(child.pid).create_time())

    class Said(io.StringIO):
        """Lets the other one end once it is waited for."""

        def flush(self):
            if not child.stdin.closed:
                child.stdin.close()
                threading.Thread(target=child.wait).start()

    said = Said()
    with attempt_noted(tmp_path, "r", tmp_path / "log") as own:
        _open_attempt(tmp_path, os.getpid(), psutil.Process().create_time(), id="a2")
        wait_for_earlier(tmp_path, own, said, 600.0)
    assert child.poll() == 0, "it came back before the other had ended"
    assert said.getvalue().count("an earlier attempt still runs on") == 1
