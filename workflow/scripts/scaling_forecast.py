"""Forecast the campaign's networks on many nodes of every platform."""

from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.report.tables.scaling import ForecastFiles, forecast_campaign


def main(
    fits: Path,
    network: Path,
    graphs: list[Path],
    ops: list[Path],
    platforms: list[Path],
    sections: dict[str, Any],
    forecast: Path,
) -> None:
    rows = forecast_campaign(ForecastFiles(fits, network, graphs, ops, platforms), sections)
    with written_aside(forecast) as partial:
        rows.to_parquet(partial, index=False)


if __name__ == "__main__":
    run_script(snakemake, main)
