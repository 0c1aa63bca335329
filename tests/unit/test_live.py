"""`joulecast status --live`: watts, joules and steps of runs in progress, from the files they write."""

import json
import os

import pytest
from typer.testing import CliRunner

from joulecast.campaign.progress import Progress, RunState
from joulecast.cli.main import app
from joulecast.files.blocks import BlockWriter
from joulecast.observer.inside import marks
from joulecast.power.live import LiveHost
from joulecast.report.in_progress import CampaignEnergy, InProgress

ABOUT = {"covers": "gpu", "remark": None, "renewed_s": None}
METERS = [
    {
        "node": "n",
        "meter": name,
        "source": "measured",
        "counter": counter,
        "identity": name,
        "about": about,
    }
    for name, counter, about in (
        ("nvml:0", True, ABOUT),
        ("hwmon:board", False, ABOUT | {"covers": "node"}),
    )
]
FACTS = {"meters": METERS, "absent": [], "nodes": ["n"], "failed": [0, 0], "faults": [None, None]}


def block(first_s, count, node_w, facts=None):
    """Readings every 0.5 s: a GPU that counts 100 W, and a board of so many watts."""
    times = [first_s + k / 2 for k in range(count)]
    return facts or {}, {
        "power.0.t_s": times,
        "power.0.watts": [None] * count,
        "power.0.joules": [100.0 * (t - 50) for t in times],
        "power.1.t_s": times,
        "power.1.watts": [node_w] * count,
        "power.1.joules": [None] * count,
        "work.t_s": [times[0], times[-1]],
        "work.machine_s": [0.0, 1.0],
        "work.own_s": [0.0, 1.0],
    }


def test_what_was_drawn_grows_with_the_file_and_parts_are_not_added(tmp_path):
    writer = BlockWriter(tmp_path / "host.samples")
    host = LiveHost(tmp_path / "host.samples")
    assert host.look() is None
    writer.append(*block(100.0, 21, 300.0, FACTS))
    first = host.look()
    assert (first.watts, first.joules) == (pytest.approx(300), pytest.approx(3000))
    assert first.source == "measured" and first.lasted_s == pytest.approx(10)
    writer.append(*block(110.5, 40, 500.0))
    later = host.look()
    # From 110 to 110.5 s power rises along a line.
    assert later.joules == pytest.approx(3000 + 0.5 * 400 + 19.5 * 500)
    assert later.watts == pytest.approx(500)
    # The board fails: what is left covers the GPU alone.
    writer.append(*block(130.5, 21, 500.0, {"faults": [None, "it broke"]}))
    assert host.look().watts == pytest.approx(100)
    writer.append({"faults": ["it broke", "it broke"]}, {})
    last = host.look()
    assert last.joules is None and "it broke" in last.why_not


@pytest.fixture
def launch(tmp_path):
    """A launch of `joulecast measure` that has made 40 steps of 0.25 s."""
    job = tmp_path / ".job-alone-1"
    (job / "marks-0").mkdir(parents=True)
    (job / "asked.json").write_text(json.dumps({"name": "mine"}))
    writer = BlockWriter(job / "host-0.samples")
    writer.append(*block(100.0, 41, 300.0, FACTS))
    writer.close()
    rows = [marks.ROW.pack(marks.UPDATE, 110 + k / 4, 0.0, 0) for k in range(40)]
    (job / "marks-0/7.marks").write_bytes(b"".join(rows))
    return tmp_path


def said(*words):
    answer = CliRunner().invoke(app, ["status", *map(str, words)])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_the_whole_is_what_was_drawn_and_the_rest_at_the_same_pace(launch, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("campaign: mine\nprices:\n  price: 0.36\n  currency: EUR\n")
    shown = json.loads(said(launch, "--live", "--steps", 100, "--json", "--prices", prices))
    (run,) = shown["runs"]
    assert run["run"] == "mine" and run["steps"] == 40 and run["source"] == "measured"
    assert run["left_s"] == pytest.approx(60 * 0.25)
    assert run["whole_j"] == pytest.approx(6000 + 15 * 300)
    assert run["whole_money"] == pytest.approx(run["whole_j"] / 3.6e6 * 0.36)
    line = said(launch, "--live", "--steps", 100)
    for part in (
        "mine: 300 W now",
        "6.00 kJ so far (measured)",
        "step 40 of 100",
        "10.5 kJ",
        "15 s left",
    ):
        assert part in line


def test_without_the_number_of_steps_nothing_is_foreseen(launch):
    (run,) = json.loads(said(launch, "--live", "--json"))["runs"]
    assert run["whole_j"] is None and run["left_s"] is None and run["joules"] == pytest.approx(6000)
    assert "give --steps" in said(launch, "--live")


def test_a_sampler_that_is_silent_is_not_in_progress(launch):

    os.utime(launch / ".job-alone-1/host-0.samples", (1, 1))
    assert "no run is in progress" in said(launch, "--live")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    answer = CliRunner().invoke(app, ["status", str(tmp_path / "none"), "--live"])
    assert answer.exit_code == 2 and "no such folder" in answer.stderr


def test_calibrations_foresee_no_training(tmp_path):
    energy = CampaignEnergy(tmp_path)
    energy._known = {"idle": 20.0, "a": None}
    runs = [RunState("idle", "done", "idle"), RunState("a", "running", "training")]
    runs += [RunState(name, "waiting", "training") for name in "bc"]
    progress = Progress(str(tmp_path), runs, 4, None, "")
    before = energy.look(progress, [])
    assert before.done_j == 20 and before.whole_j is None
    assert "unknown for all: no training has ended" in before.line()
    live = InProgress("a", 1, 50.0, 100.0, "measured", None, 2.0, 4, 40, 18.0, 1000.0)
    assert energy.look(progress, [live]).whole_j == pytest.approx(20 + 3 * 1000)
