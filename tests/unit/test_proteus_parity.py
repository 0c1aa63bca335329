"""``mode: proteus`` against outputs of the original simulator and of its communication model (T1, T1b)."""

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import benchmark

from joulecast.graphs.network_graphs import op_graph
from joulecast.graphs.opgraph import OpGraph
from joulecast.runs.platforms import Cluster, Device, Link, Platform, Ring, read_platform
from joulecast.simulate.proteus import ProteusRoofline, nccl_cost
from joulecast.simulate.simulate import Assumptions, simulate
from joulecast.simulate.strategy import parse_strategy

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "proteus"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"{DATA} is absent (reference outputs are not part of the project)"
)
COSTS = ProteusRoofline(15.7e12, 900e9)


def _rows(name: str) -> list[dict[str, str]]:
    with open(DATA / name, newline="") as file:
        return list(csv.DictReader(file))


def _ring_key(row: dict[str, str]) -> tuple[str, str, str]:
    several = "xN" if int(row["n_nodes"]) > 1 else ""
    return row["cluster"], row["topo_gpus_per_node"], row["local_group"] + several


def _rings() -> dict[tuple[str, str, str], Ring]:
    """The ring of every group of devices, from its all-gather of 25 MiB alone."""
    rings = {}
    for row in _rows("proteus_nccl_oracle.csv"):
        if row["coll"] != "all_gather" or row["bytes"] != "26214400":
            continue
        nodes = int(row["n_nodes"])
        ranks = (row["local_group"].count("-") + 1) * nodes
        rate = float(row["algbw_GBps"]) * (ranks - 1) / ranks
        # The model takes 30 % from rings of four devices of one node.
        rate /= 0.7 if ranks == 4 and nodes == 1 else 1.0
        rings[_ring_key(row)] = Ring(bytes_per_s=rate * 1e9, nvlink=row["type_intra"] == "1")
    return rings


def test_collectives_cost_what_the_original_says() -> None:
    rings = _rings()
    compared = 0
    for row in _rows("proteus_nccl_oracle.csv"):
        if row["coll"] not in ("all_reduce", "all_gather", "reduce_scatter"):
            continue
        nodes = int(row["n_nodes"])
        ranks = (row["local_group"].count("-") + 1) * nodes
        cost = nccl_cost(row["coll"], rings[_ring_key(row)], ranks, nodes, float(row["bytes"]))  # type: ignore[arg-type]
        assert cost.latency_s * 1e6 == pytest.approx(float(row["lat_us"]), abs=0.006), row
        # Printed with four decimals, and the ring is read off another printed number.
        printed = float(row["algbw_GBps"])
        assert cost.bandwidth_bytes_per_s / 1e9 == pytest.approx(printed, abs=1e-4, rel=1e-3), row
        compared += 1
    assert compared == 3 * 492


@pytest.mark.parametrize(("platform", "cluster"), [("hc1", "titanxp"), ("hc2", "dgx1_v100_1ib")])
def test_shipped_platforms_have_the_original_rings(platform: str, cluster: str) -> None:
    ours = read_platform(ROOT / f"config/platforms/{platform}.yaml").require_cluster().rings
    theirs = {k[2]: ring for k, ring in _rings().items() if k[:2] == (cluster, "8")}
    assert ours.keys() == theirs.keys()
    for name, ring in theirs.items():
        assert ours[name].bytes_per_s == pytest.approx(ring.bytes_per_s, rel=2e-3)
        assert ours[name].nvlink == ring.nvlink


def _platform(name: str, gamma: float) -> tuple[Platform, int]:
    """A cluster of the reference outputs, as ``dgx1_v100_1ib/n2_g8``."""
    kind, size = name.split("/")
    nodes, per_node = (int(part[1:]) for part in size.split("_"))
    rings = {k[2]: ring for k, ring in _rings().items() if k[:2] == (kind, str(per_node))}
    links = [Link(name="nic", bytes_per_s=10e9)]
    if per_node > 1:
        links.insert(0, Link(name="inside", joins=per_node, bytes_per_s=12e9))
    cluster = Cluster(
        nodes=nodes,
        devices_per_node=per_node,
        device=Device(name="roofline of 15.7 TFLOP/s and 900 GB/s"),
        links=tuple(links),
        overlap_slowdown=gamma,
        rings=rings,
    )
    return Platform(name=kind, cluster=cluster), nodes * per_node


