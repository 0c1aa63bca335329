"""Write the tables of the partitioning experiment."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.report.tables.partition import read_published_partitioning, write_partition_tables


def main(experiments: list[Path], pipelines: list[Path], published: Path, tables: Path) -> None:
    numbers = read_published_partitioning(published)
    write_partition_tables(tables, experiments, pipelines, numbers)


if __name__ == "__main__":
    run_script(snakemake, main)
