"""Energy of stages: properties that hold for any intervals and readings."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.runs.integration import (
    EnergyCurve,
    energy_of_stages,
    exposed_intervals,
    reading_quality,
)

COLUMNS = ["rank", "step", "stage", "start_s", "stop_s"]


def split_of(stages, power, node_of_rank, start_s, stop_s):
    return energy_of_stages(power, exposed_intervals(stages), node_of_rank, start_s, stop_s)


def readings(t_s, watts=None, joules=None):
    return pd.DataFrame({"node": "n", "meter": "m", "t_s": t_s, "watts": watts, "joules": joules})


def test_constant_power_is_power_times_time_in_both_forms():
    t = np.arange(0, 10, 0.3)
    for curve in (
        EnergyCurve.of(readings(t, watts=50.0)),
        EnergyCurve.of(readings(t, joules=50 * t)),
    ):
        got = curve.between(np.array([0.11, 2.0, -1.0]), np.array([0.12, 7.77, 12.0]))
        assert got == pytest.approx([0.5, 288.5, 650.0])


def test_sub_period_stage_gets_its_own_power_not_its_neighbours():
    # Power rises along a line: a short stage must get the power of its own moment.
    curve = EnergyCurve.of(readings([0.0, 1.0], watts=[0.0, 100.0]))
    assert float(curve.between(np.array(0.9), np.array(1.0))) == pytest.approx(9.5)


def test_too_few_readings_are_an_error():
    with pytest.raises(ValueError, match="1 good readings"):
        EnergyCurve.of(readings([0.0, 1.0], watts=[1.0, np.nan]))


@st.composite
def rank_stages(draw, ranks=2):
    """Stages of some ranks: serial computing, and communication anywhere over it."""
    rows = []
    for rank in range(ranks):
        clock = 0.0
        for step in range(draw(st.integers(1, 4))):
            for stage in ("materials", "computing", "update"):
                gap, length = draw(st.floats(0, 0.5)), draw(st.floats(0.01, 1))
                rows.append((rank, step, stage, clock + gap, clock + gap + length))
                clock += gap + length
        begin = 0.0
        for _ in range(draw(st.integers(0, 4))):
            begin += draw(st.floats(0, 1))
            length = draw(st.floats(0.01, 2))
            rows.append((rank, 0, "communicating_copy", begin, begin + length))
            begin += length
    return pd.DataFrame(rows, columns=COLUMNS)


@settings(max_examples=60)
@given(rank_stages())
def test_exposed_intervals_never_overlap_and_lose_only_what_was_hidden(stages):
    exposed = exposed_intervals(stages)
    for _, of_rank in exposed.groupby("rank"):
        ordered = of_rank.sort_values("start_s")
        busy = ordered[ordered["stage"].isin(("computing", "update"))]
        copies = ordered[ordered["stage"] == "communicating_copy"]
        for copy in copies.itertuples():
            overlap = np.minimum(busy["stop_s"], copy.stop_s) - np.maximum(
                busy["start_s"], copy.start_s
            )
            assert (overlap <= 1e-9).all()
    others = stages["stage"] != "communicating_copy"
    kept = exposed["stage"] != "communicating_copy"
    assert others.sum() == kept.sum()


@settings(max_examples=60)
@given(rank_stages(), st.floats(0.05, 0.7), st.integers(0, 2**31))
def test_stages_add_up_to_the_meter(stages, period, seed):
    stages = stages[~stages["stage"].str.startswith("communicating")]
    stop = stages["stop_s"].max() + 0.3
    t = np.arange(-0.2, stop + 2 * period, period)
    watts = np.random.default_rng(seed).uniform(10, 100, len(t))
    power = pd.concat([readings(t, watts=watts), readings(t, watts=watts / 2).assign(meter="b")])
    split = split_of(stages, power, ["n", "n"], 0.0, stop)
    total = 1.5 * float(
        EnergyCurve.of(readings(t, watts=watts)).between(np.array(0.0), np.array(stop))
    )
    assert split["energy_j"].sum() == pytest.approx(total)


def test_a_host_meter_serves_the_nodes_that_share_the_host():
    stages = pd.DataFrame([(r, 0, "computing", 0.0, 1.0) for r in (0, 1)], columns=COLUMNS)
    power = readings([0.0, 1.0], watts=[40.0, 40.0]).assign(node="host")
    split = split_of(stages, power, ["host/0", "host/1"], 0.0, 1.0)
    assert split["energy_j"].sum() == pytest.approx(40.0), "the host is counted once"


def test_coverage_counts_long_gaps_and_missing_ends():
    steady = np.arange(0, 10.01, 0.1)
    assert reading_quality(steady, 0, 10, 0.1)[0] == pytest.approx(1)
    holed = steady[(steady < 2) | (steady > 4)]
    coverage, longest = reading_quality(holed, 0, 10, 0.1)
    assert longest == pytest.approx(2.2, abs=0.11) and coverage == pytest.approx(0.78, abs=0.02)
    assert reading_quality(steady[steady < 5], 0, 10, 0.1)[0] == pytest.approx(0.5, abs=0.02)
