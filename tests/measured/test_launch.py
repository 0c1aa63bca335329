"""Runs on a machine that does nothing else: their times, stages and meters are what they should be."""

import numpy as np
import pytest
from conftest import make_spec

from joulecast.measure.training.measure_run import measure_run
from joulecast.runs.provenance import usable_cores
from joulecast.runs.record import read_record
from joulecast.runs.spec import Calibration, Emulation, RunSpec

pytestmark = pytest.mark.long


def run(spec, tmp_path, **options):
    options = {"timeout_s": 200.0} | options
    measure_run(spec, tmp_path / spec.run, tmp_path / f"{spec.run}.log", **options)
    return read_record(tmp_path / spec.run)


def test_two_ranks_are_equal_after_twenty_steps(tmp_path):
    training = {
        "steps": 20,
        "overlap": True,
        "bucket_mb": 2,
        "global_batch_size": 7,
        "loader_workers": 1,
    }
    record = run(make_spec("twenty", 2, training=training), tmp_path)
    assert record.info.checks.replicas_equal and record.info.algorithm_used == "shared"
    assert record.info.outcome.samples == 20 * 7
    stages = record.stages
    assert set(stages["stage"]) >= {"materials", "computing", "communicating_copy", "update"}
    assert set(stages["step"]) == set(range(20))
    inside = stages["start_s"].min() >= record.info.outcome.start_s - 1e-6
    assert inside and stages["stop_s"].max() <= record.info.outcome.stop_s + 1e-6
    assert record.info.energy_source == "estimated"
    assert all(meter.coverage > 0.9 for meter in record.info.meters)


def test_emulated_nodes_have_one_speed_at_every_count(tmp_path):
    """More ranks than cores: every rank's compute lasts what its reference says."""
    ranks = usable_cores() + 1
    spec = make_spec(
        "emulated", ranks, emulation=Emulation(nodes_per_core=4), training={"steps": 4}
    )
    record = run(spec, tmp_path)
    info = record.info
    assert info.nodes_are == "emulated" and info.oversubscribed
    computing = record.stages[record.stages["stage"] == "computing"]
    lasted = (computing["stop_s"] - computing["start_s"]).to_numpy()
    due = 4 * info.reference_step_s["computing"]
    assert np.median(lasted) == pytest.approx(due, rel=0.1) and lasted.min() >= due * 0.99
    assert len(info.nodes) == ranks


def test_calibrations(tmp_path):
    sizes = (1024, 65536, 262144, 1 << 20, 1 << 22, 1 << 24)
    bare = {"workload": None, "training": None}
    common = make_spec("c", 2).model_dump() | bare
    allreduce = RunSpec.model_validate(
        common | {"kind": "allreduce", "calibration": Calibration(sizes_bytes=sizes, repeats=2)}
    )
    record = run(allreduce, tmp_path)
    assert record.info.step_bytes == [size for size in sizes for _ in range(2)]
    sleeping = RunSpec.model_validate(
        common | {"run": "s", "kind": "sleeping_rank", "calibration": Calibration(seconds=0.5)}
    )
    waits = run(sleeping, tmp_path).stages
    waits = waits[waits["stage"] == "communicating_wait"]
    assert (waits["stop_s"] - waits["start_s"]).to_numpy() == pytest.approx([0.5], abs=0.1)
    assert set(waits["rank"]) == {0}
