"""Cut one network into stages by every planner."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.partition.planner_experiment import partition_experiment

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        partition_experiment(
            Path(snakemake.input.graph),
            devices=snakemake.params.devices,
            micro_batches=snakemake.params.micro_batches,
            source=snakemake.params.source,
            out=Path(snakemake.output.experiment),
        )
