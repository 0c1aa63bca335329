"""What the importer and the phases make of logs in the shape of every MLPerf Training benchmark."""

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from log_shapes import SHAPES, START_S, Script, Shape, imported
from mlperf_fixtures import line

from joulecast.runs.phases import observe_phases, split_by_time

PHASES = ("training_s", "evaluating_s", "both_s", "stalled_s")


def _time_ms(text: str) -> int:
    return int(json.loads(text.removeprefix(":::MLLOG "))["time_ms"])


def _is_phase(text: str) -> bool:
    return any(f'"{phase}_st' in text for phase in ("epoch", "block", "eval"))


def assert_read(shape: Shape, lines: list[str]) -> None:
    record = imported(lines, shape.nodes)
    row = observe_phases(record)
    assert record.info.spec.imported.work_unit == shape.unit
    assert record.info.outcome.samples == shape.work
    for phase in PHASES:
        assert row[phase] == pytest.approx(getattr(shape.script, phase), abs=0.08), phase
    assert row["starts"] >= 1


@pytest.mark.parametrize("name", SHAPES)
def test_a_log_is_read_as_the_run_went(name):
    shape = SHAPES[name]()
    assert_read(shape, shape.lines)


@pytest.mark.parametrize("name", SHAPES)
def test_lines_may_come_in_any_order(name):
    # Events of one millisecond stay in the order in which they were written.
    shape, place = SHAPES[name](), random.Random(1)
    order = {at_ms: place.random() for at_ms in map(_time_ms, shape.lines)}
    assert_read(shape, sorted(shape.lines, key=lambda text: order[_time_ms(text)]))


@pytest.mark.parametrize("name", SHAPES)
def test_every_rank_may_log_every_event(name):
    shape, lines = SHAPES[name](), []
    for text in shape.lines:
        event = json.loads(text.removeprefix(":::MLLOG "))
        for rank in range(3 if _is_phase(text) else 1):
            event["time_ms"] = _time_ms(text) + 2 * rank
            lines.append(":::MLLOG " + json.dumps(event))
    assert_read(shape, lines)


@pytest.mark.parametrize("name", SHAPES)
def test_one_event_that_is_lost_changes_no_work_or_is_said(name):
    shape = SHAPES[name]()
    for place, text in enumerate(shape.lines):
        if _is_phase(text):
            info = imported(shape.lines[:place] + shape.lines[place + 1 :], shape.nodes).info
            said = any(remark.startswith("events missing") for remark in info.remarks)
            assert said or info.outcome.samples == shape.work, text


def test_evaluations_that_all_have_one_index_are_told_apart():
    script = Script()
    for number in range(1, 5):
        script.log("epoch_start", epoch_num=number)
        script.spend("training", 20.0)
        script.log("epoch_stop", epoch_num=number)
        for after_s in (0.0, 0.003):
            script.log("eval_start", after_s, epoch_num=1)
        script.spend("evaluating", 5.0)
        for after_s in (0.0, 0.003):
            script.log("eval_stop", after_s, epoch_num=1)
    lines = [line("init_start", 0), line("run_start", START_S), *script.lines]
    record = imported([*lines, line("run_stop", script.at_s, status="success")])
    assert observe_phases(record)["evaluating_s"] == pytest.approx(20.0)
    assert record.info.outcome.samples == 4


def test_the_accuracy_that_an_evaluation_finds_may_state_the_work():
    script, done = Script(), 0
    for _ in range(4):
        script.spend("training", 20.0)
        done += 640
        script.log("eval_start")
        script.spend("evaluating", 5.0)
        script.log("eval_accuracy", -0.01, samples_count=done)
        script.log("eval_stop")
    lines = [line("init_start", 0), line("run_start", START_S), *script.lines]
    record = imported([*lines, line("run_stop", script.at_s, status="success")])
    assert record.info.outcome.samples == done and not record.info.remarks
    assert observe_phases(record)["evaluating_s"] == pytest.approx(20.0)


@pytest.mark.parametrize(("stated", "work"), [(0, 0), (200, 400)])
def test_the_work_of_a_last_block_is_known_or_no_work_is(stated, work):
    # If a stop repeats the count of its start, the next start says what a block did.
    script = Script()
    for done in (0, 200):
        script.log("block_start", samples_count=done)
        script.spend("training", 20.0)
        script.log("block_stop", samples_count=done + stated)
    lines = [line("init_start", 0), line("run_start", START_S), *script.lines]
    record = imported([*lines, line("run_stop", script.at_s, status="success")])
    assert record.info.outcome.samples == work
    assert any(remark.startswith("work unknown") for remark in record.info.remarks) == (not work)


def test_epochs_of_language_models_count_samples():
    # Each pass over the data is an epoch, with several blocks and evaluations.
    script, done = Script(), 0
    for _ in range(3):
        script.log("epoch_start", samples_count=done)
        for _ in range(4):
            script.log("block_start", samples_count=done)
            script.spend("training", 25.0)
            done += 100
            script.log("block_stop", samples_count=done)
            script.log("eval_start", samples_count=done)
            script.spend("evaluating", 5.0)
            script.log("eval_stop", samples_count=done)
        script.log("epoch_stop", samples_count=done)
    lines = [line("init_start", 0), line("global_batch_size", 1, 8), line("run_start", START_S)]
    record = imported([*lines, *script.lines, line("run_stop", script.at_s, status="success")])
    assert (record.info.spec.imported.work_unit, record.info.outcome.samples) == ("samples", 1200)
    split = split_by_time(record)
    assert sum(b - a for a, b in split.training) == pytest.approx(300)
    assert observe_phases(record)["evaluating_s"] == pytest.approx(60)
