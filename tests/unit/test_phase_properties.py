"""What holds of the phases of every run, whatever its log looks like."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import make_imported
from log_shapes import SHAPES, START_S, imported
from mlperf_fixtures import line

from joulecast.runs.phases import SHORTEST_BREAK_S, observe_phases, split_by_time
from joulecast.runs.spans import intersection, length, subtract, union

NAMES = ("epoch", "block", "evaluation")
TIMES = st.floats(-30, 200, allow_nan=False).map(lambda t: round(t, 3))


@st.composite
def any_phases(draw):
    """Intervals of all kinds, nested, overlapping, repeated, across the edges of the run, or none at all."""
    rows = []
    for name in NAMES:
        for number in range(draw(st.integers(0, 6))):
            start_s = draw(TIMES)
            lasts_s = draw(st.floats(0, 90).map(lambda t: round(t, 3)))
            index = draw(st.sampled_from([float(number), number * 100.0, np.nan]))
            work = draw(st.sampled_from([np.nan, 0.0, 1.0, 100.0, 3360.0]))
            row = (name, index, start_s, start_s + lasts_s, work)
            rows += [row] * draw(st.integers(1, 2))
    return rows or [("run", 0.0, 20.0, 120.0, np.nan)]


@st.composite
def regular_runs(draw):
    """Blocks or epochs, with work or without, and evaluations between, inside or across their edges."""
    name = draw(st.sampled_from(["epoch", "block"]))
    known = draw(st.booleans())
    each_s, gap_s = draw(st.floats(4, 20)), draw(st.floats(0, 6))
    since, lasts_s = draw(st.floats(-0.5, 1.5)), draw(st.floats(0.05, 1.2))
    nested, rows, at_s = draw(st.booleans()), [], 20.0
    count = int(100 // (each_s + gap_s))
    for number in range(count):
        work = 100.0 if known else np.nan
        rows.append((name, number * 100.0, at_s, at_s + each_s, work))
        if nested:
            half = (number * 100.0, at_s, at_s + each_s / 2, np.nan)
            rows.append(("block" if name == "epoch" else "epoch", *half))
        begin = at_s + since * each_s
        rows.append(("evaluation", (number + 1) * 100.0, begin, begin + lasts_s * each_s, np.nan))
        at_s += each_s + gap_s
    return rows


def assert_sound(record):
    """The invariants of the phases of a run."""
    outcome = record.info.outcome
    run = (outcome.start_s, outcome.stop_s)
    total_s = run[1] - run[0]
    row, split = observe_phases(record), split_by_time(record)
    training_s, evaluating_s, both_s, stalled_s = (
        row[name] for name in ("training_s", "evaluating_s", "both_s", "stalled_s")
    )
    assert training_s + evaluating_s + stalled_s == pytest.approx(total_s, abs=1e-6)
    assert min(training_s, evaluating_s, both_s, stalled_s) >= -1e-9
    assert 0 <= row["stalled_training_s"] <= length(split.training) + 1e-9
    assert both_s <= length(split.training) + 1e-9
    assert both_s <= training_s + 1e-6
    assert row["starts"] >= 1
    for parts in (split.training, split.steady, split.evaluating):
        assert parts == sorted(parts) and length(parts) == pytest.approx(length(union(parts)))
        assert all(run[0] <= a < b <= run[1] for a, b in parts)
    assert length(subtract(split.steady, split.training)) == pytest.approx(0)
    # What stands still stands still: neither training nor an evaluation is in force.
    in_force = length(union([*split.training, *split.evaluating]))
    assert split.stalled_outside_s == pytest.approx(total_s - in_force, abs=1e-6)
    for name in ("training_j", "evaluating_j"):
        if np.isfinite(row["energy_j"]):
            assert -1e-6 <= row[name] <= row["energy_j"] * (1 + 1e-9)
    if np.isfinite(row["energy_j"]):
        assert row["training_j"] + row["evaluating_j"] <= row["energy_j"] * (1 + 1e-9)
    assert all(np.isfinite(row[name]) for name in ("training_s", "stalled_s", "starts"))
    return row, split


@given(any_phases(), st.integers(1, 3))
def test_whatever_the_phases_are_the_times_add_up(phases, nodes):
    assert_sound(make_imported(nodes=nodes, phases=phases, watts=lambda t: 500 + 10 * (t % 7)))


@given(st.floats(0, 20), st.floats(0.8, 1.2))
def test_a_warm_up_of_any_length_is_not_taken_for_idle_power(warms_s, share):
    def watts(t):
        if 20 <= t < 120:
            return 1000.0
        return 1000.0 * share if 20 - warms_s <= t < 20 else 300.0

    row = observe_phases(make_imported(watts=watts))
    assert np.isnan(row["idle_w"]) or 300 <= row["idle_w"] < 650
    assert row["idle_w"] == 300 or warms_s > 10


@given(st.floats(1, 1000))
def test_a_run_that_is_slower_in_all_draws_the_same_power(slower):
    record = make_imported(watts=lambda t: 1000.0 if 20 <= t < 120 else 300.0)
    outcome = record.info.outcome
    ends = {"start_s": slower * outcome.start_s, "stop_s": slower * outcome.stop_s}
    info = record.info.model_copy(update={"outcome": outcome.model_copy(update=ends)})
    phases = record.phases.assign(**{c: slower * record.phases[c] for c in ends})
    power = record.power.assign(t_s=slower * record.power["t_s"])
    row = observe_phases(record)
    slow = observe_phases(replace(record, info=info, phases=phases, power=power))
    assert slow["lowest_w"] == row["lowest_w"] == 300
    for name in ("energy_j", "training_j", "training_s"):
        assert slow[name] == pytest.approx(slower * row[name])


@given(regular_runs())
def test_regular_runs_add_up_and_only_a_break_stands_still(phases):
    _, split = assert_sound(make_imported(phases=phases))
    trained = [(20.0, 120.0)]
    for kind in {row[0] for row in phases} - {"evaluation"}:
        # Of nested blocks and epochs both have to be in force.
        trained = intersection(trained, [(a, b) for name, _, a, b, _ in phases if name == kind])
    # No training stands still because an evaluation is in force: it is in either. What follows the last
    # evaluation for less than a break is no start of its own.
    lost = subtract(trained, union([*split.training, *split.evaluating]))
    assert length(lost) <= SHORTEST_BREAK_S + 1e-6


@given(regular_runs(), st.floats(0.05, 1.0))
def test_an_evaluation_takes_nothing_from_standing_still_inside_training(phases, lasts):
    # The same blocks with and without evaluations during them: what trains is not less, nor slower.
    blocks = [row for row in phases if row[0] == "block" and row[4] > 0]
    if len(blocks) < 4:
        return
    inside = [
        (
            "evaluation",
            index,
            a + 0.01 * (b - a),
            a + (0.01 + 0.98 * lasts * share) * (b - a),
            np.nan,
        )
        for share, (_, index, a, b, _) in zip((0.9, 1.0) * len(blocks), blocks, strict=False)
    ]
    alone, _ = assert_sound(make_imported(phases=blocks))
    meanwhile, split = assert_sound(make_imported(phases=blocks + inside))
    for name in ("training_s", "stalled_s", "starts"):
        assert meanwhile[name] == pytest.approx(alone[name], abs=1e-6)
    assert meanwhile["both_s"] == pytest.approx(
        length(intersection(split.evaluating, split.training))
    )
    assert meanwhile["evaluating_s"] == pytest.approx(0, abs=1e-6)


EVENTS = [f"{phase}_{edge}" for phase in ("epoch", "block", "eval") for edge in ("start", "stop")]


@st.composite
def any_log(draw):
    """Events of all kinds at any time, by any rank, in any order, with any index or none."""
    lines = [line("init_start", 0.0), line("run_start", START_S)]
    if draw(st.booleans()):
        lines.insert(1, line("global_batch_size", 1.0, draw(st.sampled_from([1, 8, 2048]))))
    if draw(st.booleans()):
        lines.insert(1, line("train_samples", 1.0, draw(st.sampled_from([168, 94_605_581]))))
    for _ in range(draw(st.integers(0, 25))):
        name = draw(
            st.sampled_from(["epoch_num", "first_epoch_num", "samples_count", "step_num", "none"])
        )
        index = draw(st.sampled_from([0, 1, 2, 0.05, 0.1, 100, 200, 3360, -1, 1e14]))
        lasts = {"epoch_count": draw(st.sampled_from([1, 100]))} if draw(st.booleans()) else {}
        lines.append(
            line(draw(st.sampled_from(EVENTS)), START_S + draw(TIMES), **{name: index}, **lasts)
        )
    stop = line("run_stop", START_S + draw(st.floats(5, 150)), status="success")
    return draw(st.permutations([*lines, stop]))


@given(any_log())
@example(
    [
        line("init_start", 0.0),
        line("train_samples", 1.0, 94_605_581),
        line("run_start", START_S),
        line("eval_start", START_S + 1, epoch_num=0.05),
        line("eval_stop", START_S + 2, epoch_num=0.05),
        line("eval_start", START_S + 3, epoch_num=1e14),
        line("eval_stop", START_S + 4, epoch_num=1e14),
        line("run_stop", START_S + 5, status="success"),
    ]
)
def test_whatever_the_log_is_the_times_add_up(lines):
    record = imported(lines)
    assert np.isfinite(record.phases[["start_s", "stop_s"]].to_numpy()).all()
    assert (record.phases["stop_s"] >= record.phases["start_s"]).all()
    assert not (record.phases["samples"] < 0).any()
    assert_sound(record)


@given(st.sampled_from(sorted(SHAPES)), st.randoms(use_true_random=False), st.floats(0, 0.5))
def test_logs_of_real_shapes_that_are_damaged_add_up(name, chance, share):
    shape = SHAPES[name]()
    kept = [
        text
        for text in shape.lines
        if "init" in text or '"run_' in text or chance.random() >= share
    ]
    repeated = kept + chance.sample(kept, k=int(share * len(kept)))
    chance.shuffle(repeated)
    assert_sound(imported(repeated, shape.nodes))


@pytest.mark.long
def test_the_shapes_themselves_are_sound():
    for make in SHAPES.values():
        shape = make()
        assert_sound(imported(shape.lines, shape.nodes, power=_readings))


def _readings(node):
    noise = random.Random(node)
    return [(2.0 * step, 4000 + noise.uniform(0, 2000)) for step in range(-5, 1500)]
