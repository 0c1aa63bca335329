"""Measure how long the ops of a network take on this machine, while all cores train."""

from pathlib import Path

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.scripts import run_script
from joulecast.graphs.measure_ops import measure_database
from joulecast.runs.provenance import usable_cores
from joulecast.measure.training.machine import machine_lock, wait_for_quiet


def main(
    network: str,
    size: dict[str, int],
    batches: list[int],
    config: Config,
    database: Path,
    log: Path,
) -> None:
    with open(log, "a") as file, machine_lock(file):
        load = wait_for_quiet(file, config.quiet.wait_s)
        ranks = usable_cores()
        measure_database(network, **size, batches=batches, ranks=ranks, out=database, load=load)


if __name__ == "__main__":
    run_script(snakemake, main)
