"""Splitting a run of others by its log, and what each part of it cost."""

import numpy as np
import pytest
from conftest import make_imported
from hypothesis import given
from hypothesis import strategies as st

from joulecast.runs.observations import observe, platform_family
from joulecast.runs.phases import observe_phases, split_by_time
from joulecast.runs.spans import length, subtract, union

INTERVALS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


@given(INTERVALS, INTERVALS)
def test_what_is_subtracted_and_what_is_left_are_the_whole(intervals, holes):
    whole, holes = union(intervals), union(holes)
    left = subtract(whole, holes)
    moments = np.arange(0, 75) + 0.5

    def inside(parts):
        return np.array([any(a <= t < b for a, b in parts) for t in moments])

    assert (inside(left) == (inside(whole) & ~inside(holes))).all()
    assert length(left) == inside(left).sum()


def test_equal_epochs_are_training_and_nothing_stalls():
    split = split_by_time(make_imported())
    assert length(split.training) == pytest.approx(100)
    assert (split.evaluating, split.starts) == ([], 1)
    assert split.stalled_inside_s == split.stalled_outside_s == pytest.approx(0)


def test_a_slow_first_epoch_and_a_late_start_are_stalls():
    # Nine epochs of 10 s; the first one lasts 14 s and begins 3 s after the run does.
    edges = [23.0, 37.0, *(37.0 + 10 * k for k in range(1, 9))]
    epochs = [("epoch", k, edges[k], edges[k + 1], 1.0) for k in range(9)]
    split = split_by_time(make_imported(phases=epochs, stop_s=117))
    assert split.stalled_inside_s == pytest.approx(4)
    assert split.stalled_outside_s == pytest.approx(3)
    assert split.starts == 2
    assert length(split.steady) == pytest.approx(80)


def test_evaluations_divide_what_has_one_epoch_and_count_samples():
    phases = [
        ("epoch", 0, 20.0, 120.0, np.nan),
        ("evaluation", 400, 60.0, 65.0, np.nan),
        ("evaluation", 800, 105.0, 120.0, np.nan),
    ]
    split = split_by_time(make_imported(phases=phases))
    assert split.training == [(20, 60), (65, 105)]
    assert split.evaluating == [(60, 65), (105, 120)]
    assert split.stalled_inside_s + split.stalled_outside_s == pytest.approx(0)


def test_an_evaluation_and_the_next_epoch_may_be_in_force_together():
    epochs = [("epoch", 0, 20.0, 60.0, 1.0), ("epoch", 1, 64.0, 104.0, 1.0)]
    evaluations = [("evaluation", 1, 60.0, 75.0, np.nan), ("evaluation", 2, 104.0, 120.0, np.nan)]
    split = split_by_time(make_imported(phases=epochs + evaluations))
    assert split.training == [(20, 60), (64, 104)]
    assert split.evaluating == [(60, 75), (104, 120)]


def test_a_log_without_phases_is_all_training():
    split = split_by_time(make_imported(phases=[("run", 0, 20.0, 120.0, np.nan)]))
    assert split.training == [(20, 120)] and split.starts == 1


def test_energies_of_phases_add_up_by_hand():
    def watts(t):
        return 300.0 if t < 20 else (500.0 if 60 <= t < 70 else 1000.0)

    phases = [
        ("evaluation", 5, 60.0, 70.0, np.nan),
        ("evaluation", 10, 120.0, 120.0, np.nan),
    ]
    row = observe_phases(make_imported(nodes=2, phases=phases, watts=watts))
    assert row["energy_j"] == pytest.approx(row["training_j"] + row["evaluating_j"])
    # Straight lines between readings of 1 s: each edge of the evaluation is off by half a step.
    assert row["evaluating_j"] == pytest.approx(2 * (9 * 500 + 750), rel=1e-6)
    assert row["idle_w"] == 300 and row["lowest_w"] == 500
    assert row["steady_w"] == pytest.approx(1000)


def test_meters_of_some_nodes_stand_for_all_of_them():
    record = make_imported(nodes=4)
    few = record.power[record.power["node"].isin(("node_0", "node_1"))]
    assert observe_phases(record)["energy_j"] == pytest.approx(4 * 1000 * 100)
    half = type(record)(record.info, record.stages, few, record.activity, record.phases)
    assert observe_phases(half)["energy_j"] == pytest.approx(4 * 1000 * 100)


def test_a_run_without_a_meter_has_times_and_no_energy():
    record = make_imported()
    dark = type(record)(
        record.info.model_copy(update={"meters": []}),
        record.stages,
        record.power.iloc[:0],
        record.activity,
        record.phases,
    )
    row = observe(dark)
    assert np.isnan(row["energy_j"]) and row["training_s"] == pytest.approx(100)
    assert row["energy_source"] is None and row["why_no_energy"]


@pytest.mark.parametrize(
    ("system", "family"),
    [
        ("1xSMC-H100-SXM-80GB", "SMC-H100-SXM-80GB"),
        ("64xSMC-H100-SXM-80GB", "SMC-H100-SXM-80GB"),
        ("dgxh100_n8", "dgxh100"),
        ("dgxh100_n64_ngc24.04_mxnet", "dgxh100_ngc24.04_mxnet"),
        ("box-16nodes", "box"),
        ("box_4", "box"),
        ("SR780aV3-8xB200", "SR780aV3-8xB200"),
        ("2", "2"),
    ],
)
def test_a_node_type_has_one_name_on_every_node_count(system, family):
    assert platform_family(system) == family


def test_blocks_that_hold_the_evaluations_are_all_training():
    blocks = [("block", k, 20.0 + 10 * k, 30.0 + 10 * k, np.nan) for k in range(10)]
    evaluations = [
        ("evaluation", np.nan, 22.0 + 10 * k, 27.0 + 10 * k, np.nan) for k in range(1, 10)
    ]
    row = observe_phases(make_imported(phases=blocks + evaluations))
    assert row["training_s"] == pytest.approx(100) and row["starts"] == 1
