"""Comparisons of meters: made meters with a known course, noise, period, lag and gain."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from conftest import make_record, make_spec
from typer.testing import CliRunner

from joulecast.cli.main import app
from joulecast.energy.error_summary import evaluate_records
from joulecast.energy.fitting import clean_observations, reader_notes
from joulecast.errors import JoulecastError
from joulecast.power.compare_meters import compared_meters
from joulecast.power.foreign_load import work_of
from joulecast.power.load_course import LoadCourse
from joulecast.power.meters_agree import agreements_of
from joulecast.power.switched_load import SwitchedLoad
from joulecast.records.frames import POWER_COLUMNS
from joulecast.records.meter_comparison import (
    ComparisonRecord,
    MeterComparison,
    read_compared,
    read_comparison,
    write_comparison,
)
from joulecast.records.metering import MeterInfo
from joulecast.records.record import write_record
from joulecast.report.compared_meters import comparison_lines

IDLE_W, LOAD_W = 100.0, 300.0


class Made:
    """A meter that shows a known course of watts: 100 W idle and 300 W under load, times its gain."""

    def __init__(
        self, covers="cpu", *, gain=1.0, noise_w=0.0, every_s=0.0, lag_s=0.0, width_s=0.0, **more
    ):
        self.covers, self.gain, self.noise_w = covers, gain, noise_w
        self.every_s, self.lag_s, self.width_s = every_s, lag_s, width_s
        self.counter = more.pop("counter", False)
        self.load_w = more.pop("load_w", LOAD_W)
        self.stops_s = more.pop("stops_s", np.inf)
        self.info = more

    def readings(self, course, period_s=0.1):
        """Times, watts and joules of readings that are not quite regular."""
        random = np.random.default_rng(7)
        t_s = np.arange(period_s, course.lasts_s, period_s)
        t_s += random.uniform(0, period_s / 20, len(t_s))
        at = np.minimum(t_s, self.stops_s)
        if self.every_s:
            at = np.floor(at / self.every_s) * self.every_s
        if self.counter:
            begin = np.full_like(at, -1.0)
            worked_s = (at + 1) * course.seen(begin, at, self.lag_s, 0.0)
            joules = IDLE_W * (at + 1) + (self.load_w - IDLE_W) * worked_s
            return t_s, np.full_like(t_s, np.nan), self.gain * joules
        watts = IDLE_W + (self.load_w - IDLE_W) * course.seen(at, at, self.lag_s, self.width_s)
        noise = random.normal(0, 1, 10_000)[np.round(at / (self.every_s or period_s)).astype(int)]
        return t_s, self.gain * watts + self.noise_w * noise, np.full_like(t_s, np.nan)


def compared(made, seconds=60.0, loaded=("cpu",), disturbed=False):
    """The record of a comparison of made meters."""
    course = LoadCourse.planned(seconds)
    frames, infos = [], []
    for name, meter in made.items():
        t_s, watts, joules = meter.readings(course)
        rows = {"node": "node01", "meter": name, "t_s": t_s, "watts": watts, "joules": joules}
        frames.append(pd.DataFrame(rows))
        infos.append(
            MeterInfo(
                node="node01",
                meter=name,
                counter=meter.counter,
                covers=meter.covers,
                readings=len(t_s),
                **{"available": True, "source": "measured"} | meter.info,
            )
        )
    power = pd.concat(frames)[list(POWER_COLUMNS)]
    found = compared_meters(infos, power, course, list(loaded), disturbed=disturbed)
    info = MeterComparison(
        host="node01",
        started_utc="2026-01-01T00:00:00+00:00",
        seconds=seconds,
        sample_period_s=0.1,
        spans=list(course.spans),
        loaded=list(loaded),
        meters=[meter for meter, _ in found],
        agreements=agreements_of(found, course),
    )
    return ComparisonRecord(info, power, pd.DataFrame(columns=["node"]))


def figures(meter, seconds=60.0, name="hwmon:x"):
    (found,) = compared({name: meter}, seconds).info.meters
    return found.figures


def test_half_of_the_time_is_idle_and_no_two_loads_are_alike():
    spans = LoadCourse.planned(60.0).spans
    assert sum(s.stop_s - s.start_s for s in spans if s.load) == pytest.approx(30)
    assert [s.load for s in spans] == [False, True] * 3 + [False]
    loads = [round(s.stop_s - s.start_s, 6) for s in spans if s.load]
    assert len({*loads}) == 3


@pytest.mark.parametrize("counter", [False, True])
@pytest.mark.parametrize(
    ("lag_s", "every_s", "noise_w"),
    [(0.0, 0.0, 4.0), (0.6, 0.0, 4.0), (0.3, 0.5, 2.0), (0, 0.25, 0)],
)
def test_level_noise_renewal_and_lag_are_those_of_the_meter(counter, lag_s, every_s, noise_w):
    made = Made(lag_s=lag_s, every_s=every_s, noise_w=noise_w, counter=counter)
    found = figures(made)
    assert found.idle_w == pytest.approx(IDLE_W, rel=0.02)
    assert found.load_w == pytest.approx(LOAD_W, rel=0.02)
    # Where its renewals are not seen, waiting for them is part of its lag.
    unseen_s = 0.0 if found.renewed_s or not every_s else every_s
    assert (
        lag_s - found.lag_uncertainty_s <= found.lag_s <= lag_s + unseen_s + found.lag_uncertainty_s
    )
    assert found.lag_uncertainty_s < 0.5
    if not counter:
        assert found.noise_w == pytest.approx(noise_w, rel=0.3)
    if every_s and (counter or noise_w):
        assert found.renewed_s == pytest.approx(every_s, rel=0.1)
    elif every_s:
        assert found.renewed_s is None and "show how often" in found.why_not["renewed_s"]
    else:
        assert found.renewed_within_s == pytest.approx(0.1, rel=0.1)


def test_a_meter_that_averages_is_settled_before_it_is_judged():
    found = figures(Made(width_s=1.0, noise_w=1.0))
    assert found.averages_over_s == pytest.approx(1.0, rel=0.2)
    assert found.lag_s == pytest.approx(0.5, abs=found.lag_uncertainty_s)
    assert found.load_w == pytest.approx(LOAD_W, rel=0.01)


@pytest.mark.parametrize(
    ("made", "seconds", "why"),
    [
        (
            Made("node", every_s=30.0, noise_w=2.0),
            10.0,
            "too slow for this comparison, or has stopped",
        ),
        (Made("node", every_s=30.0, noise_w=2.0), 60.0, "too slow for this comparison"),
        (Made("node", width_s=60.0, noise_w=2.0), 60.0, "to show a change whole"),
        (Made("node", every_s=1.0, noise_w=2.0), 5.0, "shows nothing of loads as short as"),
    ],
)
def test_of_a_meter_that_is_too_slow_there_is_a_reason_and_no_number(made, seconds, why):
    found = figures(made, seconds)
    assert why in found.why_not["all"] and "compare for" in found.why_not["all"]
    assert found.fault is None
    assert {found.idle_w, found.load_w, found.lag_s, found.averages_over_s} == {None}


def test_a_comparison_that_lasts_as_long_as_was_asked_for_judges_the_slow_meter():
    found = figures(Made("node", width_s=5.0, noise_w=2.0), 40.0)
    asked_s = float(found.why_not["all"].split("compare for ")[1].split()[0])
    assert asked_s < 200
    assert figures(Made("node", width_s=5.0, noise_w=2.0), asked_s).load_w == pytest.approx(
        LOAD_W, rel=0.02
    )


@pytest.mark.parametrize("counter", [False, True])
def test_a_meter_that_freezes_under_the_load_has_failed(counter):
    found = figures(Made(noise_w=2.0, stops_s=25.0, counter=counter))
    assert "stood still for 3" in found.fault and found.load_w is None
    frozen = figures(Made(stops_s=0.0))
    assert "stood still" in frozen.fault


def test_a_meter_that_does_not_follow_covers_something_else():
    record = compared({"hwmon:x": Made(load_w=IDLE_W, noise_w=1.0)})
    assert record.info.meters[0].figures.fault == "does not follow the load"
    assert "covers something else" in "\n".join(comparison_lines(record.info))
    hidden = (
        compared({"hwmon:x": Made(load_w=IDLE_W, noise_w=1.0)}, disturbed=True)
        .info.meters[0]
        .figures
    )
    assert hidden.fault is None and "other programs" in hidden.why_not["lag_s"]
    # Without a load on GPUs their meters are not judged.
    unloaded = compared({"nvml:0": Made("gpu", load_w=IDLE_W, noise_w=1.0)}).info.meters[0].figures
    assert unloaded.fault is None and "no load ran on" in unloaded.why_not["lag_s"]
    assert unloaded.load_w == pytest.approx(IDLE_W, rel=0.02)


def test_a_meter_that_failed_in_mid_run_has_a_reason_and_a_count_and_the_others_are_judged():
    failed = Made(available=False, reason="its counter fell", failed_reads=3)
    record = compared({"rapl:package-0": failed, "hwmon:cpu-0": Made(noise_w=1.0)})
    lines = "\n".join(comparison_lines(record.info))
    assert "rapl:package-0: it failed: its counter fell" in lines and "3 reads failed" in lines
    assert record.info.meters[0].figures.load_w is None
    assert record.info.meters[1].figures.load_w == pytest.approx(LOAD_W, rel=0.02)
    assert record.info.agreements[0].agrees is None


@pytest.mark.parametrize(
    ("gain", "agrees"), [(1.0, True), (1.03, True), (1.12, False), (0.9, False)]
)
def test_meters_of_the_same_parts_agree_within_five_percent(gain, agrees):
    made = {
        "rapl:package-0": Made(counter=True),
        "hwmon:cpu-0": Made(gain=gain, noise_w=5.0, lag_s=0.2),
    }
    (found,) = compared(made).info.agreements
    assert found.relation == "same" and found.agrees is agrees
    assert found.load_percent == pytest.approx(100 * (gain - 1), abs=1.0)
    assert ("hwmon:cpu-0, which covers the same" in (found.why or "")) is not agrees


def test_a_node_holds_the_sum_of_its_parts_and_only_those_that_do_not_overlap():
    parts = {
        "rapl:package-0": Made(counter=True),
        "rapl:package-1": Made(counter=True),
        "rapl:dram-0": Made("memory", counter=True, gain=0.1),
        "hwmon:cpu-0": Made(gain=2.0),
    }
    (holds,) = (
        a
        for a in compared({"redfish": Made("node", gain=2.5, noise_w=5.0)} | parts).info.agreements
        if a.relation == "contains"
    )
    assert holds.agrees and {*holds.others} == {"rapl:package-0", "rapl:package-1", "rapl:dram-0"}
    assert holds.load_percent == pytest.approx(100 * (2.1 / 2.5 - 1), abs=1.0)
    small = compared({"redfish": Made("node", gain=1.5, noise_w=5.0)} | parts).info.agreements
    (holds,) = (a for a in small if a.relation == "contains")
    assert holds.agrees is False and "a part of it" in holds.why


def test_an_estimate_judges_no_meter():
    made = {"command": Made("node"), "estimated": Made("node", gain=3.0, source="estimated")}
    assert compared(made).info.agreements == []


# ---- The record.


def kept(folder, **changes):
    record = compared({"rapl:package-0": Made(counter=True), "hwmon:cpu-0": Made(gain=1.2)})
    activity = pd.DataFrame(
        {
            "node": ["node01"],
            "t_s": [1.0],
            "cpu_utilisation": [0.5],
            "gpu_utilisation": [np.nan],
            "memory_bytes": [1e9],
            "network_bytes_per_s": [0.0],
        }
    )
    info = record.info.model_copy(update=changes)
    write_comparison(folder, ComparisonRecord(info, record.power, activity))
    return folder


def test_a_comparison_is_read_as_it_was_written_and_no_other_way(tmp_path):
    folder = kept(tmp_path / "node01-1")
    record = read_compared(folder)
    assert len(record.power) and record.info.agreements[0].agrees is False
    content = json.loads((folder / "comparison.json").read_text())
    for wrong, why in (
        ({"format": 9}, "format 9"),
        ({"spans": content["spans"][::-1]}, "does not follow"),
        ({"meters": []}, "was not compared"),
        ({"seconds": -1}, "seconds"),
    ):
        (folder / "comparison.json").write_text(json.dumps(content | wrong))
        with pytest.raises(JoulecastError, match=why) as error:
            read_comparison(folder)
        assert f"delete {folder}" in str(error.value) and "\n" not in str(error.value)
    (folder / "comparison.json").write_text(json.dumps(content))
    record.power.assign(watts=1.0).to_parquet(folder / "power.parquet", index=False)
    with pytest.raises(JoulecastError, match=r"power\.parquet"):
        read_compared(folder)


# ---- Where its findings appear.


def measured_run(folder, number, nodes=1):
    spec = make_spec(
        f"r{number}", repeat=number, seed=number, training={"global_batch_size": 4 * number}
    )
    record = make_record(spec)
    meters = [
        MeterInfo(
            node=node,
            meter="rapl:package-0",
            available=True,
            source="measured",
            counter=True,
            covers="cpu",
        )
        for node in ("node01",)
    ]
    info = record.info.model_copy(
        update={"meters": meters, "nodes": ["node01"], "node_of_rank": ["node01"]}
    )
    power = record.power.assign(node="node01", meter="rapl:package-0")
    write_record(
        folder,
        type(record)(
            info, record.stages, power, record.activity.assign(node="node01"), record.phases
        ),
    )
    return folder


@pytest.fixture
def runs(tmp_path):
    return [measured_run(tmp_path / f"results/records/r{n}", n) for n in (1, 2, 3)]


def test_what_disagrees_is_a_warning_wherever_these_energies_are_used(tmp_path, runs):
    assert reader_notes(clean_observations(runs)[0]) == []
    kept(tmp_path / "results/meters/node01-1")
    (note,) = reader_notes(clean_observations(runs)[0])
    assert "3 of 3 runs" in note and "hwmon:cpu-0" in note and "+20.0 %" in note
    assert note in evaluate_records(runs, "in-sample")["notes"]


def test_the_newest_comparison_counts_and_only_of_that_node_and_its_meters(tmp_path, runs):
    agreed = compared({"rapl:package-0": Made(counter=True), "hwmon:cpu-0": Made()}).info.agreements
    kept(tmp_path / "results/meters/node01-1")
    kept(tmp_path / "results/meters/node02-1", host="node02", agreements=[])
    assert reader_notes(clean_observations(runs)[0])
    kept(
        tmp_path / "results/meters/node01-2",
        started_utc="2026-02-01T00:00:00+00:00",
        agreements=agreed,
    )
    assert reader_notes(clean_observations(runs)[0]) == []


# ---- The command, with a load that only the made meters see, and the load itself.


class Tree:
    """Files of the kernel with RAPL and AMD's counters of one processor, whose watts a load switches."""

    def __init__(self, root: Path, gain: float):
        self.rapl = root / "class/powercap/intel-rapl:0"
        self.amd = root / "class/hwmon/hwmon0"
        for folder in (self.rapl, self.amd):
            folder.mkdir(parents=True)
        (self.rapl / "name").write_text("package-0")
        (self.rapl / "max_energy_range_uj").write_text(str(2**40))
        (self.amd / "name").write_text("amd_energy")
        (self.amd / "energy1_label").write_text("Esocket0")
        self.gain, self.watts, self.joules, self.last_s = gain, IDLE_W, 1.0, time.monotonic()
        self.lock, self.over = threading.Lock(), threading.Event()
        self.count()
        self.thread = threading.Thread(target=self.keep_counting)
        self.thread.start()

    def count(self):
        with self.lock:
            now_s = time.monotonic()
            self.joules += self.watts * (now_s - self.last_s)
            self.last_s = now_s
            for file, gain in (
                (self.rapl / "energy_uj", 1.0),
                (self.amd / "energy1_input", self.gain),
            ):
                aside = file.with_name("aside")
                aside.write_text(str(int(1e6 * gain * self.joules)))
                aside.replace(file)

    def keep_counting(self):
        while not self.over.wait(0.005):
            self.count()

    def end(self):
        self.over.set()
        self.thread.join()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    made = Tree(tmp_path / "sys", gain=1.4)

    class Load:
        loaded, remarks, pids = ["cpu"], [], ()

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def switch(self, *, on):
            made.count()
            made.watts = LOAD_W if on else IDLE_W

        def check(self):
            pass

    monkeypatch.setattr("joulecast.power.compare_meters.SwitchedLoad", Load)
    yield tmp_path
    made.end()


