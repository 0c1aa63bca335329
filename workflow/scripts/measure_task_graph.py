"""Measure what every task of a network takes on one core."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.graphs.measure_tasks import measure_tasks
from joulecast.campaign.scripts import logged

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        size = snakemake.params.size
        graph = measure_tasks(
            snakemake.wildcards.network, size["batch_size"], size["image_size"], 1000, 5
        )
        graph.write(Path(snakemake.output.graph))
