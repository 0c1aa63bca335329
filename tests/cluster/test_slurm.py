"""Campaigns on a real SLURM of four emulated nodes, started as there; and what befalls their runs."""

import os
import re
import socket
import subprocess
import sys

import pytest
from campaigns import Campaign
from conftest import ROOT
from emulated import NODES, EmulatedSlurm, why_not

from joulecast.measure.training.measure_run import measure_run
from joulecast.runs.frames import FRAMES
from joulecast.runs.record import read_record

TWO_NODES = (
    "--config",
    "scale={nodes: [1, 2], repeats: 1, batch_size: 4}",
    "emulation={nodes_per_core: 4}",
    "workload={networks: [vit_ti], image_size: 32}",
    "calibration={batch_sizes: [4]}",
)
RUNS = ("vit_ti-n2-b8-run1",)
# Calibrations that last long enough for something to happen to them.
LONG = (
    "--config",
    "calibration={idle_s: 45, sleeping_rank_s: 10}",
    "scale={nodes: [1, 2, 3]}",
    "emulation={nodes_per_core: 2}",
)
LIMITED, KILLED, DOWN = "idle-n1", "sleeping_rank-n2", "sleeping_rank-n3"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    cluster = EmulatedSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def measured(slurm, tmp_path_factory):
    campaign = Campaign(tmp_path_factory.mktemp("campaign"), *TWO_NODES)
    replayed = "results/minimal/tuning/reproduction.parquet"  # a job that measures nothing
    done = campaign.run(replayed, *(f"results/minimal/records/{run}" for run in RUNS))
    assert done.returncode == 0, done.stdout + done.stderr
    return campaign


def test_every_run_is_measured_on_nodes_of_its_own(measured, slurm):
    infos = {run: measured.info(run) for run in measured.records()}
    assert set(infos) == set(RUNS)
    for run, info in infos.items():
        nodes = info["spec"]["nodes"]
        assert len(set(info["scheduler_node_of_rank"])) == nodes == info["checks"]["ranks"], run
        assert info["checks"]["distinct_hosts"] == 1
        assert set(info["scheduler_node_of_rank"]) == set(slurm.nodes_of(info["scheduler_job"]))


# What two records of one specification may differ in: host facts, times, and what was read of meters.
HOST_FACTS = {"started_utc", "scheduler_job", "scheduler_node_of_rank", "algorithm_used", "clock"}
HOST_FACTS |= {
    "load_before",
    "load_during",
    "disturbed",
    "left_out",
    "source",
    "oversubscribed",
    "reference_step_s",
    "hosts",
    "frames_sha256",
}


def test_a_record_is_the_one_that_the_same_run_leaves_locally(measured, tmp_path):
    there = read_record(measured.results / "records/vit_ti-n2-b8-run1")
    measure_run(there.info.spec, tmp_path / "r", tmp_path / "log")
    here = read_record(tmp_path / "r")
    facts = [record.info.model_dump(exclude=HOST_FACTS) for record in (here, there)]
    for fact in facts:
        done = fact.pop("outcome")
        fact["done"] = {key: done[key] for key in ("steps", "samples", "final_loss")}
        fact["checks"].pop("overrun_fraction")
        fact["meters"] = [(m["node"], m["meter"], m["source"]) for m in fact["meters"]]
    assert facts[0] == facts[1]
    for frame in FRAMES:
        assert getattr(here, frame).dtypes.equals(getattr(there, frame).dtypes)
    intervals = [r.stages[["rank", "step", "stage"]].value_counts() for r in (here, there)]
    assert intervals[0].equals(intervals[1])


