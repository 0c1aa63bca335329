"""Times the simulator: data-parallel ResNet-50 by number of devices, folded or not, and a strategy search.

``original_s`` is the time of the paper's public code for the same task, on another machine with 2 cores
(config/published/proteus.yaml). ``times_faster`` compares with it. A 175B GPT on 512 GPUs, with the batch of
GPT-3 (1536), is simulated with 96 and with 768 micro-batches, and searched. ``times_as_long`` is the time
with 768 micro-batches, divided by the time with 96. The same search on GPUs by name has ``simulations``: its
seconds, divided by the seconds to simulate the best strategy. This figure hardly depends on the machine. A
plan for a 7B network compares 1 to 512 devices of four platforms. Every row has its own process. So the
memory is of this row alone. ``seconds`` is the best of three (of one for searches), without the imports.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from _output import parser, show

import joulecast
from joulecast.graphs.costs import roofline_of
from joulecast.graphs.network_graphs import network_for, op_graph
from joulecast.graphs.precision import at_precision, training_of
from joulecast.report.tables.simulator import PublishedSimulators
from joulecast.runs.platforms import read_platform
from joulecast.simulate.answer import platform_and_costs
from joulecast.simulate.simulate import Assumptions, simulate
from joulecast.simulate.strategy import Strategy, parse_strategy
from joulecast.simulate.strategy_search import search

_CONFIG = Path(__file__).resolve().parents[1] / "config"
_FOLDED = (8, 32, 64, 128, 1024, 10000)
_UNFOLDED = (8, 32, 64, 128, 1024)
_LARGE_BATCH = 1536
_TOP = 10
_PLANNED = "h100-sxm,a100-80gb-sxm,h200-sxm,b200"
_GPUS = ("a100-80gb-sxm", "h100-sxm", "dgx-h100", "b200")


def _simulate(network: str, devices: int, folded: bool) -> dict[str, float]:
    platform = read_platform(_CONFIG / "platforms" / "hc2.yaml")
    graph = op_graph(network)
    strategy = Strategy(mesh={"data": devices})
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        simulate(graph, platform, strategy, 32, assumptions=Assumptions(folded=folded))
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds)}


def _search(network: str, devices: int) -> dict[str, float]:
    platform = read_platform(_CONFIG / "platforms" / "hc2.yaml")
    graph = op_graph(network)
    start = time.perf_counter()
    ranking = search(graph, platform, devices, 32 * devices, top=_TOP)
    seconds = time.perf_counter() - start
    count = len(ranking.feasible) + len(ranking.beaten) + len(ranking.out_of_memory)
    return {"seconds": seconds, "strategies": count}


def _large(what: str) -> dict[str, float]:
    """A 175B GPT on 512 GPUs: one simulation with this number of micro-batches, or a search."""
    # It imports torch, which takes memory.
    from shipped_graphs import GPTSize, capture_gpt

    platform = read_platform(_CONFIG / "platforms" / "dgx-h100.yaml")
    training = training_of("bf16", "adam")
    size = GPTSize(layers=96, hidden=12288, heads=96, vocabulary=51200, positions=2048)
    graph = at_precision(capture_gpt(size, size.positions, "gpt3-175b"), training.precision)
    costs, assumed = roofline_of(platform, "bf16"), Assumptions(training=training)
    strategy = parse_strategy(f"tp=8,dp=2,pp=32,micro={what}") if what != "search" else None
    counts: dict[str, float] = {}
    seconds = []
    for _ in range(3 if strategy else 1):
        start = time.perf_counter()
        if strategy is None:
            ranking = search(graph, platform, 512, _LARGE_BATCH, costs, assumed, _TOP)
            found = len(ranking.feasible) + len(ranking.beaten)
            counts["strategies"] = found + len(ranking.out_of_memory)
        else:
            simulate(graph, platform, strategy, strategy.micro_batches, costs, assumed)
        seconds.append(time.perf_counter() - start)
    return counts | {"seconds": min(seconds)}


def _cpu_s() -> float:
    """CPU seconds of this process and of the processes that it started. A long search uses several
    processes."""
    return sum(os.times()[:4])


def _search_on(platform_name: str, batch: int) -> dict[str, float]:
    """A search of a 175B GPT on 512 GPUs by name, at bf16 with Adam."""
    platform, costs = platform_and_costs(platform_name, "bf16")
    training = training_of("bf16", "adam")
    graph, assumed = network_for("gpt3-175b", training), Assumptions(training=training)
    start, began = time.perf_counter(), _cpu_s()
    ranking = search(graph, platform, 512, batch, costs, assumed, _TOP)
    seconds, cpu_s = time.perf_counter() - start, _cpu_s() - began
    best = ranking.feasible[0].strategy
    began = _cpu_s()
    simulate(graph, platform, best, batch // best.replicas, costs, assumed)
    once = _cpu_s() - began
    return {"seconds": seconds, "simulations": cpu_s / once}


def _plan(network: str) -> dict[str, float]:
    start = time.perf_counter()
    found = joulecast.plan(network=network, platform=_PLANNED, devices="1:512", samples=1e6)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "settings": len(found["candidates"])}


def _measured(kind: str, network: str, size: str) -> dict[str, float]:
    if kind == "large":
        found = _large(size)
    elif kind == "search-on":
        found = _search_on(network, int(size))
    elif kind == "plan":
        found = _plan(network)
    elif kind == "search":
        found = _search(network, int(size))
    else:
        found = _simulate(network, int(size), kind == "folded")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": found["seconds"], "peak_mib": peak_mib} | found


def _in_a_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--one", nargs=3, help="measure one row here and print it")
    asked = made.parse_args()
    if asked.one:
        print(json.dumps(_measured(*asked.one)))
        return
    original = PublishedSimulators.read(_CONFIG / "published" / "proteus.yaml").speed_s
    rows = []
    for kind, counts in (("folded", _FOLDED), ("unfolded", _UNFOLDED)):
        for devices in counts:
            row = {"what": "resnet50 data parallel", "devices": devices, "folded": kind == "folded"}
            row |= _in_a_process(kind, "resnet50", str(devices))
            if devices in original:
                row["original_s"] = original[devices]
                row["times_faster"] = original[devices] / row["seconds"]
            rows.append(row)
    for network in ("resnet50", "vgg19", "gpt2"):
        row = {"what": f"search {network}", "devices": 64, "folded": True}
        rows.append(row | _in_a_process("search", network, "64"))
    few, many, all_of_them = (
        _in_a_process("large", "gpt", what) for what in ("96", "768", "search")
    )
    many["times_as_long"] = many["seconds"] / few["seconds"]
    for what, figures in (
        ("96 micro-batches", few),
        ("768 micro-batches", many),
        ("search", all_of_them),
    ):
        rows.append({"what": f"gpt3-175b {what}", "devices": 512, "folded": True} | figures)
    for platform in _GPUS:
        for batch in (512, _LARGE_BATCH):
            row = {"what": f"gpt3-175b search, {platform}, batch {batch}", "devices": 512}
            rows.append(row | _in_a_process("search-on", platform, str(batch)))
    row = {"what": "llama-7b plan, four platforms", "devices": 512}
    rows.append(row | _in_a_process("plan", "llama-7b", "512"))
    show(rows, asked)


if __name__ == "__main__":
    main()
