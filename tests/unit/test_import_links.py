"""Links of a cluster from what nccl-tests printed: a platform file that the simulator takes."""

import json

import pytest
from log_fixtures import run
from nccl_logs import TIMES, nccl_log

from joulecast.runs.platforms import find_platform, read_platform
from joulecast.simulate.cluster_links import collective_seconds


def imported(folder, *more):
    done = run("import", "nccl-tests", folder, folder.parent / "ours.yaml", *more)
    assert done.exit_code == 0, done.output
    return read_platform(folder.parent / "ours.yaml"), done.stdout


def refused(folder, *more):
    done = run("import", "nccl-tests", folder, folder.parent / "ours.yaml", *more)
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


def test_links_are_those_that_the_collectives_were_timed_on(logs):
    for collective in TIMES:
        (logs / f"{collective}.log").write_text(nccl_log(collective, rate=250e9))
    (logs / "nodes").mkdir()
    (logs / "nodes/all.txt").write_text(
        "".join(
            nccl_log(collective, 4, rate=250e9, node_rate=120e9, first_us=90)
            for collective in TIMES
        )
    )
    platform, _ = imported(logs)
    cluster = platform.require_cluster()
    inner, outer = cluster.links
    assert platform.name == "ours"
    assert cluster.devices_per_node == inner.joins == 8
    assert inner.bytes_per_s == pytest.approx(250e9, rel=0.05)
    assert outer.bytes_per_s == pytest.approx(120e9, rel=0.05)
    assert cluster.device == find_platform("h100-sxm").require_cluster().device
    # A small all-reduce takes as long as in the logs, within a node and between nodes.
    assert collective_seconds(platform, "all_reduce", 8, [1e3])[0] == pytest.approx(36e-6, rel=0.3)
    assert collective_seconds(platform, "all_reduce", 32, [1e3])[0] == pytest.approx(90e-6, rel=0.5)


@pytest.mark.parametrize("sums", [250e9, 330e9], ids=["a ring", "switches that sum"])
def test_all_reduces_show_whether_the_switches_sum(logs, sums):
    (logs / "gather.log").write_text(nccl_log("all_gather", rate=250e9))
    (logs / "reduce.log").write_text(nccl_log("all_reduce", rate=sums))
    platform, _ = imported(logs)
    assert platform.require_cluster().links[0].bytes_per_s == pytest.approx(250e9, rel=0.05)
    (took_s,) = collective_seconds(platform, "all_reduce", 8, [8e9])
    assert took_s == pytest.approx(2 * 7 / 8 * 8e9 / sums, rel=0.03)


def test_a_step_is_simulated_on_the_file(logs):
    for name, rate in (("slow", 20e9), ("fast", 300e9)):
        (logs / "all_gather.log").write_text(nccl_log("all_gather", 4, node_rate=rate))
        imported(logs)
        (logs.parent / "ours.yaml").rename(logs.parent / f"{name}.yaml")
    step_s = {}
    for name in ("slow", "fast"):
        asked = ("--network", "gpt2", "--strategy", "dp=16", "--precision", "bf16", "--json")
        done = run("simulate", "--platform", logs.parent / f"{name}.yaml", *asked)
        assert done.exit_code == 0, done.output
        step_s[name] = json.loads(done.stdout)["step_s"]
    assert step_s["slow"] > step_s["fast"]


def test_what_no_test_tells_stays_as_it_was(logs):
    (logs / "one.log").write_text(nccl_log("all_reduce", sizes=(1 << 25, 1 << 28, 1 << 31)))
    platform, said = imported(logs)
    known = find_platform("h100-sxm").require_cluster()
    found = platform.require_cluster()
    assert found.links[1] == known.links[1]
    assert found.links[0].latency_s == known.links[0].latency_s
    assert "not tested" in said


def test_fewer_gpus_of_a_node_have_their_share_of_its_network_cards(logs):
    (logs / "pair.log").write_text(nccl_log("all_gather", 2, 1, node_rate=45e9))
    platform, said = imported(logs)
    assert platform.require_cluster().links[1].bytes_per_s == pytest.approx(8 * 45e9, rel=0.05)
    assert "1 of 8 GPUs" in said
    # Nodes of one GPU have no link within.
    platform, said = imported(logs, "--platform", "h100-sxm:gpus=1")
    (link,) = platform.require_cluster().links
    assert link.bytes_per_s == pytest.approx(45e9, rel=0.05) and " of 1 " in said
    # A test with more of them goes before.
    (logs / "node.log").write_text(nccl_log("all_gather", 2, 8, node_rate=200e9))
    platform, _ = imported(logs)
    assert platform.require_cluster().links[1].bytes_per_s == pytest.approx(200e9, rel=0.05)


