"""Write the tables of the partitioning experiment."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.report.tables.partition import PublishedPartitioning, write_partition_tables


def main(experiments: list[Path], pipelines: list[Path], published: Path, tables: Path) -> None:
    numbers = PublishedPartitioning.read(published)
    write_partition_tables(tables, experiments, pipelines, numbers)


if __name__ == "__main__":
    run_script(snakemake, main)
