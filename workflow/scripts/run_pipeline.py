"""Measure a network's tasks, cut it, and run it as a pipeline on this machine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.files.writing import written_aside
from joulecast.graphs.measure_tasks import measure_tasks
from joulecast.campaign.scripts import logged
from joulecast.partition.planner_experiment import stages_for_runtime
from joulecast.training.pipeline_runs import measure_pipeline

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

CLASSES, PASSES = 10, 5


def main(run: dict[str, Any], log_file: Path, out: Path, wait_s: float) -> None:
    # The tasks of one micro-batch: what a stage does at a time.
    samples = run["batch_size"] // run["micro_batches"]
    graph = measure_tasks(run["network"], samples, run["image_size"], CLASSES, PASSES)
    record = measure_pipeline(
        run["network"],
        run["image_size"],
        CLASSES,
        run["batch_size"],
        run["micro_batches"],
        run["schedule"],
        stages_for_runtime(graph, run["stages"], run["planner"]),
        log_file,
        # More stages than cores say nothing of speed; the record and the table tell.
        oversubscribe=True,
        quiet_wait_s=wait_s,
    )
    with written_aside(out) as partial:
        partial.write_text(json.dumps({"planner": run["planner"], **record}, indent=1) + "\n")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            snakemake.params.run,
            log_file=Path(snakemake.log[0]).with_suffix(".ranks.log"),
            out=Path(snakemake.output.record),
            wait_s=snakemake.config["quiet"]["wait_s"],
        )
