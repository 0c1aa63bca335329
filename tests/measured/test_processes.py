"""What is left of a run when parts of it are killed or stopped: no process, no lock, no shared memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from joulecast.training import processes
from joulecast.training.processes import NotBegun, NotFinished, remove_shared_memory, run_to_end

# Rank 0 never arrives, rank 1 waits for it busily: as when one of two ranks is gone.
SPINNING = """
import sys, time
from joulecast.training.mpi import MPI
if MPI.COMM_WORLD.rank == 0:
    while True:
        time.sleep(1)
MPI.COMM_WORLD.Barrier()
"""
ABORTING = """
from joulecast.training.mpi import MPI
MPI.COMM_WORLD.Barrier()
MPI.COMM_WORLD.Abort(3)
"""
STARTER = """
import os, sys
from pathlib import Path
from joulecast.training.processes import run_to_end
lock = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
run_to_end(sys.argv[3:], dict(os.environ), sys.stderr, lock, Path(sys.argv[1]), timeout_s=600.0)
"""


@pytest.fixture(autouse=True)
def no_shared_memory_left(tmp_path):
    """Where a test kills the starter, only the next attempt at a run would remove it."""
    yield
    remove_shared_memory(tmp_path)


def two_ranks(program):
    return ["mpiexec", "-n", "2", sys.executable, "-c", program]


def until(condition, seconds=60):
    """Wait for what must happen; the time is only for a test that would hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(processes):
    def is_there(process):
        with suppress(psutil.Error):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    return list(filter(is_there, processes))


def begun(scratch):
    return any(scratch.glob("begun-*/begun"))


def shared_memory(scratch):
    names = {path.name.removeprefix("shm.") for path in scratch.glob("begun-*/shm.*")}
    return [Path("/dev/shm", name) for name in names if Path("/dev/shm", name).exists()]


def run(command, scratch, **limits):
    with open(scratch / "lock", "w") as lock, open(scratch / "log", "w") as log:
        return run_to_end(command, dict(os.environ), log, lock.fileno(), scratch, **limits)


class Run:
    """A starter, its launcher, the launcher's proxy and two ranks."""

    def __init__(self, scratch):
        command = [sys.executable, "-c", STARTER, str(scratch), str(scratch / "lock")]
        self.starter = subprocess.Popen([*command, *two_ranks(SPINNING)])
        until(lambda: begun(scratch))
        below = psutil.Process(self.starter.pid).children(recursive=True)
        self.launcher, self.proxy = below[:2]
        self.ranks = [process for process in below[2:] if process.ppid() == self.proxy.pid]
        assert len(self.ranks) == 2 and self.proxy.ppid() == self.launcher.pid

    def kill_all_but(self, rank):
        """Kill starter, proxy, launcher and the other rank, as close together as can be."""
        for process in (self.starter, self.proxy, self.launcher, *self.ranks):
            if process != rank:
                process.send_signal(signal.SIGKILL)
        self.starter.wait()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_rank_ends_with_its_launcher(tmp_path, number, stopped):
    run = Run(tmp_path)
    rank = run.ranks[number]
    if stopped:
        rank.suspend()
    try:
        run.kill_all_but(rank)
        until(lambda: not alive([rank]), 20)
    finally:
        for left in alive([rank]):
            left.kill()


def test_a_rank_whose_launcher_has_threads_watches_it(tmp_path):
    """As a step daemon of SLURM's: the kernel would end the rank with the thread that has started it."""
    launcher = (
        "import subprocess, sys, threading, time\n"
        "thread = threading.Thread(target=subprocess.run, args=(sys.argv[1:],))\n"
        "thread.start(); time.sleep(600)\n"
    )
    waits = "import time; import joulecast.training.mpi; time.sleep(600)"
    starter = [sys.executable, "-c", STARTER, str(tmp_path), str(tmp_path / "lock")]
    ranks = [sys.executable, "-c", launcher, sys.executable, "-c", waits]
    process = subprocess.Popen([*starter, *ranks])
    until(lambda: begun(tmp_path))
    launcher, rank = psutil.Process(process.pid).children(recursive=True)
    try:
        process.kill()
        process.wait()
        time.sleep(2 * processes._LOOK_S)
        assert alive([rank]), "its starter is gone, its launcher is not"
        launcher.kill()
        until(lambda: not alive([rank]), 20)
    finally:
        for left in alive([launcher, rank]):
            left.kill()


