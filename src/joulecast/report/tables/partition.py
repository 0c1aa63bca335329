"""Tables of the partitioning experiment: quality of the cuts, and pipelines that were run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.partition.baselines import BASELINES
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import FromPaper
from joulecast.runs.files.reading import read_json_object

_QUALITY_NOTES = [
    "Only work counts, not transfers. `bottleneck_us`: forward and backward time of the slowest stage, for a "
    "batch. `lower_bound_us`: no pipeline has a smaller bottleneck. `certified`: both are equal; `proof` "
    "says why. A planner's ratio is its bottleneck over ours.",
    "`speedup_bound` is the work over the bottleneck. Predicted speedups are simulated with `micro_batches`, "
    "without the time of transfers. The paper's were measured, with an unknown number of micro-batches.",
]
_PIPELINE_NOTES = [
    "Pipelines of torch.distributed.pipelining, measured on this machine, with a core for each rank. "
    "`predicted_s` is simulated from stages that were timed alone. `speedup` is relative to the network that "
    "is not cut, with the same micro-batches on one core.",
    "`capacity` is the speedup of as many independent processes on this machine. No pipeline can be faster.",
]


class PublishedPartitioning(FromPaper):
    """The published numbers: seconds to partition, by network and devices, and speedups, by devices."""

    partition_s: dict[str, dict[int, dict[str, float | str]]]
    pipeline_speedup: dict[int, float]


def quality(experiments: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Bottlenecks, lower bounds, and the ratio of every planner's bottleneck to the optimum.

    Args:
        experiments: results of :func:`joulecast.partition.planner_experiment.partition_experiment`.
    """
    rows = []
    for experiment in experiments:
        for devices, found in experiment["on_devices"].items():
            plan = found["plan"]
            row = {
                "network": experiment["network"],
                "devices": int(devices),
                "source": experiment["source"],
                "nodes": experiment["nodes"],
                "bottleneck_us": plan["bottleneck"],
                "lower_bound_us": plan["lower_bound"],
                "certified": plan["certified"],
                "proof": plan["certificate"]["proof"],
            }
            for planner in (*BASELINES, "PipeDream"):
                theirs = found["planners"][planner]["bottleneck_us"]
                name = planner.lower().replace(", ", "_").replace(" ", "_")
                row[f"{name}_ratio"] = None if theirs is None else theirs / plan["bottleneck"]
            row["speedup_bound"] = plan["speedup_bound"]
            row["micro_batches"] = found["micro_batches"]
            for schedule, speedup in found["predicted_speedup"].items():
                row[f"predicted_speedup_{schedule}"] = speedup
            rows.append(row)
    return pd.DataFrame(rows)


def pipeline_runs(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each pipeline that was run. It has the medians that are in the record."""
    rows = []
    for record in records:
        summary = record["summary"]
        stages_s = zip(summary["forward_s"], summary["backward_s"], strict=True)
        rows.append(
            {
                "network": record["network"],
                "stages": record["ranks"],
                "planner": record["planner"],
                "schedule": record["schedule"],
                "micro_batches": record["micro_batches"],
                "batch": record["global_batch"],
                "image_size": record["image_size"],
                "source": record["label"],
                "oversubscribed": record["oversubscribed"],
                "step_s": summary["step_s"],
                "predicted_s": summary["predicted_makespan_s"],
                "error_percent": 100 * (summary["predicted_makespan_s"] / summary["step_s"] - 1),
                "uncut_s": summary["unpartitioned_s"],
                "speedup": summary["speedup"],
                "capacity": summary["capacity"],
                "slowest_stage_s": max(map(sum, stages_s)),
                "disturbed": "; ".join(record.get("disturbed", [])),
            }
        )
    return pd.DataFrame(rows)


def write_partition_tables(
    folder: Path,
    experiments: Sequence[Path],
    runs: Sequence[Path],
    published: PublishedPartitioning,
) -> None:
    """Write ``partition_quality`` and ``partition_pipeline``.

    Args:
        experiments: files with results of
            :func:`joulecast.partition.planner_experiment.partition_experiment`.
    """
    found = [read_json_object(path, "partition experiment") for path in experiments]
    printed = ", ".join(f"{s:g} on {d} devices" for d, s in published.pipeline_speedup.items())
    write_table(
        folder / "partition_quality",
        "How good the planners' cuts are",
        [
            *_QUALITY_NOTES,
            f"The paper prints one speedup for all its networks: {printed}. Published: {published.paper}; "
            f"{published.where}.",
        ],
        quality(found),
    )
    write_table(
        folder / "partition_pipeline",
        "Pipelines that were run",
        _PIPELINE_NOTES,
        pipeline_runs([read_json_object(path, "partition experiment") for path in runs]),
    )
