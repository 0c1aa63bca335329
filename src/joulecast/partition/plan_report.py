"""A plan as a dictionary, for the command line and the tables. It has the same form for all modes and
formats."""

import time
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.partition.order import nodes_in_set
from joulecast.partition.pipedream import compat_plan
from joulecast.partition.planner import MOST_IDEALS, Plan, best_plan
from joulecast.partition.problem import CostModel, Problem, pipeline_problem
from joulecast.partition.request import PartitionRequest
from joulecast.partition.taskgraph import TaskGraph
from joulecast.quantities import counted

_US_PER = {"us": 1.0, "ms": 1e3}


def _number(value: float) -> float | int:
    """The number, as an ``int`` if it is whole (microseconds, bytes)."""
    return int(value) if float(value).is_integer() else value


def plan_report(
    graph: TaskGraph,
    devices: int,
    cost: CostModel | None = None,
    bandwidth: float | None = None,
    replicate: bool = False,
    memory: float | None = None,
    most_ideals: int | None = None,
) -> dict[str, Any]:
    """The best plan of a graph. Times are in the unit of the graph's file. Keys that end with ``_us`` have
    microseconds, if known.

    Raises:
        JoulecastError: an option has no effect, or no pipeline fits.
    """
    problem = pipeline_problem(graph, devices, cost or "compute", bandwidth, replicate, memory)
    plan = best_plan(problem, MOST_IDEALS if most_ideals is None else most_ideals)
    return report_of(plan, problem, graph.time_unit)


def report_of(plan: Plan, problem: Problem, unit: str = "us") -> dict[str, Any]:
    """A plan as a dictionary. Its times are in ``unit``, a key of :data:`_US_PER`."""

    def time_of(value: float | None) -> float | int | None:
        return None if value is None else _number(value / _US_PER[unit])

    return {
        "graph": plan.graph,
        "mode": "exact",
        "cost": problem.cost,
        "devices": problem.devices,
        "unit": unit,
        "bottleneck": time_of(plan.bottleneck),
        "bottleneck_us": _number(plan.bottleneck),
        "lower_bound": time_of(plan.lower_bound),
        "gap_percent": None if plan.gap is None else 100 * plan.gap,
        "certified": plan.is_certified,
        "certificate": {
            "lower_bound": time_of(plan.lower_bound),
            "infeasible": time_of(plan.bottleneck - 1) if plan.is_certified else None,
            "infeasible_below": time_of(plan.bottleneck) if plan.is_certified else None,
            "proof": plan.proof,
            "ideals": plan.searched_ideals,
        },
        "work": time_of(plan.work),
        "speedup_bound": plan.speedup_bound,
        "planning_cpu_s": plan.cpu_s,
        "stages": [
            {
                "stage": number,
                "devices": stage.replicas,
                "nodes": list(stage.nodes),
                "time": time_of(stage.time),
                "work": time_of(stage.work),
                "transfer_in": time_of(stage.enters),
                "transfer_out": time_of(stage.leaves),
                "bytes_in": _number(stage.bytes_in),
                "bytes_out": _number(stage.bytes_out),
                "parameter_bytes": _number(stage.parameters),
                "activation_bytes": _number(stage.activations),
                "stashed_micro_batches": stage.stashed,
                "memory": _number(stage.memory),
            }
            for number, stage in enumerate(plan.stages)
        ],
    }


