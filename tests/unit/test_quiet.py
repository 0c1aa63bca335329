"""Other programs on the machine: seen, named, waited for; what they disturb is marked and measured again."""

import io
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
from conftest import make_record, make_spec
from test_progress import done as keep
from test_tables import PUBLISHED

from joulecast.energy.campaign_fit import disturbance_notes, fit_campaign
from joulecast.energy.forecast import forecast
from joulecast.energy.request import Scales
from joulecast.errors import JoulecastError
from joulecast.measure.power import other_load
from joulecast.measure.power.other_load import Load, Programs, work_of
from joulecast.measure.power.samples import SamplerFacts, Samples
from joulecast.measure.run_record import SampledHost, load_during, standstills
from joulecast.measure.training import machine
from joulecast.measure.training.measure_run import RunLaunch, measure_run
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.left_out import runs_to_fit, used
from joulecast.runs.record import read_info, write_record

BUSY = Load(1.7, ("stress-ng",))
IDLE = Load(0.1)
BURNER = "while True: pass"


@pytest.fixture(autouse=True)
def own_machine(monkeypatch, tmp_path):
    """No measurement of this machine is waited for."""
    monkeypatch.setattr(machine, "LOCK_FILE", tmp_path / "lock")


@pytest.fixture
def burner(tmp_path):
    """A program that works as much as it is let, from a script with a name of its own."""
    script = tmp_path / "burner_of_this_test.py"
    script.write_text(BURNER)
    process = subprocess.Popen([sys.executable, str(script)])
    yield process
    process.kill()
    process.wait()


def see(monkeypatch, *loads):
    """Have the machine be as busy as ``loads`` say, look by look; the last one stays."""
    left = list(loads)

    def load_now(*_, **__):
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(machine, "load_now", load_now)


def test_a_program_that_works_is_named_by_its_script(burner, monkeypatch):
    monkeypatch.setattr(other_load, "NAMED_CORES", 0.0)
    monkeypatch.setattr(other_load, "MOST_NAMES", 1000)
    programs = Programs()
    deadline = time.monotonic() + 60
    while (named := programs.busiest()) is not None and time.monotonic() < deadline:
        if any("burner_of_this_test.py" in name for name in named):
            break
        time.sleep(0.1)
    assert any("burner_of_this_test.py" in name for name in named)
    assert not any("burner_of_this_test.py" in name for name in programs.busiest([burner.pid]))


def test_own_work_includes_that_of_children():
    started = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", started]) as parent:
        deadline = time.monotonic() + 60
        try:
            while work_of([parent.pid]) < 0.5 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert work_of([parent.pid]) >= 0.5
        finally:
            for child in psutil.Process(parent.pid).children():
                child.kill()


