"""The emulated network: what a step is, what was measured and is kept, and one real measurement."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import psutil
import pytest
from conftest import ROOT
from pydantic import ValidationError

from joulecast.errors import JoulecastError
from joulecast.ground_truth import emulated_network, session
from joulecast.ground_truth.disturbance import foreign_cpu_s
from joulecast.ground_truth.emulated_families import (
    REPEATED,
    all_configurations,
    calibration_jobs,
)
from joulecast.ground_truth.emulated_network import measure
from joulecast.ground_truth.emulated_nodes import Link, node_name
from joulecast.ground_truth.emulated_results import read_results
from joulecast.ground_truth.emulated_step import Configuration, Layer
from joulecast.training.machine import machine_lock
from joulecast.training.ranks import find_launcher

RECORDED = ROOT / "recorded/emulated-network"
PAYLOAD = 1448 / 1514
"""What TCP segments leave of an Ethernet frame."""


def layer(gradient_bytes=0):
    return Layer(
        name="layer",
        forward_s=0.01,
        backward_s=0.02,
        gradient_bytes=gradient_bytes,
        activation_bytes=4096,
    )


def configuration(**facts):
    facts = {"ranks": 4, "data_parallel": 2, "pipeline": 2, "layers": (layer(),) * 4} | facts
    return Configuration(name="of-a-test", family="test", **facts)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"ranks": 8}, "is 4, not the 8 ranks"),
        ({"ranks_per_node": 3}, "do not fill nodes of 3"),
        ({"layers": (layer(),) * 3}, "3 layers cannot be cut into 2"),
        ({"straggler": {"rank": 4, "factor": 2.0}}, "straggler.rank 4 is not one of the ranks"),
        ({"micro_batches": 0}, "micro_batches"),
        ({"schedule": "zigzag"}, "schedule"),
    ],
)
def test_a_configuration_that_does_not_fit_together_says_why(facts, said):
    with pytest.raises(ValidationError, match=said):
        configuration(**facts)


def test_ranks_have_their_places():
    of = configuration(ranks=8, tensor_parallel=2, straggler={"rank": 5, "factor": 1.5})
    assert [of.rank_at(*of.place(rank)) for rank in range(8)] == list(range(8))
    assert of.place(5) == (1, 0, 1)
    assert [of.slowdown(rank) for rank in (4, 5)] == [1.0, 1.5]


def test_buckets_fill_in_the_order_of_backward():
    sizes = [400, 0, 100, 300, 800]
    of = configuration(
        ranks=2, pipeline=1, bucket_bytes=500, layers=[layer(size) for size in sizes]
    )
    # Layer 4 fills one at once; 3, 2 and 0 share one that only layer 0 fills.
    assert of.buckets(0) == [(4, 800), (0, 800)]
    large = of.model_copy(update={"bucket_bytes": 10_000})
    assert large.buckets(0) == [(0, 1600)]
    remainder = of.model_copy(update={"layers": tuple(layer(size) for size in (0, 4, 600))})
    assert remainder.buckets(0) == [(2, 600), (1, 4)]
    alone = configuration(ranks=2, data_parallel=1, layers=[layer(800)] * 2)
    assert alone.buckets(0) == []


@pytest.mark.parametrize("pipeline", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 7])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_stage_does_everything_once_and_holds_no_more_than_it_may(
    pipeline, micro_batches, schedule
):
    of = configuration(
        ranks=pipeline,
        data_parallel=1,
        pipeline=pipeline,
        micro_batches=micro_batches,
        schedule=schedule,
    )
    for stage in range(pipeline):
        order = of.stage_order(stage)
        assert len(order) == len(set(order)) == 2 * micro_batches
        in_flight = np.cumsum([1 if work == "forward" else -1 for work, _ in order])
        most = micro_batches if schedule == "gpipe" else min(pipeline - stage, micro_batches)
        assert max(in_flight) == most
        for index in range(micro_batches):
            assert order.index(("forward", index)) < order.index(("backward", index))


def test_gpipe_goes_back_in_reverse():
    backwards = configuration(micro_batches=3).stage_order(0)[3:]
    assert backwards == [("backward", 2), ("backward", 1), ("backward", 0)]


def test_the_families_cover_what_a_simulator_must_know():
    all_of_them = all_configurations()
    names = [each.name for each in all_of_them]
    assert len(names) == len(set(names)) >= 60
    assert {each.ranks for each in all_of_them} == {2, 4, 8}
    assert set(REPEATED) <= set(names)
    assert {each.overlap for each in all_of_them} == {True, False}
    assert not set(names) & {job.name for job in calibration_jobs()}


@pytest.fixture(scope="module")
def results():
    return read_results(RECORDED)


def test_what_is_kept_is_what_the_families_ask_for(results):
    assert {each.name: each.digest() for each in results.configurations} == {
        each.name: each.digest() for each in all_configurations()
    }
    assert (results.steps.clean >= 4).all()
    assert results.steps.seconds.between(0.05, 2).all()
    assert set(results.steps.index[results.steps.again_s.notna()]) == set(REPEATED)
    assert results.provenance["source_of_seconds"] == "measured"
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 2_000_000


def test_the_last_rank_ends_the_step(results):
    keys = ["configuration", "repeat", "iteration"]
    last = results.rows["ranks"].groupby(keys).ended_s.max()
    assert np.allclose(last, results.rows["steps"].set_index(keys).seconds.loc[last.index])
    assert results.rows["ranks"].began_s.max() < 0.01


def test_links_limit_what_is_measured(results):
    all_reduces = results.collectives.query("kind == 'all_reduce' and ranks_per_node == 1")
    ring = all_reduces.query("algorithm == 'ring' and bytes >= 1024 * 1024")
    rate = Link().rate_bits_per_s / 8 * PAYLOAD
    expected_s = 2 * (ring.ranks - 1) / ring.ranks * ring.bytes / rate
    assert (ring.seconds / expected_s).between(0.99, 1.08).all()


def test_without_overlap_a_step_is_the_sum_of_its_parts(results):
    ring = results.collectives.query("algorithm == 'ring' and ranks_per_node == 1")
    for each in results.configurations:
        if each.family != "data parallel" or each.overlap:
            continue
        of_size = ring[(ring.ranks == each.ranks) & (ring.kind == "all_reduce")]
        computing_s = each.micro_batches * sum(
            part.forward_s + part.backward_s for part in each.layers
        )
        reducing_s = sum(
            np.interp(size, of_size.bytes, of_size.seconds) for _, size in each.buckets(0)
        )
        measured_s = results.steps.seconds[each.name]
        assert computing_s + reducing_s == pytest.approx(measured_s, rel=0.03), each.name


def test_a_folder_that_was_changed_or_is_something_else_is_refused(tmp_path):
    with pytest.raises(JoulecastError, match="no measurements of the emulated network"):
        read_results(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(RECORDED, copy)
    (copy / "steps.csv").write_text((copy / "steps.csv").read_text().replace(",0.", ",1.", 1))
    with pytest.raises(JoulecastError, match=r"steps\.csv was changed"):
        read_results(copy)
    (copy / "ranks.csv").unlink()
    (copy / "steps.csv").write_bytes((RECORDED / "steps.csv").read_bytes())
    with pytest.raises(JoulecastError, match=r"ranks\.csv: no such file"):
        read_results(copy)
    provenance = json.loads((copy / "provenance.json").read_text())
    (copy / "provenance.json").write_text(json.dumps({**provenance, "format": 99}))
    with pytest.raises(JoulecastError, match="format 99"):
        read_results(copy)


def test_measuring_says_what_it_lacks(tmp_path, monkeypatch):
    with pytest.raises(JoulecastError, match="did you mean dp2-even-1024k"):
        measure(tmp_path / "out", only=["dp2-even-1024"])
    (tmp_path / "there").mkdir()
    with pytest.raises(JoulecastError, match="is there already"):
        measure(tmp_path / "there")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(JoulecastError, match="needs root"):
        measure(tmp_path / "out")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(JoulecastError, match="needs `ip`"):
        measure(tmp_path / "out")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(JoulecastError, match="no `mpiexec`"):
        find_launcher()
    assert not (tmp_path / "out").exists()


def test_own_processes_are_not_foreign():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    work = psutil.Process(busy.pid)
    try:
        before = foreign_cpu_s({os.getpid()}), foreign_cpu_s({os.getpid(), busy.pid})
        until_s = work.cpu_times().user + 0.3
        deadline = time.monotonic() + 120
        while work.cpu_times().user < until_s and time.monotonic() < deadline:
            time.sleep(0.05)
        after = foreign_cpu_s({os.getpid()}), foreign_cpu_s({os.getpid(), busy.pid})
    finally:
        busy.kill()
        busy.wait()
    assert after[0] - before[0] > after[1] - before[1]


SUMS = """
import numpy as np
from mpi4py import MPI
from joulecast.ground_truth.emulated_messages import ALL_REDUCES, Rank
comm, rank = MPI.COMM_WORLD, Rank()
for algorithm in ALL_REDUCES.values():
    for size in (1, 5, 1001, 65536):
        numbers = np.arange(size, dtype=np.float32) + comm.rank
        rank.start(algorithm(comm, numbers))
        rank.finish()
        assert (numbers == 4 * np.arange(size) + 6).all(), (algorithm, size)
