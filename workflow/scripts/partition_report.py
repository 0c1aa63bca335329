"""Write the tables and figures of the partitioning experiment."""

import json
from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.report.figures.pipelines import stages_of_network
from joulecast.report.tables.partition import read_published_partitioning, write_partition_tables


def main(
    experiments: list[Path],
    pipelines: list[Path],
    published: Path,
    tables_folder: Path,
    figures_folder: Path,
) -> None:
    numbers = read_published_partitioning(published)
    write_partition_tables(tables_folder, experiments, pipelines, numbers)
    for path in experiments:
        stages_of_network(json.loads(path.read_text()), figures_folder / f"partition_{path.stem}")


if __name__ == "__main__":
    run_script(snakemake, main)
