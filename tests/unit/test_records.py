"""Records: whole or absent, and proven before they count."""

import errno
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from conftest import make_record, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.runs.folders import answers, campaign_records
from joulecast.runs.frames import ACTIVITY_COLUMNS
from joulecast.runs.observations import observe
from joulecast.runs.record import read_record, write_record


def unsummed(record):
    """What was written: the checksums come with the files."""
    return record.info.model_copy(update={"frames_sha256": {}})


def test_round_trip(tmp_path):
    record = make_record(make_spec(nodes=2))
    write_record(tmp_path / "r", record)
    again = read_record(tmp_path / "r")
    assert set(again.info.frames_sha256) == {"stages", "power", "activity", "phases"}
    assert unsummed(again) == record.info
    pd.testing.assert_frame_equal(again.stages, record.stages, check_dtype=False)
    assert answers(tmp_path / "r", record.info.spec)
    assert not answers(tmp_path / "r", make_spec(nodes=2, seed=5))
    of_campaign = partial(campaign_records, [tmp_path / "r"])
    assert of_campaign([record.info.spec.digest()]) == [tmp_path / "r"]
    with pytest.raises(JoulecastError, match=r"r: measured with another configuration"):
        of_campaign([make_spec(nodes=2, seed=5).digest()])


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
        ("ranks", "1 ranks took part, 2 were requested"),
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


def test_a_broken_record_says_once_what_to_do(tmp_path):
    folder = tmp_path / "r"
    write_record(folder, make_record(make_spec()))
    file, info = folder / "power.parquet", folder / "run.json"
    file.write_text("{")
    again = f"; delete {folder} to repeat the run"
    with pytest.raises(JoulecastError) as changed:
        read_record(folder)
    assert str(changed.value).endswith(f"; restore the file{again}")
    file.unlink()
    with pytest.raises(JoulecastError) as missing:
        read_record(folder)
    assert str(missing.value) == f"{file}: no such file of a run record{again}"
    info.write_text(info.read_text().replace('"format": ', '"format": 9', 1))
    with pytest.raises(JoulecastError, match=f"or delete {folder} to repeat the run"):
        read_record(folder)


def test_no_energy_is_none_with_a_reason():
    record = make_record(make_spec())
    meter = record.info.meters[0].model_copy(
        update={"available": False, "source": None, "reason": "no sensor"}
    )
    info = _with(record, meters=[meter])
    assert info.energy_source is None
    assert info.metering.why_not == "estimated: no sensor"


def test_a_run_shorter_than_the_sampler_s_period_has_utilisations():
    """Rivals that know utilisations lost such runs, and tables had rows by chance (198 to 216)."""
    record = make_record(make_spec())
    rows = [
        ("host/0", t_s, cpu, np.nan, 1e9, 0.0) for t_s, cpu in ((-1.0, 0.1), (4.0, 0.7), (5.0, 0.2))
    ]
    activity = pd.DataFrame(rows, columns=list(ACTIVITY_COLUMNS))
    row = observe(replace(record, activity=activity))
    assert row["u_cpu"] == pytest.approx(0.7) and row["memory_bytes"] == pytest.approx(1e9)
    # Half of this one lies in the run of 3 s, with what came before it.
    activity = activity.assign(t_s=[1.5, 4.5, 9.0])
    row = observe(replace(record, activity=activity))
    assert row["u_cpu"] == pytest.approx((0.1 * 0.1 + 1.5 * 0.7) / 1.6)


WRONG = {
    "falling joules": ("power", 5, "joules", -4.59),
    "infinite watt": ("power", 5, "watts", np.inf),
    "joules that fall": ("power", 40, "joules", 1.0),
    "a stage without a time": ("stages", 2, "stop_s", np.nan),
    "a stage beyond all times": ("stages", 2, "stop_s", 1e300),
    "a stage after the run": ("stages", 2, "stop_s", 1e6),
    "an unknown stage": ("stages", 2, "stage", "thinking"),
    "a rank of another run": ("stages", 2, "rank", 7),
    "a step that was not": ("stages", 2, "step", 99),
    "an unknown phase": ("phases", 0, "phase", "pause"),
    "negative work": ("phases", 0, "samples", -1.0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_frames_with_what_cannot_be_are_refused_by_name(tmp_path, wrong):
    frame, row, column, value = WRONG[wrong]
    record = make_record(make_spec())
    write_record(tmp_path / "r", record)
    table = getattr(record, frame)
    table[column] = table[column].astype(object)
    table.loc[row, column] = value
    if not isinstance(value, str):
        table[column] = table[column].astype(float)
    with pytest.raises(JoulecastError, match=rf"run r: {frame}.parquet"):
        write_record(tmp_path / "new", record)
    table.to_parquet(tmp_path / f"r/{frame}.parquet", index=False)
    with pytest.raises(JoulecastError, match=r"not what was written \(its SHA-256"):
        read_record(tmp_path / "r")
    without_sums(tmp_path / "r")
    with pytest.raises(JoulecastError, match=rf"{tmp_path}/r.*{frame}.parquet.*delete"):
        read_record(tmp_path / "r")


def without_sums(folder, **changes):
    """As an earlier version wrote it, or as somebody made it."""
    info = json.loads((folder / "run.json").read_text())
    for name, value in changes.items():
        info["outcome"][name] = value
    (folder / "run.json").write_text(json.dumps(info | {"frames_sha256": {}}))


@pytest.mark.parametrize(
    "changes", [{"stop_s": float("nan")}, {"stop_s": 1e300}, {"steps": -3}, {"samples": -1}]
)
def test_outcomes_that_cannot_be_are_refused_by_name(tmp_path, changes):
    write_record(tmp_path / "r", make_record(make_spec()))
    without_sums(tmp_path / "r", **changes)
    with pytest.raises(JoulecastError, match=rf"{tmp_path}/r/run.json"):
        read_record(tmp_path / "r")


@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=60)
def test_no_flipped_bit_of_a_frame_changes_a_number(tmp_path_factory, position, bit):
    folder = tmp_path_factory.mktemp("flipped") / "r"
    write_record(folder, make_record(make_spec()))
    for frame in ("stages", "power", "activity", "phases"):
        path = folder / f"{frame}.parquet"
        content = bytearray(path.read_bytes())
        content[int(position * len(content))] ^= 1 << bit
        path.write_bytes(content)
        with pytest.raises(JoulecastError, match=f"{frame}.parquet"):
            read_record(folder, (frame,))
