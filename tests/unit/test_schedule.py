"""Schedules of pipelines, and how long they take."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.partition.makespan import makespan
from joulecast.simulate.schedules import Turn, device_order
from joulecast.simulate.strategy import parse_strategy

TIMES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6)
SCHEDULES = st.sampled_from(["gpipe", "1f1b"])
MICRO_BATCHES = st.integers(1, 9)


@given(TIMES, MICRO_BATCHES)
@settings(max_examples=100)
def test_gpipe_takes_what_the_closed_form_says(times, micro_batches):
    forward, backward = zip(*times, strict=True)
    bubbles = micro_batches - 1
    expected = sum(forward) + bubbles * max(forward) + sum(backward) + bubbles * max(backward)
    assert makespan(forward, backward, "gpipe", micro_batches) == expected


@given(TIMES, SCHEDULES, MICRO_BATCHES)
@settings(max_examples=100)
def test_a_pipeline_is_never_slower_than_one_after_the_other(times, schedule, micro_batches):
    forward, backward = zip(*times, strict=True)
    found = makespan(forward, backward, schedule, micro_batches)
    serial = micro_batches * (sum(forward) + sum(backward))
    busiest = micro_batches * max(f + b for f, b in times)
    assert max(busiest, sum(forward) + sum(backward)) <= found <= serial


@given(TIMES, SCHEDULES, MICRO_BATCHES)
@settings(max_examples=100)
def test_a_pipeline_takes_as_long_as_the_schedule_of_the_simulator(times, schedule, micro_batches):
    forward, backward = zip(*times, strict=True)
    stages = range(len(times))
    strategy = parse_strategy(f"pp={len(times)},micro={micro_batches},schedule={schedule}")
    waiting = [list(device_order(strategy, stage).turns) for stage in stages]
    free, done = [0] * len(times), {}
    while any(waiting):
        for stage in stages:
            while waiting[stage]:
                phase, batch, _ = waiting[stage][0]
                before = stage - 1 if phase == "forward" else stage + 1
                if before in stages and (phase, before, batch) not in done:
                    break
                arrives = done.get((phase, before, batch), 0)
                seconds = (forward if phase == "forward" else backward)[stage]
                free[stage] = done[phase, stage, batch] = max(free[stage], arrives) + seconds
                waiting[stage].pop(0)
    assert makespan(forward, backward, schedule, micro_batches) == max(free)


@pytest.mark.parametrize("pipeline", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_does_everything_once_and_holds_no_more_than_it_may(
    pipeline, micro_batches, schedule
):
    strategy = parse_strategy(f"pp={pipeline},micro={micro_batches},schedule={schedule}")
    for stage in range(pipeline):
        order = device_order(strategy, stage).turns
        assert len(order) == len(set(order)) == 2 * micro_batches
        in_flight = list(accumulate(1 if turn.phase == "forward" else -1 for turn in order))
        most = micro_batches if schedule == "gpipe" else min(pipeline - stage, micro_batches)
        assert max(in_flight) == most
        for index in range(micro_batches):
            assert order.index(Turn("forward", index)) < order.index(Turn("backward", index))


def test_gpipe_goes_back_in_reverse():
    order = device_order(parse_strategy("pp=2,micro=3,schedule=gpipe"), 0).turns
    assert [turn.micro_batch for turn in order] == [0, 1, 2, 2, 1, 0]


def test_1f1b_by_hand():
    # Stage 0: f0 f1 . b0 f2 b1 . b2; stage 1: . f0 b0 f1 b1 f2 b2, all of one second.
    strategy = parse_strategy("pp=2,micro=3")
    words = [
        " ".join(
            f"{turn.phase[0]}{turn.micro_batch}" for turn in device_order(strategy, stage).turns
        )
        for stage in (0, 1)
    ]
    assert words == ["f0 f1 b0 f2 b1 b2", "f0 b0 f1 b1 f2 b2"]
    assert makespan([1, 1], [1, 1], "1f1b", 3) == 8
