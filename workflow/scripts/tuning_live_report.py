"""Write the table of the training that was tuned live."""

import json
from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.report.tables.tuning_live import write_live_table


def main(record: Path, tables: Path) -> None:
    write_live_table(tables, json.loads(record.read_text()))


if __name__ == "__main__":
    run_script(snakemake, main)