def configuration(folder, **power):
    file = folder / "c.yaml"
    power = {"sysfs_root": str(folder / "sys"), "sample_period_s": 0.02} | power
    file.write_text(yaml.safe_dump({"power": power, "results": str(folder / "results")}))
    return str(file)


def test_the_command_finds_the_gain_of_a_meter_and_keeps_all(tree):
    words = [
        "meters",
        "--compare",
        "5",
        "--config",
        configuration(tree, meters=["rapl", "hwmon"]),
        "--json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    record = read_compared(Path(shown["folder"]))
    assert Path(shown["folder"]).parent == tree / "results/meters"
    assert {"rapl:package-0", "hwmon:cpu-0"} == {*record.power["meter"]}
    (agreement,) = record.info.agreements
    # On a machine that is busy with other things, the meters may be read too rarely to be judged.
    assert agreement.agrees is not True, record.info
    joules = record.power.groupby("meter")["joules"].max()
    assert joules["hwmon:cpu-0"] == pytest.approx(1.4 * joules["rapl:package-0"], rel=0.1)


def test_without_a_meter_it_says_so_in_one_line(tmp_path):
    words = [
        "meters",
        "--compare",
        "5",
        "--config",
        configuration(tmp_path, meters=["rapl", "estimated"]),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.stdout.count("\n") == 1
    assert "no meter to compare" in done.stdout and "`joulecast meters`" in done.stdout
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "words", [["--compare", "0.5"], ["--json"], ["--out", "x"], ["--compare", "nan"]]
)
def test_what_cannot_be_compared_is_refused(words):
    done = CliRunner().invoke(app, ["meters", *words])
    assert done.exit_code != 0 and "--compare" in done.output


def test_the_load_works_when_it_is_told_to_and_ends_with_its_program():
    with SwitchedLoad() as load:
        pids = load.pids
        assert pids and load.loaded[0] == "cpu"

        def worked_s():
            return work_of(pids)

        def until_it_worked(for_s):
            begin, give_up_s = worked_s(), time.monotonic() + 60
            while worked_s() < begin + for_s:
                assert time.monotonic() < give_up_s
                time.sleep(0.02)

        load.switch(on=True)
        until_it_worked(0.2)
        load.switch(on=False)
        give_up_s, before = time.monotonic() + 60, -1.0
        while (now := worked_s()) > before:
            assert time.monotonic() < give_up_s
            before = now
            time.sleep(0.3)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_interrupt_ends_the_load_and_leaves_nothing(tmp_path):
    made = Tree(tmp_path / "sys", gain=1.0)
    words = [sys.executable, "-c", "from joulecast.cli.main import app; app()"]
    words += ["meters", "--compare", "600", "--config", configuration(tmp_path, meters=["rapl"])]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that starts the tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert "comparing rapl:package-0" in process.stderr.readline()

        def group():
            found = subprocess.run(
                ["pgrep", "-g", str(process.pid)], capture_output=True, text=True
            ).stdout.split()
            return {int(pid) for pid in found}

        give_up_s = time.monotonic() + 60
        while len(group()) < 3:
            assert time.monotonic() < give_up_s and process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=180)
    finally:
        made.end()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    while group():  # what it had just started sees its end
        assert time.monotonic() < give_up_s + 60
        time.sleep(0.05)
    assert not (tmp_path / "results").exists()
