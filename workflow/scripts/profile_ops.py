"""Measure what the ops of a network cost here, with all cores training side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.graphs.measure_ops import measure_database
from joulecast.records.provenance import usable_cores
from joulecast.training.machine import held_machine

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    network: str, size: dict[str, int], batches: list[int], out: Path, log: Path, wait_s: float
) -> None:
    with open(log, "a") as file, held_machine(file, wait_s) as machine:
        load = machine.wait_for_quiet()
        ranks = usable_cores()
        measure_database(network, **size, batches=batches, ranks=ranks, out=out, load=load)


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            network=snakemake.wildcards.network,
            size=snakemake.params.size,
            batches=snakemake.params.batches,
            out=Path(snakemake.output.database),
            log=Path(snakemake.log[0]),
            wait_s=snakemake.config["quiet"]["wait_s"],
        )