def test_ranks_of_one_node_are_started_in_a_job_of_one_task(slurm):
    """As pipelines are run: MPICH would ask SLURM for its ranks there, and wait forever."""
    ranks = "from mpi4py import MPI; print(MPI.COMM_WORLD.reduce(1) or '')"
    start = (
        "import subprocess, sys; from joulecast.measure.training.ranks import own_mpi_environment as own;"
        f"subprocess.run(['mpiexec', '-n', '2', sys.executable, '-c', {ranks!r}], env=own(), check=1)"
    )
    srun = ["srun", "-N1", "-n1", "--exclusive", sys.executable, "-c", start]
    done = subprocess.run(srun, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split() == ["2"], done.stderr


@pytest.fixture(scope="module")
def afflicted(slurm, tmp_path_factory, request):
    """A campaign in which one run is killed by its time limit, a rank of another dies, and one loses a node;
    the controller is killed and started again while that one is measured anew."""
    campaign = Campaign(tmp_path_factory.mktemp("afflicted"), *LONG)
    snakemake = campaign.start(*(f"results/minimal/records/{r}" for r in (LIMITED, KILLED, DOWN)))
    request.addfinalizer(snakemake.kill)
    waiting = {LIMITED, KILLED, DOWN}
    while waiting:
        slurm.wait_until(lambda: any(map(campaign.measuring, waiting)), 120)
        run = next(filter(campaign.measuring, waiting))
        job = slurm.job_called(run)
        if run == LIMITED:
            slurm.end_at_once(job)
        elif run == KILLED:
            slurm.wait_until(lambda: len(campaign.ranks()) == 2)
            campaign.ranks()[-1].kill()
        else:
            slurm.set_node(slurm.nodes_of(job)[-1], "down")
        waiting.discard(run)
        slurm.wait_until(lambda run=run: not campaign.measuring(run), 90)
    # Its ranks have found each other: a controller that goes away before that takes the step with it.
    slurm.wait_until(lambda: campaign.at_work(3), 90)
    for node in NODES:
        slurm.set_node(node, "resume")
    slurm.restart_controller()
    campaign.code = snakemake.wait(180)
    return campaign


@pytest.mark.long
def test_a_campaign_survives_what_befalls_its_runs(afflicted):
    said = (afflicted.folder / "said").read_text()
    assert afflicted.code == 1, said
    assert set(afflicted.records()) == {DOWN}, said


@pytest.mark.long
def test_a_run_that_exceeds_its_time_limit_is_told_so(afflicted):
    assert "TIMEOUT" in (afflicted.folder / "said").read_text()
    assert (
        afflicted.state(LIMITED).state == "failed"
        and not (afflicted.results / f"records/{LIMITED}").exists()
    )


@pytest.mark.long
def test_a_rank_that_is_killed_ends_its_run(afflicted):
    state = afflicted.state(KILLED)
    assert re.search("ended with exit code 1(37|43)", state.why) and state.state == "failed"
    assert "Killed" in (afflicted.results / f"logs/{KILLED}.log").read_text()


@pytest.mark.long
def test_a_run_whose_node_goes_down_is_started_again(afflicted):
    assert afflicted.state(DOWN).state == "done"
    assert len(afflicted.info(DOWN)["scheduler_node_of_rank"]) == 3


@pytest.mark.long
def test_a_controller_that_is_restarted_loses_no_job(afflicted):
    assert afflicted.info(DOWN)["scheduler_job"]


@pytest.mark.long
def test_killed_while_its_jobs_run_it_goes_on_and_repeats_none(afflicted, slurm):
    """Snakemake is killed: its job goes on. Started again, it waits for that job and takes its record."""
    before = afflicted.records()
    snakemake = afflicted.start(f"results/minimal/records/{KILLED}")
    EmulatedSlurm.wait_until(lambda: afflicted.at_work(2), 60)
    snakemake.kill()
    snakemake.wait()
    orphan = slurm.job_called(KILLED)
    # It is still at work when Snakemake looks, however long that takes to start.
    ranks = afflicted.ranks()
    for rank in ranks:
        rank.suspend()
    locked = afflicted.run(f"results/minimal/records/{KILLED}")
    for rank in ranks:
        rank.resume()
    assert locked.returncode != 0 and "--unlock" in locked.stdout + locked.stderr
    unlocked = afflicted.run("--unlock")
    assert unlocked.returncode == 0, unlocked.stderr
    done = afflicted.run(f"results/minimal/records/{KILLED}")
    assert done.returncode == 0, done.stdout + done.stderr
    after = afflicted.records()
    assert after == before | {KILLED: after[KILLED]}
    assert afflicted.info(KILLED)["scheduler_job"] == orphan, "the orphan's record counts"


# A host of its own is a host name of its own here: the nodes are daemons on one machine.
ON_A_HOST = """
hostname "$SLURMD_NODENAME"
exec {joulecast} measure --name mine --out {out} -- {torchrun} --nnodes 2 --nproc-per-node 1 \\
    --node-rank "$SLURM_NODEID" --master-addr 127.0.0.1 --master-port {port} {program}
"""


def test_a_training_that_srun_starts_on_two_hosts_leaves_one_record(slurm, tmp_path):
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port = asking.getsockname()[1]
    on_a_host = ON_A_HOST.format(
        joulecast=f"{sys.executable} -m joulecast.app.cli.main",
        torchrun=f"{sys.executable} -m torch.distributed.run",
        out=tmp_path,
        port=port,
        program=ROOT / "tests/programs/ddp_training.py",
    )
    words = ["srun", "-N2", "--ntasks-per-node=1", "unshare", "--uts", "sh", "-ec", on_a_host]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine-n2-run1"], "nothing else is left"
    assert done.stderr.count("joulecast: ") == 1, "one summary"
    info = read_record(tmp_path / "mine-n2-run1").info
    assert (info.spec.nodes, info.spec.ranks, info.checks.distinct_hosts) == (2, 2, 2)
    assert (info.outcome.steps, info.node_of_rank) == (39, info.nodes)
    assert len(set(info.nodes)) == len(info.clock) == len(info.hosts) == 2
    assert {meter.node for meter in info.meters} == set(info.nodes)
    # One machine has one clock, whatever its hosts are called.
    assert all(abs(clock["offset_s"]) < 0.01 for clock in info.clock.values())
