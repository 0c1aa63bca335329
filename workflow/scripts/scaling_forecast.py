"""Forecast the campaign's networks on many nodes of every platform."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.files.writing import written_aside
from joulecast.campaign.scripts import logged
from joulecast.report.tables.scaling import ForecastFiles, forecast_campaign

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        files = ForecastFiles(
            fits=Path(snakemake.input.fits),
            network=Path(snakemake.input.network),
            graphs=[Path(path) for path in snakemake.input.graphs],
            ops=[Path(path) for path in snakemake.input.ops],
            platforms=[Path(path) for path in snakemake.input.platforms],
        )
        forecast = forecast_campaign(files, snakemake.params.config)
        with written_aside(Path(snakemake.output.forecast)) as partial:
            forecast.to_parquet(partial, index=False)
