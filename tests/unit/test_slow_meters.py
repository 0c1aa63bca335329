"""Meters that are asked over a network or by a program: they may be slow, wrong, or closed."""

import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from sampling import column, sampled

from joulecast.measure.power import command_meter, sampler
from joulecast.measure.power.command_meter import BackgroundMeter, finish_all, output_of
from joulecast.measure.power.meters import (
    MeteredNodes,
    MeterUnavailable,
    NothingNew,
    ReadFailed,
    Reading,
    described,
)
from joulecast.measure.power.sampler import Sampler, SamplerOrder

pytestmark = pytest.mark.usefixtures("slow_meters_end")


def until(condition, patience_s=30.0):
    """Wait for a condition, however long a busy machine takes for it."""
    give_up_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def program(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def slow(ask, **more):
    facts = {"every_s": 0.02, "identity": None} | more
    return BackgroundMeter("slow", "host", ask, **facts)


def test_a_slow_meter_gives_each_answer_once_with_its_time():
    asked = []

    def ask():
        asked.append(time.monotonic())
        return Reading(100.0 + len(asked), None)

    meter = slow(ask)
    first = meter.read()
    assert first.watts == 101 and abs(first.at_s - asked[0]) < 1
    with pytest.raises(NothingNew):
        while True:
            meter.read()
    until(lambda: len(asked) > 5)
    assert meter.read().at_s > first.at_s
    finish_all([meter])
    last = len(asked)
    time.sleep(0.1)
    assert len(asked) == last


def test_a_meter_that_hangs_holds_up_neither_sampler_nor_the_others(monkeypatch):
    """From its thread to the sampler's answer: the meter that is read fast misses nothing."""
    hang, stop, reads = threading.Event(), threading.Event(), []

    class Fast:
        node, name, source, counter, identity = "host", "fast", "measured", False, None

        def read(self):
            reads.append(1)
            if len(reads) >= 15:
                stop.set()
            return Reading(1.0, None)

    answers = iter([Reading(50.0, None)])

    def ask():
        try:
            return next(answers)
        except StopIteration:
            hang.wait()
            raise ReadFailed("at last") from None

    monkeypatch.setattr(command_meter, "FINISH_S", 0.05)
    kinds = {"slow": lambda nodes: [slow(ask)], "fast": lambda nodes: [Fast()]}
    monkeypatch.setattr(sampler, "METERS", kinds)
    samples = sampled(SamplerOrder(("slow", "fast"), 0.02, MeteredNodes("host")), stop)
    hang.set()
    assert column(samples, "slow", "watts") == [50.0]
    assert len(column(samples, "fast", "watts")) >= 15
    assert [m.failed_reads for m in samples.facts.meters] == [0, 0], "it is slow, and not at fault"
    assert samples.facts.meters[0].covers == "node"


def test_several_meters_that_hang_hold_up_the_end_together(monkeypatch):
    monkeypatch.setattr(command_meter, "FINISH_S", 1.0)
    over, asked = threading.Event(), []

    def hang():
        asked.append(1)
        if len(asked) > 4:
            over.wait(30)
        return Reading(100.0, None)

    meters = [slow(hang) for _ in range(4)]
    for meter in meters:
        meter.read()
    until(lambda: len(asked) == 8)
    began_s = time.monotonic()
    assert finish_all(meters)
    waited_s = time.monotonic() - began_s
    over.set()
    # One after the other they would take four times as long.
    assert 0.9 < waited_s < 3.5


def test_answers_that_failed_are_counted_and_faults_end_it(monkeypatch):
    stop = threading.Event()
    answers = iter([Reading(5.0, None), ReadFailed("no"), Reading(6.0, None), KeyError("x")])

    def ask():
        answer = next(answers)
        if isinstance(answer, KeyError):
            stop.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    kinds = {"slow": lambda nodes: [slow(ask)]}
    monkeypatch.setattr(sampler, "METERS", kinds)
    samples = sampled(SamplerOrder(("slow",), 0.01, MeteredNodes("host")), stop)
    (meter,) = samples.facts.meters
    assert column(samples, "slow", "watts") == [5, 6]
    assert meter.failed_reads == 1 and meter.reason == "KeyError: 'x'"


def commanded(*words) -> MeteredNodes:
    return MeteredNodes("host", power_command=words)


@pytest.mark.parametrize(
    ("printed", "reading"),
    [
        ("231.5 W", (231.5, None)),
        ("1.2kW", (1200, None)),
        ("250000 mW", (250, None)),
        ("12345 J", (None, 0)),
        ("1.5e3 kWh", (None, 0)),
    ],
)
def test_a_command_of_the_site_prints_watts_or_joules(printed, reading):
    (meter,) = command_meter.open_command(commanded("echo", printed))
    said = meter.read()
    assert (said.watts, said.joules) == reading and meter.counter == (reading[0] is None)
    assert described(meter).covers == "node" and described(meter).renewed_s >= 1


def test_a_command_may_fail_once_when_a_run_begins(tmp_path):
    text = f"test -e {tmp_path}/asked || {{ touch {tmp_path}/asked; exit 1; }}; echo 9 W"
    (meter,) = command_meter.open_command(commanded(program(tmp_path, "meter", text)))
    assert meter.read().watts == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 231.5", "expected a number with its unit"),
        ("echo nan W", "expected a number"),
        ("echo -3 W", "expected a number"),
        ("true", "printed 'nothing'"),
        ("echo no meter here >&2; exit 3", "code 3 and printed: no meter here"),
    ],
)
def test_a_command_that_prints_no_reading_says_why(tmp_path, text, said):
    with pytest.raises(MeterUnavailable, match=said) as missing:
        command_meter.open_command(commanded(program(tmp_path, "meter", text)))
    assert "power.command" in missing.value.remedy and not missing.value.not_applicable


