"""Runs of days: stages are read in parts, and the sums are those of the whole."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_record, make_spec

from joulecast.errors import JoulecastError
from joulecast.runs import record as records
from joulecast.runs.observations import observe
from joulecast.runs.record import read_info, read_record, write_record
from joulecast.runs.stages_in_parts import stages_in_parts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("long") / "run"
    write_record(target, make_record(make_spec(nodes=2)))
    return target


def rewritten(folder, tmp_path, rows, order=("rank", "step", "start_s")):
    """The same record with so many rows in a part of its stages, in some order."""
    record = read_record(folder)
    stages = record.stages.sort_values(list(order), ignore_index=True)
    record = replace(record, stages=stages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_PART_ROWS", rows)
        write_record(tmp_path / "run", record)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("rows", "order"),
    [(1, ["rank", "step"]), (4, ["rank", "step"]), (1000, ["rank"]), (4, ["stage", "start_s"])],
)
def test_sums_over_parts_are_those_of_the_whole(folder, tmp_path, rows, order):
    cut = rewritten(folder, tmp_path, rows, order)
    parts = list(stages_in_parts(cut, read_info(cut)))
    whole = read_record(cut)
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole.stages)
    steps = [part[["rank", "step"]].drop_duplicates() for part in parts]
    assert not pd.concat(steps).duplicated().any(), "no step of a rank is cut"
    assert (len(parts) > 1) == (rows < 100 and order[0] == "rank")
    in_parts = observe(read_record(cut, ("power", "activity", "phases")), parts)
    for name, value in observe(whole).items():
        assert in_parts[name] == pytest.approx(value, nan_ok=True), name


def test_a_wrong_row_of_a_later_part_is_found(folder, tmp_path):
    record = read_record(folder)
    stages = record.stages.copy()
    wrong = record.info.outcome.steps + 5
    stages.loc[len(stages) - 1, "step"] = wrong
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_PART_ROWS", 3)
        patch.setattr(records, "validate", lambda record: None)
        changed = records.RunRecord(
            record.info, stages, record.power, record.activity, record.phases
        )
        write_record(tmp_path / "run", changed)
    with pytest.raises(JoulecastError, match=f"a stage of step {wrong}"):
        list(stages_in_parts(tmp_path / "run", read_info(tmp_path / "run")))


def test_times_and_counters_take_few_bytes(tmp_path):
    chance = np.random.default_rng(1)
    edges = 3.0 + np.cumsum(chance.normal(0.02, 0.004, 50_000))
    names = ["materials", "computing", "communicating_copy", "update"]
    stages = pd.DataFrame(
        {
            "rank": 0,
            "step": np.arange(50_000) // 4,
            "stage": names * 12_500,
            "start_s": np.append(3.0, edges[:-1]),
            "stop_s": edges,
        }
    )
    records._write_frame(tmp_path / "stages.parquet", stages)
    # A million steps of five stages below 100 MiB.
    assert (tmp_path / "stages.parquet").stat().st_size < 20 * len(stages)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "stages.parquet"), stages)
