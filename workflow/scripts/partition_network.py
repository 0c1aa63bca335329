"""Cut one network into stages by every planner."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.partition.planner_experiment import partition_experiment


def main(
    graph: Path, devices: list[int], micro_batches: int, source: str, experiment: Path
) -> None:
    partition_experiment(
        graph, devices=devices, micro_batches=micro_batches, source=source, out=experiment
    )


if __name__ == "__main__":
    run_script(snakemake, main)
