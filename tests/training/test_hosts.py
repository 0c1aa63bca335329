"""A run over two hosts: namespaces give each rank a name, a clock and sensors of its own."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from conftest import make_spec

from joulecast.measure.power.host_clocks import ClockOffset, RunClock
from joulecast.measure.training.measure_run import measure_run
from joulecast.runs.observations import observe
from joulecast.runs.provenance import boot_id
from joulecast.runs.record import read_record
from joulecast.runs.spec import Calibration

AHEAD_S = 1000

HOST = """#!/bin/sh
# host.sh NAME COMMAND...: run COMMAND on the host NAME of this folder.
here=$(dirname "$0")/$1
exec unshare {user} --uts --mount --time --monotonic "$(cat "$here/ahead_s")" --boottime 0 \\
    --fork --kill-child sh -c '
        here=$0
        hostname "$(basename "$here")" &&
        mount --bind /sys/class/net "$here/class/net" &&
        mount --rbind "$here/class" /sys/class && shift && exec "$@"' "$here" "$@"
"""

RANK = """#!/bin/sh
exec "$(dirname "$0")/host.sh" "node0$PMI_RANK" "$@"
"""

LAUNCHER = """#!/bin/sh
# As mpiexec, but the command is run by rank.sh.
shift 2
exec mpiexec -n 2 "$(dirname "$0")/rank.sh" "$@"
"""


@contextmanager
def rapl(*hosts, counted=lambda uj: uj):
    """Give hosts one RAPL domain each, which counts 50 W while the block lasts."""
    counters = []
    for host in hosts:
        package = host / "class/powercap/intel-rapl/intel-rapl:0"
        package.mkdir(parents=True)
        (package / "name").write_text("package-0\n")
        (package / "max_energy_range_uj").write_text("262143328850")
        counters.append(package / "energy_uj")
    ends, begin = threading.Event(), time.monotonic()

    def count():
        while True:
            uj = counted(200_000_000_000 + round(50e6 * (time.monotonic() - begin)))
            for counter in counters:
                # Renamed into place: the kernel's own file is never empty.
                new = counter.with_suffix(".new")
                new.write_text(str(uj))
                new.replace(counter)
            if ends.wait(0.01):
                return

    counting = threading.Thread(target=count)
    counting.start()
    while not all(counter.is_file() for counter in counters):
        time.sleep(0.01)
    try:
        yield
    finally:
        ends.set()
        counting.join()


@pytest.fixture
def two_hosts(tmp_path):
    """A launcher whose ranks are on `node00` and, 1000 s ahead, on `node01`, both without sensors."""
    for name, ahead_s in (("node00", 0), ("node01", AHEAD_S)):
        (tmp_path / name / "class/net").mkdir(parents=True)  # MPI looks into it
        (tmp_path / name / "ahead_s").write_text(str(ahead_s))
    user = "" if os.geteuid() == 0 else "--user --map-root-user"
    for name, text in (("host", HOST.format(user=user)), ("rank", RANK), ("launcher", LAUNCHER)):
        (tmp_path / f"{name}.sh").write_text(text)
        (tmp_path / f"{name}.sh").chmod(0o755)
    clock = [sys.executable, "-c", "import time; print(time.monotonic())"]
    found = subprocess.run(
        [tmp_path / "host.sh", "node01", *clock], capture_output=True, text=True, timeout=120
    )
    if found.returncode:
        pytest.skip(f"no namespaces for hosts here: {found.stderr.strip()}")
    if abs(float(found.stdout) - time.monotonic() - AHEAD_S) > 10:
        pytest.skip("the kernel gives a time namespace no clock of its own")
    return str(tmp_path / "launcher.sh")


@pytest.mark.long
def test_ranks_of_two_hosts_share_one_clock_and_missing_meters_are_named(two_hosts, tmp_path):
    spec = make_spec("two", 2, meters=("cpu",), training={"steps": 12}, sample_period_s=0.05)
    spec = spec.model_copy(update={"platform": spec.platform.model_copy(update={"hosts": None})})
    with rapl(tmp_path / "node01"):
        measure_run(spec, tmp_path / "two", tmp_path / "log", launcher=two_hosts, timeout_s=100)
    record = read_record(tmp_path / "two")
    info, outcome = record.info, record.info.outcome
    assert info.nodes == ["node00", "node01"] and info.checks.distinct_hosts == 2

    own, ahead = (info.clock[f"{node}:{boot_id()}"] for node in info.nodes)
    doubt_s = ahead["uncertainty_s"]
    assert ahead["offset_s"] == pytest.approx(-AHEAD_S, abs=doubt_s)
    assert 0 < doubt_s < 0.5, "a busy machine answers late; the clocks are 1000 s apart"
    # It is one clock in truth, so that what seems to drift is no more than the doubt.
    assert abs(ahead["drift_ppm"]) <= ahead["drift_uncertainty_ppm"]
    assert own["offset_s"] == own["drift_ppm"] == 0
    assert outcome.stop_s - outcome.start_s < 100, "no rank is 1000 s away"
    within = record.stages["start_s"].min(), record.stages["stop_s"].max()
    slack_s = 0.01 + doubt_s
    assert outcome.start_s - slack_s <= within[0] and within[1] <= outcome.stop_s + slack_s
    # All ranks leave a sum together: a clock that is off shows there.
    sums = record.stages[record.stages["stage"] == "communicating_copy"]
    ends = sums.groupby(["step", "rank"])["stop_s"].max().unstack()
    assert (ends[0] - ends[1]).abs().median() < 0.5
    for frame in (record.power, record.activity):
        t_s = frame[frame["node"] == "node01"]["t_s"]
        assert t_s.between(outcome.start_s, outcome.stop_s).sum() >= 2
        assert t_s.between(outcome.start_s - 100, outcome.stop_s + 100).all()

    # One host alone has RAPL: its joules are no energy of the run.
    row = observe(record)
    assert record.power["node"].unique().tolist() == ["node01"]
    assert row["energy_j"] != row["energy_j"] and info.energy_source is row["energy_source"] is None
    assert row["why_no_energy"].startswith("node00: cpu: cpu: the kernel offers no RAPL")
    assert row["why_no_energy"].endswith("; 1 of 2 hosts are metered")


def sleeping(seconds):
    """Two ranks on two hosts that sleep, read by RAPL."""
    spec = make_spec("two", 2, meters=("cpu",), sample_period_s=0.05)
    parts = {"kind": "sleeping_rank", "calibration": Calibration(seconds=seconds)}
    platform = spec.platform.model_copy(update={"hosts": None})
    parts |= {"workload": None, "training": None, "platform": platform}
    return spec.model_copy(update=parts)


def test_containers_of_one_machine_have_one_meter(two_hosts, tmp_path):
    """Two names, but one boot id: what both read is one device, and counts once."""
    with rapl(tmp_path / "node00", tmp_path / "node01"):
        measure_run(
            sleeping(1.0), tmp_path / "two", tmp_path / "log", launcher=two_hosts, timeout_s=100
        )
    record = read_record(tmp_path / "two")
    assert [(m.node, m.meter, m.shared_with) for m in record.info.meters] == [
        ("node00", "cpu:package-0", ["node01"]),
        ("node01", "cpu:package-0", ["node00"]),
    ]
    row = observe(record)
    assert row["energy_source"] == "measured" and row["metered_units"] == 1


@pytest.mark.long
def test_a_counter_that_falls_in_a_run_costs_its_energy_and_nothing_else(two_hosts, tmp_path):
    def counted(uj):
        return 200_000_000_000 + uj % 50_000_000  # falls by 50 J every second

    with rapl(tmp_path / "node00", tmp_path / "node01", counted=counted):
        measure_run(
            sleeping(1.5), tmp_path / "two", tmp_path / "log", launcher=two_hosts, timeout_s=100
        )
    row = observe(read_record(tmp_path / "two"))
    assert row["energy_j"] != row["energy_j"] and row["energy_source"] is None
    assert "its counter went from" in row["why_no_energy"]
    assert row["total_s"] >= 1.5


@pytest.mark.parametrize("measured_s", [0.0, 5000.0, 10000.0])
def test_clocks_that_drift_are_brought_back_between_two_measurements(measured_s):
    """A clock that is 100 ppm slow, and was 7 s behind when it was first looked at."""

    def there(true_s):
        return (true_s - 2000) * (1 - 1e-4) + 1993

    before, after = (ClockOffset(t - there(t), 1e-5, there(t)) for t in (2000.0, 12000.0))
    clock = RunClock(1999.0, before, after)
    assert clock(there(2000 + measured_s)) == pytest.approx(1 + measured_s, abs=1e-4)
    assert clock.facts()["offset_s"] == pytest.approx(7)
    assert clock.facts()["drift_ppm"] == pytest.approx(100, rel=1e-3)
    assert clock.facts()["drift_uncertainty_ppm"] == pytest.approx(2e-3, rel=1e-2)