def test_a_rank_that_is_stopped_is_killed_some_time_after_the_limit(tmp_path, monkeypatch):
    """Also when no launcher is there that could do it."""
    monkeypatch.setenv("JOULECAST_RUN", str(tmp_path))
    monkeypatch.setenv("JOULECAST_STARTER", str(os.getpid()))
    monkeypatch.setenv("JOULECAST_RUN_LIMIT_S", "1")
    monkeypatch.setattr(processes, "_LATER_S", 0.0)
    code = "from joulecast.training import processes; processes._LATER_S = 0.0; "
    code += "processes.tie_to_launcher(); import os; os.kill(os.getpid(), 19)"
    rank = subprocess.Popen([sys.executable, "-c", code])
    try:
        assert rank.wait(60) == -signal.SIGKILL
    finally:
        rank.kill()


def test_the_limit_ends_a_run_with_a_stopped_rank_and_frees_the_lock(tmp_path, monkeypatch):
    found = []

    def stopped_at_the_limit(process, mark, *limits):
        until((mark / "begun").exists)
        found.extend(processes._marked(mark))
        next(p for p in found if "python" in p.name()).suspend()
        raise subprocess.TimeoutExpired("mpiexec", 1.0)

    monkeypatch.setattr(processes, "_wait", stopped_at_the_limit)
    with pytest.raises(NotFinished):
        run(two_ranks(SPINNING), tmp_path, timeout_s=100.0)
    assert len(found) >= 3 and not alive(found)
    assert not shared_memory(tmp_path)


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path):
    found = []

    def kill():
        until(lambda: begun(tmp_path))
        found.extend(processes._marked(next(tmp_path.glob("begun-*"))))
        for name in ("hydra_pmi_proxy", "mpiexec"):
            next(p for p in found if p.name().startswith(name[:15])).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    assert run(two_ranks(SPINNING), tmp_path, timeout_s=100.0) != 0
    killer.join()
    assert len(found) >= 4 and not alive(found)
    assert not shared_memory(tmp_path)


def test_shared_memory_is_removed_after_an_abort(tmp_path):
    assert run(two_ranks(ABORTING), tmp_path, timeout_s=100.0) != 0
    assert list(tmp_path.glob("begun-*/shm.*")), "MPI opened some, and its name is known"
    assert not shared_memory(tmp_path)


def test_shared_memory_that_is_used_or_not_ours_stays(tmp_path):
    named = tmp_path / "begun-x"
    named.mkdir()
    used = Path(f"/dev/shm/joulecast-test-{os.getpid()}")
    left, link = used.with_name(f"{used.name}-left"), used.with_name(f"{used.name}-link")
    other = used.with_name(f"{used.name}-not-named")
    try:
        for path in (used, left, other):
            path.touch()
        link.symlink_to(tmp_path / "lock")
        for path in (used, left, link):
            (named / f"shm.{path.name}").touch()
        with open(used):
            remove_shared_memory(tmp_path)
        assert [path.is_symlink() or path.exists() for path in (used, left, link, other)] == [
            True,
            False,
            True,
            True,
        ]
        if os.geteuid() == 0:
            os.chown(used, 12345, 12345)
            remove_shared_memory(tmp_path)
            assert used.exists()
    finally:
        for path in (used, left, link, other):
            path.unlink(missing_ok=True)


def test_a_launcher_that_never_starts_its_ranks_is_ended(tmp_path):
    """As `srun`, which may wait for a step that SLURM does not give it."""
    with pytest.raises(NotBegun, match="had not begun after 1 s"):
        run(["sleep", "1000"], tmp_path, timeout_s=100.0, start_timeout_s=1.0)
    with pytest.raises(NotFinished):
        run(["sleep", "1000"], tmp_path, timeout_s=1.0, start_timeout_s=100.0)
    assert run(["true"], tmp_path, timeout_s=100.0, start_timeout_s=50.0) == 0
