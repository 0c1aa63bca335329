"""The machine is held by one measurement at a time, whoever its user and wherever its folders are."""

import os
import signal
import subprocess
import sys
import time

import pytest

from joulecast.campaign.journal import attempt_noted, wait_for_earlier
from joulecast.errors import JoulecastError
from joulecast.training import machine
from joulecast.training.machine import holders, machine_lock

NAME = f"joulecast-test-{os.getpid()}"
HOLDING = f"""
import subprocess, sys, time
from joulecast.training import machine
machine._NAME = {NAME!r}
with machine.machine_lock(sys.stderr) as lock:
    if "child" in sys.argv:
        waits = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", "rank"]
        child = subprocess.Popen(waits, pass_fds=(lock,), stdout=subprocess.PIPE)
        child.stdout.readline()
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_name(monkeypatch):
    """No measurement of this machine is waited for, and none waits for these tests."""
    monkeypatch.setattr(machine, "_NAME", NAME)


@pytest.fixture
def holder():
    """Start a process that holds the machine; what it said until it did."""
    started = []

    def start(*arguments, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDING, *arguments],
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


def refused(log=sys.stderr):
    with pytest.raises(JoulecastError) as error, machine_lock(log, longest_s=0.0):
        pass
    return str(error.value)


def test_two_temporary_folders_are_one_machine(holder, tmp_path):
    process, _ = holder(env={**os.environ, "TMPDIR": str(tmp_path)})
    said = refused()
    assert f"process {process.pid} of " in said and "-c" in said and "end it" in said
    process.send_signal(signal.SIGKILL)
    process.wait()
    with machine_lock(sys.stderr, longest_s=0.0):
        pass


def test_the_wait_ends_with_the_other_measurement_and_names_it(holder, tmp_path):
    process, _ = holder()
    with open(tmp_path / "log", "w+") as log:
        waiter = subprocess.Popen(
            [sys.executable, "-c", HOLDING], stderr=log, stdout=subprocess.PIPE, text=True
        )
        try:
            while "waiting for its end" not in (tmp_path / "log").read_text():
                time.sleep(0.02)
            assert f"process {process.pid} of " in (tmp_path / "log").read_text()
            process.kill()
            assert waiter.stdout.readline() == "held\n"
        finally:
            waiter.kill()
            waiter.wait()


@pytest.mark.parametrize("stopped", [False, True])
def test_what_a_killed_starter_has_left_is_named(holder, stopped):
    starter, (child,) = holder("child")
    if stopped:
        os.kill(int(child), signal.SIGSTOP)
    starter.kill()
    starter.wait()
    try:
        assert f"process {child} of " in refused() and f"process {starter.pid} " not in refused()
        assert f"what process {starter.pid} of " in machine._binder()
    finally:
        os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is taken, which needs root")
def test_another_user_s_measurement_is_waited_for_and_named(holder):
    # Root's modules are not another user's to read: it takes the name without them.
    code = "import os, socket, sys, time; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
    code += f"s = socket.socket(socket.AF_UNIX); s.bind({chr(0) + NAME!r}); s.listen(9);"
    code += "print('held', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code, "a\x1b[2Jname\nerror: all is well"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        for said in (refused(), holders(), machine._binder()):
            assert f"process {process.pid} of nobody" in said
            assert said.isprintable(), "its command is its own text"
    finally:
        process.kill()
        process.wait()


def test_the_wait_for_an_earlier_attempt_is_bounded(tmp_path):
    log = tmp_path / "log"
    with (
        attempt_noted(tmp_path / "attempts", "run0", log),
        attempt_noted(tmp_path / "attempts", "run0", log) as own,
        open(log, "w") as said,
        pytest.raises(JoulecastError, match=rf"still runs on .*process {os.getpid()}.*end it"),
    ):
        wait_for_earlier(tmp_path / "attempts", own, said, longest_s=0.0)
