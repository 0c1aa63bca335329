"""Cutting networks into pipeline stages: CPU time and quality, side by side with peers, in one run.

A row is a network, a number of devices and a partitioner. CPU time is the best of ``--repeat``, after the
file was read, with all that a partitioner makes from the graph; ``cpu_ratio_to_ours`` is that of a peer over
that of our exact planner. Linear algebra has one thread: idle ones of one row would count in the next.
Only computing counts, every device gets one stage. ``ratio_to_optimum`` is the heaviest stage over the
certified best one.

* ``joulecast exact``: our planner, with its proof.
* ``PipeDream's optimizer``: its arithmetic and its states, as joulecast.partition.compat has them; with NumPy
  for its innermost loops, which is faster than its own programme.
* ``block partition``: Barany and Grinberg 2015, for one order of the nodes, as torchgpipe 0.0.7 balances (on
  all 20 rows its ``blockpartition.solve`` gave the same blocks when both were tried).
* ``one order, exact``: the best cut of the order that the file has.
* ``METIS``: ``pymetis``, where it can be imported (nothing here depends on it: ``uv pip install --no-deps
  --target FOLDER pymetis``, then ``./run env PYTHONPATH=FOLDER python benchmarks/partition.py``), vertices
  weighed by work. It ignores directions: where its parts depend on each other in a circle they are no
  pipeline, and may be better balanced than any.
* ``MILP``: HiGHS, for networks of few nodes, and with a time limit.

``--large`` places graphs that are made here on accelerators and CPUs, each in a process of its own, so that
the memory shown is its own; ``ideals`` are the graph's, ``listed`` those that the proof needed at once.
"""

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _output import parser, show
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack
from scipy.sparse.csgraph import connected_components
from threadpoolctl import threadpool_limits

from joulecast.errors import JoulecastError
from joulecast.graphs.device_placement import placement_graph
from joulecast.graphs.readers import read_partitionable
from joulecast.graphs.taskgraph import TaskGraph
from joulecast.partition.baselines import block_cuts
from joulecast.partition.compat import compat_plan
from joulecast.partition.dynamic_programme import cut_order_by_work
from joulecast.partition.planner import best_plan
from joulecast.partition.problem import pipeline_problem, placement_problem

try:
    import pymetis
except ImportError:
    pymetis = None

_ROOT = Path(__file__).resolve().parents[1]
_PROFILES = _ROOT / "recorded/pipedream-profiles"
_BANDWIDTH = 1e9
"""PipeDream's optimizer wants one, and does not use it where only computing counts."""
_MILP_NODES, _MILP_S = 70, 10.0
_LONG_S = 1.0
"""What takes as long is not repeated."""
_NETWORK_LIMIT_MS = 10.0
_LARGE_LIMIT_S, _LARGE_LIMIT_MIB = 15.0, 2048.0
_STOP_S = 60.0
"""A large case that takes longer on the clock is stopped."""


@dataclass(frozen=True)
class Answer:
    """The heaviest stage that a partitioner comes to, whether that is proven to be the least, and remarks."""

    bottleneck_us: float
    certified: bool = False
    note: str = ""


def _exact(graph: TaskGraph, devices: int) -> Answer:
    plan = best_plan(pipeline_problem(graph, devices))
    return Answer(plan.bottleneck, plan.is_certified, f"{plan.searched_ideals} ideals listed")


def _pipedream(graph: TaskGraph, devices: int) -> Answer:
    plan = compat_plan(graph, devices, _BANDWIDTH)
    return Answer(1e6 * plan.bottleneck_s, note=f"{plan.states} states")


def _heaviest(work: list[int], ends: list[int]) -> Answer:
    return Answer(max(sum(work[begin:end]) for begin, end in pairwise([0, *ends])))


def _block_partition(graph: TaskGraph, devices: int) -> Answer:
    work = [task.work_us for task in graph.tasks]
    return _heaviest(work, block_cuts(work, devices))


