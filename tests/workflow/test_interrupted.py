"""Campaigns that are interrupted, in a private copy of the checkout, and a disk that is full."""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace

import psutil
import pytest
from conftest import AT_ONCE, MINIMAL, ROOT, copy_workflow, make_spec, snakemake

from joulecast.errors import JoulecastError
from joulecast.measure.training.measure_run import measure_run
from joulecast.runs.record import read_record, write_record
from joulecast.runs.recorded import pack, unpack_all
from joulecast.runs.spec import Calibration

# Runs that load no torch; they are measured in this order.
RUNS = ("idle-n1", "allreduce-n2", "sleeping_rank-n2")
LONG = ("--config", "calibration={idle_s: 1, sleeping_rank_s: 120}", AT_ONCE)
SHORT = ("--config", "calibration={idle_s: 1, sleeping_rank_s: 5}", AT_ONCE)


def _records(folder):
    return {
        path.parent.name: path.stat().st_mtime_ns
        for path in folder.glob("results/minimal/records/[!.]*/run.json")
    }


LAST = "sleeping_rank-n2"
ASKED = ("--", *(f"results/minimal/records/{run}" for run in RUNS))


def _samples(folder):
    """What the samplers of the last run have written, of all its attempts that left something. A file is
    empty before its sampler is at work: the rank makes it."""
    found = folder.glob(f"results/minimal/records/.{LAST}-scratch-*/*.samples")
    return {path for path in found if path.stat().st_size}


def _left(folder):
    """Processes that work for this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def _kill(folder, first, victim):
    """Kill a part of a campaign that measures its last run."""
    if victim == "Ctrl-C":
        os.killpg(first.pid, signal.SIGINT)
    elif victim == "snakemake":
        first.kill()
    else:
        word = "joulecast.measure.power.sampler"
        (sampler,) = [p for p in _left(folder) if word in (p.info["cmdline"] or [])]
        sampler.kill()


def _start(folder, lasting, out):
    """Start the campaign; return it when the ranks of its last run are at work."""
    older = _samples(folder)
    first = subprocess.Popen(
        ["snakemake", "--cores", "all", *MINIMAL, *lasting, *ASKED],
        cwd=folder,
        stdout=out,
        stderr=out,
        start_new_session=True,
        # Who started the tests may ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 200
    while not _samples(folder) - older:
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    return first


def _wait_for_none(folder):
    """Wait until no process works for this folder, nor holds a run's scratch."""
    deadline = time.monotonic() + 30
    while _left(folder):
        assert time.monotonic() < deadline, [p.info["cmdline"] for p in _left(folder)]
        time.sleep(0.1)


@pytest.fixture
def folder(tmp_path):
    """A copy of the workflow; what a failed test leaves at work would hold the machine's lock."""
    copy_workflow(tmp_path)
    yield tmp_path
    for process in _left(tmp_path):
        process.kill()


def test_a_campaign_that_is_killed_in_parts_leaves_nothing_and_goes_on(folder):
    """Killed in its last run, part after part; the last start makes that run shorter, and loses its sampler.
    Nothing that had ended is lost or repeated, no process and no lock stays, and the campaign ends."""
    ended = {}
    with open(folder / "out", "w") as out:
        for victim in ("Ctrl-C", "snakemake"):
            first = _start(folder, LONG, out)
            if victim == "Ctrl-C":
                second = snakemake(folder, *MINIMAL, *LONG, *ASKED)
                assert second.returncode != 0 and "--unlock" in second.stdout + second.stderr
                ended = _records(folder)
                assert set(ended) == set(RUNS) - {LAST}
            _kill(folder, first, victim)
            assert first.wait(90) != 0, victim
            _wait_for_none(folder)
            assert _records(folder) == ended, f"{victim}: a finished run was lost or repeated"
            if victim == "snakemake":
                assert snakemake(folder, *MINIMAL, "--unlock").returncode == 0
        last = _start(folder, SHORT, out)
        _kill(folder, last, "sampler")
        assert last.wait(90) == 0, "a run without its energy is a run"
    _wait_for_none(folder)
    after = _records(folder)
    assert set(after) == set(RUNS) and ended.items() <= after.items()
    left = list(folder.glob(f"results/minimal/records/.{LAST}-scratch-*"))
    assert not left, "an attempt that was killed left its scratch"
    info = read_record(folder / f"results/minimal/records/{LAST}").info
    assert "SIGKILL" in str([meter.reason for meter in info.meters])


