"""Write the tables and figures of the partitioning experiment."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.report.tables.partition import read_published_partitioning, write_partition_tables
from joulecast.report.figures.pipelines import stages_of_network

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    experiments: list[Path], pipelines: list[Path], published: Path, tables: Path, figures: Path
) -> None:
    numbers = read_published_partitioning(published)
    write_partition_tables(tables, experiments, pipelines, numbers)
    for path in experiments:
        stages_of_network(json.loads(path.read_text()), figures / f"partition_{path.stem}")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            experiments=[Path(path) for path in snakemake.input.experiments],
            pipelines=[Path(path) for path in snakemake.input.pipelines],
            published=Path(snakemake.input.published),
            tables=Path(snakemake.params.tables),
            figures=Path(snakemake.params.figures),
        )