def test_the_wait_ends_with_the_other_program_and_says_for_whom(monkeypatch):
    log = io.StringIO()
    see(monkeypatch, BUSY, BUSY, BUSY, IDLE)
    assert machine.wait_for_quiet(log, 600.0) == IDLE
    (line,) = log.getvalue().splitlines()
    assert "1.7 cores busy (stress-ng)" in line and "waiting up to" in line
    see(monkeypatch, IDLE)
    assert machine.wait_for_quiet(log, 600.0) == IDLE
    assert len(log.getvalue().splitlines()) == 1


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Measure a run without ranks: how often it was started, and its record, for loads and fates."""

    def run(loads, fates, repeats=0):
        see(monkeypatch, *loads)
        started, spec = [], make_spec("run0")

        def record(self, spec_file, folder, load, log, lock):
            fate = fates[len(started)]
            started.append(load)
            if fate is None:
                raise JoulecastError("run run0: no luck")
            made = make_record(spec)
            during = other_load.disturbances(load, Load(fate))
            facts = {"disturbed": during, "load_during": {"busy_cores": fate}}
            write_record(folder, replace(made, info=made.info.model_copy(update=facts)))
            return read_info(folder)

        monkeypatch.setattr(RunLaunch, "record", record)
        measure_run(spec, tmp_path / "r/run0", tmp_path / "log", launcher=None, repeats=repeats)
        return len(started), read_info(tmp_path / "r/run0")

    return run


def test_a_disturbed_run_is_measured_again_when_it_is_quiet(measured):
    times, info = measured([IDLE], [1.2, 0.0], repeats=1)
    assert times == 2 and info.disturbed == [] and info.load_during == {"busy_cores": 0.0}


def test_measuring_again_is_bounded_and_the_least_disturbed_record_is_kept(measured):
    times, info = measured([IDLE], [0.9, 1.2, 1.4], repeats=2)
    assert times == 3 and info.load_during == {"busy_cores": 0.9} and info.disturbed


def test_a_busy_machine_gives_a_marked_record_at_once(measured):
    times, info = measured([BUSY], [1.5], repeats=5)
    assert times == 1
    assert info.disturbed[0] == "other programs kept 1.7 cores busy (stress-ng) before the run"
    assert "during the run" in info.disturbed[1]


def test_a_second_try_that_fails_leaves_the_first_record(measured):
    times, info = measured([IDLE], [1.5, None], repeats=1)
    assert times == 2 and info.disturbed


def _host(host, work, programs=()):
    samples = Samples(SamplerFacts(programs=list(programs)), [], {}, np.array(work, dtype=float).T)
    return SampledHost(host, host, lambda t: t - 100.0, samples)


def _work(machine_cores, own_cores):
    return [[100.0 + k, machine_cores * k, own_cores * k] for k in range(11)]


def test_other_load_is_the_machine_s_work_without_the_run_s_own():
    outcome = make_record(make_spec()).info.outcome.model_copy(update={"start_s": 2, "stop_s": 8})
    alone = load_during([_host("a:1", _work(2.0, 2.0))], outcome)
    assert alone.is_quiet and alone.busy_cores == pytest.approx(0.0, abs=1e-9)
    shared = load_during([_host("a:1", _work(2.0, 1.0), ["make"])], outcome)
    assert shared.busy_cores == pytest.approx(1.0) and shared.programs == ("make",)
    # Two containers of one machine: each sees the work of both.
    both = [_host("a:1", _work(2.0, 1.0)), _host("b:1", _work(2.0, 1.0))]
    assert load_during(both, outcome).is_quiet
    # Two machines, one of them shared with others.
    apart = [_host("a:1", _work(1.0, 1.0)), _host("b:2", _work(3.0, 1.0), ["make"])]
    assert load_during(apart, outcome).busy_cores == pytest.approx(2.0)


def test_a_run_that_was_suspended_is_disturbed():
    outcome = make_record(make_spec()).info.outcome.model_copy(update={"start_s": 2, "stop_s": 8})
    work = _work(1.0, 1.0)
    assert standstills([_host("a:1", work)], outcome, 0.1) == []
    (line,) = standstills([_host("a:1", work), _host("b:2", work[:3] + work[8:])], outcome, 0.1)
    assert "b:2" in line and "6.0 s" in line


WHY = "other programs kept 1.7 cores busy (stress-ng) before the run"


def test_disturbed_runs_count_only_where_nothing_better_is_there(tmp_path):
    folders = [
        keep(tmp_path, make_spec("clean-n1", 1)),
        keep(tmp_path, make_spec("spare-n1", 1, repeat=2), [WHY]),
        keep(tmp_path, make_spec("only-n2", 2), [WHY]),
    ]
    observations = runs_to_fit(folders)
    clean = used(observations)
    assert set(clean["run"]) == {"clean-n1", "only-n2"}
    note = disturbance_notes(observations)[0]
    assert "during 1 of 2 training runs (only-n2)" in note and "joulecast status" in note
    assert disturbance_notes(runs_to_fit(folders[:2])) == []


def test_a_campaign_of_disturbed_runs_alone_ends_with_marked_tables(tmp_path):
    folders = [
        keep(tmp_path, make_spec(f"n{n}", n, training={"steps": 5}), [WHY]) for n in (1, 2, 4)
    ]
    fit = fit_campaign(folders, series_splits=1, series_period_s=1.0)
    write_tables(tmp_path, fit, PublishedErrors.read(PUBLISHED))
    for name in ("time_error", "scaling", "energy_summary"):
        text = (tmp_path / f"{name}.md").read_text()
        assert "other programs were at work during 3 of 3 training runs" in text
    answer = forecast(folders, Scales(nodes=[8]))
    assert len(answer["forecasts"]) == 1 and "3 of 3 training runs" in answer["notes"][0]


def test_own_work_is_no_other_load(monkeypatch):
    worked = iter([10.0, 14.0])
    monkeypatch.setattr(other_load, "machine_work_s", lambda: next(worked))
    times = iter([(1.0, 0, 0, 0), (2.5, 0, 1.0, 0)])
    monkeypatch.setattr(other_load.os, "times", lambda: (*next(times), 0.0))
    clock = iter([0.0, 0.0, 2.0])
    monkeypatch.setattr(other_load.time, "monotonic", lambda: next(clock, 2.0))
    watch = other_load.LoadWatch()
    # The machine worked 4 s in 2 s, this process and its children 2.5 s of that.
    load = watch.load()
    assert load is not None and load.busy_cores == pytest.approx(0.75)


def test_few_cores_are_allowed_to_others(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)))
    assert other_load.allowed_cores() == pytest.approx(2.56)
