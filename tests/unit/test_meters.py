"""Meters on made-up hardware: Zeus' devices, files of the kernel, counters with faults, and the sampler."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import make_record, make_spec
from hypothesis import given
from hypothesis import strategies as st
from sampling import FakeGpu, column, sampled, show_gpus
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.measure.power import command_meter, sampler
from joulecast.measure.power.energy_counter import open_energy_counter
from joulecast.measure.power.estimated import EstimatedMeter
from joulecast.measure.power.meter_registry import METERS
from joulecast.measure.power.meters import (
    Believed,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    ReadFailed,
    Reading,
    SampledMeter,
    described,
    limits_of,
)
from joulecast.measure.power.sampler import Sampler, SamplerOrder, open_all
from joulecast.measure.power.samples import Left, SamplerFacts, SampleWriter, read_samples
from joulecast.runs.frames import POWER_COLUMNS
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.observations import observe

HERE = MeteredNodes("host", idle_w=10.0, full_w=30.0)


@pytest.fixture
def clock(monkeypatch):
    """The meters' clock, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


# ---- devices that Zeus reads


def test_a_gpu_counts_joules_where_it_can_and_gives_watts_otherwise(monkeypatch, clock):
    gpus = [
        FakeGpu(),
        FakeGpu("Tesla P100", counts=False),
        FakeGpu("T4", counts=False, instant=False),
    ]
    show_gpus(monkeypatch, *gpus)
    meters = METERS["gpu"](HERE)
    assert [meter.name for meter in meters] == ["gpu:0", "gpu:1", "gpu:2:average"]
    assert [meter.counter for meter in meters] == [True, False, False]
    assert {described(meter).covers for meter in meters} == {"gpu"}
    clock[0] += 10
    gpus[0].energy_mj += 2_500_000
    assert meters[0].read() == Reading(None, 2500)
    assert meters[1].read() == Reading(250, None)


def test_a_superchip_says_what_its_driver_counts(monkeypatch):
    show_gpus(monkeypatch, FakeGpu("NVIDIA GH200 480GB"), FakeGpu())
    remarks = [described(meter).remark for meter in METERS["gpu"](HERE)]
    assert "module" in remarks[0] and remarks[1] is None


