"""Cuts networks into pipeline stages: CPU time and quality of our planner and of its peers, in one run.

A row is a network, a number of devices and a partitioner. CPU time is the best of ``--repeat``. It begins
when the file has been read, and includes everything that a partitioner makes from the graph.
``cpu_ratio_to_ours`` is a peer's CPU time divided by the CPU time of our exact planner. Linear algebra has
one thread, because idle threads of one row would count in the next row. Only computing counts. Every device
gets one stage. ``ratio_to_optimum`` is the heaviest stage, divided by the heaviest stage of the certified
best cut.

* ``joulecast exact``: our planner, with its proof.
* ``PipeDream's optimizer``: its arithmetic and its states, as in joulecast.partition.pipedream. The innermost
  loops use NumPy, which is faster than PipeDream's own program.
* ``block partition``: Barany and Grinberg 2015, for one order of the nodes, as torchgpipe 0.0.7 balances.
  (When both were tried, its ``blockpartition.solve`` gave the same blocks on all 20 rows.)
* ``one order, exact``: the best cut of the order in the file.
* ``METIS``: ``pymetis``, if it can be imported. (Nothing in this project depends on it: ``uv pip install
  --no-deps --target FOLDER pymetis``, then ``./run env PYTHONPATH=FOLDER python benchmarks/partition.py``.)
  Vertices are weighed by work. METIS ignores directions. So its parts may depend on each other in a circle.
  Then they are no pipeline, and may be better balanced than any pipeline.
* ``MILP``: HiGHS, for networks of few nodes, and with a time limit.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _output import parser, show
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack, kron, vstack
from scipy.sparse.csgraph import connected_components
from threadpoolctl import threadpool_limits

from joulecast.errors import JoulecastError
from joulecast.partition.baselines import block_cuts
from joulecast.partition.dynamic_programme import cut_order_by_work
from joulecast.partition.pipedream import compat_plan
from joulecast.partition.planner import best_plan
from joulecast.partition.problem import pipeline_problem
from joulecast.partition.task_graph_files import read_partitionable
from joulecast.partition.taskgraph import TaskGraph

try:
    import pymetis
except ImportError:
    pymetis = None

_ROOT = Path(__file__).resolve().parents[1]
_PROFILES = _ROOT / "recorded/pipedream-profiles"
_BANDWIDTH = 1e9
"""A number that PipeDream's optimizer requires. It is not used if only computing counts."""
_MILP_NODES, _MILP_S = 70, 10.0
_LONG_S = 1.0
"""A row that takes this long is not repeated."""
_NETWORK_LIMIT_MS = 10.0


@dataclass(frozen=True)
class Answer:
    """The heaviest stage of a partitioner's cut, whether it is proven to be the least possible, and
    remarks."""

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
    """There is one variable for each pair of a node and a border. It says whether the node is before the
    border. These bounds are tighter than those of numbered stages."""
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
    # The last stage has the nodes that are not before the last border.
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
    """The answer, and the least CPU seconds and the least wall seconds."""
    cpu_s, wall_s = math.inf, math.inf
    for _ in range(repeat):
        # A copy of the graph has an empty cache.
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
        # The first row is ours.
        ours = rows[0] if rows else row | {"certified": answer.certified}
        if ours.get("certified"):
            row["ratio_to_optimum"] = answer.bottleneck_us / ours["bottleneck_us"]
        row["certified"] = answer.certified
        if rows and "cpu_ms" in ours:
            row["cpu_ratio_to_ours"] = row["cpu_ms"] / ours["cpu_ms"]
        rows.append(row | {"note": answer.note})
    return rows


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


def _print_summary(rows: list[dict[str, Any]]) -> None:
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


def _print_verdict(rows: list[dict[str, Any]]) -> None:
    ours = [row for row in rows if row["partitioner"] == "joulecast exact"]
    slow = [row for row in ours if row.get("cpu_ms", math.inf) >= _NETWORK_LIMIT_MS]
    unproven = [row for row in ours if not row.get("certified")]
    print(
        f"\n{len(ours)} networks and numbers of devices: {len(slow)} take {_NETWORK_LIMIT_MS:g} ms of CPU "
        f"time or more, {len(unproven)} are not certified"
    )


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--profiles", type=Path, help="folder of PipeDream profiles or task graphs")
    made.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    made.add_argument(
        "--repeat", type=int, default=5, help="number of runs, of which the best counts"
    )
    return made.parse_args()


def main() -> None:
    asked = _arguments()
    threadpool_limits(1)
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
    show(rows, asked)
    if not asked.json and not asked.keep:
        _print_summary(rows)
        _print_verdict(rows)


if __name__ == "__main__":
    main()
