"""Records: whole or absent, and proven before they count."""

import errno
from dataclasses import replace

import pandas as pd
import pytest
from conftest import make_record, make_spec

from joulecast.errors import JoulecastError
from joulecast.records import answers, read_record, write_record


def unsummed(record):
    """What was written: the checksums come with the files."""
    return record.info.model_copy(update={"frames_sha256": {}})


def test_round_trip(tmp_path):
    record = make_record(make_spec(nodes=2))
    write_record(tmp_path / "r", record)
    again = read_record(tmp_path / "r")
    assert set(again.info.frames_sha256) == {"stages", "power", "activity", "phases"}
    assert unsummed(again) == record.info
    pd.testing.assert_frame_equal(again.stages, record.stages)
    assert answers(tmp_path / "r", record.info.spec)
    assert not answers(tmp_path / "r", make_spec(nodes=2, seed=5))


def test_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(JoulecastError, match=r"r: the disk is full; nothing was left half-written"):
        write_record(tmp_path / "r", make_record(make_spec()))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rewrite_keeps_the_old_record(tmp_path, monkeypatch):
    record = make_record(make_spec())
    write_record(tmp_path / "r", record)
    monkeypatch.setattr(pd.DataFrame, "to_parquet", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_record(tmp_path / "r", record)
    monkeypatch.undo()
    assert unsummed(read_record(tmp_path / "r")) == record.info
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def _with(record, **changes):
    return record.info.model_copy(update=changes)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("ranks", "1 ranks took part, 2 were asked for"),
        ("hosts", "ran on 2 hosts, 1 were"),
        ("replicas", "weights differ"),
        ("digest", "does not belong"),
    ],
)
def test_wrong_runs_are_not_written(tmp_path, what, said):
    record = make_record(make_spec(nodes=2))
    checks = record.info.checks
    wrong = {
        "ranks": {"checks": checks.model_copy(update={"ranks": 1})},
        "hosts": {"checks": checks.model_copy(update={"distinct_hosts": 2})},
        "replicas": {"checks": checks.model_copy(update={"replicas_equal": False})},
        "digest": {"spec_sha256": "0" * 64},
    }[what]
    broken = replace(record, info=_with(record, **wrong))
    with pytest.raises(JoulecastError, match=said):
        write_record(tmp_path / "r", broken)
    assert list(tmp_path.iterdir()) == []


def test_negative_power_is_refused(tmp_path):
    record = make_record(make_spec())
    record.power.loc[3, "watts"] = -1.0
    with pytest.raises(JoulecastError, match=r"watts is .* in row 4, expected .* at least 0"):
        write_record(tmp_path / "r", record)


@pytest.mark.parametrize("name", ["run.json", "stages.parquet"])
def test_corrupt_records_name_the_file(tmp_path, name):
    write_record(tmp_path / "r", make_record(make_spec()))
    (tmp_path / "r" / name).write_text("{")
    with pytest.raises(JoulecastError, match=name):
        read_record(tmp_path / "r")
    (tmp_path / "r" / name).unlink()
    with pytest.raises(JoulecastError, match=name):
        read_record(tmp_path / "r")


def test_no_energy_is_none_with_a_reason():
    record = make_record(make_spec())
    meter = record.info.meters[0].model_copy(
        update={"available": False, "source": None, "reason": "no sensor"}
    )
    info = _with(record, meters=[meter])
    assert info.energy_source is None
    assert info.no_energy_reason == "estimated: no sensor"
