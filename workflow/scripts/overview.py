"""Write the answers of a campaign, and its overview page."""

from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.prices import Prices
from joulecast.report.pages.overview import write_overview


def main(configfile: str | None, prices: dict[str, Any], page: Path) -> None:
    write_overview(page.parent, page, configfile, Prices(**prices))


if __name__ == "__main__":
    run_script(snakemake, main)
