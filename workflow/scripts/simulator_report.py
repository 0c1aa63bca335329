"""Write the tables and figures of the simulator."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.platforms import read_platform
from joulecast.report.tables.simulator import read_published_simulators, write_simulator_tables
from joulecast.report.figures.predicted import simulator_predictions
from joulecast.report.figures.time_parts import step_by_node_count

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    judged: str,
    forecast: str,
    published: Path,
    platform: Path,
    devices: list[int],
    tables: Path,
    figures: Path,
) -> None:
    import pandas as pd

    steps, rows = pd.read_parquet(judged), pd.read_parquet(forecast)
    numbers = read_published_simulators(published)
    write_simulator_tables(tables, steps, rows, read_platform(platform), numbers, devices)
    simulator_predictions(steps, figures / "simulator_predicted_against_measured")
    step_by_node_count(rows, figures / "step_by_node_count")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            judged=snakemake.input.judged,
            forecast=snakemake.input.forecast,
            published=Path(snakemake.input.published),
            platform=Path(snakemake.input.platform),
            devices=snakemake.params.speed_devices,
            tables=Path(snakemake.params.tables),
            figures=Path(snakemake.params.figures),
        )
