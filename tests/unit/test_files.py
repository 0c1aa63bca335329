"""Outputs are whole or absent, and on the disk before they have their name."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import make_record, make_spec
from mlperf_fixtures import write_run

from joulecast.errors import JoulecastError
from joulecast.logs import imported_run
from joulecast.logs.mlperf import import_mlperf
from joulecast.runs import recorded
from joulecast.runs.files.writing import directory_added_to, directory_written_aside, written_aside
from joulecast.runs.folders import campaign_records, record_folders
from joulecast.runs.record import write_record
from joulecast.runs.recorded import pack, recorded_infos, unpack_all


class Killed(BaseException):
    """What happens to a process that is killed: nothing of it runs on."""


@pytest.fixture
def calls(monkeypatch):
    """Names of what was brought to the disk or renamed, in order."""
    done = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{int(descriptor)}"))
        done.append(("fsync", path.name.split(".")[1] if path.name[0] == "." else path.name))
        fsync(descriptor)

    def renamed(source, target):
        done.append(("rename", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return done


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, calls):
    with written_aside(tmp_path / "table") as partial:
        partial.write_text("1")
    assert calls == [("fsync", "table"), ("rename", "table")]


def test_a_folder_is_on_the_disk_with_all_files_before_it_has_its_name(tmp_path, calls):
    with directory_written_aside(tmp_path / "out") as partial:
        for run in ("a", "b"):
            with directory_written_aside(partial / run) as record:
                (record / f"of-{run}").write_text(run)
    synced = calls[: calls.index(("rename", "out"))]
    assert {("fsync", name) for name in ("of-a", "of-b", "out")} <= set(synced)


@pytest.mark.parametrize("after", range(3))
def test_a_kill_while_a_folder_is_replaced_leaves_a_whole_one_or_none(tmp_path, monkeypatch, after):
    target = tmp_path / "fits"
    with directory_written_aside(target) as partial:
        (partial / "x").write_text("old")
    left = [after]

    def until_killed(step):
        def last(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            step(*arguments, **options)

        return last

    monkeypatch.setattr(os, "replace", until_killed(os.replace))
    monkeypatch.setattr(shutil, "rmtree", until_killed(shutil.rmtree))
    try:
        with directory_written_aside(target) as partial:
            (partial / "x").write_text("new")
    except Killed:
        pass
    assert not target.exists() or (target / "x").read_text() in ("old", "new")


def test_what_is_added_to_a_folder_leaves_the_rest(tmp_path):
    out = tmp_path / "out"
    for added in ({"a": "1"}, {"a": "2", "b": "2"}):
        with directory_added_to(out) as partial:
            for run, content in added.items():
                with directory_written_aside(partial / run) as record:
                    (record / "x").write_text(content)
        (out / "mine").write_text("mine")
    assert {path.name for path in out.iterdir()} == {"a", "b", "mine"}
    assert (out / "a/x").read_text() == "2"
    with pytest.raises(Killed), directory_added_to(out) as partial:
        (partial / "c").mkdir()
        raise Killed
    assert {path.name for path in out.iterdir()} == {"a", "b", "mine"}


def campaign_of(folder, runs):
    """A recorded campaign of small runs."""
    for number in range(runs):
        spec = make_spec(f"r{number}")
        write_record(folder / "measured" / spec.run, make_record(spec))
    pack(record_folders(folder / "measured"), folder / "kept", name="kept", configurations=[])
    return folder / "kept"


def test_a_replay_that_is_cut_short_leaves_no_folder(tmp_path, monkeypatch):
    campaign = campaign_of(tmp_path, 3)
    whole = recorded.write_info

    def cut_short(folder, info):
        if info.spec.run == "r1":
            raise Killed
        whole(folder, info)

    monkeypatch.setattr(recorded, "write_info", cut_short)
    with pytest.raises(Killed):
        unpack_all(campaign, tmp_path / "records")
    assert not (tmp_path / "records").exists()
    monkeypatch.undo()
    assert len(unpack_all(campaign, tmp_path / "records")) == 3


def test_an_import_that_is_cut_short_leaves_no_folder(tmp_path, monkeypatch):
    for run in (1, 2, 3):
        write_run(tmp_path / "in", f"result_{run}", seed=run)

    def cut_short(*given):
        raise Killed

    monkeypatch.setattr(imported_run, "compared", cut_short)
    with pytest.raises(Killed):
        import_mlperf(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists(), "runs that no comparison has marked"
    monkeypatch.undo()
    summary = import_mlperf(tmp_path / "in", tmp_path / "out")
    assert summary.out == tmp_path / "out" and len(record_folders(tmp_path / "out")) == 3


def test_a_folder_with_too_few_records_is_named(tmp_path):
    campaign = campaign_of(tmp_path, 3)
    unpack_all(campaign, tmp_path / "records")
    digests = [info.spec.digest() for info in recorded_infos(campaign)]
    assert len(campaign_records([tmp_path / "records"], digests)) == 3
    shutil.rmtree(tmp_path / "records/r1")
    with pytest.raises(JoulecastError, match=r"records: has 2 records, the campaign has 3 runs"):
        campaign_records([tmp_path / "records"], digests)
    each = sorted((tmp_path / "records").iterdir())
    assert campaign_records(each, digests[:2]) == each


REPLACING = """
import sys
from pathlib import Path
from joulecast.runs.files.writing import directory_written_aside
for number in range(10**9):
    with directory_written_aside(Path(sys.argv[1])) as partial:
        for name in "ab":
            (partial / name).write_text(f"{number:09d}")
"""


def _number(file):
    """What a file of the writer says; ``None`` between two folders."""
    with suppress(FileNotFoundError):
        return int(file.read_text())


def test_a_writer_that_is_killed_leaves_a_whole_folder_or_none(tmp_path):
    target = tmp_path / "fits"
    before = 0
    for pause_s in (0.0, 0.003, 0.011, 0.02, 0.031):
        writer = subprocess.Popen([sys.executable, "-c", REPLACING, str(target)])
        while _number(target / "a") in (None, before):
            time.sleep(0.001)
        time.sleep(pause_s)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        if target.exists():
            assert (target / "a").read_text() == (target / "b").read_text()
            before = int((target / "a").read_text())
