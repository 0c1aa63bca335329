"""Write the error tables of the campaign."""

from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.fitting import CampaignFit
from joulecast.energy.prices import Prices
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import read_published


def main(fits: Path, published: Path, tables: Path, prices: dict[str, Any] | None = None) -> None:
    fit, paid = CampaignFit.load(fits), Prices(**(prices or {}))
    write_tables(tables, fit, read_published(published), paid)


if __name__ == "__main__":
    run_script(snakemake, main)
