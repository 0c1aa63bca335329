"""Write the tables of the simulator."""

from pathlib import Path

import pandas as pd

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.platforms import read_platform
from joulecast.report.tables.simulator import (
    PublishedSimulators,
    write_gpu_tables,
    write_simulator_tables,
)


def main(
    judged: Path,
    published: Path,
    platform: Path,
    speed_devices: list[int],
    tables: Path,
    on_gpus: Path | None = None,
    collectives: Path | None = None,
) -> None:
    steps = pd.read_parquet(judged)
    hc2, numbers = read_platform(platform), PublishedSimulators.read(published)
    write_simulator_tables(tables, steps, hc2, numbers, speed_devices)
    if on_gpus is not None and collectives is not None:
        steps, all_reduces = pd.read_parquet(on_gpus), pd.read_parquet(collectives)
        write_gpu_tables(tables, steps, all_reduces, numbers.on_gpus_percent)


if __name__ == "__main__":
    run_script(snakemake, main)
