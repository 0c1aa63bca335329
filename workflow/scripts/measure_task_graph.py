"""Measure how long every task of a network takes on one core."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.partition.measure_tasks import measure_tasks

CLASSES, PASSES = 1000, 5


def main(network: str, size: dict[str, int], graph: Path) -> None:
    tasks = measure_tasks(network, size["batch_size"], size["image_size"], CLASSES, PASSES)
    tasks.write(graph)


if __name__ == "__main__":
    run_script(snakemake, main)
