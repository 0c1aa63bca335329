"""RAPL by perf_event_open: the real call into a stand-in for the C library, which gives pipes."""

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest

from joulecast.power import perf
from joulecast.power.meters import About, MeteredNodes, MeterFailed, MeterUnavailable, ReadFailed
from joulecast.records.meter_settings import MeterSettings

SCALE = 2.3283064365386962890625e-10
EVENTS = {"energy-cores": 1, "energy-pkg": 2, "energy-ram": 3}


class Kernel:
    """perf_event_open: a pipe for each counter, with its counts put in beforehand."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.asked = code, []
        self.ends: dict[tuple[int, int], int] = {}

    def syscall(self, number, attribute, pid, cpu, group, flags):
        kind, size, event = struct.unpack("IIQ", ctypes.string_at(attribute, 16))
        assert (kind, size, pid, group, flags.value) == (31, 64, -1, -1, 8) and number in (298, 241)
        if self.code:
            ctypes.set_errno(self.code)
            return -1
        self.asked.append((event, cpu))
        reads, self.ends[event, cpu] = os.pipe()
        self.put(event, cpu, 0)
        return reads

    def put(self, event: int, cpu: int, joules: float) -> None:
        os.write(self.ends[event, cpu], struct.pack("q", round(joules / SCALE)))


@pytest.fixture
def nodes(tmp_path):
    folder = tmp_path / "bus/event_source/devices/power"
    (folder / "events").mkdir(parents=True)
    (folder / "type").write_text("31\n")
    (folder / "cpumask").write_text("0,64\n")
    for name, code in EVENTS.items():
        (folder / "events" / name).write_text(f"event={code:#04x}\n")
        (folder / "events" / f"{name}.scale").write_text(f"{SCALE:.30g}\n")
        (folder / "events" / f"{name}.unit").write_text("Joules\n")
    return MeteredNodes("host", settings=MeterSettings(sysfs_root=str(tmp_path)))


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(perf, "_libc", lambda: kernel)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield kernel
    for end in kernel.ends.values():
        os.close(end)


def test_two_sockets_count_packages_and_memory_and_nothing_inside_of_them(nodes, kernel):
    meters = perf.open_meters(nodes)
    assert [(m.name, About.of(m).covers) for m in meters] == [
        ("perf:pkg-0", "cpu"),
        ("perf:pkg-1", "cpu"),
        ("perf:ram-0", "memory"),
        ("perf:ram-1", "memory"),
    ]
    assert kernel.asked == [(2, 0), (2, 64), (3, 0), (3, 64)]
    kernel.put(2, 64, 0.5)
    assert meters[1].read().joules == pytest.approx(0.5)
    kernel.put(2, 64, 0.25)
    with pytest.raises(MeterFailed, match="restarted or is broken"):
        meters[1].read()
    os.write(kernel.ends[2, 0], b"x")
    with pytest.raises(ReadFailed, match="no count"):
        meters[0].read()


def test_a_whole_machine_counts_alone(nodes, kernel):
    events = nodes.sysfs / perf.FOLDER / "events"
    (events / "energy-psys").write_text("event=0x05")
    (events / "energy-psys.scale").write_text(str(SCALE))
    (meter,) = perf.open_meters(nodes)
    assert kernel.asked == [(5, 0)] and meter.name == "perf:psys-0"


@pytest.mark.parametrize(
    ("code", "said"), [(errno.EACCES, "does not let"), (errno.EPERM, "does not let")]
)
def test_a_kernel_that_refuses_says_what_to_set(nodes, kernel, code, said):
    kernel.code = code
    with pytest.raises(MeterUnavailable, match=said) as missing:
        perf.open_meters(nodes)
    assert "perf_event_paranoid" in missing.value.remedy and not missing.value.elsewhere
    kernel.code = errno.ENOENT
    with pytest.raises(MeterUnavailable, match="No such file"):
        perf.open_meters(nodes)


def test_the_same_counters_are_never_read_twice(nodes, kernel):
    folder = Path(nodes.settings.sysfs_root) / "class/powercap/intel-rapl:0"
    folder.mkdir(parents=True)
    for name, content in (("name", "package-0"), ("energy_uj", 5), ("max_energy_range_uj", 10**9)):
        (folder / name).write_text(str(content))
    with pytest.raises(MeterUnavailable, match="rapl reads the same") as missing:
        perf.open_meters(nodes)
    assert missing.value.elsewhere and kernel.asked == []


def test_machines_without_events_are_passed_over(tmp_path, nodes, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(MeterUnavailable, match="riscv64"):
        perf.open_meters(nodes)
    empty = MeteredNodes("host", settings=MeterSettings(sysfs_root=str(tmp_path / "no")))
    with pytest.raises(MeterUnavailable, match="no events of power") as missing:
        perf.open_meters(empty)
    assert missing.value.elsewhere
