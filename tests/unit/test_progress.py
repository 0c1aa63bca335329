"""How far a campaign is, told from its records and logs alone."""

import json
from dataclasses import replace

import pytest
from conftest import make_record, make_spec
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.runs.progress import progress_of, progress_text
from joulecast.runs.record import write_record

WHY = "other programs kept 1.7 cores busy (stress-ng) before the run"


def done(results, spec, disturbed=()):
    """A run with a record and a log."""
    record = make_record(spec)
    info = record.info.model_copy(update={"disturbed": list(disturbed)})
    write_record(results / "records" / spec.run, replace(record, info=info))
    logged(results, spec.run)
    return results / "records" / spec.run


def logged(results, run, *lines):
    """The log of a run, of these lines."""
    log = results / "logs" / f"{run}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join([f"run {run}", *lines, ""]))


def test_every_state_is_told_apart(tmp_path):
    specs = [make_spec(f"run{k}", repeat=k) for k in range(7)]
    done(tmp_path, specs[0])
    done(tmp_path, specs[1], [WHY])
    logged(tmp_path, "run2", "step 3", "error: no luck")
    logged(tmp_path, "run3", "step 3")
    broken = done(tmp_path, specs[4])
    (broken / "run.json").write_text("{")
    logged(tmp_path, "run5", "run5: 3.1 s in all", "done")
    (tmp_path / "logs/fit.log").write_text("error: of another job\n")
    progress = progress_of(tmp_path, specs)
    assert [run.state for run in progress.runs] == [
        *("done", "done", "failed", "unfinished", "damaged", "waiting", "waiting")
    ]
    assert "record was removed" in progress.runs[5].why
    assert "no luck" in progress.runs[2].why and "killed" in progress.runs[3].why
    counts = {"done": 2, "unfinished": 1, "failed": 1, "damaged": 1, "waiting": 2}
    assert progress.as_json()["counts"] == counts
    text = progress_text(progress)
    for line in (
        "2 of 7 runs done",
        "failed: run2: no luck",
        "unfinished: run3: ",
        f"disturbed: run1: {WHY}",
    ):
        assert line in text
    assert f"rm -r {tmp_path}/records/run1 {tmp_path}/records/run4" in text
    found = progress_of(tmp_path)
    assert [run.run for run in found.runs] == [f"run{k}" for k in range(6)]


def test_a_record_that_no_forecast_uses_is_done_and_says_why(tmp_path):
    record = make_record(make_spec("run0"))
    info = record.info.model_copy(update={"left_out": ["no steps: measure for longer"]})
    write_record(tmp_path / "records/run0", replace(record, info=info))
    text = progress_text(progress_of(tmp_path))
    assert "1 of 1 run done" in text and "run0: no steps: measure for longer" in text


def test_how_to_repeat_runs_names_their_folders(tmp_path):
    done(tmp_path, make_spec("run0"), [WHY])
    said = CliRunner().invoke(app, ["status", str(tmp_path)]).output
    assert f"rm -r {tmp_path}/records/run0, and" in said


def test_a_record_of_another_specification_does_not_count(tmp_path):
    done(tmp_path, make_spec("run0"))
    (run,) = progress_of(tmp_path, [make_spec("run0", repeat=2)]).runs
    assert run.state == "waiting" and "another configuration" in run.why


def test_the_command_writes_nothing_and_ends_with_zero_when_all_is_done(tmp_path):
    done(tmp_path, make_spec("run0"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    said = CliRunner().invoke(app, ["status", str(tmp_path), "--json"])
    assert said.exit_code == 0 and json.loads(said.output)["finished"]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    logged(tmp_path, "run1", "error: no luck")
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).exit_code == 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(JoulecastError, match="no such folder"):
        progress_of(tmp_path / "no")


def test_a_disturbed_pipeline_is_named(tmp_path):
    done(tmp_path, make_spec("good"))
    (tmp_path / "pipelines").mkdir()
    for name, why in (("calm", []), ("busy", [WHY])):
        (tmp_path / f"pipelines/{name}.json").write_text(json.dumps({"disturbed": why}))
    assert progress_of(tmp_path).disturbed_pipelines == ["busy"]


def test_a_training_that_failed_is_not_done_and_has_no_stages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    run(app, ["measure", "--name", "gone", "--meters", "estimated", "--", "false"])
    told = run(app, ["status", "gone"])
    assert told.exit_code == 1 and "0 of 1 run done, 1 failed" in told.output, told.output
    exported = run(app, ["export", "openmetrics", "gone"])
    assert exported.exit_code == 0 and "stage_seconds" not in exported.output, exported.output