def test_all_gpus_of_the_host_count_whatever_a_process_may_see(monkeypatch):
    """Zeus heeds CUDA_VISIBLE_DEVICES; a rank that sees one GPU starts the sampler of all of them."""
    seen = []

    def get_gpus():
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        raise AssertionError

    monkeypatch.setattr("zeus.device.get_gpus", get_gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(AssertionError):
        METERS["gpu"](HERE)
    assert seen == [None] and os.environ["CUDA_VISIBLE_DEVICES"] == "3"


class FakeCpus:
    """What Zeus gives for the processors: two packages, one with memory, and the whole platform."""

    class Cpu:
        def __init__(self, index, name, dram):
            self.cpu_index, self.cpu_mj, self.dram_mj = index, 1_000.0, dram
            self.rapl_file = type("File", (), {"name": name})

        def supports_get_dram_energy_consumption(self):
            return self.dram_mj is not None

        def get_total_energy_consumption(self):
            return self

    def __init__(self):
        self.cpus = [self.Cpu(0, "package-0", 50.0), self.Cpu(1, "package-1", None)]
        self.cpus.append(self.Cpu(2, "psys", None))


def test_processors_count_packages_and_memory_and_nothing_twice(monkeypatch, clock):
    fake = FakeCpus()
    monkeypatch.setattr("zeus.device.cpu._cpus", fake)
    meters = METERS["cpu"](HERE)
    assert [(meter.name, described(meter).covers) for meter in meters] == [
        ("cpu:package-0", "cpu"),
        ("cpu:dram-0", "memory"),
        ("cpu:package-1", "cpu"),
    ]
    clock[0] += 1
    fake.cpus[0].cpu_mj += 60_000
    fake.cpus[0].dram_mj += 9_000
    assert [meter.read().joules for meter in meters[:2]] == [60, 9]


def test_a_machine_without_devices_answers_at_once_with_reasons():
    for kind in ("gpu", "cpu", "soc"):
        try:
            assert METERS[kind](HERE)
        except MeterUnavailable as missing:
            assert missing.reason.startswith(f"{kind}: ") and missing.remedy


def test_the_counter_of_one_gpu(monkeypatch, clock):
    gpus = [FakeGpu(), FakeGpu()]
    show_gpus(monkeypatch, *gpus)
    counter = open_energy_counter("cuda", 1)
    first = counter.begin()
    clock[0] += 10
    gpus[0].energy_mj += 1_000_000
    gpus[1].energy_mj += 2_000_000
    assert counter.between(first, counter.read()) == (2000, None)
    joules, why = counter.between(first, counter.read(), over_s=0.1)
    assert joules is None and "too short" in why
    assert "no GPU 2 on this host" in open_energy_counter("cuda", 2).why_not
    show_gpus(monkeypatch, FakeGpu(counts=False))
    assert "no energy counter" in open_energy_counter("cuda", 0).why_not


def test_a_fault_costs_the_energy_of_the_training_that_it_lies_in_and_of_no_other(
    monkeypatch, clock
):
    gpu = show_gpus(monkeypatch, FakeGpu())
    counter = open_energy_counter("cuda", 0)
    first = counter.begin()
    clock[0] += 1
    gpu.energy_mj = 10
    assert counter.read() is None, "it restarted"
    clock[0] += 1
    gpu.energy_mj = 60
    joules, why = counter.between(first, counter.read())
    assert joules is None and "gpu:0 failed: its counter went from 0 to -4.99 J" in why
    clock[0] += 1
    gpu.energy_mj = 20  # and once more between two trainings
    first = counter.begin()
    clock[0] += 1
    gpu.energy_mj = 50_020
    assert counter.between(first, counter.read()) == (pytest.approx(50), None)


# ---- the one rule for all meters: the power must be possible for the device


class MadeUp:
    """A processor's counter of joules, as a test sets it."""

    node, name, source, counter, identity, covers = "host", "made up", "measured", True, None, "cpu"
    limits = limits_of("cpu", renewed_s=0.001, moves_within_s=2.0)
    joules = 200_000.0

    def read(self):
        return Reading(None, self.joules)


FAULTS = {
    "creeps": lambda k, j: 200_000 + k // 4 * 1e-6,
    "crawls at 5 mW": lambda k, j: 200_000 + 5e-4 * k,
    "jumps a little": lambda k, j: j + 170 * (k // 10),
    "restarts": lambda k, j: j if k < 5 else j - 200_000,
    "goes back by a microjoule": lambda k, j: j if k != 5 else j - 5 - 1e-6,
    "stops": lambda k, j: j if k < 2 else 200_007,
    "never moves": lambda k, j: 200_000,
    "jumps": lambda k, j: j if k < 5 else j + 20_000,
    "falls below its first": lambda k, j: j if k < 5 else j - 200_000 + 1e-6,
    "is away for a second and back with 900 J": lambda k, j: (
        None if 5 < k < 15 else j + 900 * (k > 5)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_counter_with_a_fault_is_believed_no_longer(fault, clock):
    """50 W, read every 0.1 s; the counter begins at 200 kJ."""
    meter = MadeUp()
    believed = Believed(meter)
    with pytest.raises(MeterFailed, match="counter"):
        for k in range(50):
            clock[0] = 100 + k / 10
            meter.joules = FAULTS[fault](k, 200_000 + 5.0 * k)
            if meter.joules is not None:
                assert 0 <= believed.read().joules - 200_000 <= 5.0 * k + 7


@given(
    watts=st.lists(st.floats(0.2, 740), min_size=1, max_size=60),
    first=st.integers(0, 10**9),
    every_s=st.floats(0.02, 20),
)
def test_a_sound_counter_is_believed(watts, first, every_s):
    with pytest.MonkeyPatch.context() as patched:
        now = [0.0]
        patched.setattr(time, "monotonic", lambda: now[0])
        meter = MadeUp()
        believed, meter.joules = Believed(meter), float(first)
        for k, drawn in enumerate(watts):
            now[0] = k * every_s
            meter.joules += drawn * every_s * (k > 0)
            assert believed.read().joules == meter.joules


def test_a_counter_that_falls_before_its_first_reading_is_believed_from_then_on(clock):
    """Meters count from when they were opened: joules below 0 are none."""
    meter = MadeUp()
    believed, meter.joules = Believed(meter), -43.0
    with pytest.raises(MeterFailed, match="its counter went from 0 to -43 J"):
        believed.read()
    for k in range(1, 5):
        clock[0] += 0.1
        meter.joules += 5.0
        assert believed.read().joules == -43 + 5 * k


def test_one_slow_read_is_no_counter_that_stands_still(monkeypatch):
    times = iter([0.0, 0.0, 0.1, 0.1, 0.2, 2.7, 2.7, 2.7])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    meter = MadeUp()
    believed = Believed(meter)
    # The third is read at 2.0 s.
    for meter.joules in (0.0, 5.0, 100.0, 101.0):
        assert believed.read().joules == meter.joules


class Drawn:
    """Made-up devices of all kinds, of which one draws what a test says, on the clock of the test."""

    def __init__(self, kind, root, monkeypatch, clock):
        self.clock, self.joules, self.watts = clock, 1e6, 0.0
        self.root, self.kind = root, kind
        opener = METERS[kind.partition(" ")[0]]
        monkeypatch.setattr(command_meter, "output_of", lambda *_: self.printed())
        self.gpu = show_gpus(monkeypatch, FakeGpu(counts=kind != "gpu watts"))
        self.cpus = FakeCpus()
        monkeypatch.setattr("zeus.device.cpu._cpus", self.cpus)
        monkeypatch.setattr("zeus.device.soc._soc", self)
        self.show(100.0)
        if kind.startswith("command"):
            command = command_meter.SiteCommand(("a", "program"))
            self.read = command.ask
            self.name, self.source, self.counter = "command", "measured", kind.endswith("joules")
            self.covers, self.limits = "node", command_meter.BackgroundMeter.limits
            found = [self]
        else:
            nodes = MeteredNodes("host", sysfs_root=str(root))
            found = [meter for meter in opener(nodes) if meter.name.endswith(METER[kind])]
        (self.meter,) = found

    def printed(self):
        return f"{self.joules} J" if self.kind.endswith("joules") else f"{self.watts} W"

    def get_available_metrics(self):
        return {"total_energy_mj"}

    def get_total_energy_consumption(self):
        self.total_energy_mj = 1e3 * self.joules
        return self

    def show(self, watts):
        """What the devices show while this one draws so much."""
        self.watts, self.gpu.watts, self.gpu.energy_mj = watts, watts, 1e3 * self.joules
        for cpu in self.cpus.cpus:
            cpu.cpu_mj = cpu.dram_mj = 1e3 * self.joules
        if self.kind.startswith("pm_counters"):
            count = round(self.joules)
            cray(
                self.root, energy=count, accel0_energy=count, cpu_energy=count, memory_energy=count
            )
        if self.kind.startswith("hwmon"):
            self.show_in_hwmon(round(1e6 * watts))

    def show_in_hwmon(self, micro):
        """What the kernel's files show."""
        hwmon = self.root / "class/hwmon"
        if self.kind == "hwmon supply":
            supply = {"power1_label": "pin", "power1_input": micro}
            put(hwmon / "hwmon0", name="dps920ab", **supply)
        else:
            acpi(self.root, 0, None, micro)
        labels = {"energy1_label": "Esocket0", "energy1_input": round(1e6 * self.joules)}
        put(hwmon / "hwmon1", name="amd_energy", **labels)
        put(hwmon / "hwmon2", name="xe", energy1_input=round(1e6 * self.joules))

    def draws(self, watts, seconds, believed):
        """The readings while the device draws so much, ten a second."""
        found = []
        for _ in range(round(10 * seconds)):
            self.clock[0] += 0.1
            self.joules += watts * 0.1
            self.show(watts)
            found.append(believed.read())
        return found


METER = {
    "pm_counters node": ":node",
    "pm_counters gpu": ":accel0",
    "pm_counters cpu": ":cpu",
    "pm_counters memory": ":memory",
    "command watts": "command",
    "command joules": "command",
    "gpu joules": "gpu:0",
    "gpu watts": "gpu:0",
    "cpu package": "package-0",
    "cpu dram": "dram-0",
    "soc joules": "total",
    "hwmon board": "board",
    "hwmon supply": "supply-0",
    "hwmon cpu": "cpu-0",
    "hwmon gpu": "gpu-0",
}
"""Every kind of meter, and the end of the name that it has here."""


def test_every_kind_of_meter_is_tried():
    assert {kind.partition(" ")[0] for kind in METER} == {*METERS} - {"estimated"}


@pytest.mark.parametrize("kind", METER)
def test_what_a_device_can_draw_is_believed_and_what_it_cannot_is_not(
    kind, tmp_path, monkeypatch, clock
):
    drawn = Drawn(kind, tmp_path, monkeypatch, clock)
    limits, counts = drawn.meter.limits, drawn.meter.counter
    assert 0 <= limits.least_w <= 1 and 500 <= limits.most_w <= 30e3
    for watts in (limits.most_w, limits.least_w, limits.most_w / 2):
        believed = Believed(drawn.meter)
        readings = drawn.draws(watts, 15, believed)
        joules = 15 * watts if counts else 0.1 * sum(reading.watts for reading in readings)
        assert joules == pytest.approx(15 * watts)
    impossible = [(1.5 * limits.most_w, 3), (20_000 * limits.most_w, 1), (-5.0, 5)]
    # What a counter misses of so little shows when a count is due.
    impossible += [(limits.least_w / 100, 301), (0.0, 301)] if limits.least_w else []
    for watts, seconds in impossible:
        believed = Believed(drawn.meter)
        drawn.draws(limits.most_w / 2, 3, believed)
        with pytest.raises(ReadFailed, match=r"such a device draws|stands still|expected a number"):
            drawn.draws(watts, seconds, believed)
    if counts:
        believed = Believed(drawn.meter)
        drawn.draws(limits.most_w / 2, 3, believed)
        drawn.joules += 0.4 * limits.most_w
        with pytest.raises(MeterFailed, match="restarted or is broken"):
            drawn.draws(limits.most_w / 2, 1, believed)


def test_limits_come_from_what_a_device_says_of_itself(monkeypatch, tmp_path):
    show_gpus(monkeypatch, FakeGpu())
    (gpu,) = METERS["gpu"](HERE)
    assert gpu.limits.most_w == 800, "twice the highest limit that can be set"
    cpus = FakeCpus()
    folder = put(tmp_path / "package", constraint_0_power_limit_uw=150 * 10**6)
    put(folder, constraint_1_power_limit_uw=200 * 10**6)
    cpus.cpus[0].rapl_file.path = str(folder)
    monkeypatch.setattr("zeus.device.cpu._cpus", cpus)
    package, memory, other = METERS["cpu"](HERE)
    assert package.limits.most_w == 400 < other.limits.most_w
    assert memory.limits == limits_of("memory", renewed_s=0.001, moves_within_s=2.0)


@pytest.mark.parametrize(
    ("stops_at_s", "lasts_s", "energy"), [(2.6, 3.0, False), (0.3, 0.75, False), (2.95, 3.0, True)]
)
def test_a_counter_that_stops_before_the_run_does_gives_no_energy(stops_at_s, lasts_s, energy):
    record = make_record(make_spec(meters=("cpu",)), {"computing": lasts_s / 3})
    name = "cpu:package-0"
    meter = {"meter": name, "available": True, "source": "measured", "counter": True}
    times = np.arange(-0.1, lasts_s + 0.2, 0.05)
    joules = 50 * np.minimum(times + 0.1, stops_at_s + 0.1)
    rows = [("host", name, t, np.nan, j) for t, j in zip(times, joules, strict=True)]
    info = record.info.model_copy(update={"meters": [MeterInfo(node="host", **meter)]})
    row = observe(replace(record, info=info, power=pd.DataFrame(rows, columns=list(POWER_COLUMNS))))
    assert (row["energy_j"] == row["energy_j"]) is energy
    assert energy or "stood still for" in row["why_no_energy"]


# ---- files of the kernel


def here(root: Path) -> MeteredNodes:
    return MeteredNodes("host", sysfs_root=str(root))


def put(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        # A new file: to cut an old one to nothing waits for the disk.
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f"{content}\n")
    return folder


def cray(root: Path, seconds: int = 0, **changes: object) -> Path:
    """The folder of a node with a CPU and two accelerators, after some seconds."""
    watts = {"": 1000, "cpu_": 150, "memory_": 40, "accel0_": 100, "accel1_": 100}
    files = {
        f"{part}energy": f"{10**7 + w * seconds} J 17{seconds} us" for part, w in watts.items()
    }
    files |= {f"{part}power": f"{w} W 17{seconds} us" for part, w in watts.items()}
    files |= {
        "accel_energy": "7 J 1 us",
        "cpu0_temp": "41 C 1 us",
        "startup": 17,
        "freshness": seconds,
    }
    return put(root / "cray/pm_counters", **(files | changes))


def test_a_cray_node_counts_as_a_whole_and_in_parts(tmp_path, clock):
    cray(tmp_path)
    meters = METERS["pm_counters"](here(tmp_path))
    names = [meter.name.partition(":")[2] for meter in meters]
    assert names == ["node", "accel0", "accel1", "cpu", "memory"]
    assert [described(m).covers for m in meters] == ["node", "gpu", "gpu", "cpu", "memory"]
    clock[0] += 2
    cray(tmp_path, 2)
    assert meters[0].read() == Reading(None, 2000) and meters[-1].read() == Reading(None, 80)
    put(tmp_path / "cray/pm_counters", energy="nonsense")
    with pytest.raises(ReadFailed):
        meters[0].read()
    with pytest.raises(MeterUnavailable) as missing:
        METERS["pm_counters"](here(tmp_path / "no"))
    assert missing.value.not_applicable


def acpi(root: Path, number: int, label: str | None, microwatts: int) -> Path:
    files: dict[str, object] = {"power1_average": microwatts, "power1_average_interval": 50}
    if label is not None:
        files["power1_oem_info"] = label
    return put(root / f"class/hwmon/hwmon{number}", name="power_meter", **files)


def test_grace_hopper_has_modules_with_their_sockets_inside(tmp_path):
    for socket in (0, 1):
        parts = [("Module", 600), ("Grace", 200), ("CPU", 120), ("SysIO", 30)]
        for k, (name, watts) in enumerate(parts):
            acpi(tmp_path, 4 * socket + k, f"{name} Power Socket {socket}", watts * 10**6)
    meters = {m.name: m for m in METERS["hwmon"](here(tmp_path))}
    assert {name: described(m).covers for name, m in meters.items()} == {
        f"hwmon:{covers}-{socket}": covers
        for socket in (0, 1)
        for covers in ("module", "socket", "cpu")
    }
    assert meters["hwmon:module-1"].read() == Reading(600, None)
    assert described(meters["hwmon:module-1"]).renewed_s == 0.05


def test_a_board_without_a_label_is_the_node_and_two_of_them_are_nothing(tmp_path):
    board = acpi(tmp_path, 3, None, 231_500_000)
    (meter,) = METERS["hwmon"](here(tmp_path))
    assert (meter.name, described(meter).covers) == ("hwmon:board", "node")
    assert meter.read() == Reading(231.5, None)
    for wrong in ("nonsense", -1, 10**14):
        put(board, power1_average=wrong)
        with pytest.raises(ReadFailed):
            Believed(meter).read()
    acpi(tmp_path, 4, "PSU thing", 100)
    with pytest.raises(MeterUnavailable):
        METERS["hwmon"](here(tmp_path))


def test_supplies_are_the_node_unless_its_board_is_and_unknown_drivers_are_nothing(tmp_path):
    supply = {"power1_label": "pin", "power1_input": 400 * 10**6, "power2_label": "pout1"}
    for k in (0, 1):
        put(tmp_path / f"class/hwmon/hwmon{k}", name="dps920ab", **supply)
    put(tmp_path / "class/hwmon/hwmon7", name="ir35221", **supply)
    meters = METERS["hwmon"](here(tmp_path))
    assert [m.read().watts for m in meters] == [400, 400]
    assert {described(m).covers for m in meters} == {"node"}
    acpi(tmp_path, 2, None, 800 * 10**6)
    assert [m.name for m in METERS["hwmon"](here(tmp_path))] == ["hwmon:board"]


def test_processors_of_amd_count_by_socket(tmp_path):
    labels = {"energy1_label": "Ecore000", "energy2_label": "Esocket0", "energy3_label": "Esocket1"}
    counts = {f"energy{k}_input": 10**9 for k in (1, 2, 3)}
    put(tmp_path / "class/hwmon/hwmon0", name="amd_energy", **labels, **counts)
    assert [m.name for m in METERS["hwmon"](here(tmp_path))] == ["hwmon:cpu-0", "hwmon:cpu-1"]


def test_the_command_shows_what_each_meter_reads_and_what_they_add_up_to(tmp_path):
    cray(tmp_path)
    acpi(tmp_path, 0, None, 10**8)
    (tmp_path / "mine.yaml").write_text(f"power: {{sysfs_root: {tmp_path}, command: [echo, 77 W]}}")
    said = CliRunner().invoke(app, ["meters", "--config", str(tmp_path / "mine.yaml")]).output
    rows = {line.split()[0]: line for line in said.splitlines() if line and line[0] != " "}
    assert "100 W of the node" in rows["hwmon:board"]
    assert "77 W of the node" in rows["command"]
    # Its files do not change: the node draws nothing that it counts.
    assert "0 W" in rows["pm_counters:node"]
    assert "missing" in rows["soc"] and "to get it" in said
    assert said.splitlines()[-1].startswith("a run's energy here: pm_counters:node (0")
    (tmp_path / "mine.yaml").write_text("power: {command: [echo, 77 MW]}")
    said = CliRunner().invoke(app, ["meters", "--config", str(tmp_path / "mine.yaml")]).output
    assert "fails: it reads 7.7e+07 W" in said
    # A counter of the milliseconds since 1970 counts 1,000 J in a second. It is asked once a second.
    (tmp_path / "mine.yaml").write_text("power: {command: [date, '+%s%3N J']}")
    said = CliRunner().invoke(app, ["meters", "--config", str(tmp_path / "mine.yaml")]).output
    (shown,) = re.findall(r"^command +([\d,]+) W of the node", said, re.MULTILINE)
    assert 900 < float(shown.replace(",", "")) < 1100


def test_a_run_is_silent_about_meters_that_this_machine_is_not_made_for(tmp_path):
    order = SamplerOrder(("pm_counters", "command", "estimated"), 0.1, here(tmp_path))
    assert [meter.meter for meter in open_all(order)[1]] == ["estimated"]
    alone = SamplerOrder(("pm_counters",), 0.1, here(tmp_path))
    assert [meter.meter for meter in open_all(alone)[1]] == ["pm_counters"]


# ---- the sampler


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
    monkeypatch.setattr(sampler, "METERS", {"flaky": lambda nodes: [meter]})
    meter.enough = reads
    return sampled(SamplerOrder(("flaky",), period, HERE), meter.stop)


def test_failed_reads_are_missing_and_never_zero(monkeypatch):
    samples = run_sampler(monkeypatch, FlakyMeter(), 0.02, 15)
    assert samples.facts.meters[0].failed_reads >= 5
    assert set(column(samples, "flaky", "watts")) == {42.0}


def test_deadlines_are_absolute_and_missed_ones_are_not_made_up_for(monkeypatch):
    samples = run_sampler(monkeypatch, FlakyMeter(slow_s=0.05), 0.04, 16)
    times = column(samples, "flaky", "t_s")
    assert samples.facts.meters[0].missed_deadlines >= 5
    # Never two reads in one period: the sleep is towards a deadline, not a period after the last.
    assert np.diff(times[:-1]).min() >= 0.04


def test_sampler_process_gives_energy_of_every_node(tmp_path):
    nodes = MeteredNodes(
        "host", {"host/0": [os.getpid()]}, 1.0, 10.0, 30.0, power_command=("echo", "9 W")
    )
    order = SamplerOrder(("cpu", "command", "estimated"), 0.05, nodes)
    sampler = Sampler(order, tmp_path / "samples")
    sampler.wait_until_begun()
    time.sleep(0.5)
    samples = sampler.stop().samples()
    joules = column(samples, "estimated", "joules")
    assert joules == sorted(joules) and joules[-1] > 0
    assert set(column(samples, "command", "watts")) == {9.0}
    assert set(samples.activity) == {"host/0"}


def test_an_estimate_stays_between_idle_and_full_and_keeps_the_work_of_a_burst(monkeypatch):
    nodes = MeteredNodes("host", {}, 0.25, 10.0, 30.0)
    # One core for a second, then a wait of three: a node of a quarter of a core has computed all the time.
    seconds, work = iter(range(7)), iter([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.125])
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    meter = EstimatedMeter("host", lambda: next(work), nodes)
    readings = [meter.read() for _ in range(6)]
    assert [reading.watts for reading in readings] == [30.0] * 4 + [10.0, 20.0]
    assert [reading.joules for reading in readings] == [30.0, 60.0, 90.0, 120.0, 130.0, 150.0]


def test_a_killed_sampler_leaves_what_it_read_and_the_reason(tmp_path):
    sampler = Sampler(SamplerOrder(("estimated",), 0.05, HERE), tmp_path / "samples")
    sampler.wait_until_begun()
    while not read_samples(tmp_path / "samples").work.size:
        time.sleep(0.05)
    sampler._process.send_signal(signal.SIGKILL)
    samples = sampler.stop().samples()
    assert samples.died == "the power sampler was ended by SIGKILL"
    assert [meter.meter for meter in samples.facts.meters] == ["estimated"]
    assert samples.readings[0].size and samples.activity["host"].size and samples.span_s


@given(cut=st.floats(0, 1))
def test_a_file_that_is_cut_anywhere_is_read_up_to_the_last_whole_block(cut, tmp_path_factory):
    file = tmp_path_factory.mktemp("cut") / "samples"
    writer = SampleWriter(file)
    meter = SampledMeter(node="host", meter="m", available=True, source="measured", counter=True)
    facts = SamplerFacts(meters=[meter])
    for k in range(20):
        power = [(0, (k, None, 10.0 * k)), (0, (k + 0.5, None, 10.0 * k + 5))]
        writer.append(facts, [*power, (1, (k, k, 0))])
    writer.close()
    whole = file.read_bytes()
    file.write_bytes(whole[: int(cut * len(whole))])
    (readings,) = read_samples(file).readings
    assert readings[0].tolist() == [k / 2 for k in range(readings.shape[1])]
    assert readings[2].tolist() == [5.0 * k for k in range(readings.shape[1])]
    assert np.isnan(readings[1]).all()
    if cut == 1:
        assert readings.shape[1] == 40


def test_a_sampler_that_never_read_gives_reasons_for_all_its_meters(tmp_path):
    sampler = Sampler(SamplerOrder(("cpu", "estimated"), 0.05, HERE), tmp_path / "samples")
    sampler._process.kill()
    samples = sampler.stop().samples()
    meters = samples.facts.meters
    assert [(meter.meter, meter.available) for meter in meters] == [
        ("cpu", False),
        ("estimated", False),
    ]
    assert all(meter.reason.startswith(samples.died) for meter in meters)


def test_a_sampler_needs_a_place_for_its_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JoulecastError, match="samples cannot be written there"):
        Sampler(SamplerOrder(("cpu",), 0.05, HERE), tmp_path / "file/samples")


def test_sampler_ends_with_its_rank(tmp_path):
    order = asdict(SamplerOrder((), 0.05, HERE))
    process = subprocess.Popen(
        [sys.executable, "-m", "joulecast.measure.power.sampler", str(tmp_path / "samples")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.close()
    assert process.wait(300) == 0
    assert Left(tmp_path / "samples", "host").samples().died is None


def test_a_sampler_that_was_killed_before_its_first_reading_leaves_absent_meters(tmp_path):
    samples = Left(tmp_path / "samples", "host", ("estimated",), "was killed").samples()
    (meter,), ((t_s, _, _),) = samples.facts.meters, samples.readings
    assert not meter.available and "was killed" in meter.reason and len(t_s) == 0


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

    kinds = {"flaky": lambda nodes: [Broken(), good], "cpu": raises}
    monkeypatch.setattr(sampler, "METERS", kinds)
    samples = sampled(SamplerOrder(("flaky", "cpu"), 0.02, HERE), good.stop)
    broken, flaky, absent = samples.facts.meters
    assert broken.reason == "its reading failed (ZeroDivisionError: in the driver)"
    assert flaky.available and len(column(samples, "flaky", "t_s")) >= 3
    assert "no bus" in absent.reason


def test_a_failed_counter_of_a_run_gives_no_energy_but_its_reason_and_the_times():
    """One of two packages restarted."""
    record = make_record(make_spec(meters=("cpu", "estimated")))
    faults = {"cpu:package-0": None, "cpu:package-1": "its counter went from 9 to 1 J in 0.1 s"}
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
    ]
    rows = [("host", "cpu:package-0", k / 10, None, 5.0 * k) for k in range(60)]
    power = pd.DataFrame(rows, columns=list(POWER_COLUMNS)).astype({"watts": float})
    info = record.info.model_copy(update={"meters": [*record.info.meters, *infos]})
    row = observe(replace(record, info=info, power=pd.concat([record.power, power])))
    assert np.isnan(row["energy_j"]) and row["energy_source"] is None
    assert "cpu:package-1 failed: its counter went from" in row["why_no_energy"]
    assert row["total_s"] == pytest.approx(3.0) and row["t_computing_s"] == pytest.approx(0.6)