def compat_report(
    graph: TaskGraph,
    devices: int,
    cost: CostModel | None,
    bandwidth: float | None,
    replicate: bool,
    memory: float | None,
) -> dict[str, Any]:
    """The plan of PipeDream's optimizer for a graph. This optimizer gives no proof, and cannot take work plus
    transfers as the cost.

    Raises:
        JoulecastError: the optimizer does not have an option that is requested.
    """
    if cost == "sum" or memory is not None:
        what = "--cost sum" if cost == "sum" else "--memory"
        raise JoulecastError(f"--mode compat knows no {what}; use --mode exact")
    cost = cost or "compute"
    # Checks the options as the other mode does.
    pipeline_problem(graph, devices, cost, bandwidth, replicate)
    begin = time.process_time()
    plan = compat_plan(graph, devices, bandwidth or 1e9, replicate, cost == "max")
    cpu_s = time.process_time() - begin
    per_unit = _US_PER[graph.time_unit] / 1e6
    stages, before = [], 0
    for number, stage in enumerate(plan.stages):
        tasks = [graph.tasks[node] for node in nodes_in_set(stage.ideal & ~before)]
        stages.append(
            {
                "stage": number,
                "devices": stage.devices,
                "nodes": [task.name for task in tasks],
                "work": stage.work_s / per_unit,
                "parameter_bytes": sum(task.parameter_bytes for task in tasks),
                "activation_bytes": sum(task.activation_bytes for task in tasks),
            }
        )
        before = stage.ideal
    return {
        "graph": graph.name,
        "mode": "compat",
        "cost": cost,
        "devices": devices,
        "unit": graph.time_unit,
        "bottleneck": plan.bottleneck_s / per_unit,
        "bottleneck_us": plan.bottleneck_s * 1e6,
        "lower_bound": None,
        "certified": False,
        "certificate": None,
        "work": graph.work_us / 1e6 / per_unit,
        "speedup_bound": graph.work_us / 1e6 / (plan.bottleneck_s or 1),
        "states": plan.states,
        "planning_cpu_s": cpu_s,
        "stages": stages,
    }


def partition_report(graph: TaskGraph, request: PartitionRequest) -> dict[str, Any]:
    """The stages of a graph, by :func:`plan_report` or by :func:`compat_report`.

    Raises:
        JoulecastError: as these two, or ``bandwidth_bytes_per_s`` or ``ideals`` has no effect.
    """
    options = (
        request.devices,
        request.cost,
        request.bandwidth_bytes_per_s,
        request.replicate,
        request.memory_bytes,
    )
    counts_transfers = request.cost in ("max", "sum") or request.replicate
    if request.bandwidth_bytes_per_s is not None and not counts_transfers:
        raise JoulecastError(
            "--bandwidth: without --cost max, --cost sum or --replicate, transfers take no time"
        )
    if request.mode == "compat":
        if request.ideals is not None:
            raise JoulecastError("--ideals: only with --mode exact")
        report = compat_report(graph, *options)
    else:
        report = plan_report(graph, *options, request.ideals)
    return report | {"times_are": _times_are(graph)}


def _times_are(graph: TaskGraph) -> str:
    """Where the times of a graph's tasks come from, if its file says it."""
    known = graph.provenance
    parts = [str(known.get("source") or "given by its file")]
    host = known.get("host")
    if isinstance(host, dict) and host.get("cpu"):
        parts.append(f"on {host['cpu']}")
    if graph.batch is not None:
        parts.append(f"with batch {graph.batch}")
    return " ".join(parts)


def summary(report: dict[str, Any]) -> str:
    """Two or three lines for people."""
    unit = f" {report['unit']}"
    lines = [
        f"{report['graph']}: {counted(len(report['stages']), 'stage')}, "
        f"bottleneck {report['bottleneck']:,.10g}{unit}, speedup up to {report['speedup_bound']:.3f}"
    ]
    if report["certificate"]:
        bound = f"lower bound {report['lower_bound']:,.10g}{unit}"
        lines.append(f"{bound}: {report['certificate']['proof']}")
    lines.append(f"times: {report['times_are']}")
    lines.append(f"planned in {1e3 * report['planning_cpu_s']:.1f} ms")
    return "\n".join(lines)


def _amount(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
    return "-" if value is None else f"{value / scale:.{digits}f}"


def explained(report: dict[str, Any]) -> str:
    """A table of the stages: where the time, the memory and the traffic are."""
    head = (
        f"{'stage':>5} {'devices':>8} {'tasks':>6} {'time':>12} {'share':>6} {'MB in':>9} {'MB out':>9} "
        f"{'memory MB':>10}  from .. to"
    )
    rows = [summary(report), "", head]
    for stage in report["stages"]:
        taken = stage.get("time", stage["work"])
        nodes = stage["nodes"]
        rows.append(
            f"{stage['stage']:>5} {stage['devices']:>8} {len(nodes):>6} {taken:>12.6g} "
            f"{100 * taken / (report['bottleneck'] or 1):>5.0f}% {_amount(stage.get('bytes_in'), 1e6):>9} "
            f"{_amount(stage.get('bytes_out'), 1e6):>9} {_amount(stage.get('memory'), 1e6):>10}  "
            f"{nodes[0]} .. {nodes[-1]}"
        )
    rows.append("")
    rows.append(
        "share: of the bottleneck. MB in and out: activations; gradients of the same size go back."
    )
    return "\n".join(rows)
