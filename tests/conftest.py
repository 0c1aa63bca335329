"""What the tests share: a synthetic run record, and a private copy of the checkout's workflow."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

# Before numpy is loaded: on small matrices its threads do nothing but wait, and take cores from others.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pandas as pd
import pytest
import typer.testing
from debian import why_not_installed
from hypothesis import HealthCheck, settings

from joulecast.runs.frames import ACTIVITY_COLUMNS, PHASE_COLUMNS, POWER_COLUMNS, STAGE_COLUMNS
from joulecast.runs.platforms import Platform
from joulecast.runs.record import Checks, MeterInfo, Outcome, RunInfo, RunRecord
from joulecast.runs.spec import Imported, Observed, RunSpec, Training, Workload

# The parser of all commands is built once, not for each command that is tried.
typer.testing._get_command = cache(typer.main.get_command)

ROOT = Path(__file__).resolve().parents[1]
# How long an example takes is a matter of the machine and of what else it does.
settings.register_profile(
    "any machine", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

MINIMAL = ("--configfile", "config/minimal.yaml")
AT_ONCE = "quiet={wait_s: 0, repeats: 0}"
"""For `--config`: other tests keep the machine busy, so that measurements do not wait until it is quiet."""


def make_spec(run: str = "r", nodes: int = 1, **changes: object) -> RunSpec:
    """A small training on one machine."""
    training = {"global_batch_size": 4 * nodes, "steps": 3}
    training |= changes.pop("training", {})
    workload = {"network": "vit_ti", "image_size": 32} | changes.pop("workload", {})
    return RunSpec(
        run=run,
        campaign="test",
        platform=Platform(name="test", hosts=1, idle_w=10, full_w=30),
        nodes=nodes,
        workload=Workload(**workload),
        training=Training(**training),
        **{"meters": ("estimated",)} | changes,
    )


def make_record(spec: RunSpec, step_s: dict[str, float] | None = None) -> RunRecord:
    """A record of ``spec`` whose stages last exactly ``step_s`` and whose nodes draw 20 W."""
    lasting = step_s or {"materials": 0.1, "computing": 0.6, "update": 0.3}
    rows, clock = [], 0.0
    for step in range(spec.training.steps):
        clock = step * sum(lasting.values())
        for stage, seconds in lasting.items():
            rows += [(rank, step, stage, clock, clock + seconds) for rank in range(spec.ranks)]
            clock += seconds
    nodes = [f"host/{n}" for n in range(spec.nodes)]
    power = [(n, "estimated", k / 10, 20.0, 2.0 * k) for n in nodes for k in range(-2, 60)]
    power = [row if row[4] >= 0 else (*row[:4], 0.0) for row in power]
    activity = [(n, k / 10, 0.5, None, 1e9, 0.0) for n in nodes for k in range(60)]
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        started_utc="2026-01-01T00:00:00+00:00",
        nodes=nodes,
        node_of_rank=nodes,
        nodes_are="ranks of one host",
        algorithm_used="shared",
        parameters=1000,
        outcome=Outcome(
            start_s=0.0,
            stop_s=clock,
            steps=spec.training.steps,
            samples=spec.training.steps * spec.training.global_batch_size,
        ),
        checks=Checks(ranks=spec.ranks, distinct_hosts=1, replicas_equal=True),
        meters=[
            MeterInfo(node=n, meter="estimated", available=True, source="estimated", counter=True)
            for n in nodes
        ],
    )
    phases = [("run", 0.0, 0.0, clock, float(info.outcome.samples))]
    return RunRecord(
        info,
        pd.DataFrame(rows, columns=list(STAGE_COLUMNS)),
        pd.DataFrame(power, columns=list(POWER_COLUMNS)),
        pd.DataFrame(activity, columns=list(ACTIVITY_COLUMNS)).astype({"gpu_utilisation": float}),
        pd.DataFrame(phases, columns=list(PHASE_COLUMNS)),
    )


def make_observed(ranks: int) -> RunRecord:
    """A record of a training that was observed on ranks of one host, with four samples a rank."""
    observed = Observed(name="mylm", command=("train",), samples_per_step=4 * ranks)
    given = {"observed": observed, "ranks_per_node": ranks, "workload": None}
    record = make_record(make_spec(f"mylm-n1-r{ranks}").model_copy(update=given))
    outcome = record.info.outcome
    outcome = outcome.model_copy(update={"samples": 4 * ranks * outcome.steps})
    facts = {"node_of_rank": ranks * record.info.nodes, "outcome": outcome}
    return replace(record, info=record.info.model_copy(update=facts))


@pytest.fixture
def mpi() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program of tests/mpi under mpiexec; fails the test unless it ends well."""

    def run(program: str, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["mpiexec", "-n", str(ranks), sys.executable, str(ROOT / "tests/mpi" / program)]
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def workflow_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workflow and nothing of results, as a fresh clone has it."""
    target = tmp_path_factory.mktemp("clone")
    copy_workflow(target)
    return target


KEPT = (
    *("emulated-network", "two-core-training", "task-graphs", "training-steps"),
    *("mlperf-power", "pipedream-profiles", "zeus-trace"),
)
"""What the workflow reads below `recorded`."""


def copy_workflow(target: Path) -> None:
    """Copy what Snakemake needs of the checkout to ``target``."""
    for name in ("workflow", "config", "profiles"):
        shutil.copytree(ROOT / name, target / name)
    for kept in KEPT:
        shutil.copytree(ROOT / "recorded" / kept, target / "recorded" / kept)
    shutil.copy(ROOT / "Snakefile", target / "Snakefile")
    for path in target.rglob("*"):
        os.utime(path)  # a clone's files are as new as the clone


def benchmark(name: str) -> ModuleType:
    """A module of ``benchmarks/``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        spec.loader.exec_module(module)
    return module


def judge_less(folder: Path) -> None:
    """Leave most kept measurements out of a copy of the workflow: of the metered runs, two of each setting
    of two workloads; of the steps on GPUs every twelfth (of ours every fourth). Tests in tests/unit judge all
    of them."""
    table = folder / "recorded/training-steps/steps.csv"
    steps = pd.read_csv(table, dtype=str)
    less = [
        rows[::4] if data.startswith("plain") else rows[::12]
        for data, rows in steps[steps["data"] != "megatron_bridge"].groupby("data")
    ]
    recipes = steps[
        (steps["data"] == "megatron_bridge") & steps["network"].str.contains("llama3-8b")
    ]
    pd.concat([*less, recipes]).to_csv(table, index=False)
    metered = folder / "recorded/mlperf-power"
    runs = pd.read_csv(metered / "runs.csv.gz")
    runs = runs[runs["benchmark"].isin(["llama2_70b_lora", "resnet"])]
    runs = runs[runs.groupby(["benchmark", "nodes"]).cumcount() < 2]
    for name in ("runs", "events", "power"):
        rows = pd.read_csv(metered / f"{name}.csv.gz")
        rows[rows["run"].isin(runs["run"])].to_csv(
            metered / f"{name}.csv.gz",
            index=False,
            compression={"method": "gzip", "mtime": 1},  # the same each time
        )


def snakemake(
    folder: Path, *arguments: str, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Run snakemake in ``folder`` and return what it said."""
    return subprocess.run(
        ["snakemake", "--cores", "all", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def make_imported(
    run: str = "r",
    network: str = "net",
    nodes: int = 1,
    phases: list[tuple[str, float, float, float, float]] | None = None,
    watts: Callable[[float], float] = lambda t: 1000.0,
    stop_s: float = 120.0,
    work: int = 10,
    platform: str = "8xbox",
    left_out: list[str] | None = None,
) -> RunRecord:
    """An imported run from 20 s to ``stop_s``, each node read every second from 0 s on."""
    spec = RunSpec(
        run=run,
        campaign="mlperf",
        kind="imported",
        platform=Platform(name=platform),
        nodes=nodes,
        imported=Imported(benchmark=network, submission=run, global_batch_size=256),
    )
    names = [f"node_{n}" for n in range(nodes)]
    told = phases or [
        ("epoch", k, 20 + k * (stop_s - 20) / 10, 20 + (k + 1) * (stop_s - 20) / 10, 1.0)
        for k in range(10)
    ]
    readings = [(n, "node_power", float(t), watts(t), None) for n in names for t in range(150)]
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        started_utc="2026-01-01T00:00:00+00:00",
        nodes=names,
        nodes_are="hosts",
        outcome=Outcome(start_s=20, stop_s=stop_s, samples=work),
        checks=Checks(ranks=0, distinct_hosts=0),
        meters=[
            MeterInfo(node=n, meter="node_power", available=True, source="imported") for n in names
        ],
        left_out=left_out or [],
    )
    power = pd.DataFrame(readings, columns=list(POWER_COLUMNS)).astype({"joules": float})
    return RunRecord(
        info,
        pd.DataFrame(columns=list(STAGE_COLUMNS)),
        power,
        pd.DataFrame(columns=list(ACTIVITY_COLUMNS)),
        pd.DataFrame(told, columns=list(PHASE_COLUMNS)),
    )


@pytest.fixture
def slow_meters_end(monkeypatch):
    """Ends the threads of all slow meters that a test has made."""
    from joulecast.measure.power.command_meter import BackgroundMeter, finish_all

    made, begin = [], BackgroundMeter.__init__

    def begin_and_note(meter, *words, **more):
        made.append(meter)
        begin(meter, *words, **more)

    monkeypatch.setattr(BackgroundMeter, "__init__", begin_and_note)
    yield
    finish_all([meter for meter in made if hasattr(meter, "_thread")])


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, for the tests of pages."""
    if (why := why_not_installed(["chromium"], ["chromium"])) is not None:
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield opened
        opened.close()
