"""Meters that the kernel shows as files, on trees of files: Cray's counters, hwmon, RAPL."""

import os
import time
from pathlib import Path

import pytest
from sampling import column
from typer.testing import CliRunner

from joulecast.cli.main import app
from joulecast.platforms.controller import Redfish
from joulecast.power import hwmon, kernel_files, pm_counters, rapl
from joulecast.power.meters import (
    About,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.power.run_clock import ClockOffset, RunClock
from joulecast.power.sampled_hosts import SampledHost, frames, meter_infos
from joulecast.power.sampler import Sampler, SamplerOrder, open_all
from joulecast.records.meter_settings import MeterSettings
from joulecast.records.metering import metered
from joulecast.records.record import Outcome

PCI = "0000:c1:00."


def here(root: Path) -> MeteredNodes:
    return MeteredNodes("host", settings=MeterSettings(sysfs_root=str(root)))


def put(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    return folder


class Cray:
    """The folder of a node with a CPU and eight accelerators."""

    def __init__(self, root: Path, accelerators: int = 8) -> None:
        self.folder, self.fresh = root / "cray/pm_counters", 0
        self.parts = {"": 1000, "cpu_": 150, "memory_": 40}
        self.parts |= {f"accel{k}_": 100 for k in range(accelerators)}
        self.joules = dict.fromkeys(self.parts, 81_147_367)
        put(self.folder, startup=1700000000000000, raw_scan_hz=10, generation=17, version=2)
        put(self.folder, cpu0_temp="41 C 1700000000 us", power_cap="0 W")
        self.renew(0)

    def renew(self, seconds: int) -> None:
        self.fresh += 1
        for part, watts in self.parts.items():
            self.joules[part] += watts * seconds
            names = {
                f"{part}energy": f"{self.joules[part]} J 170{self.fresh} us",
                f"{part}power": f"{watts} W 170{self.fresh} us",
            }
            put(self.folder, **names)
        put(self.folder, freshness=self.fresh)


@pytest.fixture
def clock(monkeypatch):
    """The meters' clock, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_cray_node_counts_as_a_whole_and_in_parts(tmp_path, clock):
    cray = Cray(tmp_path)
    put(cray.folder, accel_energy="81147367 J 17 us")
    meters = pm_counters.open_meters(here(tmp_path))
    names = [meter.name.partition(":")[2] for meter in meters]
    assert names == ["node", *(f"accel{k}" for k in range(8)), "cpu", "memory"]
    assert [About.of(m).covers for m in meters] == ["node", *["gpu"] * 8, "cpu", "memory"]
    assert len({meter.identity for meter in meters}) == 11
    assert all(meter.read() == Reading(None, 0) for meter in meters)
    clock[0] += 2
    cray.renew(2)
    assert meters[0].read() == Reading(None, 2000) and meters[-1].read() == Reading(None, 80)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("restart", "restarted"),
        ("startup", "controller was restarted"),
        ("freeze", "not renewed|stands still"),
        ("jump", "restarted or is broken"),
    ],
)
def test_a_cray_counter_with_a_fault_has_failed(tmp_path, clock, fault, said):
    cray = Cray(tmp_path, 1)
    node = pm_counters.open_meters(here(tmp_path))[0]
    with pytest.raises(MeterFailed, match=said):
        for k in range(80):
            clock[0] += 0.1
            if k % 10 == 0 and (fault != "freeze" or k < 10):
                cray.renew(1)
            if k == 20 and fault == "restart":
                cray.joules = dict.fromkeys(cray.parts, 0)
            if k == 20 and fault == "startup":
                put(cray.folder, startup=1800000000000000)
            if k == 20 and fault == "jump":
                cray.joules[""] += 10**7
            node.read()


def test_what_is_renewed_while_it_is_read_is_read_again_and_units_are_checked(
    tmp_path, monkeypatch
):
    cray = Cray(tmp_path, 1)
    node = pm_counters.open_meters(here(tmp_path))[0]
    seen = iter(["1", "2", "2", "2"])
    real = kernel_files.text_in
    monkeypatch.setattr(
        pm_counters,
        "text_in",
        lambda file: next(seen, "2") if file.name == "freshness" else real(file),
    )
    assert node.read().joules == 0
    endless = iter(range(100))
    monkeypatch.setattr(pm_counters, "text_in", lambda file: str(next(endless)))
    with pytest.raises(ReadFailed, match="renewed while it was read"):
        node.read()
    monkeypatch.undo()
    for wrong in ("7 kJ 1 us", "", "-3 J 1 us"):
        put(cray.folder, energy=wrong)
        with pytest.raises(ReadFailed, match="expected a number and J"):
            node.read()


def test_a_cray_without_energy_gives_watts_and_an_empty_one_its_reason(tmp_path):
    folder = put(tmp_path / "cray/pm_counters", power="731 W 17 us", freshness=1)
    (meter,) = pm_counters.open_meters(here(tmp_path))
    assert meter.read() == Reading(731, None) and not meter.counter
    (folder / "power").unlink()
    with pytest.raises(MeterUnavailable, match="no file of energy or power"):
        pm_counters.open_meters(here(tmp_path))
    with pytest.raises(MeterUnavailable) as missing:
        pm_counters.open_meters(here(tmp_path / "no"))
    assert missing.value.elsewhere


def acpi(root: Path, number: int, label: str | None, microwatts: int, *, old: bool = False) -> Path:
    folder = root / f"class/hwmon/hwmon{number}"
    files: dict[str, object] = {"power1_average": microwatts, "power1_average_interval": 50}
    if label is not None:
        files["power1_oem_info"] = label
    put(folder / "device", **files, **({"name": "power_meter"} if old else {}))
    if not old:
        put(folder, name="power_meter")
    return folder / "device"


def test_grace_hopper_has_modules_with_their_sockets_inside(tmp_path):
    for socket in (0, 1):
        for k, (name, watts) in enumerate(
            [("Module", 600), ("Grace", 200), ("CPU", 120), ("SysIO", 30)]
        ):
            label = f"{name} Power Socket {socket}"
            acpi(tmp_path, 4 * socket + k, label, watts * 10**6, old=bool(socket))
    meters = {m.name: m for m in hwmon.open_meters(here(tmp_path))}
    assert {name: About.of(m).covers for name, m in meters.items()} == {
        f"hwmon:{covers}-{socket}": covers
        for socket in (0, 1)
        for covers in ("module", "socket", "cpu")
    }
    assert meters["hwmon:module-1"].read() == Reading(600, None)
    assert About.of(meters["hwmon:module-1"]).renewed_s == 0.05


def test_a_board_without_a_label_is_the_node_and_two_of_them_are_nothing(tmp_path):
    board = acpi(tmp_path, 3, None, 231_500_000)
    (meter,) = hwmon.open_meters(here(tmp_path))
    assert (meter.name, About.of(meter).covers) == ("hwmon:board", "node")
    assert meter.read() == Reading(231.5, None)
    for wrong in ("nonsense", -1, 10**14):
        put(board, power1_average=wrong)
        with pytest.raises(ReadFailed):
            meter.read()
    acpi(tmp_path, 4, "PSU thing", 100)
    with pytest.raises(MeterUnavailable):
        hwmon.open_meters(here(tmp_path))


def gpu(root: Path, number: int, driver: str = "amdgpu", pci: str = "", **files: object) -> Path:
    device = put(root / f"devices/{pci or PCI + str(number)}", device="0x740c")
    folder = put(device / f"hwmon/hwmon{number}", name=driver, **files)
    links = root / "class/hwmon"
    links.mkdir(parents=True, exist_ok=True)
    (folder / "device").symlink_to(device)
    (links / f"hwmon{number}").symlink_to(folder)
    return folder


def test_eight_gpus_of_which_every_second_is_the_second_die_of_a_package(tmp_path):
    for k in range(8):
        watts = {} if k % 2 else {"power1_average": 90 * 10**6}
        gpu(tmp_path, k, power1_cap=5 * 10**8, **watts)
    meters = hwmon.open_meters(here(tmp_path))
    assert [m.name for m in meters] == [f"hwmon:amdgpu-{k}" for k in (0, 2, 4, 6)]
    assert {About.of(m).covers for m in meters} == {"gpu"}
    assert "second die" in About.of(meters[0]).remark
    assert len({m.identity for m in meters}) == 4
    assert sum(m.read().watts for m in meters) == 360


def test_a_gpus_energy_that_stands_still_has_failed(tmp_path, clock):
    """As it was seen on an MI100."""
    energy = {"energy1_input": 5 * 10**9}
    folder = gpu(tmp_path, 0, power1_cap=3 * 10**8, power1_average=25 * 10**7, **energy)
    (meter,) = hwmon.open_meters(here(tmp_path))
    clock[0] += 1
    put(folder, energy1_input=5 * 10**9 + 250 * 10**6)
    assert meter.counter and meter.read() == Reading(250, 250)
    clock[0] += 5
    assert meter.read().joules == 250
    with pytest.raises(MeterFailed, match="stands still"):
        for _ in range(6):
            clock[0] += 5
            meter.read()


def test_gpus_in_a_processors_package_and_unknown_drivers_are_no_meters_of_their_own(tmp_path):
    gpu(tmp_path, 0, power1_average=15 * 10**6)
    gpu(tmp_path, 1, "nvme", power1_input=10**6)
    gpu(tmp_path, 2, "ir35221", power1_input=10**8, power1_label="pin")
    with pytest.raises(MeterUnavailable) as missing:
        hwmon.open_meters(here(tmp_path))
    assert missing.value.elsewhere
    gpu(tmp_path, 3, "xe", energy1_input=10**6)
    put(gpu(tmp_path, 4, power1_cap=1, power1_input=10**8) / "device", device="0x74a0")
    meters = hwmon.open_meters(here(tmp_path))
    assert [(m.name, About.of(m).covers) for m in meters] == [
        ("hwmon:xe-1", "gpu"),
        ("hwmon:amdgpu-2", "module"),
    ]


def test_two_supplies_are_the_node_unless_its_board_is(tmp_path):
    for k in (0, 1):
        put(
            tmp_path / f"class/hwmon/hwmon{k}",
            name="dps920ab",
            power1_label="pin",
            power1_input=400 * 10**6,
            power2_label="pout1",
            power2_input=370 * 10**6,
        )
    meters = hwmon.open_meters(here(tmp_path))
    assert [m.read().watts for m in meters] == [400, 400]
    assert {About.of(m).covers for m in meters} == {"node"}
    acpi(tmp_path, 2, None, 800 * 10**6)
    assert [m.name for m in hwmon.open_meters(here(tmp_path))] == ["hwmon:board"]


def test_amds_processors_count_by_socket_and_what_may_not_be_read_says_so(tmp_path, monkeypatch):
    labels = {"energy1_label": "Ecore000", "energy2_label": "Esocket0", "energy3_label": "Esocket1"}
    counts = {f"energy{k}_input": 10**9 for k in (1, 2, 3)}
    put(tmp_path / "class/hwmon/hwmon0", name="amd_energy", **labels, **counts)
    assert [m.name for m in hwmon.open_meters(here(tmp_path))] == ["hwmon:cpu-0", "hwmon:cpu-1"]
    acpi(tmp_path, 1, None, 10**8)
    real = Path.read_bytes

    def denied(file):
        if file.name == "energy1_input":
            raise PermissionError
        return real(file)

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert [m.name for m in hwmon.open_meters(here(tmp_path))] == ["hwmon:board"]
    os.remove(tmp_path / "class/hwmon/hwmon1/name")
    with pytest.raises(MeterUnavailable, match="may not be read") as missing:
        hwmon.open_meters(here(tmp_path))
    assert not missing.value.elsewhere and "docs/how-to/meters.md" in missing.value.remedy


def test_all_meters_of_files_lie_below_the_configured_root(tmp_path):
    for socket in (0, 1):
        put(
            tmp_path / f"class/powercap/intel-rapl:{socket}",
            name=f"package-{socket}",
            energy_uj=10**9,
            max_energy_range_uj=10**12,
        )
    Cray(tmp_path, 1)
    acpi(tmp_path, 0, None, 10**8)
    assert [About.of(m).covers for m in rapl.open_meters(here(tmp_path))] == ["cpu", "cpu"]
    (tmp_path / "mine.yaml").write_text(f"power: {{sysfs_root: {tmp_path}}}")
    said = CliRunner().invoke(app, ["meters", "--config", str(tmp_path / "mine.yaml")]).output
    for line in (
        "pm_counters:node   measured  energy counter of the node, reads (renewed every 0.1 s)",
        "rapl:package-1     measured  energy counter of the cpu, reads",
        "hwmon:board        measured  power of the node, reads (renewed every 0.05 s)",
        "a run's energy here: pm_counters:node (measured of node)",
    ):
        assert line in said


def test_a_run_is_silent_about_meters_that_this_machine_is_not_made_for(tmp_path):
    order = SamplerOrder(("pm_counters", "rapl", "hwmon"), 0.1, here(tmp_path))
    assert [row["meter"] for row in open_all(order)[1]] == ["rapl"]
    alone = SamplerOrder(("pm_counters",), 0.1, here(tmp_path))
    assert [row["meter"] for row in open_all(alone)[1]] == ["pm_counters"]


def test_the_settings_reach_the_samplers_own_process(tmp_path):
    acpi(tmp_path, 0, None, 123 * 10**6)
    settings = MeterSettings(
        str(tmp_path), ("echo", "77 W"), Redfish(address="https://{node}.none")
    )
    nodes = MeteredNodes("host", settings=settings)
    order = SamplerOrder(("hwmon", "command"), 0.02, nodes)
    sampler = Sampler(order, tmp_path / "samples")
    sampler.wait_until_begun()
    samples = sampler.stop().samples()
    assert set(column(samples, "hwmon:board", "watts")) == {123}
    assert set(column(samples, "command", "watts")) == {77}
    (host,) = [SampledHost("h:boot", "host", as_it_is(), samples)]
    power = frames([host])[0]
    infos = meter_infos([host], power, outcome_of(power), 0.02)
    assert [(info.meter, info.covers, info.renewed_s) for info in infos] == [
        ("hwmon:board", "node", 0.05),
        ("command", "node", pytest.approx(1, abs=5)),
    ]
    assert [meter.meter for meter in metered(["host"], infos).meters] == ["hwmon:board"]


def as_it_is() -> RunClock:
    none = ClockOffset(0.0, 0.0, 0.0)
    return RunClock(0.0, none, none)


def outcome_of(power) -> Outcome:
    return Outcome(start_s=power["t_s"].min(), stop_s=power["t_s"].max() + 0.01)
