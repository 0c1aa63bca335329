"""What simulating costs: ResNet-50 data parallel by device count, folded and not, and a strategy search.

``original_s`` is what the paper's public code took for the same on another machine with 2 cores
(config/published/proteus.yaml); ``times_faster`` compares with it. Every row has a process of its own, so
that the memory shown is its own; ``seconds`` is the best of three and leaves out the imports.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from _output import parser, show

from joulecast.graphs.shipped_graphs import load
from joulecast.platforms import read_platform
from joulecast.report.tables.simulator import read_published_simulators
from joulecast.simulator.simulate import Assumptions, simulate
from joulecast.simulator.strategy import Strategy
from joulecast.simulator.strategy_search import search

_CONFIG = Path(__file__).resolve().parents[1] / "config"
_FOLDED = (8, 32, 64, 128, 1024, 10000)
_UNFOLDED = (8, 32, 64, 128, 1024)


def _simulate(network: str, devices: int, folded: bool) -> dict[str, float]:
    platform = read_platform(_CONFIG / "platforms" / "hc2.yaml")
    graph = load(network)
    strategy = Strategy(mesh={"data": devices})
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        simulate(graph, platform, strategy, 32, assumptions=Assumptions(folded=folded))
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(seconds), "peak_mib": peak / 1024}


def _search(network: str, devices: int) -> dict[str, float]:
    platform = read_platform(_CONFIG / "platforms" / "hc2.yaml")
    graph = load(network)
    start = time.perf_counter()
    ranking = search(graph, platform, devices, 32 * devices)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = len(ranking.feasible) + len(ranking.out_of_memory)
    return {"seconds": seconds, "peak_mib": peak / 1024, "strategies": count}


def _in_a_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--one", nargs=3, help="measure one row here and print it")
    asked = made.parse_args()
    if asked.one:
        kind, network, size = asked.one
        told = (
            _search(network, int(size))
            if kind == "search"
            else _simulate(network, int(size), kind == "folded")
        )
        print(json.dumps(told))
        return
    original = read_published_simulators(_CONFIG / "published" / "proteus.yaml").speed_s
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
    show(rows, asked.json)


if __name__ == "__main__":
    main()
