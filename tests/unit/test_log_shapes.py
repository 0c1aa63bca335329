"""What the importer and the phases make of logs in the shape of every MLPerf Training benchmark."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from log_shapes import SHAPES, Script, imported
from mlperf_fixtures import line

from joulecast.energy.phases import observe_phases


@pytest.mark.parametrize("name", SHAPES)
def test_a_log_is_read_as_the_run_went(name):
    shape = SHAPES[name]()
    record = imported(shape.lines, shape.nodes)
    row, script = observe_phases(record), shape.script
    assert record.info.spec.foreign.work_unit == shape.unit
    assert record.info.outcome.samples == shape.work
    for phase in ("training_s", "evaluating_s", "both_s", "stalled_s"):
        assert row[phase] == pytest.approx(getattr(script, phase), abs=0.05), phase
    assert row["starts"] >= 1