def test_an_older_log_is_of_what_its_file_is_named_after(logs):
    text = nccl_log("alltoall", 2, node_rate=100e9, said=False)
    text = text.replace(" Group  0", "").replace("      -1  ", "  ")
    (logs / "log.txt").write_text(text)
    assert "all_reduce_perf.log" in refused(logs)
    (logs / "log.txt").rename(logs / "all-to-all-2-nodes.txt")
    (logs / "broadcast.txt").write_text(text)
    platform, _ = imported(logs)
    assert platform.require_cluster().links[1].bytes_per_s == pytest.approx(100e9, rel=0.05)


def test_the_first_versions_printed_other_columns(logs):
    text = nccl_log("all_gather", rate=250e9, said=False, gpu="AMD Instinct MI300X VF")
    for now, then in (("      -1  ", "  "), ("    none", ""), (" Group  0", "")):
        text = text.replace(now, then)
    text = text.replace(
        "# nThread 1 nGpus 1 minBytes", "# nThreads: 1 nGpus: 1 nRanks: 1 minBytes:"
    )
    (logs / "all_gather.txt").write_text(text)
    platform, _ = imported(logs)
    assert platform.require_cluster().links[0].bytes_per_s == pytest.approx(250e9, rel=0.05)


def test_nvlink_joins_the_hosts_of_a_rack(logs):
    hosts = {"gpus": 4, "gpu": "NVIDIA GB200", "rate": 600e9, "node_rate": 4 * 600e9}
    (logs / "rack.log").write_text(nccl_log("all_gather", 18, **hosts))
    platform, said = imported(logs)
    inner, outer = platform.require_cluster().links
    assert inner.bytes_per_s == pytest.approx(600e9, rel=0.05) and "hosts of 4" in said
    assert outer == find_platform("gb200").require_cluster().links[1]
    # Some of their GPUs may take part. The log does not say how many.
    (logs / "racks.log").write_text(nccl_log("all_gather", 32, **(hosts | {"node_rate": 90e9})))
    assert "racks.log" in refused(logs)
    (logs / "rack.log").write_text(nccl_log("all_gather", 16, **hosts))
    platform, _ = imported(logs, "--platform", "gb200:gpus=64")
    assert platform.require_cluster().links[1].bytes_per_s == pytest.approx(90e9, rel=0.05)


def test_a_launcher_may_write_before_and_between_the_lines(logs):
    tagged = [f"[1,0]<stdout>:{line}" for line in nccl_log("all_gather").splitlines()]
    tagged.insert(16, "[node00:02943] 15 more processes have sent help message mpi.txt / some-vars")
    head = "mpirun -np 8 nccl-tests/build/all_gather_perf -b 8 -e 2G -f 4"
    (logs / "slurm-1.out").write_text("\n".join([head, *tagged]))
    platform, _ = imported(logs)
    assert platform.require_cluster().links[0].bytes_per_s == pytest.approx(350e9, rel=0.05)


def test_the_node_can_be_said(logs):
    (logs / "one.log").write_text(nccl_log("all_gather", gpus=4, gpu="NVIDIA Graphics Device"))
    assert "--platform" in refused(logs)
    platform, _ = imported(logs, "--platform", "h200-sxm:gpus=4")
    assert platform.require_cluster().devices_per_node == 4
    (logs / "one.log").write_text(nccl_log("all_gather", gpus=8))
    assert "one.log" in refused(logs, "--platform", "h200-sxm:gpus=4")


@pytest.mark.parametrize(
    "text",
    [
        "epoch 1: loss 0.5\n",
        nccl_log().split("#       size")[0],
        "\n".join(line for line in nccl_log().splitlines() if "Rank" not in line),
        nccl_log(rank=lambda number: 0),
        nccl_log("sendrecv"),
        nccl_log(sizes=(8, 64, 4096)),
        nccl_log(gpus=1),
    ],
    ids=["no log", "no rows", "no ranks", "without MPI", "sendrecv", "small", "one GPU"],
)
def test_what_tells_no_link_is_refused_by_its_name(logs, text):
    (logs / "odd.log").write_text(text)
    assert "odd.log" in refused(logs)
    assert not (logs.parent / "ours.yaml").exists()


def test_a_folder_without_logs_is_refused(logs):
    assert str(logs) in refused(logs)
