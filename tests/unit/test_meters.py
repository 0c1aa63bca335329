"""Meters on made-up hardware, and the sampler's deadlines."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from joulecast.power import meters as meters_module
from joulecast.power import nvml, rapl
from joulecast.power.meters import MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.power.sampler import Sampler, SamplerOrder, sample

HERE = MeteredNodes("host", idle_w=10.0, full_w=30.0)


def domain(root, folder, name, energy=0, wraps_at=1000):
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "energy_uj").write_text(str(energy))
    (path / "max_energy_range_uj").write_text(str(wraps_at))
    return path


def test_rapl_undoes_wraps_and_starts_at_zero(tmp_path):
    package = domain(tmp_path, "intel-rapl:0", "package-0", energy=900, wraps_at=1000)
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
    monkeypatch.setattr("joulecast.power.sampler.openers", lambda: {"flaky": lambda nodes: [meter]})
    meter.enough = reads
    return sample(SamplerOrder(("flaky",), period, HERE), meter.stop)


def test_failed_reads_are_missing_and_never_zero(monkeypatch):
    answer = run_sampler(monkeypatch, FlakyMeter(), 0.02, 15)
    assert answer["meters"][0]["failed"] >= 5
    assert {row[3] for row in answer["power"]} == {42.0}


def test_deadlines_are_absolute_and_missed_ones_are_not_made_up_for(monkeypatch):
    answer = run_sampler(monkeypatch, FlakyMeter(slow_s=0.05), 0.04, 16)
    times = np.array([row[2] for row in answer["power"]])
    assert answer["missed_deadlines"] >= 5
    # Never two reads in one period: the sleep is towards a deadline, not a period after the last.
    assert np.diff(times[:-1]).min() >= 0.04


def test_sampler_process_gives_energy_of_every_node():
    import os

    nodes = MeteredNodes("host", {"host/0": [os.getpid()]}, 1.0, 10.0, 30.0)
    sampler = Sampler(SamplerOrder(("rapl", "estimated"), 0.05, nodes))
    sampler.wait_until_begun()
    time.sleep(0.5)
    answer = sampler.stop()
    joules = [row[4] for row in answer["power"] if row[1] == "estimated"]
    assert joules == sorted(joules) and joules[-1] > 0
    assert {row[0] for row in answer["activity"]} == {"host/0"}


def test_sampler_ends_with_its_rank():
    order = asdict(SamplerOrder((), 0.05, HERE))
    process = subprocess.Popen(
        [sys.executable, "-m", "joulecast.power.sampler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.close()
    assert process.wait(300) == 0


def test_every_configured_meter_name_can_be_opened():
    assert set(meters_module.METER_NAMES) == set(meters_module.openers())
