"""How far a campaign is, told from its folder alone."""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, make_record, make_spec
from typer.testing import CliRunner

from joulecast.campaign.config import read_config
from joulecast.campaign.progress import (
    Progress,
    RunState,
    progress_line,
    progress_of,
    progress_text,
)
from joulecast.campaign.runs import campaign_runs
from joulecast.cli.main import app
from joulecast.cli.progress import _End
from joulecast.errors import JoulecastError
from joulecast.records.provenance import physical_host
from joulecast.records.record import write_record
from joulecast.records.spec import RunSpec


def specs(many: int) -> list[RunSpec]:
    return [make_spec(f"run{k}", repeat=k) for k in range(many)]


def done(results: Path, spec: RunSpec, seconds: float | None = 60.0) -> None:
    write_record(results / "records" / spec.run, make_record(spec))
    if seconds is not None:
        noted(results, spec.run, since_s=200.0 + seconds, until_s=200.0)


def noted(
    results: Path,
    run: str,
    since_s: float = 30.0,
    until_s: float | None = None,
    reason: str | None = None,
    pid: int | None = None,
) -> None:
    """An attempt at ``run`` that began and ended so many seconds ago, of this process."""
    own = psutil.Process(os.getpid())
    now = datetime.now(UTC)
    begun = {
        "id": "a1",
        "started_utc": (now - timedelta(seconds=since_s)).isoformat(),
        "host": physical_host(),
        "pid": own.pid if pid is None else pid,
        "process_started_s": own.create_time(),
    }
    lines = [begun]
    if until_s is not None or reason is not None:
        ended = (now - timedelta(seconds=until_s or 0.0)).isoformat()
        lines.append({"id": "a1", "ended_utc": ended, "reason": reason})
    folder = results / "attempts"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"\n{json.dumps(line)}\n" for line in lines)
    (folder / f"{run}.jsonl").write_text(text)


def states(progress) -> dict[str, str]:
    return {run.run: run.state for run in progress.runs}


def test_every_state_is_told_apart(tmp_path):
    asked = specs(6)
    done(tmp_path, asked[0])
    noted(tmp_path, "run1")
    noted(tmp_path, "run2", reason="run run2: the fabric is down")
    noted(tmp_path, "run3", pid=2**22 + 1)  # no such process
    done(tmp_path, asked[4])
    (tmp_path / "records/run4/run.json").write_text("{")
    progress = progress_of(tmp_path, asked)
    assert states(progress) == {
        "run0": "done",
        "run1": "running",
        "run2": "failed",
        "run3": "failed",
        "run4": "damaged",
        "run5": "waiting",
    }
    text = progress_text(progress)
    running = re.search(
        r"1 of 6 runs done, 1 running \(run1 for (\d+) s\), 2 failed, 1 damaged, 1 w", text
    )
    assert 30 <= int(running[1]) < 90
    assert "failed: run2: run run2: the fabric is down" in text
    assert "failed: run3: ended without a word" in text
    assert re.search(r"damaged: run4: .*run4/run.json, line 1: is not JSON", text)
    assert not progress.finished


