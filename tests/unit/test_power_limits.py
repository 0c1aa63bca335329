"""Power limits on made-up GPUs: every one gets back what it was found with, whatever happens."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest

from joulecast.errors import JoulecastError
from joulecast.power.limits import PowerLimits, preflight

NO_PERMISSION, NOT_SUPPORTED = 4, 3


class FakeError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML code {value}")
        self.value = value


class FakeNvml:
    """The part of pynvml that limits need. ``refuses`` maps a device to the code that it answers with."""

    NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_SUPPORTED = NO_PERMISSION, NOT_SUPPORTED
    NVMLError = FakeError

    def __init__(self, found_mw=(300_000,), refuses=None):
        self.limits_mw, self.refuses, self.log = list(found_mw), refuses or {}, []

    def nvmlInit(self):  # noqa: N802
        if "init" in self.refuses:
            raise FakeError(self.refuses["init"])

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.limits_mw)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, device):  # noqa: N802
        return f"GPU-{device}"

    def nvmlDeviceGetName(self, device):  # noqa: N802
        return f"FakeGPU {device}"

    def nvmlDeviceGetPowerManagementLimitConstraints(self, device):  # noqa: N802
        return [100_000, 400_000 - 50_000 * device]

    def nvmlDeviceGetPowerManagementLimit(self, device):  # noqa: N802
        return self.limits_mw[device]

    def nvmlDeviceSetPowerManagementLimit(self, device, milliwatts):  # noqa: N802
        if device in self.refuses:
            raise FakeError(self.refuses[device])
        self.log.append((device, milliwatts))
        self.limits_mw[device] = milliwatts


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    """What is noted of limits that are held goes there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def gpus(monkeypatch):
    def install(*args, **kwargs):
        fake = FakeNvml(*args, **kwargs)
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return install


def test_preflight_sets_only_what_is_in_force(gpus):
    fake = gpus((310_500, 200_000))
    found = preflight((0, 1))
    assert found.why_not is None and fake.log == [(0, 310_500), (1, 200_000)]
    assert [d.found_w for d in found.devices] == [310.5, 200.0]
    assert (found.devices[0].lowest_w, found.devices[0].highest_w) == (100, 400)
    assert found.highest_w == 350, "what all of them take"
    assert found.watts() == tuple(range(200, 99, -25)), "none above a limit that was found"
    assert found.watts(60) == (200, 140, 100)
    gpus((400_000,))
    assert preflight().watts(60) == (400, 340, 280, 220, 160, 100)


def test_preflight_does_not_set_what_it_may_not(gpus):
    fake = gpus()
    found = preflight(may_set=False)
    assert fake.log == [] and "allow_power_limit" in found.why_not
    assert found.watts() == () and found.highest_w == 400


def test_preflight_names_the_missing_right(gpus):
    gpus(refuses={0: NO_PERMISSION})
    found = preflight()
    for part in ("GPU 0 (FakeGPU 0)", "root", "CAP_SYS_ADMIN", "zeusd", "Slurm", str(os.geteuid())):
        assert part in found.why_not
    assert found.watts() == () and found.highest_w == 400
    gpus((300_000, 300_000), refuses={1: NOT_SUPPORTED})
    found = preflight((0, 1))
    assert found.devices[0].why_not is None and found.devices[1].why_not is not None
    assert "no right would help" in found.why_not and "GPU 0" not in found.why_not


def test_preflight_without_a_driver_or_a_device(gpus):
    gpus(refuses={"init": 9})
    assert "driver" in preflight().why_not and preflight().devices == ()
    gpus()
    assert "no GPU [3]" in preflight((3,)).why_not


FAKE_MODULE = textwrap.dedent(
    f"""
    import sys
    sys.path.insert(0, {os.path.dirname(__file__)!r})
    from test_power_limits import FakeNvml
    fake = FakeNvml()
    globals().update({{n: getattr(fake, n) for n in dir(fake) if n.startswith(("nvml", "NVML"))}})
    """
)


