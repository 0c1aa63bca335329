"""Ten thousand runs: what is done once, once a setting and once a run, counted and not timed."""

import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from conftest import make_record, make_spec

import joulecast
from joulecast.energy.evaluation import evaluate
from joulecast.energy.time_rivals import predict_seconds
from joulecast.errors import JoulecastError
from joulecast.report.tables.errors import energy_error, time_error
from joulecast.runs import observations as observing
from joulecast.runs.observations import allreduce_points, observe, observe_all
from joulecast.runs.record import write_record
from joulecast.runs.recorded import pack, unpack_all

LIBRARY = str(Path(joulecast.__file__).parent)
STEP = {"materials": 0.1, "computing": 0.6, "communicating_copy": 0.05, "update": 0.3}


def calls(function, *arguments, **options):
    """How often each function of the library is called meanwhile."""
    counted = Counter()

    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            counted[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        function(*arguments, **options)
    finally:
        sys.setprofile(None)
    return counted


@pytest.fixture(scope="module")
def observations():
    """Two networks on 1, 2 and 4 nodes."""
    rows = []
    for network, slower in (("vit_ti", 1.0), ("resnet18", 1.7)):
        for nodes in (1, 2, 4):
            spec = make_spec(f"{network}-n{nodes}", nodes, workload={"network": network})
            step = {
                stage: slower * s for stage, s in STEP.items() if nodes > 1 or "copy" not in stage
            }
            rows.append(observe(make_record(spec, step)))
    return pd.DataFrame(rows)


def repeated(observations, times):
    parts = [
        observations.assign(repeat=k, run=observations["run"] + f"-r{k}", folder=f"{k}")
        for k in range(times)
    ]
    return pd.concat(parts, ignore_index=True)


def test_models_are_fitted_to_columns_and_asked_once_a_setting(observations):
    few, many = (
        calls(
            evaluate,
            repeated(observations, times),
            allreduce_points([]),
            {},
            splits=["in-sample"],
            times=["given"],
        )
        for times in (2, 20)
    )
    assert few["StageMC2.fit"] and few == many


def test_time_models_look_a_setting_up_once_however_often_it_was_repeated(observations):
    few, many = (
        calls(predict_seconds, repeated(observations, times), repeated(observations, times))
        for times in (2, 20)
    )
    assert few and few == many


def test_tables_cost_a_call_a_table_and_not_a_call_a_run(observations):
    counted = []
    for times in (2, 20):
        rows = repeated(observations.assign(split="in-sample", time="given", model="MC2"), times)
        judged = rows.assign(measured=rows["energy_j"], predicted=rows["energy_j"] * 1.1)
        judged = judged.assign(measured_s=rows["total_s"], predicted_s=rows["total_s"])
        judged = judged.assign(lower=float("nan"), upper=float("nan"))
        of_times = calls(time_error, judged)
        counted.append((of_times, calls(energy_error, judged)))
    assert counted[0] == counted[1]


def test_every_run_of_a_recorded_campaign_costs_what_the_one_before_did(tmp_path):
    folders = []
    for run in range(6):
        folders.append(tmp_path / "records" / f"r{run}")
        write_record(folders[-1], make_record(make_spec(f"r{run}"), STEP))
    counted = []
    for runs in (3, 6):
        campaign = tmp_path / f"campaign-{runs}"
        pack(folders[:runs], campaign, name="x", configurations=[])
        counted.append(calls(unpack_all, campaign, tmp_path / f"out-{runs}"))
    assert sum(counted[1].values()) <= 2 * sum(counted[0].values())


def test_many_records_give_the_rows_that_each_gives_alone(tmp_path, monkeypatch):
    folders = [tmp_path / f"r{number}" for number in range(6)]
    for number, folder in enumerate(folders):
        write_record(folder, make_record(make_spec(folder.name, 1 + number % 2)))
    alone = observe_all(folders)
    monkeypatch.setattr(observing, "RECORDS_A_PROCESS", 2)
    monkeypatch.setattr(observing, "usable_cores", lambda: 3)
    pd.testing.assert_frame_equal(observe_all(folders), alone)
    (folders[3] / "power.parquet").unlink()
    with pytest.raises(JoulecastError, match=r"r3/power\.parquet: no such"):
        observe_all(folders)
