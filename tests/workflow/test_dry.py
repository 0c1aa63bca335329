"""What the workflow says before it does anything."""

import os
import re
import shutil
import subprocess

import pytest
import yaml
from conftest import MINIMAL, ROOT, copy_workflow, snakemake

TARGETS = [
    "all",
    "measure",
    "tables",
    "energy_tables",
    "simulator_tables",
    "partition_tables",
    "tuning_tables",
    "papers",
    "overview",
]


MEASURED = {"train"}
OF_TRAINING = {"fit", "tables", "metered", "overview"}
IN_ALL = OF_TRAINING | {"simulator_report", "partition_report"}


@pytest.mark.parametrize(
    ("targets", "there", "not_there"),
    [
        (["all"], MEASURED | IN_ALL | {"tune_live"}, {"import_mlperf"}),
        (TARGETS[1:], MEASURED | IN_ALL | {"partition_profiles", "papers"}, {"all"}),
        (["partition_tables"], {"run_pipeline", "partition_networks"}, MEASURED | {"fit"}),
    ],
)
def test_dry_run_of_every_target(workflow_copy, targets, there, not_there):
    done = snakemake(workflow_copy, "-n", *targets)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert there <= jobs and not jobs & not_there, jobs


def test_a_command_of_your_own_is_launched_judged_and_shown(workflow_copy):
    shutil.copytree(ROOT / "examples", workflow_copy / "examples", dirs_exist_ok=True)
    configuration = ("--configfile", "examples/own-training/campaign.yaml")
    done = snakemake(workflow_copy, "-n", *configuration)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", text, re.M))
    assert set(jobs) >= OF_TRAINING
    assert jobs["train"] == "6"
    assert not {"partition_networks", "simulator_report", "tune_live"} & set(jobs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("scal={a: 1}", "did you mean `scale`"),
        ("evaluation={imports: [/nowhere]}", "evaluation.imports: /nowhere is no folder"),
    ],
)
def test_mistakes_in_the_configuration_are_said_in_one_line(workflow_copy, change, said):
    done = snakemake(workflow_copy, "-n", "--config", change)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and said in text and "Traceback" not in text