def test_looking_writes_nothing(tmp_path):
    noted(tmp_path, "run0", pid=2**22 + 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    progress_of(tmp_path, specs(2))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_time_left_is_that_of_runs_alike(tmp_path):
    asked = specs(3) + [make_spec(f"two{k}", 2, repeat=k) for k in range(3)]
    done(tmp_path, asked[0], seconds=40)
    done(tmp_path, asked[3], seconds=100)
    noted(tmp_path, "two1", since_s=30)
    progress = progress_of(tmp_path, asked)
    # Two runs on one node wait, one on two nodes waits and one has been going on for 30 s.
    assert progress.time_left_s == pytest.approx(40 + 40 + 100 + 70, abs=20)
    assert "an estimate from 2 ended runs" in progress_line(progress)
    brief = progress_line(progress, brief=True)
    assert re.fullmatch(
        r"2 of 6 runs done, 1 running, 0 failed, 3 waiting; about [34] min .* left", brief
    )
    noted(tmp_path, "two2", since_s=0)
    together = progress_of(tmp_path, asked)
    assert together.time_left_s == pytest.approx((40 + 40 + 100 + 70) / 2, abs=20)


def test_without_a_configuration_there_is_no_total(tmp_path):
    done(tmp_path, specs(1)[0])
    progress = progress_of(tmp_path)
    assert progress.total is None and progress.time_left_s is None and progress.finished
    assert "the number of runs is not known" in progress_text(progress)


def test_a_record_of_another_specification_does_not_count(tmp_path):
    (asked,) = specs(1)
    done(tmp_path, asked.model_copy(update={"seed": 7}))
    progress = progress_of(tmp_path, [asked])
    assert states(progress) == {"run0": "waiting"}
    assert "answers another specification" in progress_text(progress)


def test_runs_that_were_not_asked_for_are_named(tmp_path):
    asked = specs(2)
    for spec in asked:
        done(tmp_path, spec)
    progress = progress_of(tmp_path, asked[:1])
    assert progress.finished and progress.not_asked_for == ["run1"]
    assert "1 runs there were not asked for: run1" in progress_text(progress)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', "\x00\xff"])
def test_damaged_records_are_named_whatever_they_hold(tmp_path, content):
    done(tmp_path, specs(1)[0])
    (tmp_path / "records/run0/run.json").write_text(content)
    progress = progress_of(tmp_path)
    assert states(progress) == {"run0": "damaged"} and "run0" in progress_text(progress)


def test_a_record_that_lacks_a_file_is_damaged(tmp_path):
    done(tmp_path, specs(1)[0])
    (tmp_path / "records/run0/power.parquet").unlink()
    assert "run0: lacks power.parquet" in progress_text(progress_of(tmp_path))


def test_folders_with_nothing_of_ours(tmp_path):
    assert "no run has left a record" in progress_text(progress_of(tmp_path))
    (tmp_path / "records/notes").mkdir(parents=True)
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts/odd.jsonl").write_text("no JSON\n[1]\n")
    assert states(progress_of(tmp_path)) == {"notes": "damaged", "odd": "waiting"}
    with pytest.raises(JoulecastError, match="no such folder"):
        progress_of(tmp_path / "absent")
    assert states(progress_of(tmp_path / "absent", specs(1))) == {"run0": "waiting"}


def test_what_is_read_once_is_not_read_again_unless_it_changed(tmp_path):
    done(tmp_path, specs(1)[0])
    seen = {}
    progress_of(tmp_path, seen=seen)
    (kept,) = seen.values()
    assert progress_of(tmp_path, seen=seen).finished and next(iter(seen.values())) is kept
    (tmp_path / "records/run0/run.json").write_text("{}")
    assert not progress_of(tmp_path, seen=seen).finished


# --- the command --------------------------------------------------------------------------------------------

RUN = CliRunner().invoke
MINIMAL = str(ROOT / "config/minimal.yaml")
ON_PLATFORMS = ("--config", MINIMAL, "--platforms", str(ROOT / "config/platforms"))


def test_the_configuration_says_what_was_asked_for(tmp_path):
    said = RUN(app, ["status", str(tmp_path), *ON_PLATFORMS])
    assert said.exit_code == 1 and "0 of 9 runs done" in said.output
    told = json.loads(RUN(app, ["status", str(tmp_path), *ON_PLATFORMS, "--json"]).output)
    assert told["total"] == 9 and told["counts"]["waiting"] == 9 and not told["finished"]


def test_watching_ends_when_all_is_done_and_prints_plain_lines(tmp_path):
    asked = campaign_runs(read_config(Path(MINIMAL)), ROOT / "config/platforms")
    training = [spec for spec in asked if spec.kind == "training"]
    for spec in training:
        done(tmp_path, spec)
    said = RUN(app, ["status", str(tmp_path), *ON_PLATFORMS])
    assert said.exit_code == 1 and f"{len(training)} of 9 runs done" in said.output
    for spec in asked:
        if spec.kind != "training":
            record = make_record(make_spec(spec.run, spec.nodes))
            info = record.info.model_copy(update={"spec": spec, "spec_sha256": spec.digest()})
            folder = tmp_path / "records" / spec.run
            write_record(folder, record)
            (folder / "run.json").write_text(info.model_dump_json())
    said = RUN(app, ["status", str(tmp_path), *ON_PLATFORMS, "--watch", "--interval", "0.1"])
    assert said.exit_code == 0 and "9 of 9 runs done" in said.output
    assert len(said.output.splitlines()) == 1 and "\x1b" not in said.output


def test_watching_ends_when_runs_failed_and_nothing_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.cli.progress._STILL_S", 0.3)
    asked = campaign_runs(read_config(Path(MINIMAL)), ROOT / "config/platforms")
    noted(tmp_path, asked[0].run, reason="the fabric is down")
    watch = ["status", str(tmp_path), *ON_PLATFORMS, "--watch", "--interval", "0.1"]
    said = RUN(app, watch)
    assert said.exit_code == 1 and "1 failed, 8 waiting" in said.output
    # Not at once: between two runs nothing runs, either.
    assert len(said.output.splitlines()) >= 3


def test_what_runs_or_changes_is_waited_for(monkeypatch):
    clock = iter([0.0, 50.0, 100.0, 159.0, 161.0])
    monkeypatch.setattr("joulecast.cli.progress.time.monotonic", lambda: next(clock))
    failed, waiting = RunState("a", "failed"), RunState("b", "waiting")
    end = _End(asked=True)

    def reached(*runs: RunState) -> bool:
        return end.reached(Progress("results", list(runs), 2, None, ""))

    assert not reached(failed, waiting)
    assert not reached(failed, RunState("b", "running"))
    assert not reached(failed, waiting)  # it has just ended
    assert not reached(failed, waiting)
    assert reached(failed, waiting)


def test_ctrl_c_ends_watching_without_a_traceback(tmp_path, monkeypatch):
    done(tmp_path, specs(1)[0])
    noted(tmp_path, "run1", reason="broken")

    def pressed(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("joulecast.cli.progress.time.sleep", pressed)
    said = RUN(app, ["status", str(tmp_path), "--watch"])
    assert said.exit_code == 1 and "1 runs done, 0 running, 1 failed" in said.output
    assert "Traceback" not in said.output


def test_a_folder_that_is_not_there(tmp_path):
    said = RUN(app, ["status", str(tmp_path / "absent")])
    assert said.exit_code == 2 and "no such folder" in said.output
