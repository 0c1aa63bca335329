"""The power limit of a made-up GPU: it gets back what it was found with."""

import os
import signal

import pytest
from sampling import FakeGpu, show_gpus

from joulecast.errors import JoulecastError
from joulecast.measure.power.power_limit import power_limit, preflight


def test_preflight_says_what_can_be_set_and_sets_nothing(monkeypatch):
    gpu = show_gpus(monkeypatch, FakeGpu())
    found = preflight(0)
    assert found.why_not is None and gpu.set_to == []
    assert (found.found_w, found.lowest_w, found.highest_w) == (300, 100, 400)
    assert found.watts() == tuple(range(300, 99, -25)), "none above the limit that was found"
    assert found.watts(80) == (300, 220, 140, 100)


def test_preflight_names_what_is_missing(monkeypatch):
    gpu = show_gpus(monkeypatch, FakeGpu())
    assert "allow_power_limit" in preflight(0, may_set=False).why_not
    gpu.supports_nonblocking_setters = False
    monkeypatch.setattr("zeus.device.common.has_sys_admin", lambda: False)
    found = preflight(0)
    assert "CAP_SYS_ADMIN" in found.why_not and "zeusd" in found.why_not
    assert found.watts() == () and found.highest_w == 400
    assert "no GPU 3 among the 1" in preflight(3).why_not


def test_the_limit_is_put_back_after_an_error_and_after_a_signal(monkeypatch):
    gpu = show_gpus(monkeypatch, FakeGpu())
    with pytest.raises(ZeroDivisionError), power_limit(0) as set_limit:
        set_limit(200)
        assert gpu.limit_mw == 200_000
        raise ZeroDivisionError
    assert gpu.set_to == [200_000, 300_000]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), power_limit(0) as set_limit:
        set_limit(150)
        os.kill(os.getpid(), signal.SIGTERM)
    assert gpu.limit_mw == 300_000 and signal.getsignal(signal.SIGTERM) is before


def test_a_limit_that_is_refused_is_an_error_that_names_the_way_out(monkeypatch):
    gpu = show_gpus(monkeypatch, FakeGpu())
    with (
        pytest.raises(JoulecastError, match="nvidia-smi -i 0 -pl 300"),
        power_limit(0) as set_limit,
    ):
        set_limit(200)
        gpu.refuses = True
    gpu.limit_mw = 300_000
    with power_limit(0):
        pass
    assert gpu.set_to == [200_000], "a limit that was left alone is not set"
    with pytest.raises(JoulecastError, match="200 W is refused"):
        gpu.refuses = True
        set_limit(200)
