"""The experiment with planners on one network: how long each planner takes, and how good its cut is."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from joulecast.errors import JoulecastError
from joulecast.partition.baselines import BASELINES, baseline_ideals, slowest_work
from joulecast.partition.makespan import makespan
from joulecast.partition.order import nodes_in_set
from joulecast.partition.pipedream import compat_plan
from joulecast.partition.plan_report import report_of
from joulecast.partition.planner import Plan, best_plan
from joulecast.partition.problem import Problem, pipeline_problem
from joulecast.partition.task_graph_files import read_partitionable
from joulecast.partition.taskgraph import TaskGraph
from joulecast.runs.files.writing import written_aside

REPEATS = 5
"""Number of times that every planner is timed. The least time counts, because other work on the machine can
only make it longer."""
_ANY_BANDWIDTH = 1e9
"""Bytes per second; without transfers and replicas PipeDream's answer does not depend on it."""
T = TypeVar("T")


def _timed(work: Callable[[], T]) -> tuple[T, float, float]:
    """The result of a function, and its least CPU time and wall time in milliseconds."""
    found = []
    for _ in range(REPEATS):
        cpu, wall = time.process_time(), time.perf_counter()
        answer = work()
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    return answer, 1e3 * min(f[0] for f in found), 1e3 * min(f[1] for f in found)


def _predicted_speedups(graph: TaskGraph, plan: Plan, micro_batches: int) -> dict[str, float]:
    """Predicted speedups of a pipeline with the graph's batch in micro-batches; transfers are free."""
    forward, backward = [], []
    for stage in plan.stages:
        tasks = [graph.tasks[graph.index[name]] for name in stage.nodes]
        forward.append(sum(t.forward_us for t in tasks) / micro_batches)
        backward.append(sum(t.backward_us for t in tasks) / micro_batches)
    return {
        schedule: graph.work_us / makespan(forward, backward, schedule, micro_batches)
        for schedule in ("gpipe", "1f1b")
    }


def _on_devices(graph: TaskGraph, devices: int, micro_batches: int) -> dict[str, Any]:
    def plan() -> tuple[Problem, Plan]:
        posed = pipeline_problem(graph, devices)
        return posed, best_plan(posed)

    (problem, best), cpu_ms, wall_ms = _timed(plan)
    planners: dict[str, dict[str, Any]] = {}
    for name in BASELINES:
        ideals, own_ms, _ = _timed(partial(baseline_ideals, name, graph, problem))
        planners[name] = {"cpu_ms": own_ms, "bottleneck_us": slowest_work(problem, ideals)}
    try:
        theirs, own_ms, _ = _timed(lambda: compat_plan(graph, devices, _ANY_BANDWIDTH))
        planners["PipeDream"] = {
            "cpu_ms": own_ms,
            "bottleneck_us": 1e6 * theirs.bottleneck_s,
            "states": theirs.states,
        }
    except JoulecastError as error:
        planners["PipeDream"] = {"cpu_ms": None, "bottleneck_us": None, "refused": str(error)}
    return {
        "plan": report_of(best, problem),
        "cpu_ms": cpu_ms,
        "wall_ms": wall_ms,
        "micro_batches": micro_batches,
        "predicted_speedup": _predicted_speedups(graph, best, micro_batches),
        "planners": planners,
    }


def partition_experiment(
    path: Path, devices: Sequence[int], micro_batches: int, source: str, out: Path
) -> None:
    """Plan one network for several numbers of devices, by our planner and the baselines. The result is
    written as JSON.

    Args:
        path: task graph or PipeDream profile.
        devices: numbers of stages. A number that is larger than the number of nodes is left out.
        micro_batches: number of micro-batches of the predicted pipelines.
        source: whether the graph was ``measured`` here, ``recorded``, or is ``public`` data.
        out: file to write.

    Raises:
        JoulecastError: the graph is not valid.
    """
    graph = read_partitionable(path)
    found = {
        "network": graph.name,
        "source": source,
        "nodes": len(graph.tasks),
        "work_us": graph.work_us,
        "batch": graph.batch,
        "on_devices": {
            str(count): _on_devices(graph, count, micro_batches)
            for count in devices
            if count <= len(graph.tasks)
        },
    }
    with written_aside(out) as aside:
        aside.write_text(json.dumps(found, indent=1))


def stages_for_runtime(graph: TaskGraph, devices: int, planner: str) -> list[list[str]]:
    """Tasks of each stage, as a planner cuts them. The planner is ``exact`` or a baseline.

    Raises:
        JoulecastError: there is no such planner, or there are more stages than tasks.
    """
    problem = pipeline_problem(graph, devices)
    if planner == "exact":
        return [list(stage.nodes) for stage in best_plan(problem).stages]
    if planner not in BASELINES:
        known = ", ".join(("exact", *BASELINES))
        raise JoulecastError(f"planner `{planner}`: unknown (known: {known})")
    before, stages = 0, []
    for ideal in baseline_ideals(planner, graph, problem):
        stages.append([graph.tasks[node].name for node in nodes_in_set(ideal & ~before)])
        before = ideal
    return stages
