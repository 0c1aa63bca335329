"""Runs of days: what their stages take on the disk."""

from dataclasses import replace

import numpy as np
import pandas as pd
from conftest import make_record, make_spec

from joulecast.runs.record import read_record, write_record

STAGES = ["materials", "computing", "update"]


def test_times_and_counters_take_few_bytes(tmp_path):
    steps = 12_000
    chance = np.random.default_rng(1)
    edges = np.cumsum(chance.normal(0.02, 0.004, 3 * steps).clip(0.001))
    record = make_record(make_spec("long", training={"steps": steps}))
    stages = pd.DataFrame(
        {
            "rank": 0,
            "step": np.arange(3 * steps) // 3,
            "stage": STAGES * steps,
            "start_s": np.append(0.0, edges[:-1]),
            "stop_s": edges,
        }
    )
    write_record(tmp_path / "long", replace(record, stages=stages))
    # A million steps of five stages below 100 MiB.
    assert (tmp_path / "long/stages.parquet").stat().st_size < 20 * len(stages)
    read = read_record(tmp_path / "long").stages
    pd.testing.assert_frame_equal(read, stages, check_dtype=False)