def killed_while_holding(tmp_path, watts):
    """A process that held GPU 0, found at 300 W, and was killed outright."""
    (tmp_path / "pynvml.py").write_text(FAKE_MODULE)
    program = (
        "import os, signal; from joulecast.power.limits import PowerLimits\n"
        f"with PowerLimits() as limits:\n    limits.set({watts}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == -signal.SIGKILL


def test_a_limit_that_a_killed_process_left_is_put_back(gpus, tmp_path):
    killed_while_holding(tmp_path, 150)
    (left,) = tmp_path.glob("joulecast-power-limit-*")
    content = left.read_text()
    fake = gpus((150_000,))
    found = preflight(may_set=False)
    assert fake.log == [] and found.notes == (), "without being allowed nothing is set"
    found = preflight()
    assert fake.limits_mw == [300_000] and found.devices[0].found_w == 300
    assert "left its power limit at 150 W; it is put back to 300 W" in found.notes[0]
    assert not left.exists() and preflight().notes == ()
    left.write_text(content)
    fake.limits_mw = [150_000]
    with PowerLimits() as limits:
        assert limits.found_w == (300,) and "put back to 300 W" in limits.notes[0]
        limits.set(120)
    assert fake.limits_mw == [300_000] and not left.exists()
    # Of another boot, or broken: what is in force is what was found.
    for wrong in (content.replace(":", ":x", 2), "{", '{"boot": 1}', ""):
        left.write_text(wrong)
        fake.limits_mw = [150_000]
        assert preflight().devices[0].found_w == 150


def test_what_is_held_is_noted_on_disk_until_it_is_put_back(gpus, tmp_path):
    fake = gpus()

    def noted():
        return len(list(tmp_path.glob("joulecast-power-limit-*")))

    with PowerLimits() as limits:
        limits.set(150)
        assert noted() == 1
        with pytest.raises(JoulecastError, match="another process of this user"), PowerLimits():
            pass
        assert "another process" in preflight().why_not and fake.limits_mw == [150_000]
        assert noted() == 1
    assert noted() == 0
    with pytest.raises(JoulecastError, match="by hand"), PowerLimits() as limits:
        limits.set(150)
        fake.refuses[0] = NO_PERMISSION
    assert noted() == 1, "the next one tries again"


def test_without_a_folder_to_write_in_limits_are_held_all_the_same(gpus, monkeypatch):
    fake = gpus()
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with PowerLimits() as limits:
        limits.set(150)
    assert fake.limits_mw == [300_000]


def test_limits_go_back_to_what_was_found(gpus):
    fake = gpus((310_500, 200_000))
    with PowerLimits((0, 1)) as limits:
        assert limits.found_w == (310.5, 200.0)
        limits.set(250)
        assert fake.limits_mw == [250_000, 250_000]
        limits.set(150)
    assert fake.limits_mw == [310_500, 200_000]
    told = len(fake.log)
    limits.restore()
    assert len(fake.log) == told, "restoring twice does nothing"
    with pytest.raises(ZeroDivisionError), PowerLimits((0, 1)) as limits:
        limits.set(100)
        raise ZeroDivisionError
    assert fake.limits_mw == [310_500, 200_000]


def test_a_limit_that_was_never_set_is_not_touched(gpus):
    fake = gpus()
    with PowerLimits():
        pass
    assert fake.log == []


def test_a_failing_restore_names_the_device_and_the_command_and_the_others_go_back(gpus):
    fake = gpus((310_500, 200_000))
    with (
        pytest.raises(JoulecastError, match=r"GPU 0.*nvidia-smi -i 0 -pl 310\.5") as said,
        PowerLimits((0, 1)) as limits,
    ):
        limits.set(150)
        fake.refuses[0] = NO_PERMISSION
    assert fake.limits_mw == [150_000, 200_000] and "GPU 1" not in str(said.value)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_refused_limit_says_why(gpus):
    fake = gpus((300_000, 200_000), refuses={1: NO_PERMISSION})
    with (
        pytest.raises(JoulecastError, match=r"GPU 1.*CAP_SYS_ADMIN"),
        PowerLimits((0, 1)) as limits,
    ):
        fake.refuses[1] = NO_PERMISSION
        try:
            limits.set(150)
        finally:
            fake.refuses = {}
    assert fake.limits_mw == [300_000, 200_000]


def test_signal_handlers_are_put_back_and_ignored_signals_stay_ignored(gpus):
    gpus()

    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGTERM, mine), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with PowerLimits():
            assert signal.getsignal(signal.SIGTERM) is not mine
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


def test_a_handler_that_lets_the_process_go_on_keeps_the_promise(gpus):
    fake, heard = gpus(), []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with PowerLimits() as limits:
            limits.set(150)
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == [signal.SIGTERM] and fake.limits_mw == [300_000]
            limits.set(120)
        assert fake.limits_mw == [300_000]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def interruptible():
    """Whoever started the tests may have had them ignore it (nohup, a shell's background job)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_restores_and_is_a_keyboard_interrupt(gpus, interruptible):
    fake = gpus()
    with pytest.raises(KeyboardInterrupt), PowerLimits() as limits:
        limits.set(150)
        os.kill(os.getpid(), signal.SIGINT)
    assert fake.limits_mw == [300_000]


def test_the_signal_is_passed_on_whatever_goes_wrong(gpus, capfd):
    gpus()
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with PowerLimits() as limits:
            limits.set(150)
            real = limits.restore

            def breaks():
                raise RuntimeError("reentrant call")

            limits.restore = breaks
            os.kill(os.getpid(), signal.SIGTERM)
            limits.restore = real
        assert heard == [signal.SIGTERM] and "reentrant call" in capfd.readouterr().err
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_the_block_restores(gpus):
    fake, failed = gpus(), []

    def work():
        try:
            with PowerLimits() as limits:
                limits.set(150)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed and fake.limits_mw == [300_000] and fake.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_told_to_end_restores_and_dies_of_the_signal(tmp_path, number):
    (tmp_path / "pynvml.py").write_text(FAKE_MODULE)
    program = (
        "import pynvml, os; from joulecast.power.limits import PowerLimits\n"
        # Whoever started the tests may have had them ignore it.
        f"import signal; signal.signal({int(number)}, signal.SIG_DFL)\n"
        "with PowerLimits() as limits:\n"
        "    limits.set(150); print(pynvml.fake.limits_mw, flush=True)\n"
        "    fake = pynvml.fake; tell = fake.log.append\n"
        "    import joulecast.power.limits as l\n"
        "    real = limits.restore\n"
        "    limits.restore = lambda: (real(), print(fake.limits_mw, flush=True))\n"
        f"    os.kill(os.getpid(), {int(number)}); print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == -number, done.stderr
    assert done.stdout.split("\n") == ["[150000]", "[300000]", ""]
