"""`joulecast records recover` on a campaign: what killed ranks had written becomes an incomplete record."""

import time

import pytest
from conftest import make_spec
from typer.testing import CliRunner

from joulecast.cli.main import app
from joulecast.files.blocks import BlockWriter
from joulecast.power.samples import SAMPLES
from joulecast.records.record import read_record
from joulecast.training.left_files import SPEC, UNFINISHED, keep_unfinished, left_of
from joulecast.training.stage_clock import ENDING, StageClock, read_intervals

METER = {
    "node": "vm",
    "meter": "rapl:package-0",
    "source": "measured",
    "counter": True,
    "identity": "0",
}


def stages(file, rank, steps, begin_s):
    """Stages of a rank: one step of warm-up, then steps of 0.3 s, the last one cut short."""
    facts = {
        "node": "vm",
        "host": "vm:boot",
        "host_node": "vm",
        "clock": [begin_s, 0.0, 0.0, begin_s],
        "oversubscribed": False,
        "sampled": rank == 0,
        "fingerprint": {"cores": 2},
        "scheduler_node": None,
        "started_utc": "2026-01-02T03:04:05+00:00",
        "load_before": None,
    }
    clock = StageClock(file, facts)
    for step in range(-1, steps + 1):
        clock.step = step
        clock.record("materials", begin_s + 0.3 * step, begin_s + 0.3 * step + 0.1)
        if step < steps:
            clock.record("computing", begin_s + 0.3 * step + 0.1, begin_s + 0.3 * (step + 1))
        clock.keep()


def samples(file, begin_s):
    times = [begin_s + k / 10 for k in range(-10, 60)]
    writer = BlockWriter(file)
    about = {"covers": "cpu", "remark": None, "renewed_s": None}
    facts = {"meters": [METER | {"about": about}], "failed": [0], "faults": [None], "nodes": ["vm"]}
    columns = {
        "power.0.t_s": times,
        "power.0.watts": [None] * len(times),
        "power.0.joules": [50.0 * (t - times[0]) for t in times],
        "work.t_s": [times[0], times[-1]],
        "work.machine_s": [0.0, 3.0],
        "work.own_s": [0.0, 3.0],
    }
    for name, value in {
        "cpu_utilisation": 0.5,
        "memory_bytes": 10**9,
        "network_bytes_per_s": 0,
    }.items():
        columns[f"activity.0.{name}"] = [value] * len(times)
    columns |= {"activity.0.t_s": times, "activity.0.gpu_utilisation": [None] * len(times)}
    writer.append(facts, columns)
    writer.close()


@pytest.fixture
def killed(tmp_path):
    """Results with the scratch folder of an attempt of two ranks, of which one had made a step less."""
    spec = make_spec(nodes=1, ranks_per_node=2, meters=("rapl",))
    scratch = tmp_path / f"attempts/.{spec.run}-abc"
    scratch.mkdir(parents=True)
    (scratch / SPEC).write_text(spec.model_dump_json())
    begin_s = time.monotonic() - 100
    for rank, steps in ((0, 6), (1, 5)):
        stages(left_of(scratch / "record", rank, ENDING), rank, steps, begin_s)
    samples(left_of(scratch / "record", 0, SAMPLES), begin_s)
    return tmp_path, spec, scratch


def recover(results, *more):
    return CliRunner().invoke(app, ["records", "recover", str(results), *map(str, more)])


def test_the_ranks_of_a_killed_run_leave_a_record_of_their_common_steps(killed):
    results, spec, _ = killed
    answer = recover(results)
    assert answer.exit_code == 0, answer.output
    record = read_record(results / "recovered" / spec.run)
    info = record.info
    assert info.outcome.steps == 5 and info.outcome.samples == 5 * spec.global_batch_size
    assert "incomplete" in info.polluted[0] and info.energy_source == "measured"
    assert record.stages["stop_s"].max() == pytest.approx(1.5)
    assert set(record.stages["step"]) == set(range(5))
    assert info.started_utc == "2026-01-02T03:04:05+00:00"
    assert "holds no measurement" in recover(results).stdout, "made once"


def test_a_failed_attempt_keeps_its_measurements_until_the_next_fails(killed):
    results, spec, scratch = killed
    keep_unfinished(results / "attempts", spec.run, scratch)
    kept = results / f"attempts/{spec.run}{UNFINISHED}"
    assert len(read_intervals(left_of(kept / "record", 0, ENDING))[1]["step"]) > 0
    (results / "recovered" / spec.run).mkdir(parents=True)
    answer = recover(results)
    assert answer.exit_code == 1 and "is there already" in answer.stderr
    assert recover(results, "--out", results / "other").exit_code == 0
    assert (results / "other" / spec.run / "run.json").is_file()


def test_an_attempt_without_a_step_keeps_nothing(tmp_path):
    spec = make_spec()
    scratch = tmp_path / "attempts/.run-abc"
    scratch.mkdir(parents=True)
    (scratch / SPEC).write_text(spec.model_dump_json())
    StageClock(left_of(scratch / "record", 0, ENDING), {})
    keep_unfinished(tmp_path / "attempts", spec.run, scratch)
    assert not list((tmp_path / "attempts").glob(f"*{UNFINISHED}"))