def _one_order(graph: TaskGraph, devices: int) -> Answer:
    problem = pipeline_problem(graph, devices)
    return Answer(cut_order_by_work(problem, range(len(graph.tasks))).bottleneck)


def _edges(graph: TaskGraph) -> list[tuple[int, int]]:
    return [(source, reader) for source, readers in enumerate(graph.readers) for reader in readers]


def _metis(graph: TaskGraph, devices: int) -> Answer:
    if pymetis is None:
        raise JoulecastError("not installed")
    neighbours: list[list[int]] = [[] for _ in graph.tasks]
    edges = _edges(graph)
    for source, reader in edges:
        neighbours[source].append(reader)
        neighbours[reader].append(source)
    work = [task.work_us for task in graph.tasks]
    _, parts = pymetis.part_graph(devices, adjacency=neighbours, vweights=work)
    between = {(parts[s], parts[r]) for s, r in edges if parts[s] != parts[r]}
    rows, columns = zip(*between, strict=True) if between else ((), ())
    quotient = csr_array(([1] * len(between), (rows, columns)), shape=(devices, devices))
    rings, _ = connected_components(quotient, connection="strong")
    note = "a pipeline" if rings == devices else "no pipeline: its parts form a circle"
    heaviest = float(np.bincount(parts, weights=work).max())
    return Answer(heaviest, note=f"{note}; {len(set(parts))} parts with nodes")


def _milp(graph: TaskGraph, devices: int) -> Answer:
    """One variable a node and border: whether the node is before it. Tighter than numbered stages."""
    nodes, borders = len(graph.tasks), devices - 1
    if nodes > _MILP_NODES:
        raise JoulecastError(f"not tried: more than {_MILP_NODES} nodes")
    if not borders:
        raise JoulecastError("not tried: one stage has no border")
    work = np.array([[task.work_us for task in graph.tasks]], float)
    edges = np.array(_edges(graph)).reshape(-1, 2)
    each = np.arange(len(edges))
    later_first = csr_array(
        (np.repeat([1.0, -1.0], len(edges)), (np.tile(each, 2), edges[:, ::-1].T.ravel())),
        shape=(len(edges), nodes),
    )
    order = kron(eye_array(borders), later_first)
    growing = kron(
        eye_array(borders - 1, borders) - eye_array(borders - 1, borders, k=1), eye_array(nodes)
    )
    loads = kron(eye_array(devices, borders) - eye_array(devices, borders, k=-1), work)
    slowest = csr_array(np.array([0.0] * (order.shape[0] + growing.shape[0]) + [-1.0] * devices))
    most = np.zeros(slowest.shape[-1])
    # The last stage has what is not before the last border.
    most[-1] = -work.sum()
    count = nodes * borders
    found = milp(
        np.array([0.0] * count + [1.0]),
        constraints=LinearConstraint(
            hstack([vstack([order, growing, loads]), slowest.reshape(-1, 1)], format="csr"),
            -math.inf,
            most,
        ),
        integrality=np.array([1] * count + [0]),
        bounds=Bounds(0, [1] * count + [math.inf]),
        options={"time_limit": _MILP_S, "mip_rel_gap": 0},
    )
    if found.x is None:
        raise JoulecastError(f"nothing found: {found.message}")
    before = np.round(found.x[:-1]).reshape(borders, nodes) @ work[0]
    stages = np.diff(np.concatenate([[0.0], before, [work.sum()]]))
    proven = found.status == 0
    note = "" if proven else f"time limit; proven: at least {found.mip_dual_bound:.6g} us"
    return Answer(float(stages.max()), proven, note)


_PARTITIONERS: dict[str, Callable[[TaskGraph, int], Answer]] = {
    "joulecast exact": _exact,
    "PipeDream's optimizer": _pipedream,
    "block partition": _block_partition,
    "one order, exact": _one_order,
    "METIS": _metis,
    "MILP": _milp,
}