"""


def launcher_or_skip():
    try:
        return find_launcher()
    except JoulecastError as error:
        pytest.skip(str(error))


def skip_if_measuring():
    """Leave the machine to a measurement that is under way."""
    try:
        with open(os.devnull, "w") as log, machine_lock(log, longest_s=0.0):
            pass
    except JoulecastError as error:
        pytest.skip(str(error))


def test_all_reduces_add():
    command = [launcher_or_skip(), "-n", "4", sys.executable, "-c", SUMS]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr


def test_a_step_is_measured(tmp_path, monkeypatch):
    launcher_or_skip()
    skip_if_measuring()
    name = "dp2-even-whole-after"
    once = replace(emulated_network.PROGRAM, attempts=1)
    monkeypatch.setattr(emulated_network, "PROGRAM", once)
    told = []
    out = tmp_path / "out"
    try:
        measure(out, told.append, [name])
    except JoulecastError as error:
        if "needs" not in str(error):
            raise
        pytest.skip(str(error))
    seen = read_results(out)
    assert [each.name for each in seen.configurations] == [name]
    # 0.24 s of computing and 4 MiB each way; a busy machine may take longer, none can take less.
    assert 0.24 + (4 << 20) / (25e6 * PAYLOAD) - 0.002 < seen.steps.seconds[name] < 10
    assert told[0].startswith(f"1/1 {name}")
    assert not (tmp_path / "out.work").exists()
    assert (
        node_name(0) not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    )


def test_an_interrupted_measurement_goes_on(tmp_path, monkeypatch):
    names, launched = ["dp2-even-512k", "dp2-even-2048k"], []

    def launch(program, job, *of_session, **placing):
        launched.append(job.name)
        if len(launched) == 2:
            raise KeyboardInterrupt
        what = {"configuration": job.name, "repeat": 0}
        outcome = {"seconds": 0.3, "foreign_cores": 0.0, "late_s": 0.0}
        of_ranks = [{"rank": rank, "began_s": 0.0, "ended_s": 0.3} for rank in range(2)]
        return {
            "steps": [what | outcome] * job.iterations,
            "ranks": [what | each for each in of_ranks] * job.iterations,
        }

    @contextmanager
    def nothing(*arguments):
        yield 0

    launcher_or_skip()
    monkeypatch.setattr(session, "launch_ranks", launch)
    monkeypatch.setattr(session, "machine_lock", nothing)
    for held in ("nodes", "awake_cores"):
        monkeypatch.setattr(emulated_network, held, nothing)
    monkeypatch.setattr(emulated_network, "require_means", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "out", lambda said: None, names)
    assert not (tmp_path / "out").exists()
    measure(tmp_path / "out", lambda said: None, names)
    assert launched == [names[0], names[1], names[1]]
    seen = read_results(tmp_path / "out")
    assert list(seen.steps.index) == names
    # Iterations are numbered for each configuration, and for each of its ranks.
    assert list(seen.rows["steps"].iteration) == [*range(7), *range(7)]
    assert (seen.rows["ranks"].groupby(["configuration", "rank"]).iteration.max() == 6).all()
