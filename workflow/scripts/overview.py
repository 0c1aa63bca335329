"""Write the overview page of the results."""

from pathlib import Path
from typing import Any

from joulecast.campaign.scripts import run_script
from joulecast.energy.prices import Prices
from joulecast.report.pages.overview import write_overview
from joulecast.report.tables.failed_runs import write_failed_runs


def main(results: Path, configfile: str | None, prices: dict[str, Any], page: Path) -> None:
    if (results / "attempts").is_dir():
        # The table may be as old as the start of the campaign.
        write_failed_runs(results)
    write_overview(results, page, configfile, Prices(**prices))


if __name__ == "__main__":
    run_script(snakemake, main)
