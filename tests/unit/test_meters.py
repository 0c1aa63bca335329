"""Meters on made-up hardware, and the sampler's deadlines."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import make_record, make_spec
from hypothesis import given
from hypothesis import strategies as st
from sampling import column, sampled

from joulecast.energy.observations import observe
from joulecast.errors import JoulecastError
from joulecast.files.blocks import BlockReader
from joulecast.power import nvml, rapl
from joulecast.power.counters import EnergyCounter
from joulecast.power.meters import (
    About,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.power.register import Limits, Register
from joulecast.power.sampler import Sampler, SamplerOrder
from joulecast.power.samples import Left
from joulecast.records.frames import POWER_COLUMNS
from joulecast.records.metering import MeterInfo

RANGE_UJ = 262_143_328_850
HERE = MeteredNodes("host", idle_w=10.0, full_w=30.0)


def domain(root, folder, name, energy=0, wraps_at=1000):
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(str(energy))
    (path / "max_energy_range_uj").write_text(str(wraps_at))
    return path


def test_rapl_undoes_wraps_and_starts_at_zero(tmp_path):
    package = domain(
        tmp_path, "intel-rapl:0", "package-0", energy=RANGE_UJ - 100, wraps_at=RANGE_UJ
    )
    (meter,) = rapl.open_meters(HERE, tmp_path)
    assert meter.read() == Reading(None, 0)
    (package / "energy_uj").write_text("100")
    assert meter.read().joules == pytest.approx(201e-6)
    (package / "energy_uj").write_text("nonsense")
    with pytest.raises(ReadFailed):
        meter.read()


def test_rapl_never_takes_overlapping_domains(tmp_path):
    domain(tmp_path, "intel-rapl:0", "package-0")
    domain(tmp_path, "intel-rapl:0:0", "core")
    domain(tmp_path, "intel-rapl:0:1", "dram")
    domain(tmp_path, "intel-rapl:1", "package-1")
    names = [m.name for m in rapl.open_meters(HERE, tmp_path)]
    assert names == ["rapl:package-0", "rapl:dram-0", "rapl:package-1"]
    domain(tmp_path, "intel-rapl:2", "psys")
    assert [m.name for m in rapl.open_meters(HERE, tmp_path)] == ["rapl:psys"]


def test_rapl_says_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(MeterUnavailable, match="no powercap domain"):
        rapl.open_meters(HERE, tmp_path)
    domain(tmp_path, "intel-rapl:0", "package-0")

    def denied(*args):
        raise PermissionError

    monkeypatch.setattr(rapl, "RaplMeter", denied)
    with pytest.raises(MeterUnavailable, match="root only") as missing:
        rapl.open_meters(HERE, tmp_path)
    assert "chgrp" in missing.value.remedy


class FakeNvml:
    """The part of pynvml that the meter uses; one GPU."""

    NVML_SUCCESS = 0

    class NVMLError(Exception):
        pass

    def __init__(self, counter=True, instant=True):
        self.counter, self.instant, self.energy_mj = counter, instant, 5000

    def nvmlDeviceGetUUID(self, device):  # noqa: N802
        return b"GPU-1"

    def nvmlDeviceGetTotalEnergyConsumption(self, device):  # noqa: N802
        if not self.counter:
            raise self.NVMLError("not supported")
        return self.energy_mj

    def nvmlDeviceGetFieldValues(self, device, fields):  # noqa: N802
        assert fields == [157]
        code = 0 if self.instant else 3
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=250_000))]

    def nvmlDeviceGetPowerUsage(self, device):  # noqa: N802
        return 200_000


def test_nvml_counts_first_and_falls_back_openly():
    fake = FakeNvml()
    meter = nvml.NvmlMeter(fake, None, 0, "host")
    fake.energy_mj = 7500
    assert meter.read() == Reading(250.0, 2.5) and meter.counter and meter.name == "nvml:0"
    power_only = nvml.NvmlMeter(FakeNvml(counter=False), None, 1, "host")
    assert power_only.read() == Reading(250.0, None) and not power_only.counter
    average = nvml.NvmlMeter(FakeNvml(counter=False, instant=False), None, 2, "host")
    assert average.read() == Reading(200.0, None) and average.name == "nvml:2:average"
    fake.counter = False
    with pytest.raises(ReadFailed):
        meter.read()


def test_nvml_says_what_a_figure_is_of():
    fake = FakeNvml()
    assert About.of(nvml.NvmlMeter(fake, None, 0, "host")) == About(covers="gpu")
    fake.nvmlDeviceGetName = lambda device: b"NVIDIA GH200 480GB"
    assert "the whole module" in About.of(nvml.NvmlMeter(fake, None, 0, "host")).remark
    fake.nvmlDeviceGetName = lambda device: "NVIDIA H100 80GB HBM3"
    fake.nvmlDeviceGetMigMode = lambda device: [0, 0]
    assert About.of(nvml.NvmlMeter(fake, None, 0, "host")).remark is None
    fake.nvmlDeviceGetMigMode = lambda device: [1, 1]
    assert "MIG slices" in About.of(nvml.NvmlMeter(fake, None, 0, "host")).remark


class FlakyMeter:
    """Fails every third read."""

    node, name, source, counter, identity = "host", "flaky", "measured", False, None

    def __init__(self, slow_s=0.0):
        self.reads, self.slow_s = 0, slow_s
        self.enough, self.stop = 0, threading.Event()

    def read(self):
        self.reads += 1
        if self.reads >= self.enough:
            self.stop.set()
        time.sleep(self.slow_s)
        if self.reads % 3 == 0:
            raise ReadFailed("now and then")
        return Reading(42.0, None)


def run_sampler(monkeypatch, meter, period, reads):
    """Sample until the meter has been read so often, however long a busy machine takes for it."""
    monkeypatch.setattr("joulecast.power.sampler.METERS", {"flaky": lambda nodes: [meter]})
    meter.enough = reads
    return sampled(SamplerOrder(("flaky",), period, HERE), meter.stop)


def test_failed_reads_are_missing_and_never_zero(monkeypatch):
    samples = run_sampler(monkeypatch, FlakyMeter(), 0.02, 15)
    assert samples.meters[0]["failed"] >= 5
    assert set(column(samples, "flaky", "watts")) == {42.0}


def test_deadlines_are_absolute_and_missed_ones_are_not_made_up_for(monkeypatch):
    samples = run_sampler(monkeypatch, FlakyMeter(slow_s=0.05), 0.04, 16)
    times = column(samples, "flaky", "t_s")
    assert samples.missed_deadlines >= 5
    # Never two reads in one period: the sleep is towards a deadline, not a period after the last.
    assert np.diff(times[:-1]).min() >= 0.04


def test_sampler_process_gives_energy_of_every_node(tmp_path):
    nodes = MeteredNodes("host", {"host/0": [os.getpid()]}, 1.0, 10.0, 30.0)
    sampler = Sampler(SamplerOrder(("rapl", "estimated"), 0.05, nodes), tmp_path / "samples")
    sampler.wait_until_begun()
    time.sleep(0.5)
    samples = sampler.stop().samples()
    joules = column(samples, "estimated", "joules")
    assert joules == sorted(joules) and joules[-1] > 0
    assert set(samples.activity) == {"host/0"}


def test_a_killed_sampler_leaves_what_it_read_and_the_reason(tmp_path):
    sampler = Sampler(SamplerOrder(("rapl", "estimated"), 0.05, HERE), tmp_path / "samples")
    sampler.wait_until_begun()
    reader = BlockReader(tmp_path / "samples")
    while not list(reader.new()):
        time.sleep(0.05)
    sampler._process.send_signal(signal.SIGKILL)
    samples = sampler.stop().samples()
    assert samples.died == "the power sampler was ended by SIGKILL"
    assert [meter["meter"] for meter in samples.meters] == ["estimated"]
    assert samples.readings[0].size and samples.activity["host"].size and samples.span_s


def test_a_sampler_that_never_read_gives_reasons_for_all_its_meters(tmp_path):
    sampler = Sampler(SamplerOrder(("rapl", "estimated"), 0.05, HERE), tmp_path / "samples")
    sampler._process.kill()
    samples = sampler.stop().samples()
    assert [row["meter"] for row in samples.absent] == ["rapl", "estimated"]
    assert {row["reason"] for row in samples.absent} == {samples.died}


def test_a_sampler_needs_a_place_for_its_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JoulecastError, match="samples cannot be written there"):
        Sampler(SamplerOrder(("rapl",), 0.05, HERE), tmp_path / "file/samples")


def test_sampler_ends_with_its_rank(tmp_path):
    order = asdict(SamplerOrder((), 0.05, HERE))
    process = subprocess.Popen(
        [sys.executable, "-m", "joulecast.power.sampler", str(tmp_path / "samples")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.close()
    assert process.wait(300) == 0
    assert Left(tmp_path / "samples", ()).samples().died is None


class Broken:
    """A meter with a fault of its own."""

    node, name, source, counter, identity = "host", "broken", "measured", True, None

    def read(self):
        raise ZeroDivisionError("in the driver")


def test_any_fault_of_a_meter_is_that_meters(monkeypatch):
    good = FlakyMeter()
    good.enough = 5

    def raises(nodes):
        raise OSError("no bus")

    kinds = {"flaky": lambda nodes: [Broken(), good], "rapl": raises}
    monkeypatch.setattr("joulecast.power.sampler.METERS", kinds)
    samples = sampled(SamplerOrder(("flaky", "rapl"), 0.02, HERE), good.stop)
    broken, flaky = samples.meters
    assert broken["fault"] == "its reading failed (ZeroDivisionError: in the driver)"
    assert flaky["fault"] is None and len(column(samples, "flaky", "t_s")) >= 3
    assert "no bus" in samples.absent[0]["reason"]


JOULE = 1_000_000
LIMITS = Limits(least_w=1e-3, most_w=1500.0, renewed_s=0.001, moves_within_s=2.0)
FAULTS = {
    "creeps": lambda k, uj: 200_000 * JOULE + k // 4,
    "jumps a little": lambda k, uj: uj + 170 * JOULE * (k // 10),
    "restarts": lambda k, uj: uj if k < 5 else uj - 200_000 * JOULE,
    "goes back by a microjoule": lambda k, uj: uj if k != 5 else uj - 5 * JOULE - 1,
    "stops": lambda k, uj: uj if k < 2 else 200_007 * JOULE,
    "never moves": lambda k, uj: 200_000 * JOULE,
    "jumps": lambda k, uj: uj if k < 5 else uj + 20_000 * JOULE,
    "falls below its first": lambda k, uj: uj if k < 5 else uj - 200_000 * JOULE + 1,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wraps_after", [RANGE_UJ, None])
def test_a_counter_with_a_fault_is_believed_no_longer(fault, wraps_after):
    """50 W, read every 0.1 s; the counter begins at 200 kJ."""
    register = Register(
        FAULTS[fault](0, 200_000 * JOULE),
        0.0,
        unit_j=1e-6,
        limits=LIMITS,
        wraps_after=wraps_after,
    )

    def read(k):
        return register.joules(FAULTS[fault](k, 200_000 * JOULE + 5 * JOULE * k), k / 10, k / 10)

    with pytest.raises(MeterFailed, match="counter"):
        for k in range(1, 50):
            assert 0 <= read(k) <= 5.0 * k + 7


@given(
    watts=st.lists(st.floats(0.01, 1400), min_size=1, max_size=60),
    first=st.integers(0, RANGE_UJ),
    every_s=st.floats(0.02, 20),
)
def test_a_sound_counter_is_believed_through_all_its_wraps(watts, first, every_s):
    register = Register(
        first,
        0.0,
        unit_j=1e-6,
        limits=LIMITS,
        wraps_after=RANGE_UJ,
    )
    counted = 0
    for k, drawn in enumerate(watts, 1):
        counted += int(drawn * every_s * 1e6)
        count = (first + counted) % (RANGE_UJ + 1)
        read = register.joules(count, k * every_s, k * every_s)
    assert read == pytest.approx(counted / 1e6)


def test_a_wrap_that_cannot_be_distinguished_a_restart_is_neither():
    """65 kJ wrap after 44 s at 1,500 W: who reads it after 60 s knows nothing."""
    register = Register(0, 0.0, unit_j=1e-6, limits=LIMITS, wraps_after=65_532_610_987)
    with pytest.raises(MeterFailed, match=r"not read for 60 s, in which .* wrapped unseen"):
        register.joules(59_000_000_000, 60.0, 60.0)


def test_a_fault_costs_the_energy_of_the_training_that_it_lies_in_and_of_no_other():
    fake = FakeNvml()
    counter = EnergyCounter([nvml.NvmlMeter(fake, None, 0, "host")], None)
    first = counter.begin()
    fake.energy_mj = 10
    assert counter.read() is None, "it restarted"
    fake.energy_mj = 60
    joules, why = counter.between(first, counter.read())
    assert joules is None and "nvml:0 failed: its counter went from 5 to 0.01 J" in why
    fake.energy_mj = 20  # and once more between two trainings
    first = counter.begin()
    fake.energy_mj = 50
    assert counter.between(first, counter.read()) == (pytest.approx(0.03), None)


def test_one_slow_read_is_no_counter_that_stands_still():
    register = Register(0, 0.0, unit_j=1e-6, limits=LIMITS)
    register.joules(5 * JOULE, 0.1, 0.1)
    register.joules(100 * JOULE, 0.2, 2.7)  # read at 2.0 s
    assert register.joules(101 * JOULE, 2.7, 2.7) == pytest.approx(101)


@pytest.mark.parametrize(
    ("stops_at_s", "lasts_s", "energy"), [(2.6, 3.0, False), (0.3, 0.75, False), (2.95, 3.0, True)]
)
def test_a_counter_that_stops_before_the_run_does_gives_no_energy(stops_at_s, lasts_s, energy):
    record = make_record(make_spec(meters=("rapl",)), {"computing": lasts_s / 3})
    meter = {"meter": "rapl:package-0", "available": True, "source": "measured", "counter": True}
    times = np.arange(-0.1, lasts_s + 0.2, 0.05)
    joules = 50 * np.minimum(times + 0.1, stops_at_s + 0.1)
    rows = [("host", "rapl:package-0", t, np.nan, j) for t, j in zip(times, joules, strict=True)]
    info = record.info.model_copy(update={"meters": [MeterInfo(node="host", **meter)]})
    row = observe(replace(record, info=info, power=pd.DataFrame(rows, columns=list(POWER_COLUMNS))))
    assert (row["energy_j"] == row["energy_j"]) is energy
    assert energy or "stood still for" in row["why_no_energy"]


def test_a_failed_counter_of_a_run_gives_no_energy_but_its_reason_and_the_times(
    tmp_path, monkeypatch
):
    """From the files of the kernel to the row that models fit: one of two packages restarts."""
    for package in (0, 1):
        domain(tmp_path, f"intel-rapl:{package}", f"package-{package}", 10**9, RANGE_UJ)
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path)
    stop, reads = threading.Event(), []

    class Feeder(FlakyMeter):
        def read(self):
            reads.append(1)
            for package in (0, 1):
                restarted = package == 1 and len(reads) > 6
                counted = 10**6 * len(reads) + (0 if restarted else 10**9)
                energy = tmp_path / f"intel-rapl:{package}/energy_uj"
                energy.write_text(str(counted))
            if len(reads) > 12:
                stop.set()
            return Reading(1.0, None)

    kinds = {"flaky": lambda nodes: [Feeder()], "rapl": rapl.open_meters}
    monkeypatch.setattr("joulecast.power.sampler.METERS", kinds)
    samples = sampled(SamplerOrder(("flaky", "rapl"), 0.05, HERE), stop)
    faults = {meter["meter"]: meter["fault"] for meter in samples.meters}
    assert faults["rapl:package-0"] is None and "restarted" in faults["rapl:package-1"]
    record = make_record(make_spec(meters=("rapl", "estimated")))
    infos = [
        MeterInfo(
            node="host",
            meter=meter,
            available=fault is None,
            source="measured",
            counter=True,
            reason=fault,
        )
        for meter, fault in faults.items()
        if meter != "flaky"
    ]
    rows = [("host", "rapl:package-0", k / 10, None, 5.0 * k) for k in range(60)]
    power = pd.DataFrame(rows, columns=list(POWER_COLUMNS)).astype({"watts": float})
    info = record.info.model_copy(update={"meters": [*record.info.meters, *infos]})
    row = observe(replace(record, info=info, power=pd.concat([record.power, power])))
    assert np.isnan(row["energy_j"]) and row["energy_source"] is None
    assert "rapl:package-1 failed: its counter went from" in row["why_no_energy"]
    assert row["total_s"] == pytest.approx(3.0) and row["t_computing_s"] == pytest.approx(0.6)


def test_nvml_counter_that_falls_fails_and_watts_that_cannot_be_are_missing():
    fake = FakeNvml()
    meter = nvml.NvmlMeter(fake, None, 0, "host")
    fake.energy_mj = 4000
    with pytest.raises(MeterFailed, match="restarted"):
        meter.read()
    power_only = nvml.NvmlMeter(FakeNvml(counter=False, instant=False), None, 1, "host")
    power_only._nvml.nvmlDeviceGetPowerUsage = lambda device: 2**32 - 1
    with pytest.raises(ReadFailed, match="no GPU draws"):
        power_only.read()