@pytest.mark.long
def test_a_platform_may_be_a_file_anywhere(workflow_copy, tmp_path):
    own = (workflow_copy / "config/platforms/this-machine.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(own.replace("name: this-machine", "name: mine"))
    given = f"platform={tmp_path / 'mine.yaml'}"
    done = snakemake(workflow_copy, "-n", "--config", given, "--", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    gone = snakemake(workflow_copy, "-n", "--config", "platform=gone.yaml")
    assert gone.returncode != 0 and "gone.yaml: no such platform file" in gone.stdout + gone.stderr


def test_a_missing_configuration_file_is_said_in_one_line(tmp_path):
    shutil.copy(ROOT / "run", tmp_path / "run")
    checked = (ROOT / "run").read_text().split("# Snakemake answers", 1)[1].split("[ $# -gt 0 ]")[0]
    script = f'fail() {{ echo "./run: $*" >&2; exit 1; }}\n#{checked}\necho went on'
    for words, code in (
        (("snakemake", "--configfile", "nope.yaml", "--cores", "all"), 1),
        (("snakemake", "--configfile=nope.yaml"), 1),
        (("snakemake", "--configfile", "run", "--", "tables"), 0),
        (("snakemake", "-n", "tables"), 0),
    ):
        done = subprocess.run(
            ["sh", "-c", script, "sh", *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        if code:
            assert done.stderr.startswith("./run: nope.yaml: no such configuration file")
            assert len(done.stderr.splitlines()) == 1
        else:
            assert done.stdout == "went on\n"


def test_lint(workflow_copy):
    done = snakemake(workflow_copy, "--lint")
    complaints = re.findall(r"^    \* (.*)$", done.stdout + done.stderr, re.M)
    # One environment serves all rules: ./run makes it from the lock, or conda does.
    assert set(complaints) <= {"Specify a conda environment or container for each rule.:"}
    assert "Traceback" not in done.stderr and "Error" not in done.stderr, done.stderr


MEASURES = {*MEASURED, "profile_ops", "measure_task_graph", "partition_networks"}
MEASURES |= {"partition_profiles", "run_pipeline", "tune_live"}


def _jobs(said):
    text = said.stdout + said.stderr
    assert said.returncode == 0, text
    return set(re.findall(r"^(\w+) +\d+$", text, re.M)) - {"all", "total"}


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A finished campaign beside a package of its own: for Snakemake, each output is there and up to date."""
    copy_workflow(tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    listed = snakemake(tmp_path, *MINIMAL, "--summary")
    assert listed.returncode == 0, listed.stderr
    for line in listed.stdout.splitlines()[1:]:
        output = tmp_path / line.split("\t")[0]
        if output.suffix:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.touch()
        else:
            output.mkdir(parents=True)
    touched = snakemake(tmp_path, *MINIMAL, "--touch", "--forceall")
    assert touched.returncode == 0, touched.stdout + touched.stderr
    return tmp_path


def test_an_edit_of_a_model_fits_again_and_measures_nothing(finished):
    package = finished / "src/joulecast"
    for file in package.rglob("*"):
        os.utime(file)  # as a checkout leaves them
    assert _jobs(snakemake(finished, *MINIMAL, "-n")) == set()
    with open(package / "energy/mc2_stages.py", "a") as model:
        model.write("# Another model.\n")
    again = _jobs(snakemake(finished, *MINIMAL, "-n"))
    assert again >= IN_ALL
    assert not again & MEASURES
    patience = ("--config", "quiet={wait_s: 5, repeats: 1}", "run_timeout_s=999")
    assert not _jobs(snakemake(finished, *MINIMAL, "-n", *patience)) & MEASURES
    other_steps = _jobs(snakemake(finished, *MINIMAL, "-n", "--config", "training={steps: 4}"))
    assert "train" in other_steps, "a run that is to do something else is measured"


@pytest.mark.parametrize(
    ("profile", "launcher", "threads"), [("default", "mpiexec", "1"), ("slurm", "srun", "16")]
)
def test_one_rank_is_no_mpi_job_and_several_are(workflow_copy, profile, launcher, threads):
    arguments = (*MINIMAL, "--workflow-profile", profile, "--cores", "64", "-n", "--", "measure")
    done = snakemake(workflow_copy, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = (done.stdout + done.stderr).split("rule train:\n")[1:]
    assert len(jobs) == 9
    asked = {re.search("run=(.*)", job)[1]: dict(re.findall(r"(\w+)=(\w+)", job)) for job in jobs}
    assert all(job["launcher"] == launcher for job in asked.values())
    for run, ranks in {
        "vit_ti-n1-b4-run1": 1,
        "idle-n1": 1,
        "vit_ti-n2-b8-run1": 2,
        "allreduce-n2": 2,
    }.items():
        assert ("mpi" in asked[run]) == (ranks > 1) and asked[run]["tasks"] == str(ranks), run
        text = next(job for job in jobs if f"run={run}\n" in job)
        assert ("cpus_per_task=1" in text) == (ranks > 1), text
        assert threads == "1" or f"threads: {threads}\n" in text, text


def _profile(name):
    return yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text())


@pytest.mark.parametrize("name", ["default", "slurm"])
def test_profiles_repeat_no_measurement_for_newer_files(name):
    assert _profile(name)["rerun-triggers"] == ["mtime", "params", "input"]


def test_what_is_measured_has_its_nodes_alone_on_a_cluster():
    """Every rule that takes the whole machine here takes whole nodes there."""
    exclusive = _profile("slurm")["set-resources"]
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    measuring = {"partition_profiles"}  # a rule like partition_networks
    for rule in re.split(r"^ *(?:use )?rule ", rules, flags=re.M)[1:]:
        name = re.search(r"(?:as )?(\w+)(?: with)?:", rule).group(1)
        if "machine=16" in rule:
            measuring.add(name)
    assert {"train", "tune_live"} <= measuring <= set(exclusive)
    assert all("--exclusive" in exclusive[name]["slurm_extra"] for name in measuring)
