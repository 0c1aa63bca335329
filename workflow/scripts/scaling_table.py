"""Write the table of the scaling forecast, with money where prices are given."""

from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.prices import Prices
from joulecast.report.tables.scaling import write_scaling_forecast


def main(forecast: Path, prices: dict[str, Any], device: str, tables: Path) -> None:
    rows = pd.read_parquet(forecast)
    write_scaling_forecast(tables, rows, Prices(**prices), device == "cuda")


if __name__ == "__main__":
    run_script(snakemake, main)
