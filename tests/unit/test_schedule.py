"""Schedules of pipelines, and how long they take."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.graphs.schedules import makespan, stage_order, timeline

TIMES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6)
SCHEDULES = st.sampled_from(["gpipe", "1f1b"])
MICRO_BATCHES = st.integers(1, 9)


@given(TIMES, MICRO_BATCHES)
@settings(max_examples=200)
def test_gpipe_takes_what_the_closed_form_says(times, micro_batches):
    forward, backward = zip(*times, strict=True)
    bubbles = micro_batches - 1
    expected = sum(forward) + bubbles * max(forward) + sum(backward) + bubbles * max(backward)
    assert makespan(forward, backward, "gpipe", micro_batches) == expected


@given(TIMES, SCHEDULES, MICRO_BATCHES)
@settings(max_examples=200)
def test_a_pipeline_is_never_slower_than_one_after_the_other(times, schedule, micro_batches):
    forward, backward = zip(*times, strict=True)
    found = makespan(forward, backward, schedule, micro_batches)
    serial = micro_batches * (sum(forward) + sum(backward))
    busiest = micro_batches * max(f + b for f, b in times)
    assert max(busiest, sum(forward) + sum(backward)) <= found <= serial


@given(TIMES, SCHEDULES, MICRO_BATCHES, st.integers(0, 50))
@settings(max_examples=200)
def test_stages_work_in_order_one_thing_at_a_time_and_wait(
    times, schedule, micro_batches, transfer
):
    forward, backward = zip(*times, strict=True)
    stages = len(times)
    line = timeline(forward, backward, schedule, micro_batches, transfer)
    stops = {(e.phase, e.stage, e.micro_batch): e.stop_s for e in line.events}
    for stage in range(stages):
        mine = [event for event in line.events if event.stage == stage]
        assert [(e.phase, e.micro_batch) for e in mine] == stage_order(
            schedule, stages, stage, micro_batches
        )
        for event, following in pairwise(mine):
            assert event.stop_s <= following.start_s
        for event in mine:
            before = stage - 1 if event.phase == "forward" else stage + 1
            if 0 <= before < stages:
                assert event.start_s >= stops[event.phase, before, event.micro_batch] + transfer
        if line.makespan_s:
            busy = sum(event.stop_s - event.start_s for event in mine)
            assert line.busy_shares[stage] == pytest.approx(busy / line.makespan_s)


def test_1f1b_by_hand():
    # Stage 0: f0 f1 . b0 f2 b1 . b2; stage 1: . f0 b0 f1 b1 f2 b2, all of one second.
    line = timeline([1, 1], [1, 1], "1f1b", 3)
    starts = {
        stage: [
            (e.phase[0] + str(e.micro_batch), e.start_s) for e in line.events if e.stage == stage
        ]
        for stage in (0, 1)
    }
    assert starts[0] == [("f0", 0), ("f1", 1), ("b0", 3), ("f2", 4), ("b1", 5), ("b2", 7)]
    assert starts[1] == [("f0", 1), ("b0", 2), ("f1", 3), ("b1", 4), ("f2", 5), ("b2", 6)]
    assert line.makespan_s == 8
    assert line.busy_shares == (0.75, 0.75)


def test_transfers_delay_but_take_no_stage():
    # Every micro-batch goes there and back: f0 of stage 0, across, f and b of stage 1, across, b.
    assert makespan([2, 3], [4, 6], "gpipe", 1, transfer_s=5) == 2 + 5 + 3 + 6 + 5 + 4
    assert (
        makespan([2, 3], [4, 6], "gpipe", 4, transfer_s=5)
        == makespan([2, 3], [4, 6], "gpipe", 4) + 10
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], [1, 2], "gpipe", 1), "1 forward and 2 backward times"),
        (([], [], "gpipe", 1), "0 forward"),
        (([1], [1], "gpipe", 0), "0 micro-batches"),
        (([1], [-1], "1f1b", 1), "negative"),
        (([1], [float("nan")], "1f1b", 1), "not finite"),
        (([1], [1], "pipedream", 1), "`pipedream` is neither"),
    ],
)
def test_what_is_no_pipeline(arguments, message):
    with pytest.raises(JoulecastError, match=message):
        makespan(*arguments)


def test_a_schedule_needs_neither_torch_nor_mpi():
    code = "import sys, joulecast.graphs.schedules; print({'torch', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
