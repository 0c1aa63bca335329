"""A partition measured as a real pipeline."""

import statistics

import pytest
import torch

from joulecast.errors import JoulecastError
from joulecast.graphs.tasks import capture_tasks
from joulecast.measure.workloads.networks import build_network
from joulecast.partition.makespan import makespan
from joulecast.partition.pipeline_runs import measure_pipeline
from joulecast.runs.provenance import usable_cores

RUN = {
    "network": "squeezenet1_0",
    "image_size": 32,
    "batch_size": 4,
    "micro_batches": 2,
    "schedule": "1f1b",
}


def test_a_measured_pipeline(tmp_path):
    network = build_network("squeezenet1_0", 32, 16, 4)
    tasks = [task.name for task in capture_tasks(network, torch.randn(2, 3, 32, 32)).tasks]
    record = measure_pipeline(RUN, [tasks[:30], tasks[30:]], 4, tmp_path / "log.txt")
    assert (record["label"], record["ranks"]) == ("measured", 2)
    assert record["oversubscribed"] == (usable_cores() < 2)
    summary, median = record["summary"], statistics.median
    stages = [[median(times) for times in record[phase]] for phase in ("forward_s", "backward_s")]
    assert summary["predicted_makespan_s"] == makespan(*stages, "1f1b", 2)
    assert summary["speedup"] == median(record["whole_s"]) / median(record["pipeline_s"])
    assert len(record["at_once_s"]) == min(2, usable_cores())
    # The stages together do what the whole network does; wide bounds, as machines are noisy.
    assert 0.2 < 2 * sum(map(sum, stages)) / median(record["whole_s"]) < 5


def test_what_is_not_measured(tmp_path):
    log = tmp_path / "log.txt"
    with pytest.raises(JoulecastError, match=r"a rank failed; its log is .*log\.txt"):
        measure_pipeline(RUN, [["nothing"]], 4, log)
    assert "each task once, and none empty" in log.read_text()
    with pytest.raises(JoulecastError, match="a batch of 4 does not divide into 3 micro-batches"):
        measure_pipeline(RUN | {"micro_batches": 3}, [["nothing"]], 4, log)
