"""The machine is held by one measurement at a time, whoever its user and wherever its folders are."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from joulecast.errors import JoulecastError
from joulecast.measure.training import machine
from joulecast.measure.training.machine import machine_lock

HOLDING = """
import subprocess, sys, time
from pathlib import Path
from joulecast.measure.training import machine
machine.LOCK_FILE = Path(sys.argv[1])
with machine.machine_lock(sys.stderr) as lock:
    if "child" in sys.argv:
        waits = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
        child = subprocess.Popen(waits, pass_fds=(lock,), stdout=subprocess.PIPE)
        child.stdout.readline()
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def lock_file(monkeypatch, tmp_path):
    """No measurement of this machine is waited for, and none waits for these tests."""
    monkeypatch.setattr(machine, "LOCK_FILE", tmp_path / "lock")
    return tmp_path / "lock"


@pytest.fixture
def holder(lock_file):
    """Start a process that holds the machine; what it said until it did."""
    started = []

    def start(*arguments, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDING, str(lock_file), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        said = []
        for line in process.stdout:
            if line == "held\n":
                break
            said.append(line.strip())
        return process, said

    yield start
    for process in started:
        process.kill()
        process.wait()


def is_free():
    try:
        with machine_lock(sys.stderr, longest_s=0.0):
            return True
    except JoulecastError as error:
        assert "fuser" in str(error)
        return False


def test_a_holder_that_is_killed_leaves_the_machine(holder):
    process, _ = holder()
    assert not is_free()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert is_free()


def test_the_wait_ends_with_the_other_measurement_and_is_told(holder, lock_file, tmp_path):
    process, _ = holder()
    with open(tmp_path / "log", "w+") as log:
        waiter = subprocess.Popen(
            [sys.executable, "-c", HOLDING, str(lock_file)],
            stderr=log,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            while "waiting for its end" not in (tmp_path / "log").read_text():
                time.sleep(0.02)
            process.kill()
            assert waiter.stdout.readline() == "held\n"
        finally:
            waiter.kill()
            waiter.wait()


def test_what_a_killed_starter_has_left_holds_the_machine(holder):
    starter, (child,) = holder("child")
    starter.kill()
    starter.wait()
    assert not is_free()
    os.kill(int(child), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while not is_free():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is taken, which needs root")
def test_another_user_may_hold_it_and_a_link_is_not_followed(monkeypatch, tmp_path):
    code = "import fcntl, os, sys; os.setgid(65534); os.setuid(65534);"
    code += "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    # Beside pytest's folders, which other users may not enter.
    with TemporaryDirectory(dir="/tmp") as for_all:
        Path(for_all).chmod(0o755)
        lock_file = Path(for_all) / "lock"
        monkeypatch.setattr(machine, "LOCK_FILE", lock_file)
        with machine_lock(sys.stderr, longest_s=0.0):
            pass
        assert subprocess.run([sys.executable, "-S", "-c", code, str(lock_file)]).returncode == 0
    lock_file = tmp_path / "lock"
    monkeypatch.setattr(machine, "LOCK_FILE", lock_file)
    lock_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JoulecastError, match="cannot be locked"), machine_lock(sys.stderr):
        pass
    assert not (tmp_path / "elsewhere").exists()
