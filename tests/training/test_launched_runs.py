"""Runs from outside: real MPI, and everything that can go wrong with one."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import make_spec

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import Load
from joulecast.measure.training.measure_run import RunLaunch, measure_run
from joulecast.measure.training.ranks import NotFinished, opened_log, run_ranks
from joulecast.runs.observations import observe
from joulecast.runs.provenance import usable_cores
from joulecast.runs.record import read_record
from joulecast.runs.spec import Calibration, RunSpec


def run(spec, tmp_path, **options):
    options = {"timeout_s": 200.0} | options
    measure_run(spec, tmp_path / spec.run, tmp_path / f"{spec.run}.log", **options)
    return read_record(tmp_path / spec.run)


def log_end(tmp_path, name):
    """The last line of a run's log: `done`, or the reason why the run failed."""
    return (tmp_path / f"{name}.log").read_text().splitlines()[-1]


@pytest.mark.long
def test_a_run_that_is_there_is_not_repeated(tmp_path):
    spec = make_spec("once", training={"steps": 1, "precision": "bf16"})
    run(spec, tmp_path, launcher=None)
    before = (tmp_path / "once/run.json").stat().st_mtime_ns
    run(spec, tmp_path, launcher=None)
    assert (tmp_path / "once/run.json").stat().st_mtime_ns == before
    run(spec.model_copy(update={"seed": 8}), tmp_path, launcher=None)
    assert (tmp_path / "once/run.json").stat().st_mtime_ns != before


@pytest.mark.long
def test_training_reaches_a_target_accuracy(tmp_path):
    spec = make_spec(
        "target",
        workload={"network": "lenet5", "image_size": 8},
        training={
            "steps": 200,
            "global_batch_size": 64,
            "target_accuracy": 0.5,
            "evaluate_every": 10,
            "learning_rate": 0.02,
        },
    )
    outcome = run(spec, tmp_path, launcher=None).info.outcome
    assert outcome.reached_target and outcome.accuracy >= 0.5 and outcome.steps < 200


def test_more_ranks_than_cores_are_refused_without_emulation(tmp_path):
    ranks = usable_cores() + 1
    with pytest.raises(JoulecastError, match="would measure time sharing"):
        run(make_spec("crowd", ranks), tmp_path)
    why = log_end(tmp_path, "crowd")
    assert why.startswith("error: ") and "would measure time sharing" in why
    assert "nodes_per_core" in why and not (tmp_path / "crowd").exists()


def test_no_launcher(tmp_path):
    with pytest.raises(JoulecastError, match="no `mpirunner` on the PATH"):
        run(make_spec("r", 2), tmp_path, launcher="mpirunner --fast")
    with pytest.raises(JoulecastError, match="2 ranks need an MPI launcher"):
        run(make_spec("r", 2), tmp_path, launcher=None)
    assert not (tmp_path / "r").exists()


