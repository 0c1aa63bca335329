"""AMD's GPUs by amdsmi, on a package that is made up."""

import sys
import time
from types import ModuleType

import pytest

from joulecast.power import amd_smi
from joulecast.power.agreement import Agreement
from joulecast.power.meters import (
    About,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    ReadFailed,
    Reading,
)

HERE = MeteredNodes("host")
UNIT_UJ = 15.259


class FakeSmi(ModuleType):
    """The part of amdsmi that the meter uses, in the form of a package of ROCm 6.4."""

    class AmdSmiException(Exception):
        pass

    def __init__(self, watts, name="AMD Instinct MI300X"):
        super().__init__("amdsmi")
        self.__spec__ = object()
        self.watts, self.name = list(watts), name
        self.joules = [9e6] * len(self.watts)
        self.init_error: Exception | None = None

    def amdsmi_init(self):
        if self.init_error:
            raise self.init_error

    def amdsmi_get_processor_handles(self):
        return range(len(self.watts))

    def amdsmi_get_gpu_device_uuid(self, device):
        return f"uuid-{device}"

    def amdsmi_get_gpu_asic_info(self, device):
        return {"market_name": self.name}

    def amdsmi_get_power_info(self, device):
        if self.watts[device] is None:
            raise self.AmdSmiException("not supported")
        known = self.watts[device]
        return {"current_socket_power": known, "average_socket_power": "N/A", "power_limit": 1}

    def amdsmi_get_energy_count(self, device):
        if self.joules[device] is None:
            return {"energy_accumulator": "N/A", "counter_resolution": "N/A"}
        count = int(self.joules[device] / UNIT_UJ * 1e6)
        return {"energy_accumulator": count, "counter_resolution": UNIT_UJ, "timestamp": 1}


@pytest.fixture
def install(monkeypatch, tmp_path):
    monkeypatch.setattr(amd_smi, "_DRIVER", tmp_path)

    def install(watts, **more):
        smi = FakeSmi(watts, **more)
        monkeypatch.setitem(sys.modules, "amdsmi", smi)
        return smi

    return install


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_eight_gpus_count_their_joules(install, clock):
    smi = install([300] * 8)
    meters = amd_smi.open_meters(HERE)
    assert [m.name for m in meters] == [f"amdsmi:{k}" for k in range(8)]
    assert {About.of(m) for m in meters} == {About(covers="gpu")}
    assert len({m.identity for m in meters}) == 8
    clock[0] += 1
    smi.joules[3] += 300
    assert meters[3].read() == Reading(300, pytest.approx(300, abs=1e-3))


def test_two_dies_are_one_package_and_an_mi300a_is_a_module(install):
    smi = install([90, 0, 90, None], name="AMD Instinct MI250X")
    smi.joules[1] = smi.joules[3] = 0
    meters = amd_smi.open_meters(HERE)
    assert [m.name for m in meters] == ["amdsmi:0", "amdsmi:2"]
    assert "GPU 1, 3" in About.of(meters[0]).remark
    install([200], name="AMD Instinct MI300A")
    assert About.of(amd_smi.open_meters(HERE)[0]).covers == "module"


def test_gpus_without_a_counter_give_watts_and_wrong_watts_are_missing(install):
    smi = install([150])
    smi.joules[0] = None
    (meter,) = amd_smi.open_meters(HERE)
    assert meter.read() == Reading(150, None) and not meter.counter
    for wrong in (65535, -1, "N/A", float("nan"), None):
        smi.watts[0] = wrong
        with pytest.raises(ReadFailed):
            meter.read()


@pytest.mark.parametrize(
    ("counted", "said"),
    [(0.0, "where its watts add up to"), (5.0, "where its watts"), (-1e5, "restarted")],
)
def test_a_counter_that_does_not_follow_its_gpu_has_failed(install, clock, counted, said):
    smi = install([300])
    (meter,) = amd_smi.open_meters(HERE)
    with pytest.raises(MeterFailed, match=said):
        for _ in range(40):
            clock[0] += 0.25
            smi.joules[0] += counted
            meter.read()


def test_a_load_that_changes_is_no_fault():
    agreement, joules = Agreement(), 0.0
    for k in range(200):
        watts = 500.0 if (k // 20) % 2 else 40.0
        joules += watts / 10
        agreement.check(joules, watts, k / 10)
    rare = Agreement()
    for k in range(20):
        rare.check(1000.0 * k, 40.0, 10.0 * k)


def test_what_cannot_be_opened_says_why_and_machines_without_it_are_passed_over(
    install, monkeypatch, tmp_path
):
    smi = install([100])
    smi.init_error = KeyError("libamd_smi.so")
    with pytest.raises(MeterUnavailable, match="KeyError: 'libamd_smi") as missing:
        amd_smi.open_meters(HERE)
    assert "node's own ROCm" in missing.value.remedy and not missing.value.elsewhere
    monkeypatch.setattr(amd_smi, "_DRIVER", tmp_path / "no")
    with pytest.raises(MeterUnavailable) as missing:
        amd_smi.open_meters(HERE)
    assert missing.value.elsewhere
    install([None, 0])
    with pytest.raises(MeterUnavailable, match="none of 2 GPUs"):
        amd_smi.open_meters(HERE)
    monkeypatch.delitem(sys.modules, "amdsmi")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MeterUnavailable, match="not installed") as missing:
        amd_smi.open_meters(HERE)
    assert missing.value.elsewhere
