"""Write what the campaign answers by itself: forecasts, advice, costs, and what was measured."""

from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.prices import Prices
from joulecast.report.campaign_answers import write_answers


def main(fits: Path, configfile: str | None, prices: dict[str, Any], tables: Path) -> None:
    write_answers(fits.parent, tables, Prices(**prices), configfile)


if __name__ == "__main__":
    run_script(snakemake, main)
