"""Write the error tables of the campaign."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.fitting import CampaignFit
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import read_published


def main(fits: Path, published: Path, tables: Path) -> None:
    write_tables(tables, CampaignFit.load(fits), read_published(published))


if __name__ == "__main__":
    run_script(snakemake, main)