def test_singletons_instead_of_one_job_are_recognised(tmp_path):
    """What `srun --mpi=none` does: every process believes to be alone."""
    fake = tmp_path / "singles"
    fake.write_text('#!/bin/sh\nshift 2\n"$@" && "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(JoulecastError):
        run(make_spec("alone", 2), tmp_path, launcher=str(fake))
    assert "has 1 ranks, the specification 2" in log_end(tmp_path, "alone")


def test_only_attempts_of_this_host_are_deleted(tmp_path):
    """An attempt on another host may go on, as after Snakemake was killed and started again."""
    killed = tmp_path / f".r-scratch-a@{socket.gethostname()}"
    running = tmp_path / ".r-scratch-b@another"
    killed.mkdir()
    running.mkdir()
    with pytest.raises(JoulecastError):
        run(make_spec("r", 2), tmp_path, launcher="mpirunner")
    assert running.is_dir() and not killed.exists()


def test_the_wrong_number_of_hosts_is_recognised(tmp_path):
    spec = make_spec("hosts", 2)
    spec = spec.model_copy(update={"platform": spec.platform.model_copy(update={"hosts": None})})
    with pytest.raises(JoulecastError):
        run(spec, tmp_path)
    assert "on 1 hosts, 2 were requested" in log_end(tmp_path, "hosts")


def _ranks(folder):
    """Ranks whose record is to lie in a folder: others may be measured at the same time, or wait to be."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        ours = any(word.startswith(str(folder)) for word in words)
        if "joulecast.measure.training" in words and "python" in Path(words[0]).name and ours:
            found.append(process)
    return found


def _kill_a_rank_once_training(log, how):
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if log.is_file() and "step " in log.read_text():
            victim = max(_ranks(log.parent), key=lambda p: p.pid)
            victim.send_signal(how)
            return
        time.sleep(0.1)


@pytest.mark.long
def test_a_rank_that_dies_fails_the_run(tmp_path):
    long = make_spec("dies", 2, training={"steps": 100_000})
    log = tmp_path / "dies.log"
    killer = threading.Thread(target=_kill_a_rank_once_training, args=(log, signal.SIGKILL))
    killer.start()
    with pytest.raises(JoulecastError, match="exit code"):
        run(long, tmp_path)
    killer.join()
    assert log_end(tmp_path, "dies").startswith("error: ")
    assert not (tmp_path / "dies").exists() and not list(tmp_path.glob(".dies*"))
    assert not _ranks(tmp_path), "no rank is left behind"


def _kill_the_sampler_once_training(log):
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for rank in _ranks(log.parent) if log.is_file() and "step " in log.read_text() else ():
            with suppress(psutil.Error):
                for child in rank.children():
                    if "joulecast.measure.power.sampler" in child.cmdline():
                        child.kill()
                        return
        time.sleep(0.05)


@pytest.mark.long
def test_a_killed_sampler_costs_the_energy_and_not_the_times(tmp_path):
    log = tmp_path / "dark.log"
    killer = threading.Thread(target=_kill_the_sampler_once_training, args=(log,))
    killer.start()
    record = run(make_spec("dark", training={"steps": 150}), tmp_path, launcher=None)
    killer.join()
    row = observe(record)
    assert set(record.stages["step"]) == set(range(150)) and row["t_computing_s"] > 0
    assert row["energy_j"] != row["energy_j"] and row["energy_source"] is None
    assert "the power sampler was ended by SIGKILL" in row["why_no_energy"]
    assert log_end(tmp_path, "dark") == "done"


def test_a_run_that_hangs_is_ended(tmp_path):
    with pytest.raises(JoulecastError, match=r"not finished after 5 s.*run_timeout_s"):
        run(_sleeping("hangs", 1), tmp_path, timeout_s=5, launcher=None)
    assert not _ranks(tmp_path)


STARTER = (
    "import sys; from pathlib import Path; from joulecast.runs.spec import RunSpec;"
    "from joulecast.measure.training.measure_run import measure_run; out = Path(sys.argv[2]);"
    "measure_run(RunSpec.model_validate_json(sys.argv[1]), out, out.with_suffix('.log'))"
)


def _sleeping(name, ranks):
    """A run whose last rank sleeps for long, and loads no torch."""
    sleeping = {"kind": "sleeping_rank", "workload": None, "training": None}
    sleeping |= {"calibration": Calibration(seconds=1000)}
    return RunSpec.model_validate(make_spec(name, ranks).model_dump() | sleeping)


def _started(tmp_path):
    """A starter whose two ranks sleep for long, and they, once they have begun."""
    spec = _sleeping("first", 2)
    command = [sys.executable, "-c", STARTER, spec.model_dump_json(), str(tmp_path / "first")]
    starter = subprocess.Popen(command)
    while not list(tmp_path.glob(".first-scratch-*/*.samples")):
        assert starter.poll() is None, "see its log"
        time.sleep(0.05)
    return starter, spec, _ranks(tmp_path)


def _is_gone(process):
    with suppress(psutil.Error):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("victim", ["starter", "launcher", "all but a stopped rank"])
def test_nothing_is_left_of_what_is_killed_and_the_next_start_measures(tmp_path, victim):
    """A rank that is left would wait for the other one, and hold the machine, for ever."""
    starter, spec, ranks = _started(tmp_path)
    below = psutil.Process(starter.pid).children(recursive=True)
    launcher = below[0]
    if victim == "starter":
        starter.kill()
    elif victim == "launcher":
        launcher.kill()
    else:
        ranks[0].suspend()
        for process in (starter, *below):
            if process.pid != ranks[0].pid:
                with suppress(psutil.Error):
                    process.kill()
    starter.wait(60)
    deadline = time.monotonic() + 20
    while not all(map(_is_gone, below)):
        assert time.monotonic() < deadline, [p for p in below if not _is_gone(p)]
        time.sleep(0.1)
    assert not (tmp_path / "first").exists()
    if "rank" not in victim:
        return
    shorter = spec.model_copy(update={"calibration": Calibration(seconds=0.3)})
    assert run(shorter, tmp_path).info.spec == shorter
    assert not list(tmp_path.glob(".first-*")), "no scratch is left"


def test_a_launcher_that_never_ends_is_ended_with_all_that_it_started(tmp_path):
    with open(tmp_path / "lock", "w") as lock, opened_log(tmp_path / "log") as log:
        rest = dict(os.environ), tmp_path / "job.json", log, lock.fileno()
        with pytest.raises(NotFinished):
            run_ranks(["sh", "-c", "sleep 1000 & sleep 1000"], *rest, 1.0)
        assert run_ranks(["true"], *rest, 50.0) == (0, None)


def test_no_shell_sees_a_name(tmp_path):
    spec = make_spec("x; touch /tmp/owned")
    command = RunLaunch(spec, "mpiexec -l").command(
        tmp_path / "a b.json", tmp_path / "$(id)", Load(0.0)
    )
    assert command[1:4] == ["-l", "-n", "1"] and str(tmp_path / "$(id)") in command


def test_srun_is_told_how_to_spread_the_ranks(tmp_path, monkeypatch):
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = make_spec("x", 2).model_copy(update={"ranks_per_node": 4, "threads_per_rank": 3})
    spec = spec.model_copy(update={"platform": spec.platform.model_copy(update={"hosts": None})})
    launch = RunLaunch(spec, "srun --mpi=pmix", 2, "env A=1 python")
    words = launch.command(tmp_path / "s", tmp_path / "o", Load(0.0))
    assert words[:2] == ["srun", "--mpi=pmix"] and words[5:10] == [
        "-n",
        "8",
        "env",
        "A=1",
        "python",
    ]
    assert set(words[2:5]) == {"--ntasks-per-node=4", "--cpu-bind=none", "--kill-on-bad-exit=1"}
