"""`config check` and the last words of a campaign, from the side of who types them."""

import pandas as pd
import pytest
from conftest import ROOT, make_spec
from test_progress import done as kept
from typer.testing import CliRunner

from joulecast.app.campaign import check as campaign_check
from joulecast.app.campaign.closing_lines import closing_lines
from joulecast.app.cli.main import app

GOOD = "workload: {networks: [resnet18]}\ntraining: {steps: 3}\n"


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check a configuration of this text in the checkout; the dry run has tests of its own."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("joulecast.app.cli.main.dry_run", lambda *_: 12)

    def run(text: str):
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        return CliRunner().invoke(app, ["config", "check", str(file)])

    return run


def test_a_sound_configuration_says_what_it_will_do(check):
    done = check(GOOD)
    assert done.exit_code == 0 and "all right" in done.output
    assert "trainings of resnet18) on 1, 2, 4 nodes of platform this-machine" in done.output
    assert "dry run: 12 jobs" in done.output


def test_a_check_runs_no_program_of_a_configuration(check, tmp_path):
    power = f"power: {{meters: [command], command: [touch, {tmp_path}/ran]}}\n"
    done = check(GOOD + power)
    assert done.exit_code == 0, done.output
    assert "meter command: not tried" in done.output
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "platform: my-node\n", ["my-node", "no such platform", "this-machine"]),
        (GOOD + "platform: ./absent.yaml\n", ["absent.yaml", "no such platform file"]),
        (
            "workload: {networks: [resnet18], dataset: imagenet, data_root: /nope}\n"
            "training: {steps: 3}\n",
            ["workload.data_root", "/nope is no folder"],
        ),
        ("workload: {networks: [resnet19]}\ntraining: {steps: 3}\n", ["resnet19", "resnet18"]),
        ("workload: {networks: [resnet18]}\n", ["training.steps", "resnet18", "steps: 5"]),
        (
            GOOD + "evaluation: {imports: [/nope]}\n",
            ["evaluation.imports", "/nope is no folder"],
        ),
        (GOOD + "platform: hc9\n", ["hc9", "no such platform"]),
        (GOOD + "partition: {graphs: absent}\n", ["partition.graphs", "is no folder"]),
        (GOOD + "simulator: {gpu_steps: absent}\n", ["simulator.gpu_steps", "is no folder"]),
        (GOOD + "power: {meters: [gpx]}\n", ["power.meters", "gpx", "known: pm_counters"]),
        (GOOD + "powr: {}\n", ["powr", "did you mean `power`"]),
        ("workload: [", ["is not YAML", "in line "]),
        ("", ["is empty", "config default"]),
        ("- a\n", ["is no configuration"]),
        (GOOD + "scale: {nodes: '1,2'}\n", ["scale.nodes", "give a list, as [1, 2]"]),
        (
            "workload: {networks: [resnet18], dataset: cifar10}\ntraining: {steps: 3}\n",
            ["workload.data_root: is not given", "mine.yaml"],
        ),
        (GOOD + "scale: {batch_size: 1, ranks_per_node: 2}\n", ["scale.batch_size", "at least 2"]),
        (
            "workload: {command: python train.py}\ntraining: {steps: 3}\n",
            ["workload.command", "2, 4 and 8", "{batch_per_rank}", "calibration.batch_sizes"],
        ),
    ],
)
def test_every_mistake_is_one_line_with_its_key_and_the_way_out(check, text, said):
    done = check(text)
    assert done.exit_code == 2 and len(done.output.strip().splitlines()) == 1
    assert all(part in done.output for part in said), done.output


def test_what_this_host_lacks_is_told(check):
    done = check(GOOD.replace("steps: 3", "steps: 3, device: cuda"))
    assert done.exit_code == 0 and "trainings of resnet18" in done.output
    import torch

    if not torch.cuda.is_available():
        assert (
            "this host cannot run it: training.device: cuda, but torch sees no GPU" in done.output
        )
        assert "meter gpu: not on this host" in done.output


def test_more_ranks_than_this_host_can_hold_are_told(check):
    done = check(GOOD + "emulation: null\nscale: {nodes: [1, 4096], batch_size: 4}\n")
    assert done.exit_code == 0 and "sound, but this host cannot run it" in done.output
    assert "4096 ranks on a host" in done.output and "nodes_per_core" in done.output
    assert "all right" not in done.output
    own = "workload: {command: 'train.py {batch}'}\ntraining: {steps: 3}\n"
    done = check(own + "scale: {nodes: [4096], batch_size: 4}\n")
    assert "4096 ranks on a host" in done.output and "nodes_per_core" not in done.output


def test_the_dry_run_is_snakemake_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD + f"results: {tmp_path / 'results'}\n")
    assert campaign_check.dry_run(ROOT, file) > 20
    assert not (tmp_path / "results").exists()


def test_another_project_s_snakefile_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "Snakefile").write_text("raise SystemExit('this is another project')")
    monkeypatch.chdir(tmp_path)
    assert campaign_check.project_here() == ROOT


def test_a_campaign_ends_with_one_line(tmp_path):
    assert closing_lines(tmp_path, ["a", "b"]) == []
    (tmp_path / "tables").mkdir()
    (tmp_path / "fits").mkdir()
    (tmp_path / "index.html").write_text("")
    rows = {"run": ["a", "b"], "left_out": ["", "x"], "left_out_for": ["", "disturbed"]}
    pd.DataFrame(rows).to_parquet(tmp_path / "fits/observations.parquet")
    (line,) = closing_lines(tmp_path, ["a", "b"])
    assert f"page: {tmp_path / 'index.html'}; tables: {tmp_path / 'tables'}" in line
    assert "left out: 1 of 2 runs (disturbed 1)" in line and "\n" not in line


def test_one_more_line_says_how_to_repeat_what_was_disturbed(tmp_path):
    kept(tmp_path, make_spec("bad"), ["other programs kept 2.0 cores busy"])
    line = closing_lines(tmp_path, ["bad"])[-1]
    assert line.startswith("1 run disturbed by other programs; to repeat only these: ")
    assert f"rm -r {tmp_path}/records/bad, and" in line
    # A replay measures nothing, and another campaign does not measure this run.
    assert closing_lines(tmp_path, []) == []
