"""Write the table and figure of the training that was tuned live."""

import json
from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.report.figures.live import live_cost
from joulecast.report.tables.tuning_live import write_live_table


def main(record: Path, tables_folder: Path, figures_folder: Path) -> None:
    tuned = json.loads(record.read_text())
    write_live_table(tables_folder, tuned)
    live_cost(tuned, figures_folder / "tuning_live")


if __name__ == "__main__":
    run_script(snakemake, main)
