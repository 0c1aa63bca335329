"""Runs of days: what their stages take on the disk."""

import numpy as np
import pandas as pd

from joulecast.runs import record as records


def test_times_and_counters_take_few_bytes(tmp_path):
    chance = np.random.default_rng(1)
    edges = 3.0 + np.cumsum(chance.normal(0.02, 0.004, 50_000))
    names = ["materials", "computing", "communicating_copy", "update"]
    stages = pd.DataFrame(
        {
            "rank": 0,
            "step": np.arange(50_000) // 4,
            "stage": names * 12_500,
            "start_s": np.append(3.0, edges[:-1]),
            "stop_s": edges,
        }
    )
    records._write_frame(tmp_path / "stages.parquet", stages)
    # A million steps of five stages below 100 MiB.
    assert (tmp_path / "stages.parquet").stat().st_size < 20 * len(stages)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "stages.parquet"), stages)
