"""Measure a network's tasks, cut it, and run it as a pipeline on this machine."""

import json
from pathlib import Path
from typing import Any

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.partition.measure_tasks import measure_tasks
from joulecast.partition.planner_experiment import stages_for_runtime
from joulecast.partition.pipeline_runs import measure_pipeline

CLASSES, PASSES = 10, 5


def main(run: dict[str, Any], config: Config, record: Path, log: Path) -> None:
    ranks_log = log.with_suffix(".ranks.log")
    # A stage computes one micro-batch at a time.
    samples = run["batch_size"] // run["micro_batches"]
    graph = measure_tasks(run["network"], samples, run["image_size"], CLASSES, PASSES)
    stages = stages_for_runtime(graph, run["stages"], run["planner"])
    measured = measure_pipeline(run, stages, CLASSES, ranks_log, config.quiet.wait_s)
    with written_aside(record) as partial:
        partial.write_text(json.dumps({"planner": run["planner"], **measured}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(snakemake, main)
