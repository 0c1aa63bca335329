"""Tables of the partitioning experiment: quality of the cuts, pipelines that were run, planning times."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.partition.baselines import BASELINES
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import FromPaper, read_published_file
from joulecast.runs.files.reading import read_json_object

_QUALITY_NOTES = [
    "Work alone counts. `bottleneck_us` is the slowest stage's forward and backward of a batch; "
    "`lower_bound_us` what no pipeline is below; `certified` that both are equal, `proof` says why. A "
    "planner's ratio is its bottleneck over ours, which is the optimum where it is certified.",
    "`speedup_bound` is the work over the bottleneck. Predicted speedups are simulated, event by event, with "
    "`micro_batches` and free transfers; the paper's were measured, with an unknown number of micro-batches.",
]
_PIPELINE_NOTES = [
    "Pipelines of torch.distributed.pipelining, measured on this machine, a core a rank. `predicted_s` is "
    "the event-exact makespan of stages that were timed one by one, alone; `speedup` is against the network "
    "that is not cut, with the same micro-batches on one core.",
    "`capacity` is what as many independent processes reach together on this machine: no pipeline can gain "
    "more here than that.",
]


_PIPELINE_COLUMNS = (
    *("network", "stages", "planner", "schedule", "micro_batches", "batch", "image_size", "source"),
    *("oversubscribed", "step_s", "predicted_s", "error_percent", "uncut_s", "speedup", "capacity"),
    *("slowest_stage_s", "disturbed"),
)


class PublishedPartitioning(FromPaper):
    """The published numbers: seconds to partition, by network and devices, and speedups, by devices."""

    partition_s: dict[str, dict[int, dict[str, float | str]]]
    pipeline_speedup: dict[int, float]


def read_published_partitioning(path: Path) -> PublishedPartitioning:
    """Read ``config/published/antichain.yaml``.

    Raises:
        JoulecastError: the file is missing, or has wrong keys.
    """
    return read_published_file(PublishedPartitioning, path)


def _column(planner: str) -> str:
    return planner.lower().replace(", ", "_").replace(" ", "_")


def _rows(
    experiments: Sequence[Mapping[str, Any]],
) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
    """The first columns of a row in all tables, and the experiment with that many devices."""
    return [
        (
            {
                "network": experiment["network"],
                "devices": int(count),
                "source": experiment["source"],
                "nodes": experiment["nodes"],
            },
            found,
        )
        for experiment in experiments
        for count, found in experiment["on_devices"].items()
    ]


def planning_times(
    experiments: Sequence[Mapping[str, Any]], published: PublishedPartitioning
) -> pd.DataFrame:
    """Times of all planners, with the times in the paper next to them."""
    rows = []
    for head, found in _rows(experiments):
        row = head | {
            "joulecast_cpu_ms": found["cpu_ms"],
            "joulecast_wall_ms": found["wall_ms"],
            "certified": found["plan"]["certified"],
        }
        for planner, theirs in found["planners"].items():
            row[f"{_column(planner)}_cpu_ms"] = theirs["cpu_ms"]
        row["pipedream_states"] = found["planners"]["PipeDream"].get("states")
        row["why_no_pipedream"] = found["planners"]["PipeDream"].get("refused")
        printed = published.partition_s.get(head["network"], {}).get(head["devices"], {})
        row["published_handsplit_minutes"] = printed.get("handsplit_minutes")
        for name in ("cudasize", "hashrate", "paper"):
            row[f"published_{name}_s"] = printed.get(name)
        rows.append(row)
    return pd.DataFrame(rows)


def quality(experiments: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Bottlenecks, lower bounds, and the ratio of every planner's bottleneck to the optimum."""
    rows = []
    for head, found in _rows(experiments):
        plan = found["plan"]
        row = head | {
            "bottleneck_us": plan["bottleneck"],
            "lower_bound_us": plan["lower_bound"],
            "certified": plan["certified"],
            "proof": plan["certificate"]["proof"],
        }
        for planner in (*BASELINES, "PipeDream"):
            theirs = found["planners"][planner]["bottleneck_us"]
            row[f"{_column(planner)}_ratio"] = (
                None if theirs is None else theirs / plan["bottleneck"]
            )
        row["speedup_bound"] = plan["speedup_bound"]
        row["micro_batches"] = found["micro_batches"]
        for schedule, speedup in found["predicted_speedup"].items():
            row[f"predicted_speedup_{schedule}"] = speedup
        rows.append(row)
    return pd.DataFrame(rows)


def _printed_speedups(published: PublishedPartitioning) -> str:
    """The paper's speedups. The paper names no network for them, so they are in no row."""
    printed = (f"{s:g} on {d} devices" for d, s in published.pipeline_speedup.items())
    return f"The paper prints one speedup for all its networks: {', '.join(printed)}."


def write_partition_tables(
    folder: Path,
    experiments: Sequence[Path],
    runs: Sequence[Path],
    published: PublishedPartitioning,
) -> None:
    """Write all three tables.

    Args:
        folder: folder of the tables.
        experiments: files of :func:`joulecast.partition.planner_experiment.partition_experiment`.
        runs: files of pipelines that were run.
        published: the paper's numbers.
    """
    found = [read_json_object(path, "partition experiment") for path in experiments]
    paper = f"Published: {published.paper}; {published.where}."
    write_table(
        folder / "partition_quality",
        "How good their cuts are",
        [*_QUALITY_NOTES, f"{_printed_speedups(published)} {paper}"],
        quality(found),
    )
    write_table(
        folder / "partition_pipeline",
        "Pipelines that were run",
        _PIPELINE_NOTES,
        pipeline_runs([read_json_object(path, "partition experiment") for path in runs]),
    )


def pipeline_runs(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each pipeline that was run. It has the medians that are in the record."""
    rows = []
    for record in records:
        summary = record["summary"]
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
                "disturbed": "; ".join(record.get("disturbed", [])),
                "step_s": summary["step_s"],
                "predicted_s": summary["predicted_makespan_s"],
                "error_percent": 100 * (summary["predicted_makespan_s"] / summary["step_s"] - 1),
                "uncut_s": summary["unpartitioned_s"],
                "speedup": summary["speedup"],
                "capacity": summary["capacity"],
                "slowest_stage_s": max(
                    forward + backward
                    for forward, backward in zip(
                        summary["forward_s"], summary["backward_s"], strict=True
                    )
                ),
            }
        )
    return pd.DataFrame(rows, columns=list(_PIPELINE_COLUMNS))
