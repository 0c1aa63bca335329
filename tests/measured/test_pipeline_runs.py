"""A partition measured as a real pipeline."""

import json
import statistics

import pytest

from joulecast.errors import JoulecastError
from joulecast.graphs.schedules import makespan
from joulecast.records.provenance import usable_cores
from joulecast.training.pipeline_runs import measure_pipeline
from joulecast.training.pipeline_tasks import TASK_OPS, numbered, traced
from joulecast.workloads.networks import build_network

MICRO_BATCHES, ITERATIONS, ROUNDS = 2, 2, 2
SETTING = ("squeezenet1_0", 32, 4, 4, MICRO_BATCHES, "1f1b")


def test_a_measured_pipeline(tmp_path):
    nodes = traced(build_network("squeezenet1_0", 32, 16, 4)).nodes
    tasks = [node.name for node in nodes if node.op in TASK_OPS]
    stages = [tasks[:30], tasks[30:]]
    out = tmp_path / "records" / "run.json"
    record = measure_pipeline(
        *SETTING,
        stages,
        tmp_path / "log.txt",
        iterations=ITERATIONS,
        rounds=ROUNDS,
        oversubscribe=usable_cores() < 2,
        out=out,
    )
    assert json.loads(out.read_text()) == json.loads(json.dumps(record))
    assert (record["label"], record["images"]) == ("measured", "synthetic")
    assert (record["ranks"], record["oversubscribed"]) == (2, usable_cores() < 2)
    assert [list(tasks) for tasks in record["stages"]] == stages
    kept = ITERATIONS * ROUNDS
    alone = [record["alone"][phase] for phase in ("forward_s", "backward_s")]
    assert [[len(times) for times in of] for of in alone] == [[kept * MICRO_BATCHES] * 2] * 2
    for part in ("whole", "pipeline"):
        assert len(record[part]["step_s"]) == kept
        both = zip(record[part]["step_s"], record[part]["updated_s"], strict=True)
        assert all(0 < step < updated for step, updated in both)
    assert [len(times) for times in record["at_once"]["step_s"]] == [kept] * min(2, usable_cores())

    summary, median = record["summary"], statistics.median
    forward_s, backward_s = ([median(times) for times in of] for of in alone)
    assert summary["predicted_makespan_s"] == makespan(forward_s, backward_s, "1f1b", MICRO_BATCHES)
    whole_s = median(record["whole"]["step_s"])
    assert summary["speedup"] == whole_s / median(record["pipeline"]["step_s"])
    at_once_s = statistics.fmean(map(median, record["at_once"]["step_s"]))
    assert summary["capacity"] == len(record["at_once"]["step_s"]) * whole_s / at_once_s
    # The stages together do what the whole network does; wide bounds, as machines are noisy.
    work_s = MICRO_BATCHES * (sum(forward_s) + sum(backward_s))
    assert 0.2 < work_s / whole_s < 5


def test_a_rank_says_why_it_failed(tmp_path):
    with pytest.raises(JoulecastError, match="partition of SqueezeNet: it has no task `nothing`"):
        measure_pipeline(*SETTING, [["nothing"]], tmp_path / "log.txt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": [["a"]] * (usable_cores() + 1)}, "stages need a core each, and there are"),
        ({"micro_batches": 3}, "a batch of 4 does not divide into 3 micro-batches"),
        ({"micro_batches": 0}, "micro_batches"),
        ({"network": "resnet19"}, "unknown network `resnet19`"),
        ({"schedule": "zigzag"}, "schedule"),
        ({"stages": []}, "stages"),
    ],
)
def test_what_is_not_measured(changes, message, tmp_path):
    names = ("network", "image_size", "classes", "global_batch", "micro_batches", "schedule")
    arguments = dict(zip(names, SETTING, strict=True)) | {"stages": [["a"]]} | changes
    with pytest.raises(JoulecastError, match=message):
        measure_pipeline(**arguments, log_file=tmp_path / "log.txt")
    assert not (tmp_path / "log.txt").exists()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([["a"], ["b", "a"]], "task `a` is in stage 1 and in stage 0"),
        ([["a"], []], "stage 1 is empty, of 2 stages"),
    ],
)
def test_stages_have_every_task_once(stages, message):
    assert numbered([["a", "b"], ["c"]]) == {"a": 0, "b": 0, "c": 1}
    with pytest.raises(JoulecastError, match=message):
        numbered(stages)
