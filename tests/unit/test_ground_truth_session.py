"""A session of measurements: answers are kept, disturbed ones are measured again, machines do not mix."""

from contextlib import contextmanager

import pytest

from joulecast.errors import JoulecastError
from joulecast.ground_truth import session as sessions
from joulecast.ground_truth.disturbance import FOREIGN, LATE_S, WAITING, is_polluted
from joulecast.ground_truth.jobs import Job
from joulecast.ground_truth.results import Table
from joulecast.ground_truth.session import Program, begun_session, kept_until_written

STEPS = {"steps": Table(("configuration",), ("seconds", "late_s"))}
PROGRAM = Program("no.module", STEPS, timeout_s=1.0, attempts=3, enough=2)
JOB = Job(name="a", ranks=2, iterations=2)


@contextmanager
def nothing(*arguments):
    yield 0


@pytest.fixture
def launches(monkeypatch):
    """The launches of jobs; each has one disturbed and one undisturbed iteration."""
    launched = []

    def launch(program, job, *rest, **more):
        launched.append(job.name)
        row = {"configuration": job.name, "seconds": 1.0, "late_s": 0.0}
        return {"steps": [row, {**row, "late_s": 1.0}]}

    monkeypatch.setattr(sessions, "launch_ranks", launch)
    monkeypatch.setattr(sessions, "machine_lock", nothing)
    return launched


def begun(folder, **facts):
    return begun_session(folder, {"host": "here", **facts}, ("host",), lambda said: None)


def test_a_disturbed_job_is_launched_again_and_its_answer_is_kept(tmp_path, launches):
    with begun(tmp_path) as session:
        answer, said = session.answer(JOB, PROGRAM)
    assert launches == ["a", "a"] and len(answer["steps"]) == 4
    assert "at least 2 undisturbed" in said
    with begun(tmp_path, load="other") as session:
        assert session.answer(JOB, PROGRAM) == (answer, "measured before")
        assert "load" not in session.facts
        # Another job of the same name.
        session.answer(JOB.model_copy(update={"iterations": 3}), PROGRAM)
    assert len(launches) == 4


def test_launches_end_after_some_attempts(tmp_path, launches):
    with begun(tmp_path) as session:
        session.answer(JOB, Program("no.module", STEPS, 1.0, attempts=3, enough=9))
    assert len(launches) == 3


def test_a_session_of_another_machine_is_refused(tmp_path, launches):
    with begun(tmp_path):
        pass
    refused = pytest.raises(JoulecastError, match="another `host`: here, now there")
    with refused, begun(tmp_path, host="there"):
        pass


def test_sessions_stay_until_the_results_are_written(tmp_path):
    out, work = tmp_path / "out", tmp_path / "out.work"
    with pytest.raises(KeyboardInterrupt), kept_until_written(out) as folder:
        folder.mkdir()
        raise KeyboardInterrupt
    assert work.is_dir()
    with kept_until_written(out):
        out.mkdir()
    assert not work.exists()
    with pytest.raises(JoulecastError, match="is there already"), kept_until_written(out):
        pass


def test_what_disturbs_an_iteration():
    asleep = {"seconds": 1.0, "foreign_cores": 9.0}
    assert not is_polluted({**asleep, "late_s": LATE_S})
    assert is_polluted({**asleep, "late_s": 2 * LATE_S})
    computing = {"seconds": 1.0, "waited_share": 0.0, "foreign_cores": 0.0}
    assert not is_polluted(computing)
    assert is_polluted({**computing, "waited_share": 2 * WAITING})
    assert is_polluted({**computing, "foreign_cores": 2 * FOREIGN})
    # Too short for the clocks to say who had a core.
    short = {"seconds": 1e-3, "waited_share": 0.04, "foreign_cores": 1.0}
    assert not is_polluted(short)