@pytest.fixture(scope="module")
def graphs() -> dict[str, OpGraph]:
    """The networks of the reference outputs: Inception at 224 pixels without its auxiliary head."""
    import torch
    import torchvision

    from joulecast.graphs.capture import capture

    networks = benchmark("shipped_graphs")
    with torch.device("meta"):
        inception = torchvision.models.inception_v3(aux_logits=False, init_weights=False)
        image = torch.empty(1, 3, 224, 224)
    return {
        "inception_v3": capture(inception, [image], "inception_v3"),
        "gpt": networks.capture_gpt(networks.GPTSize(vocabulary=40478, positions=512), 512),
        **{name: op_graph(name) for name in ("alexnet", "resnet50", "vgg19")},
    }


def _outputs() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Valid reference outputs of data and tensor parallelism: network, strategy, row."""
    for row in _rows("proteus_reference_outputs.csv"):
        words = row["script_args"].split()
        options = dict(itertools.pairwise(words))
        if row["error"] or options.get("-ps") not in ("dp", "megatron"):
            continue
        if "-zero" in words or "--checkpoint" in words or "-model" not in words:
            continue
        devices = _platform(row["cluster"], 0.0)[1]
        shards = int(options.get("-mp-deg", 1))
        yield options["-model"], f"dp={devices // shards},tp={shards}", row


def _error_percent(graph: OpGraph, strategy: str, row: dict[str, str]) -> float:
    platform, _ = _platform(row["cluster"], float(row["overlap_factor"]))
    parsed = parse_strategy(strategy)
    batch = 32 if graph.name != "gpt2" else 64 // parsed.mesh["data"]
    assumed = Assumptions(mode="proteus", sharing=row["share_bandwidth"] == "1")
    simulated = simulate(graph, platform, parsed, batch, COSTS, assumed)
    return 100 * (simulated.step_s * 1e3 / float(row["iter_ms"]) - 1)


def test_data_parallel_steps_are_within_2_percent(graphs: dict[str, OpGraph]) -> None:
    errors = {}
    for network, strategy, row in _outputs():
        # The original has the all-reduce of 8 TITAN Xp as a constant of its own.
        if strategy.endswith("tp=1") and row["cluster"] != "titanxp/n1_g8":
            key = (network, row["cluster"], row["overlap_factor"], row["share_bandwidth"])
            errors[key] = _error_percent(graphs[network], strategy, row)
    assert len(errors) == 54
    worst = max(errors, key=lambda key: abs(errors[key]))
    assert abs(errors[worst]) < 2, (worst, errors[worst])


def test_one_tensor_parallel_group_is_within_2_percent(graphs: dict[str, OpGraph]) -> None:
    errors = [
        _error_percent(graphs["gpt"], strategy, row)
        for _, strategy, row in _outputs()
        if strategy == "dp=1,tp=8" and row["cluster"] == "dgx1_v100_1ib/n1_g8"
    ]
    assert len(errors) == 3
    assert max(map(abs, errors)) < 2


def test_several_tensor_parallel_groups_are_within_5_percent(graphs: dict[str, OpGraph]) -> None:
    # Where each group has the network for itself; what the original does otherwise is not to be followed.
    errors = [
        _error_percent(graphs["gpt"], strategy, row)
        for _, strategy, row in _outputs()
        if not strategy.endswith("tp=1")
        and not strategy.startswith("dp=1,")
        and row["share_bandwidth"] == "0"
    ]
    assert len(errors) == 7
    assert max(map(abs, errors)) < 5