def _timed(run: Callable[[TaskGraph, int], Answer], graph: TaskGraph, devices: int, repeat: int):
    """Answer, and CPU and wall seconds; the least of each."""
    cpu_s, wall_s = math.inf, math.inf
    for _ in range(repeat):
        # A copy has none of what the graph remembers of itself.
        fresh = replace(graph)
        wall, cpu = time.perf_counter(), time.process_time()
        answer = run(fresh, devices)
        cpu_s, wall_s = (
            min(cpu_s, time.process_time() - cpu),
            min(wall_s, time.perf_counter() - wall),
        )
        if wall_s > _LONG_S:
            break
    return answer, cpu_s, wall_s


def _network_rows(graph: TaskGraph, devices: int, repeat: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, run in _PARTITIONERS.items():
        row = {
            "network": graph.name,
            "devices": devices,
            "nodes": len(graph.tasks),
            "partitioner": name,
        }
        try:
            answer, cpu_s, wall_s = _timed(run, graph, devices, repeat)
        except JoulecastError as error:
            reason = str(error).removeprefix(f"graph {graph.name}: ").split(",")[0]
            rows.append(row | {"note": reason})
            continue
        row |= {
            "cpu_ms": 1e3 * cpu_s,
            "wall_ms": 1e3 * wall_s,
            "bottleneck_us": answer.bottleneck_us,
        }
        # Ours is the first.
        ours = rows[0] if rows else row | {"certified": answer.certified}
        if ours.get("certified"):
            row["ratio_to_optimum"] = answer.bottleneck_us / ours["bottleneck_us"]
        row["certified"] = answer.certified
        if rows and "cpu_ms" in ours:
            row["cpu_ratio_to_ours"] = row["cpu_ms"] / ours["cpu_ms"]
        rows.append(row | {"note": answer.note})
    return rows


@dataclass(frozen=True)
class LargeCase:
    """A device-placement graph to make: blocks of parallel branches, one block after the other.

    ``nodes`` are all, with the backward ones; ``branches`` and ``lengths`` are the least and the most that a
    block has; ``transfer`` is the mean cost of an output over the mean load of a node; loads are
    ``whole`` numbers or have a fraction, as measured ones do.
    """

    nodes: int
    most_ideals: int
    accelerators: int
    cpus: int
    backward: bool
    transfer: float
    branches: tuple[int, int] = (2, 5)
    lengths: tuple[int, int] = (1, 4)
    whole: bool = True


_LARGE = {
    "inference": LargeCase(2000, 40_000, 6, 0, False, 1.0),
    "inference, dear transfers": LargeCase(2000, 40_000, 6, 0, False, 20.0),
    "inference, CPU": LargeCase(2000, 40_000, 6, 1, False, 1.0),
    "inference, CPU, dear transfers": LargeCase(2000, 40_000, 6, 1, False, 20.0),
    "inference, many devices": LargeCase(2000, 40_000, 16, 2, False, 1.0),
    "training": LargeCase(2000, 40_000, 6, 0, True, 1.0, (3, 5), (2, 4)),
    "training, CPU": LargeCase(2000, 40_000, 6, 1, True, 1.0, (3, 5), (2, 4)),
    "training, CPU, dear transfers": LargeCase(2000, 40_000, 6, 1, True, 20.0, (3, 5), (2, 4)),
    "like Inception": LargeCase(325, 40_000, 6, 1, False, 1.0, (5, 5), (2, 5)),
    "inference, fractions": LargeCase(2000, 40_000, 6, 0, False, 1.0, whole=False),
    # 20^5 ideals and two: too many for a proof, so that a gap has to come back.
    "like NASNet": LargeCase(97, 4_000_000, 6, 0, False, 1.0, (5, 5), (19, 19)),
}


def _forward_part(case: LargeCase, chance: random.Random) -> tuple[int, list[tuple[int, int]], int]:
    """How many forward nodes, their edges, and the number of ideals."""
    count = case.nodes // 2 if case.backward else case.nodes
    edges: list[tuple[int, int]] = []
    last, ideals = 0, 2
    while last + 1 < count:
        lengths = [chance.randint(*case.lengths) for _ in range(chance.randint(*case.branches))]
        states = math.prod(length + 1 for length in lengths)
        left = count - last - 1
        if sum(lengths) + 1 > left or ideals + states + left > case.most_ideals:
            lengths, states = [], 1
        begin, ends = last, []
        for length in lengths:
            for place in range(length):
                edges.append((last if place else begin, last + 1))
                last += 1
            ends.append(last)
        last += 1
        # A block's input skips to its end, too; alone, it is a link of a chain.
        edges += [(end, last) for end in [begin, *ends]]
        ideals += states
    return count, edges, ideals


def _large_graph(case: LargeCase) -> tuple[dict[str, Any], int]:
    """The content of a device-placement file, and how many ideals it has."""
    chance = random.Random(0)
    number_of = round if case.whole else float
    count, edges, ideals = _forward_part(case, chance)
    nodes = []
    for number in range(count):
        load = number_of(1000 * chance.lognormvariate(0, 1))
        nodes.append(
            {
                "id": number,
                # As what reads and decodes the samples.
                "supportedOnFpga": 0 if case.cpus and number < 3 else 1,
                "fpgaLatency": load,
                "cpuLatency": number_of(load * chance.uniform(5, 15)),
                "size": chance.uniform(0, 1),
                "isBackwardNode": 0,
                "colorClass": number,
            }
        )
    if case.backward:
        nodes += [
            node | {"id": count + node["id"], "isBackwardNode": 1}
            | {"fpgaLatency": 2 * node["fpgaLatency"], "cpuLatency": 2 * node["cpuLatency"]}
            for node in nodes
        ]  # fmt: skip
        edges = (
            edges
            + [(count + t, count + s) for s, t in edges]
            + [(n, count + n) for n in range(count)]
        )
    mean = sum(node["fpgaLatency"] for node in nodes) / len(nodes)
    sent = [number_of(chance.uniform(0, 2) * case.transfer * mean) for _ in nodes]
    content = {
        "maxFPGAs": case.accelerators,
        "maxCPUs": case.cpus,
        "maxSizePerFPGA": 1.5 * sum(node["size"] for node in nodes) / case.accelerators,
        "nodes": nodes,
        "edges": [{"sourceId": s, "destId": t, "cost": sent[s]} for s, t in edges],
    }
    return content, ideals


def _place(name: str) -> dict[str, Any]:
    """Measure one of the large cases here."""
    case = _LARGE[name]
    content, ideals = _large_graph(case)
    row = {
        "graph": name,
        "nodes": len(content["nodes"]),
        "edges": len(content["edges"]),
        "ideals": ideals,
        "accelerators": case.accelerators,
        "cpus": case.cpus,
    }
    wall, cpu = time.perf_counter(), time.process_time()
    told: dict[str, Any]
    try:
        plan = best_plan(placement_problem(placement_graph(Path(f"{name}.json"), content)))
        told = {
            "certified": plan.is_certified,
            "gap_percent": None if plan.gap is None else 100 * plan.gap,
        }
        told |= {"bottleneck": plan.bottleneck, "listed": plan.searched_ideals}
    except JoulecastError as error:
        told = {"certified": False, "note": str(error).split(": ", 1)[1].split(";")[0]}
    row |= {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row | told


def _place_in_a_process(name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one-large", name]
    try:
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, timeout=_STOP_S
        )
    except subprocess.TimeoutExpired:
        return {"graph": name, "cpu_s": math.inf, "note": f"stopped after {_STOP_S:g} s"}
    return json.loads(done.stdout)


def _profiles(folder: Path | None) -> list[TaskGraph]:
    folder = folder or _PROFILES
    if not folder.is_dir():
        raise JoulecastError(
            f"{folder}: no such folder of profiles or task graphs; give --profiles FOLDER"
        )
    files = [p for p in sorted(folder.iterdir()) if p.suffix in (".txt", ".json")]
    graphs = [
        read_partitionable(path) for path in files if path.stem not in ("LICENSE", "provenance")
    ]
    found = [graph for graph in graphs if isinstance(graph, TaskGraph)]
    if not found:
        raise JoulecastError(
            f"{folder}: no PipeDream profile (.txt) and no task graph (.json) in there"
        )
    return found


def _print_table(rows: list[dict[str, Any]], out: Path | None) -> None:
    import pandas as pd  # only here, so that it is not in the memory of the large cases

    table = pd.DataFrame(rows)
    print(table.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.6g}"))
    if out is not None:
        table.to_csv(out, index=False)


def _print_summary(rows: list[dict[str, Any]]) -> None:
    import pandas as pd

    by_name = pd.DataFrame(rows).groupby("partitioner", sort=False)
    summary = by_name.agg(
        answers=("bottleneck_us", "count"),
        certified=("certified", "sum"),
        most_cpu_ms=("cpu_ms", "max"),
        median_cpu_ratio_to_ours=("cpu_ratio_to_ours", "median"),
        median_ratio_to_optimum=("ratio_to_optimum", "median"),
        most_ratio_to_optimum=("ratio_to_optimum", "max"),
    )
    print()
    print(summary.to_string(na_rep="", float_format=lambda value: f"{value:.4g}"))


def _print_verdicts(rows: list[dict[str, Any]], large: list[dict[str, Any]]) -> None:
    ours = [row for row in rows if row["partitioner"] == "joulecast exact"]
    slow = [row for row in ours if row.get("cpu_ms", math.inf) >= _NETWORK_LIMIT_MS]
    unproven = [row for row in ours if not row.get("certified")]
    print(
        f"\n{len(ours)} networks and numbers of devices: {len(slow)} take {_NETWORK_LIMIT_MS:g} ms of CPU "
        f"time or more, {len(unproven)} are not certified"
    )
    if large:
        beyond = [
            row["graph"]
            for row in large
            if row["cpu_s"] >= _LARGE_LIMIT_S or row.get("peak_mib", 0) >= _LARGE_LIMIT_MIB
        ]
        print(
            f"{len(large)} large graphs: beyond {_LARGE_LIMIT_S:g} s or {_LARGE_LIMIT_MIB:g} MiB: "
            + ("; ".join(beyond) or "none")
        )
        unproven = [row["graph"] for row in large if not row.get("certified")]
        print("not certified: " + ("; ".join(unproven) or "none"))


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--profiles", type=Path, help="folder of PipeDream profiles or task graphs")
    made.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    made.add_argument("--repeat", type=int, default=5, help="the best of so many counts")
    made.add_argument("--large", action="store_true", help="also place large made-up graphs")
    made.add_argument("--out", type=Path, help="CSV file; those of --large go to FILE-large.csv")
    made.add_argument(
        "--one-large", choices=_LARGE, help="measure one large graph here and print it"
    )
    return made.parse_args()


def main() -> None:
    asked = _arguments()
    threadpool_limits(1)
    if asked.one_large:
        print(json.dumps(_place(asked.one_large)))
        return
    try:
        graphs = _profiles(asked.profiles)
    except JoulecastError as error:
        sys.exit(f"benchmarks/partition.py: {error}")
    rows = [
        row
        for graph in graphs
        for devices in asked.devices
        for row in _network_rows(graph, devices, asked.repeat)
    ]
    large = [_place_in_a_process(name) for name in _LARGE] if asked.large else []
    if asked.json or asked.keep:
        show(rows + large, asked)
        return
    _print_table(rows, asked.out)
    _print_summary(rows)
    if large:
        print()
        _print_table(large, asked.out and asked.out.with_stem(f"{asked.out.stem}-large"))
    _print_verdicts(rows, large)


if __name__ == "__main__":
    main()
