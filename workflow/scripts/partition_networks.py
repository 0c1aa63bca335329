"""Cut networks into stages by every planner."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.partition.planner_experiment import partition_experiment


def main(
    graphs: list[Path],
    devices: list[int],
    micro_batches: int,
    source: str,
    experiments: list[Path],
) -> None:
    for graph, out in zip(graphs, experiments, strict=True):
        print(graph, flush=True)
        partition_experiment(
            graph, devices=devices, micro_batches=micro_batches, source=source, out=out
        )


if __name__ == "__main__":
    run_script(snakemake, main)
