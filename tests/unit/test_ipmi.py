"""IPMI by a stand-in for ipmitool in PATH: local and over the network, slow, closed, without watts."""

from pathlib import Path

import pytest

from joulecast.platforms.controller import Controller
from joulecast.power import ipmi
from joulecast.power.meters import About, MeteredNodes, MeterUnavailable, ReadFailed
from joulecast.records.meter_settings import MeterSettings

pytestmark = pytest.mark.usefixtures("slow_meters_end")

SECRET = "s3cret-Word"
READING = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                 11 Watts
    Maximum during sampling period:                900 Watts
    Average power reading over sample period:      240 Watts
    IPMI timestamp:                           Mon Nov 23 12:00:00 2026
    Sampling period:                          00000005 Seconds.
    Power reading state is:                   {state}
"""


@pytest.fixture
def bmc(tmp_path, monkeypatch):
    """Sets what the stand-in does; it writes its words and its environment down."""
    device = tmp_path / "ipmi0"
    device.touch()
    monkeypatch.setattr(ipmi, "DEVICES", (device,))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def answers(text: str = "", *, watts: object = 220, state="activated", code=0):
        (tmp_path / "reading").write_text(READING.format(watts=watts, state=state))
        file = tmp_path / "bin/ipmitool"
        file.write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/words\nenv > {tmp_path}/environment\n'
            f"{text or f'cat {tmp_path}/reading'}\nexit {code}\n"
        )
        file.chmod(0o755)

    answers()
    return answers


def nodes(**settings) -> MeteredNodes:
    asked = Controller(**settings) if settings else None
    return MeteredNodes("host", settings=MeterSettings(ipmi=asked))


def test_the_nodes_own_controller_gives_its_instantaneous_watts(bmc, tmp_path):
    (meter,) = ipmi.open_meters(nodes())
    assert meter.read().watts == 220 and About.of(meter).covers == "node" and not meter.counter
    assert (tmp_path / "words").read_text() == "dcmi power reading\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"state": "deactivated"}, "its power reading is deactivated"),
        ({"watts": 0}, "no node draws"),
        ({"watts": 65535}, "no node draws"),
        ({"watts": "n/a"}, "expected a power reading"),
        (
            {"text": "echo Could not open device at /dev/ipmi0 >&2", "code": 1},
            "code 1 and printed: Could not open device",
        ),
        ({"text": "exec sleep 60"}, "did not answer within 0.5 s"),
    ],
)
def test_a_controller_without_watts_says_why(bmc, tmp_path, monkeypatch, answer, said):
    bmc(**answer)
    if "sleep" in answer.get("text", ""):
        settings = own(tmp_path, f"user: reader\npassword: {SECRET}") | {"timeout_s": 0.5}
    else:
        settings = {}
    with pytest.raises(MeterUnavailable, match=said) as missing:
        ipmi.open_meters(nodes(**settings))
    assert not missing.value.elsewhere and "by hand" in missing.value.remedy


def own(tmp_path: Path, content: str) -> dict[str, str]:
    file = tmp_path / "credentials"
    file.write_text(content)
    file.chmod(0o600)
    return {"address": "{node}-bmc", "credentials": str(file)}


def test_a_password_goes_by_the_environment_and_nowhere_else(bmc, tmp_path, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node07.cluster")
    settings = own(tmp_path, f"user: reader\npassword: {SECRET}\n") | {"interval_s": 0.2}
    (meter,) = ipmi.open_meters(nodes(**settings))
    assert meter.read().watts == 220 and meter.identity == "ipmi:node07-bmc"
    words = (tmp_path / "words").read_text()
    assert words == "-I lanplus -L USER -H node07-bmc -U reader -E dcmi power reading\n"
    assert f"IPMI_PASSWORD={SECRET}\n" in (tmp_path / "environment").read_text()
    bmc("echo Error: Unable to establish session >&2", code=1)
    with pytest.raises(ReadFailed, match="Unable to establish") as failed:
        meter._ask()
    assert SECRET not in str(failed.value)
    with pytest.raises(MeterUnavailable, match="holds a token") as missing:
        ipmi.open_meters(nodes(**own(tmp_path, f"token: {SECRET}")))
    assert SECRET not in str(missing.value)


def test_machines_without_a_controller_and_closed_devices(bmc, tmp_path, monkeypatch):
    monkeypatch.setattr(ipmi, "_is_open", lambda device: False)
    with pytest.raises(MeterUnavailable, match="closed to this user") as missing:
        ipmi.open_meters(nodes())
    assert not missing.value.elsewhere
    monkeypatch.setattr(ipmi, "DEVICES", (tmp_path / "none",))
    with pytest.raises(MeterUnavailable, match="no IPMI device") as missing:
        ipmi.open_meters(nodes())
    assert missing.value.elsewhere
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeterUnavailable, match="no program ipmitool") as missing:
        ipmi.open_meters(nodes())
    assert missing.value.elsewhere
