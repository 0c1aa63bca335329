"""A partition measured as a real pipeline."""

import pytest

from joulecast.errors import JoulecastError
from joulecast.partition.pipeline_runs import measure_pipeline

RUN = {
    "network": "squeezenet1_0",
    "image_size": 32,
    "batch_size": 4,
    "micro_batches": 2,
    "schedule": "1f1b",
}


def test_what_is_not_measured(tmp_path):
    log = tmp_path / "log.txt"
    with pytest.raises(JoulecastError, match=r"a rank failed; its log is .*log\.txt"):
        measure_pipeline(RUN, [["nothing"]], 4, log)
    assert "each task once, and none empty" in log.read_text()
    with pytest.raises(JoulecastError, match="a batch of 4 does not divide into 3 micro-batches"):
        measure_pipeline(RUN | {"micro_batches": 3}, [["nothing"]], 4, log)