def test_a_command_that_is_not_there_or_does_not_end(tmp_path, monkeypatch):
    with pytest.raises(MeterUnavailable, match="no program nowhere"):
        command_meter.open_command(commanded("nowhere"))
    with pytest.raises(MeterUnavailable) as missing:
        command_meter.open_command(commanded())
    assert missing.value.not_applicable
    monkeypatch.setattr(command_meter, "TIMEOUT_S", 0.2)
    left = tmp_path / "pid"
    hanging = program(tmp_path, "hanging", f"sleep 1000 & echo $! > {left}; wait")
    with pytest.raises(MeterUnavailable, match=r"did not answer within 0.2 s"):
        command_meter.open_command(commanded(hanging))
    until(lambda: not left.exists() or "Z" in state(left))


def state(pid_file):
    try:
        return Path(f"/proc/{int(pid_file.read_text())}/stat").read_text().split()[2]
    except (OSError, ValueError):
        return "Z"


def test_a_command_counts_from_its_first_answer_in_one_quantity(tmp_path):
    count = tmp_path / "count"
    count.write_text("1000 J")
    command = command_meter.SiteCommand(("cat", str(count)))
    assert command.ask().joules == 0
    count.write_text("1.5 kJ")
    assert command.ask().joules == 500
    count.write_text("7 W")
    with pytest.raises(ReadFailed, match="another quantity"):
        command.ask()
    os.remove(count)
    with pytest.raises(ReadFailed, match="No such file"):
        command.ask()


@pytest.mark.parametrize(
    "printed",
    [
        "login failed: token hunter2",
        "PASSWORD=hunter2 is wrong",
        "Authorization: Bearer hunter2",
        "api-key: hunter2",
    ],
)
def test_what_a_failing_program_prints_loses_its_secrets(printed):
    with pytest.raises(ReadFailed) as failed:
        output_of(["sh", "-c", f"echo '{printed}' >&2; exit 3"], 30)
    assert "hunter2" not in str(failed.value) and "code 3" in str(failed.value)


def pipe_of_a_node(folder: Path) -> Path:
    """The counter of a node in a made-up /sys: a pipe, whose reader hangs like that of a hung driver."""
    counters = folder / "cray/pm_counters"
    counters.mkdir(parents=True)
    os.mkfifo(counters / "energy")
    return counters / "energy"


@pytest.mark.long
def test_a_meter_that_hangs_from_the_start_is_named_and_the_others_are_read(tmp_path):
    pipe_of_a_node(tmp_path / "sys")
    nodes = MeteredNodes("host", idle_w=10.0, full_w=30.0, sysfs_root=str(tmp_path / "sys"))
    sampler = Sampler(SamplerOrder(("pm_counters", "estimated"), 0.05, nodes), tmp_path / "samples")
    sampler.wait_until_begun()
    samples = sampler.stop().samples()
    assert samples.died is None and len(column(samples, "estimated", "t_s")) > 1
    _, absent = samples.facts.meters
    assert absent.meter == "pm_counters" and "does not answer" in absent.reason


@pytest.mark.long
def test_a_meter_that_hangs_later_is_named_at_the_end(tmp_path):
    pipe = pipe_of_a_node(tmp_path / "sys")

    def answer_twice():
        # To open, and to be read for the first time.
        for _ in range(2):
            with pipe.open("w") as writer:
                writer.write("1000 J\n")
            time.sleep(0.3)

    threading.Thread(target=answer_twice, daemon=True).start()
    nodes = MeteredNodes("host", sysfs_root=str(tmp_path / "sys"))
    sampler = Sampler(SamplerOrder(("pm_counters",), 1.0, nodes), tmp_path / "samples")
    sampler.wait_until_begun()
    samples = sampler.stop().samples()
    assert "pm_counters:node does not answer" in samples.died


def test_the_sampler_outlives_a_signal_to_all_processes_of_a_job(tmp_path):
    order = SamplerOrder(("estimated",), 0.05, MeteredNodes("host", idle_w=10.0, full_w=30.0))
    sampler = Sampler(order, tmp_path / "samples")
    sampler.wait_until_begun()
    running = psutil.process_iter(["cmdline"])
    (process,) = [p for p in running if str(tmp_path / "samples") in (p.info["cmdline"] or [])]
    process.terminate()
    samples = sampler.stop().samples()
    assert samples.died is None and len(column(samples, "estimated", "t_s")) > 1


def test_a_module_in_the_users_folder_is_none_of_the_sampler(tmp_path, monkeypatch):
    """A user's queue.py stands in place of the library's for what Python runs in that folder."""
    (tmp_path / "queue.py").write_text("raise SystemExit('a program of the user')\n")
    monkeypatch.chdir(tmp_path)
    sampler = Sampler(
        SamplerOrder(("cpu",), 0.02, MeteredNodes("host", idle_w=10.0, full_w=30.0)),
        tmp_path / "samples",
    )
    sampler.wait_until_begun()
    assert sampler.stop().died is None