@pytest.mark.long
def test_a_record_that_a_killed_campaign_left_to_another_job_is_not_measured_again(tmp_path):
    """Snakemake removes the outputs of a job before it starts the job, but not a record."""
    copy_workflow(tmp_path)
    asked = ("--", "results/minimal/records/idle-n1")
    assert snakemake(tmp_path, *MINIMAL, *SHORT, *asked).returncode == 0
    before = _records(tmp_path)
    again = snakemake(tmp_path, *MINIMAL, *SHORT, "--forcerun", "train", *asked)
    assert again.returncode == 0 and _records(tmp_path) == before
    log = (tmp_path / "results/minimal/logs/idle-n1.log").read_text()
    assert "already answers" in log


REPLAY = ("--configfile", "config/replay-two-core-vm.yaml")
COPIES = 2


def _many_runs(folder):
    """The shipped campaign with each run many times, so that its replay takes a while; its run count."""
    records = unpack_all(ROOT / "recorded/two-core-vm", folder / "of-it")
    for path in records:
        record = read_record(path)
        for number in range(COPIES):
            spec = record.info.spec.model_copy(update={"run": f"{record.info.spec.run}-{number}"})
            facts = {"spec": spec, "spec_sha256": spec.digest()}
            copied = replace(record, info=record.info.model_copy(update=facts))
            write_record(folder / "many" / spec.run, copied)
    pack((folder / "many").iterdir(), folder / "two-core-vm", name="many", configurations=[])
    return folder / "two-core-vm", COPIES * len(records)


@pytest.mark.long
def test_a_replay_that_is_killed_is_made_again_and_one_that_is_not_whole_is_refused(tmp_path):
    campaign, runs = _many_runs(tmp_path)
    clone, checks = tmp_path / "clone", "results/two-core-vm/tables/checks"
    copy_workflow(clone)
    shutil.copytree(campaign, clone / "recorded/two-core-vm")
    records = clone / "results/two-core-vm/records"
    with open(tmp_path / "out", "w") as out:
        first = subprocess.Popen(
            ["snakemake", "--cores", "all", *REPLAY, "--", checks],
            cwd=clone,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        deadline = time.monotonic() + 200
        # Wherever they are filled: in place, or aside.
        while len(list(records.parent.glob("*records*/*/run.json"))) < 3:
            assert time.monotonic() < deadline and first.poll() is None
            time.sleep(0.001)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
    assert not records.exists()
    assert snakemake(clone, *REPLAY, "--unlock").returncode == 0
    done = snakemake(clone, *REPLAY, "--", checks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(records.glob("[!.]*"))) == runs
    assert f"{runs} records and the fits to them" in (clone / checks / "checks.csv").read_text()

    # As a version left it that filled the folder in place.
    left = runs // 2
    for record in sorted(records.glob("[!.]*"))[left:]:
        shutil.rmtree(record)
    shutil.rmtree(clone / "results/two-core-vm/fits")
    shutil.rmtree(clone / checks)
    done = snakemake(clone, *REPLAY, "--", checks)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in text
    assert f"records: has {left} records, the campaign has {runs} runs" in text


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root")
def test_a_full_disk_loses_nothing(tmp_path):
    idle = {"kind": "idle", "calibration": Calibration(seconds=0.3)}
    spec = make_spec("idle").model_copy(update={**idle, "workload": None, "training": None})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=True)
    record = tmp_path / "records/idle"
    try:
        (tmp_path / "filler").write_bytes(b"x" * (2 * 1024 * 1024 - 28 * 1024))
        with pytest.raises(JoulecastError, match="the disk is full"):
            measure_run(spec, record, tmp_path / "logs/idle.log", launcher=None)
        assert not record.exists(), "nothing half-written"
        (tmp_path / "filler").unlink()
        measure_run(spec, record, tmp_path / "logs/idle.log", launcher=None)
        assert read_record(record).info.spec == spec
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)
